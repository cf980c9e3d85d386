"""The learner: DeepSpeed, log-probabilities, prefix sharing, adapters."""

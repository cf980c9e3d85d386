"""Those who act: policies, prompts, rollout, baselines."""

"""How the policy is updated: advantages, segments, loss, the DeepSpeed engine, the warm start."""

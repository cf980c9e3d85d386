"""Learners: advantages, segments, loss, the DeepSpeed engine and the warm start."""

"""Agents: policies, prompts, rollout and baselines."""

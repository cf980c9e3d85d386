"""The plugin of verifiers: ``vf-eval roleagent-verifiers``; see :mod:`roleagent.envs.adapters.verifiers_v1`."""

from roleagent.envs.adapters.verifiers_v1 import ChatHarness, TextEnv, TextTaskset

__all__ = ["ChatHarness", "TextEnv", "TextTaskset"]

"""Wrappers that fit every RoleAgent environment, and each other."""

from roleagent.envs.wrappers.curriculum import FailureCurriculum
from roleagent.envs.wrappers.predicted_state import PredictedState, default_horizon
from roleagent.envs.wrappers.step_timeout import StepTimeout
from roleagent.envs.wrappers.tags import Parsed, ReplyReader, TagReader, Tags, parse
from roleagent.envs.wrappers.tool_tags import ToolReader, ToolTags, read_replies

__all__ = [
    "FailureCurriculum",
    "Parsed",
    "PredictedState",
    "ReplyReader",
    "StepTimeout",
    "TagReader",
    "Tags",
    "ToolReader",
    "ToolTags",
    "default_horizon",
    "parse",
    "read_replies",
]

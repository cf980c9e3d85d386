"""Wrappers that fit every RoleAgent environment, and each other."""

from roleagent.envs.wrappers.curriculum import FailureCurriculum
from roleagent.envs.wrappers.predicted_state import PredictedState, default_horizon
from roleagent.envs.wrappers.tags import Parsed, Tags, parse
from roleagent.envs.wrappers.tool_tags import ToolTags

__all__ = ["FailureCurriculum", "Parsed", "PredictedState", "Tags", "ToolTags", "default_horizon", "parse"]

"""The spec of tool environments."""

from roleagent.env_spec import EnvSpec

SPEC = EnvSpec(
    "RoleAgent/ToolEnv-v0",
    entry_point="roleagent.envs.tools.env:ToolEnv",
    splits=("train", "valid", "test", "all"),
)

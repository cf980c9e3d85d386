"""The spec of tool environments."""

from roleagent.env_spec import EnvSpec

SPEC = EnvSpec(
    "RoleAgent/ToolEnv-v0",
    entry_point="roleagent.envs.tools.env:ToolEnv",
    expert="roleagent.envs.tools.expert:make_expert",
    instructions="roleagent.envs.tools.instructions:INSTRUCTIONS",
    splits=("train", "valid", "test", "all"),
)

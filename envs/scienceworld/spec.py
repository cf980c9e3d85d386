"""The spec of ScienceWorld: what it offers, by import string."""

from roleagent.env_spec import EnvSpec

SPEC = EnvSpec(
    "RoleAgent/ScienceWorld-v0",
    entry_point="roleagent.envs.scienceworld.env:ScienceWorldEnv",
    instructions="roleagent.envs.scienceworld.instructions:INSTRUCTIONS",
    data_status="roleagent.envs.scienceworld.data_status:data_status",
    splits=("train", "dev", "test"),
)

"""The card of ScienceWorld: what it offers, by import string."""

from roleagent.env_card import EnvCard

CARD = EnvCard(
    "RoleAgent/ScienceWorld-v0",
    entry_point="roleagent.envs.scienceworld.env:ScienceWorldEnv",
    instructions="roleagent.envs.scienceworld.instructions:INSTRUCTIONS",
    expert="roleagent.envs.scienceworld.expert:make_expert",
    scripted_failures="roleagent.envs.scienceworld.scripted_failures:SCRIPTED_FAILURES",
    failure_modes="roleagent.envs.scienceworld.failures:FAILURE_MODES",
    command_forms="roleagent.envs.scienceworld.commands:COMMAND_FORMS",
    command_tools="roleagent.envs.scienceworld.tools:TOOLS",
    data_status="roleagent.envs.scienceworld.data_status:data_status",
    splits=("train", "dev", "test"),
    extra="scienceworld",
)

"""The card of ALFWorld: what it offers, by import string."""

from roleagent.env_card import EnvCard

CARD = EnvCard(
    "RoleAgent/ALFWorld-v0",
    entry_point="roleagent.envs.alfworld.env:ALFWorldEnv",
    instructions="roleagent.envs.alfworld.instructions:INSTRUCTIONS",
    expert="roleagent.envs.alfworld.expert:make_expert",
    scripted_failures="roleagent.envs.alfworld.scripted_failures:SCRIPTED_FAILURES",
    failure_modes="roleagent.envs.alfworld.failures:FAILURE_MODES",
    command_tools="roleagent.envs.alfworld.tools:TOOLS",
    task_grammar="roleagent.envs.alfworld.task_grammar:task_grammar",
    agentgym="roleagent.envs.alfworld.agentgym:ALFWorldFormat",
    data_status="roleagent.envs.alfworld.data_status:data_status",
    splits=("train", "valid_train", "valid_seen", "valid_unseen"),
)

"""The card of the office: what it offers, by import string."""

from roleagent.env_card import EnvCard

CARD = EnvCard(
    "RoleAgent/Office-v0",
    entry_point="roleagent.envs.office.env:OfficeEnv",
    instructions="roleagent.envs.office.instructions:INSTRUCTIONS",
    expert="roleagent.envs.office.expert:make_expert",
    scripted_failures="roleagent.envs.office.scripted_failures:SCRIPTED_FAILURES",
    failure_modes="roleagent.envs.office.failures:FAILURE_MODES",
    task_grammar="roleagent.envs.office.task_grammar:OfficeGrammar",
    splits=("train", "valid", "test"),
)

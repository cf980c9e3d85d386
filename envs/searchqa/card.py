"""The card of search QA: what it offers, by import string."""

from roleagent.env_card import EnvCard

CARD = EnvCard(
    "RoleAgent/SearchQA-v0",
    entry_point="roleagent.envs.searchqa.env:SearchQAEnv",
    instructions="roleagent.envs.searchqa.instructions:INSTRUCTIONS",
    expert="roleagent.envs.searchqa.expert:make_expert",
    scripted_failures="roleagent.envs.searchqa.scripted_failures:SCRIPTED_FAILURES",
    failure_modes="roleagent.envs.searchqa.failures:FAILURE_MODES",
    command_forms="roleagent.envs.searchqa.commands:COMMAND_FORMS",
    command_tools="roleagent.envs.searchqa.tools:TOOLS",
    task_grammar="roleagent.envs.searchqa.task_grammar:make_grammar",
    agentgym="roleagent.envs.searchqa.agentgym:SearchQAFormat",
    data_status="roleagent.envs.searchqa.data_status:data_status",
    splits=("train", "valid", "test"),
)

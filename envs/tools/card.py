"""The card of tool environments."""

from roleagent.env_card import EnvCard

CARD = EnvCard(
    "RoleAgent/ToolEnv-v0",
    entry_point="roleagent.envs.tools.env:ToolEnv",
    task_grammar="roleagent.envs.tools.task_grammar:ToolTaskGrammar",
    expert="roleagent.envs.tools.expert:make_expert",
    scripted_failures="roleagent.envs.tools.scripted_failures:SCRIPTED_FAILURES",
    failure_modes="roleagent.envs.tools.failures:FAILURE_MODES",
    instructions="roleagent.envs.tools.instructions:INSTRUCTIONS",
    splits=("train", "valid", "test", "all"),
)

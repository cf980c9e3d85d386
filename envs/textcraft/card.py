"""The card of TextCraft: what it offers, by import string."""

from roleagent.env_card import EnvCard

CARD = EnvCard(
    "RoleAgent/TextCraft-v0",
    entry_point="roleagent.envs.textcraft.env:TextCraftEnv",
    instructions="roleagent.envs.textcraft.instructions:INSTRUCTIONS",
    expert="roleagent.envs.textcraft.expert:make_expert",
    scripted_failures="roleagent.envs.textcraft.scripted_failures:SCRIPTED_FAILURES",
    failure_modes="roleagent.envs.textcraft.failures:FAILURE_MODES",
    command_forms="roleagent.envs.textcraft.commands:COMMAND_FORMS",
    command_tools="roleagent.envs.textcraft.tools:TOOLS",
    task_grammar="roleagent.envs.textcraft.task_grammar:CraftingGrammar",
    data_status="roleagent.envs.textcraft.data_status:data_status",
    splits=("train", "valid", "test"),
)

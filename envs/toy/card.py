"""The card of the toy kitchen: what it offers, by import string. Its text and its failures are those of ALFWorld."""

from roleagent.env_card import EnvCard

CARD = EnvCard(
    "RoleAgent/Toy-v0",
    entry_point="roleagent.envs.toy.env:ToyKitchen",
    instructions="roleagent.envs.toy.instructions:INSTRUCTIONS",
    expert="roleagent.envs.toy.expert:make_expert",
    scripted_failures="roleagent.envs.toy.scripted_failures:SCRIPTED_FAILURES",
    failure_modes="roleagent.envs.alfworld.failures:FAILURE_MODES",
    command_tools="roleagent.envs.toy.tools:TOOLS",
    task_grammar="roleagent.envs.toy.task_grammar:ToyGrammar",
    splits=("train", "valid", "test"),
)

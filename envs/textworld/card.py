"""The card of TextWorld: what it offers, by import string."""

from roleagent.env_card import EnvCard

CARD = EnvCard(
    "RoleAgent/TextWorld-v0",
    entry_point="roleagent.envs.textworld.env:TextWorldEnv",
    splits=("train", "valid", "test"),
    needs=("games",),
    extra="textworld",
)

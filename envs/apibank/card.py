"""The card of API-Bank: what it offers, by import string."""

from roleagent.env_card import EnvCard

CARD = EnvCard(
    "RoleAgent/APIBank-v0",
    entry_point="roleagent.envs.apibank.env:APIBankEnv",
    instructions="roleagent.envs.apibank.instructions:INSTRUCTIONS",
    splits=("all",),
    needs=("data_dir",),
)

"""The card of BFCL: what it offers, by import string."""

from roleagent.env_card import EnvCard

CARD = EnvCard(
    "RoleAgent/BFCL-v0",
    entry_point="roleagent.envs.bfcl.env:BFCLEnv",
    instructions="roleagent.envs.bfcl.instructions:INSTRUCTIONS",
    splits=("all",),
    needs=("data_dir",),
)

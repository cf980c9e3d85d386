"""The card of TextWorldExpress: what it offers, by import string."""

from roleagent.env_card import EnvCard

CARD = EnvCard(
    "RoleAgent/TextWorldExpress-v0",
    entry_point="roleagent.envs.textworldexpress.env:TextWorldExpressEnv",
    instructions="roleagent.envs.textworldexpress.instructions:INSTRUCTIONS",
    data_status="roleagent.envs.textworldexpress.data_status:data_status",
    splits=("train", "valid", "test"),
    extra="textworldexpress",
)

"""The card of TravelPlanner: what it offers, by import string."""

from roleagent.env_card import EnvCard

CARD = EnvCard(
    "RoleAgent/TravelPlanner-v0",
    entry_point="roleagent.envs.travelplanner.env:TravelPlannerEnv",
    instructions="roleagent.envs.travelplanner.instructions:INSTRUCTIONS",
    splits=("train",),
    needs=("data_dir",),
)

"""The card of WebShop: what it offers, by import string."""

from roleagent.env_card import EnvCard

CARD = EnvCard(
    "RoleAgent/WebShop-v0",
    entry_point="roleagent.envs.webshop.env:WebShopEnv",
    instructions="roleagent.envs.webshop.instructions:INSTRUCTIONS",
    expert="roleagent.envs.webshop.expert:make_expert",
    scripted_failures="roleagent.envs.webshop.scripted_failures:SCRIPTED_FAILURES",
    failure_modes="roleagent.envs.webshop.failures:FAILURE_MODES",
    command_forms="roleagent.envs.webshop.instructions:COMMAND_FORMS",
    command_tools="roleagent.envs.webshop.tools:TOOLS",
    task_grammar="roleagent.envs.webshop.task_grammar:ShopGrammar",
    agentgym="roleagent.envs.webshop.agentgym:WebShopFormat",
    data_status="roleagent.envs.webshop.data_status:data_status",
    splits=("train", "valid", "test"),
)

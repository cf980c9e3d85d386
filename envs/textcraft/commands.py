"""Commands of TextCraft that hold a number of one's own."""

from roleagent.env_card import CommandForm

COMMAND_FORMS = (CommandForm("get", "fetches any number of a material", "get 2 flint", brackets=False),)

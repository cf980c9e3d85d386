"""The tools of WebShop: a search bar and things to click."""

from collections.abc import Mapping, Sequence
from typing import Any

from roleagent.envs.tools.definition.command_tools import CommandTool, CommandTools


def _clickables(info: Mapping[str, Any]) -> Sequence[str]:
    return info.get("clickables", ())


TOOLS = CommandTools(
    "Find and buy the product that the instruction asks for, with the right options.",
    (
        CommandTool(
            "search",
            "Search the shop for products.",
            ("search[{words}]",),
            {"words": "What to look for, in a few words."},
            unbracketed=("words",),
        ),
        CommandTool(
            "click",
            'Click on something on the page: a product, an option, a button. "Buy Now" buys and ends the episode.',
            ("click[{name}]",),
            {"name": "What to click, as it stands on the page."},
        ),
    ),
    hints=_clickables,
)

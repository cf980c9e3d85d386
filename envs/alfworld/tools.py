"""The tools of ALFWorld: one for every command, or one for each verb."""

from roleagent.envs.alfworld.instructions import INSTRUCTIONS
from roleagent.envs.tools.definition.command_tools import ACT, CommandTool, CommandTools

_THING = {"thing": "A thing and its number, for instance mug 1."}
_PLACE = {"place": "A receptacle and its number, for instance shelf 1. Be at it, or go to it."}
_BOTH, _PLACES = {**_THING, **_PLACE}, ("place",)

TOOLS = CommandTools(
    INSTRUCTIONS.rules,
    (ACT,),
    fine=(
        CommandTool("goto", "Go to a receptacle.", ("go to {place}",), _PLACE, _PLACES),
        CommandTool("open", "Open a receptacle.", ("open {place}",), _PLACE, _PLACES),
        CommandTool("close", "Close a receptacle.", ("close {place}",), _PLACE, _PLACES),
        CommandTool("take", "Take a thing.", ("take {thing} from {place}",), _BOTH, _PLACES),
        CommandTool(
            "put",
            "Put what you carry in or on a receptacle.",
            ("move {thing} to {place}", "put {thing} in/on {place}"),
            _BOTH,
            _PLACES,
        ),
        CommandTool("heat", "Heat what you carry with a microwave.", ("heat {thing} with {place}",), _BOTH, _PLACES),
        CommandTool("cool", "Cool what you carry with a fridge.", ("cool {thing} with {place}",), _BOTH, _PLACES),
        CommandTool("clean", "Clean what you carry with a sink.", ("clean {thing} with {place}",), _BOTH, _PLACES),
        CommandTool("use", "Switch on a lamp.", ("use {thing}",), _THING),
        CommandTool("examine", "Look at a thing or receptacle closely.", ("examine {thing}",), _THING),
        CommandTool("look", "Look around.", ("look",)),
        CommandTool("inventory", "See what you carry.", ("inventory",)),
    ),
)

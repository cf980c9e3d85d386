"""The tools of the toy kitchen: one for every command, or one for each verb."""

from roleagent.envs.tools.definition.command_tools import CommandTool, CommandTools
from roleagent.envs.toy.instructions import INSTRUCTIONS

_THING = {"thing": "A thing, for instance egg."}
_PLACE = {"place": "A place, as it is named at the beginning."}
_BOTH, _PLACES = {**_THING, **_PLACE}, ("place",)

TOOLS = CommandTools(
    INSTRUCTIONS.rules,
    (
        CommandTool(
            "act",
            "Carry out one command in the kitchen, and see what happens.",
            ("{command}",),
            {"command": 'The command, for instance "go to counter" or "take egg from counter".'},
        ),
    ),
    fine=(
        CommandTool("goto", "Go to a place.", ("go to {place}",), _PLACE, _PLACES),
        CommandTool("open", "Open the place at which you are.", ("open {place}",), _PLACE, _PLACES),
        CommandTool(
            "take", "Take a thing from the place at which you are.", ("take {thing} from {place}",), _BOTH, _PLACES
        ),
        CommandTool("put", "Put down what you carry, where you are.", ("move {thing} to {place}",), _BOTH, _PLACES),
        CommandTool("heat", "Heat what you carry, at the stove.", ("heat {thing} with {place}",), _BOTH, _PLACES),
        CommandTool("cool", "Cool what you carry, at the fridge.", ("cool {thing} with {place}",), _BOTH, _PLACES),
        CommandTool("clean", "Clean what you carry, at the sink.", ("clean {thing} with {place}",), _BOTH, _PLACES),
        CommandTool("look", "Look around.", ("look",)),
    ),
)

"""The tools of ScienceWorld: one for every command, or one for each verb."""

from roleagent.envs.scienceworld.instructions import INSTRUCTIONS
from roleagent.envs.tools.definition.command_tools import CommandTool, CommandTools

_THING = {"thing": "A thing as an observation names it, for instance metal pot."}
_TWO = {**_THING, "other": "The other thing."}


def _one(name: str, description: str, verb: str) -> CommandTool:
    return CommandTool(name, description, (f"{verb} {{thing}}",), _THING)


TOOLS = CommandTools(
    INSTRUCTIONS.rules,
    (
        CommandTool(
            "act",
            "Carry out one command in the house, and see what happens.",
            ("{command}",),
            {"command": 'The command, for instance "open door to kitchen" or "use thermometer on water".'},
        ),
    ),
    fine=(
        CommandTool("goto", "Go through an open door.", ("go to {room}",), {"room": "The room, for instance kitchen."}),
        _one("open", "Open a door, for instance door to kitchen, or a container.", "open"),
        _one("close", "Close a door or a container.", "close"),
        CommandTool("look", "Look around in the room.", ("look around",)),
        _one("look_at", "Look at a thing.", "look at"),
        _one("look_in", "Look into a container.", "look in"),
        CommandTool("inventory", "See what you carry.", ("inventory",)),
        _one("pick_up", "Take a thing with you.", "pick up"),
        _one("put_down", "Put down a thing that you carry.", "put down"),
        CommandTool("move", "Move a thing to a container or place.", ("move {thing} to {other}",), _TWO),
        CommandTool("pour", "Pour what a container holds into another.", ("pour {thing} into {other}",), _TWO),
        CommandTool("dunk", "Dunk a container into a liquid.", ("dunk {thing} into {other}",), _TWO),
        CommandTool("use", "Use a tool on a thing, for instance a thermometer.", ("use {thing} on {other}",), _TWO),
        CommandTool("connect", "Connect two parts of a circuit.", ("connect {thing} to {other}",), _TWO),
        _one("disconnect", "Disconnect a part of a circuit.", "disconnect"),
        _one("activate", "Switch a device on.", "activate"),
        _one("deactivate", "Switch a device off.", "deactivate"),
        _one("mix", "Mix what is in a container.", "mix"),
        _one("read", "Read a text.", "read"),
        _one("eat", "Eat a thing.", "eat"),
        _one("flush", "Flush a toilet.", "flush"),
        _one("focus", "Say that the task is about this thing. The wrong one fails the task.", "focus on"),
        CommandTool("wait", "Let ten steps of time pass.", ("wait",)),
        CommandTool("wait_once", "Let one step of time pass.", ("wait1",)),
        CommandTool(
            "choose", "Answer a list of numbered choices.", ("{number}",), {"number": "Its number."}, (), ("number",)
        ),
    ),
)

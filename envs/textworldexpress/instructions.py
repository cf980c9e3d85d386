"""The instructions of TextWorldExpress: the world, the wording of commands, and an example with a made-up task."""

from roleagent.env_card import ExampleStep, Instructions

INSTRUCTIONS = Instructions(
    """\
You play a short text game. Its first message says what to do. Commands (OBJ is a thing as an observation names it):
look around, inventory, task
open OBJ, close OBJ, examine OBJ, read OBJ
take OBJ, put OBJ in OBJ
move north, move south, move east, move west – through an open door
cook OBJ in OBJ, chop OBJ, slice OBJ, dice OBJ, prepare meal, eat meal – where there is a recipe
Other commands are those that the game lists.""",
    (
        ExampleStep(
            "Your task is to find the key. Once you find it, take it.\n\nYou are in the shed. In one part of the room "
            "you see a chest that is closed.",
            "The key may be in the chest.",
            "open chest",
        ),
        ExampleStep("You open the chest. The chest contains a key.", "There it is.", "take key"),
    ),
)

"""The instructions of ScienceWorld: the world, the wording of commands, and an example with a made-up task."""

from roleagent.env_card import ExampleStep, Instructions

INSTRUCTIONS = Instructions(
    """\
You do science experiments in a house with ten rooms: hallway, kitchen, bathroom, living room, bedroom, workshop, art \
studio, greenhouse, foundry, outside. Commands (OBJ is a thing as an observation names it):
open OBJ, close OBJ, activate OBJ, deactivate OBJ, read OBJ, eat OBJ, flush OBJ, mix OBJ
go to LOC – through a door that is open
look around, look at OBJ, look in OBJ, inventory, task
pick up OBJ, put down OBJ, move OBJ to OBJ, pour OBJ into OBJ, dunk OBJ into OBJ
use OBJ on OBJ, for instance a thermometer on a thing
connect OBJ to OBJ, disconnect OBJ
focus on OBJ – says that this is the thing that the task is about; the wrong thing fails the task
wait1 – waits one step; wait – waits ten

If a command is ambiguous, the world lists numbered choices: answer with the number alone.""",
    (
        ExampleStep(
            "Your task is to find a rock. First, focus on the thing. Then, move it to the tray in the hallway.\n"
            "This room is called the hallway. In it, you see:\n\ta tray\nYou also see:\n\tA door to the cellar "
            "(that is closed)",
            "There is no rock here. I look in the cellar.",
            "open door to cellar",
        ),
        ExampleStep("The door is now open.", "I go there.", "go to cellar"),
        ExampleStep("You move to the cellar.", "I look for a rock.", "look around"),
        ExampleStep("This room is called the cellar. In it, you see:\n\ta rock", "That is the thing.", "focus on rock"),
    ),
)

"""The instructions of TextCraft: the task, the wording of commands, and an example with a made-up task."""

from roleagent.env_card import ExampleStep, Instructions

INSTRUCTIONS = Instructions(
    """\
You craft things from materials. The first observation lists crafting commands and the goal. Commands:
get NUMBER ITEM – fetches an item that no crafting command makes
craft NUMBER ITEM using NUMBER ITEM, NUMBER ITEM – crafts exactly as a crafting command says
inventory – shows what you carry

Craft an ingredient first if a crafting command makes it. The numbers are those of the crafting command; repeat it to \
make more. An ingredient such as "board" stands for any board: craft one kind, and name that kind ("ash board"). Some \
crafting commands do not serve the goal. The task ends when the goal is crafted.""",
    (
        ExampleStep(
            "Crafting commands:\ncraft 2 oar using 1 rosewood plank, 2 nail\ncraft 4 rosewood plank using 1 rosewood "
            "trunk\ncraft 1 stool using 3 rosewood plank\n\nGoal: craft oar.",
            "An oar takes a plank and two nails. A plank is crafted from a trunk, so I fetch that first.",
            "get 1 rosewood trunk",
        ),
        ExampleStep("Got 1 rosewood trunk", "Now the plank.", "craft 4 rosewood plank using 1 rosewood trunk"),
        ExampleStep("Crafted 4 minecraft:rosewood_plank", "No command makes nails, so I fetch them.", "get 2 nail"),
        ExampleStep("Got 2 nail", "I have all that an oar takes.", "craft 2 oar using 1 rosewood plank, 2 nail"),
    ),
)

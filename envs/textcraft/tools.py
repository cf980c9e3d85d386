"""The tools of TextCraft: fetching, crafting and the inventory."""

from roleagent.envs.tools.definition.command_tools import CommandTool, CommandTools

TOOLS = CommandTools(
    "Craft the goal. Fetch materials that no crafting command makes, and craft the rest in the right order.",
    (
        CommandTool(
            "get",
            "Fetch a material that no crafting command makes.",
            ("get {number} {item}",),
            {"number": "How many.", "item": 'The name, for instance "ash log".'},
            integers=("number",),
        ),
        CommandTool(
            "craft",
            "Craft something with what you carry.",
            ("craft {command}",),
            {"command": 'What to craft from what, for instance "4 ash board using 1 ash log".'},
        ),
        CommandTool("inventory", "Look at what you carry.", ("inventory",)),
    ),
)

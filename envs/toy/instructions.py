"""The instructions of the toy kitchen: the task, the wording of commands, and an example with a made-up task."""

from roleagent.env_card import ExampleStep, Instructions

INSTRUCTIONS = Instructions(
    """\
You are in a kitchen and bring food to where it is wanted. You are at one place at a time and can carry one thing. \
Commands:
go to PLACE – the places are named at the beginning
open PLACE – a cupboard or drawer at which you are, if it is closed
take THING from PLACE – at which you are
move THING to PLACE – puts down what you carry, where you are
heat THING with stove · cool THING with fridge · clean THING with sink – what you carry, at the stove, fridge or sink
look

Something that is wanted hot, cool or clean has to be made so before it is put in its place. To make it something else \
undoes what was done before.""",
    (
        ExampleStep(
            "You are in a kitchen. There are: basket, drawer 1, counter, table, tray, stove, fridge, sink. Your task "
            "is to: put a clean pear on the tray.",
            "I do not know yet where a pear is. Drawers often hold food, so I begin with drawer 1.",
            "go to drawer 1",
        ),
        ExampleStep("You arrive at drawer 1. It is closed. You carry nothing.", "I have to open it.", "open drawer 1"),
        ExampleStep(
            "You open the drawer 1. You see fig, pear. You carry nothing.",
            "Here is a pear. I take it, then clean it at the sink, then bring it to the tray.",
            "take pear from drawer 1",
        ),
    ),
)

"""The instructions of ALFWorld: the task, the wording of commands, and an example with a made-up task."""

from roleagent.env_card import ExampleStep, Instructions

INSTRUCTIONS = Instructions(
    """\
You are in a room of a house and do a household task. Things and receptacles have a name and a number, as in mug 2 or \
shelf 1. You only see what lies in or on the receptacle at which you are, and can carry one thing. Commands:
go to RECEPTACLE
open RECEPTACLE · close RECEPTACLE
take THING from RECEPTACLE
move THING to RECEPTACLE – puts in or on it what you carry; if this does nothing, the wording here is \
put THING in/on RECEPTACLE
heat THING with RECEPTACLE – a microwave
cool THING with RECEPTACLE – a fridge
clean THING with RECEPTACLE – a sink basin
use THING – switches on a lamp
examine THING · look · inventory

Whatever you do with a receptacle, be at it. To look at something under a lamp, carry it to where the lamp is and use \
the lamp. What is asked for twice is brought one after the other. A command that is not understood or not possible is \
answered with "Nothing happens.".""",
    (
        ExampleStep(
            "You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a coffeetable 1, a "
            "fridge 1, a microwave 1, and a shelf 1.\n\nYour task is to: put a hot bagel in cabinet.",
            "I need a bagel first. Food may lie on the coffee table, which costs one command to see.",
            "go to coffeetable 1",
        ),
        ExampleStep(
            "You arrive at coffeetable 1. On the coffeetable 1, you see a bagel 1, and a newspaper 2.",
            "There is the bagel. I take it, heat it at the microwave, and put it into the cabinet.",
            "take bagel 1 from coffeetable 1",
        ),
        ExampleStep("You pick up the bagel 1 from the coffeetable 1.", "Now I heat it.", "go to microwave 1"),
        ExampleStep(
            "You arrive at microwave 1. The microwave 1 is closed.",
            "I can heat it here.",
            "heat bagel 1 with microwave 1",
        ),
    ),
)

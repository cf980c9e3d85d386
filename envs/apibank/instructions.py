"""The instructions of API-Bank."""

from roleagent.env_card import Instructions

INSTRUCTIONS = Instructions(
    """\
You read a dialogue between a user and an assistant with tools. A line "API" is a call of a tool and its result. Make \
the call that the assistant makes next, with the arguments that the dialogue gives. It is not run.""",
    form="Make exactly one call.",
)

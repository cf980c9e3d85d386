"""The instructions of BFCL."""

from roleagent.env_card import Instructions

INSTRUCTIONS = Instructions(
    """\
You are given functions and a request. Call the functions that the request needs, all of them in one reply, with the \
arguments that it gives. Nothing is run. If no function suits the request, or an argument is missing, make no call.""",
    form="If you make no call, reply with <answer>the reason</answer>.",
)

"""The instructions of the office: the world, and an example with a made-up task. The tools describe themselves."""

from roleagent.env_card import ExampleStep, Instructions
from roleagent.envs.office.goals import command_of
from roleagent.tools import Call

INSTRUCTIONS = Instructions(
    """\
You work in an office and have tools. People and rooms have ids, such as p47 and r12, which find gives. A person has a \
boss, a room, a phone and expenses; a room has a keeper, a price and a size. Boss, room and keeper are ids. \
Amounts of money are written as EUR40.
Answer a question with its result alone: a number, or an amount with its currency. If the task is to book or to meet, \
book the person or the room, and then answer: done.""",
    (
        ExampleStep(
            "What is the price of Marble Porch in USD?",
            "I need the id of Marble Porch first.",
            command_of(Call("find", {"name": "Marble Porch"})),
        ),
        ExampleStep("r12", "Now its price.", command_of(Call("detail", {"id": "r12", "field": "price"}))),
        ExampleStep(
            "EUR40",
            "The task asks for dollars.",
            command_of(Call("convert", {"amount": "EUR40", "to": "USD"})),
        ),
        ExampleStep("USD46", "That is the answer.", command_of("USD46")),
    ),
)

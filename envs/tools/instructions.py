"""The instructions of environments of tools."""

from roleagent.env_card import ExampleStep, Instructions

INSTRUCTIONS = Instructions(
    """\
You solve a task with the help of tools. A call is checked and run, and then you read its result. Call a tool for what \
you do not know, one call in each reply, and correct a call that was refused.""",
    (
        ExampleStep(
            "How many people live in Ulm and Bonn together?",
            "I do not know the numbers. A tool counts people, so I ask it for one city after the other.",
            '{"calls": [{"name": "population", "arguments": {"city": "Ulm"}}]}',
        ),
        ExampleStep("129942", "Now Bonn.", '{"calls": [{"name": "population", "arguments": {"city": "Bonn"}}]}'),
        ExampleStep("335789", "Together they are 129942 + 335789 = 465731.", '{"answer": "465731"}'),
    ),
    form="When you are done, reply with <answer>the answer</answer>, as short as possible, and without a call.",
)

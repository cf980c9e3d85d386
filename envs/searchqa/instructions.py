"""The instructions of search QA: the task, the wording of commands, and an example with a made-up task."""

from roleagent.env_card import ExampleStep, Instructions

INSTRUCTIONS = Instructions(
    """\
You answer a question with the help of a search engine. Commands:
search[query] – shows the passages of an encyclopedia that fit best
answer[text] – gives your answer and ends the task

A query that names one person, place or thing works best. Many questions take two steps: find the first thing, then \
search for what you learned. The answer is a name, a date, a number, yes or no: nothing but that, as short as \
possible.""",
    (
        ExampleStep(
            "In which country was the author of The Glass Orchard born?",
            "I have to know first who wrote The Glass Orchard.",
            "search[The Glass Orchard]",
        ),
        ExampleStep(
            '<information>Doc 1(Title: "The Glass Orchard") The Glass Orchard is a novel by Ilse Marant.</information>',
            "The author is Ilse Marant. Where was she born?",
            "search[Ilse Marant]",
        ),
        ExampleStep(
            '<information>Doc 1(Title: "Ilse Marant") Ilse Marant writes. She was born in Belgium.</information>',
            "She was born in Belgium, a country, which is what is asked for.",
            "answer[Belgium]",
        ),
    ),
)

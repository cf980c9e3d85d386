"""The tools of search QA: ``wikisearch`` of Agent-R1, and the answer."""

from roleagent.envs.tools.definition.command_tools import CommandTool, CommandTools

TOOLS = CommandTools(
    "Answer the question. Search first for what you do not know.",
    (
        CommandTool(
            "search",
            "Search for passages that help to answer the question.",
            ("search[{query}]",),
            {"query": "What to look for."},
        ),
        CommandTool(
            "answer",
            "Answer the question, once and for all.",
            ("answer[{text}]",),
            {"text": "The answer alone, as short as possible."},
        ),
    ),
    answer="answer",
)

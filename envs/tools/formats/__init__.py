"""The formats in which models write calls of tools, each with its reader and its writer."""

from roleagent.envs.tools.formats.base import Format, Reading, answer_text
from roleagent.envs.tools.formats.json_formats import Hermes, Json, Llama3
from roleagent.envs.tools.formats.marked import MARKED
from roleagent.envs.tools.formats.native import Native, native_calls
from roleagent.envs.tools.formats.python_calls import Python
from roleagent.envs.tools.formats.tool_tags import Tags
from roleagent.tools import Call

FORMATS: dict[str, Format] = {
    **{one.name: one for one in (Hermes(), Json(), Python(), Llama3(), Tags(), Native())},
    **MARKED,
}
"""The formats by name."""


def format_of(text: str, call: Call) -> str | None:
    """The format that a text with one call is written in; None where it is none of :data:`FORMATS`.

    >>> format_of('{"name": "look", "parameters": {"at": "sea"}}', Call("look", {"at": "sea"}))
    'llama3'
    """
    readings = {name: one.read(text) for name, one in FORMATS.items() if name != "native"}
    return next((name for name, found in readings.items() if found.calls == (call,) and not found.repaired), None)


__all__ = ["FORMATS", "Format", "Reading", "answer_text", "format_of", "native_calls"]

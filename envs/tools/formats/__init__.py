"""The formats in which models write calls of tools, each with its reader and its writer."""

from roleagent.envs.tools.formats.base import Format, Reading, answer_text
from roleagent.envs.tools.formats.json_formats import Hermes, Json, Llama3
from roleagent.envs.tools.formats.marked import MARKED
from roleagent.envs.tools.formats.native import Native, native_calls
from roleagent.envs.tools.formats.python_calls import Python
from roleagent.envs.tools.formats.tool_tags import Tags

FORMATS: dict[str, Format] = {
    **{one.name: one for one in (Hermes(), Json(), Python(), Llama3(), Tags(), Native())},
    **MARKED,
}
"""The formats by name."""

__all__ = ["FORMATS", "Format", "Reading", "answer_text", "native_calls"]

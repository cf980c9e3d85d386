"""Tools: any Python function or MCP server becomes an environment (Agent-R1, arXiv 2511.14460).

Write a function and put ``@tool`` over it; :class:`ToolEnv` plays tasks with it:

>>> from roleagent.envs.tools import ToolEnv, tool
>>> @tool
... def add(a: int, b: int) -> int:
...     "Adds two numbers."
...     return a + b
>>> tasks = [{"id": "sum", "prompt": "What is 2 + 3?", "answer": "5"}]
>>> env = ToolEnv(tools=[add], tasks=tasks, judge="number", split="all")
>>> env.reset()[0]
'What is 2 + 3?'
>>> env.step('{"calls": [{"name": "add", "arguments": {"a": 2, "b": 3}}]}')[0]
'5'
>>> env.step('{"answer": "5"}')[1]
1.0
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the registry imports this package for its card alone
    from roleagent.envs.tools.definition.function_tool import tool
    from roleagent.envs.tools.env import ToolEnv
    from roleagent.tools import Call, Result, Tool, ToolError

_MODULES = {"ToolEnv": "roleagent.envs.tools.env", "tool": "roleagent.envs.tools.definition.function_tool"}

__all__ = ["Call", "Result", "Tool", "ToolEnv", "ToolError", "tool"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(_MODULES.get(name, "roleagent.tools")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Tools by name: of a module, of a file, of an MCP server, or a list of these."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from gymnasium.error import DependencyNotInstalled

from roleagent.envs.tools.definition.function_tool import FunctionTool, as_tool, unique
from roleagent.envs.tools.definition.schema import SchemaRefused
from roleagent.imports import error_line, searched_first
from roleagent.options import shown, user_path
from roleagent.tools import Tool

MCP = "mcp:"
_FILES: dict[tuple[str, int], ModuleType] = {}  # by path and time of change


class ToolsNotFound(ValueError):
    """Tools that cannot be loaded; the message is one line."""


def load_tools(source: Any) -> tuple[Tool, ...]:
    """The tools that a source names.

    Args:
        source: ``"module"``, ``"file.py"`` (all tools in it) or either with ``:name`` (one of them), ``"mcp:COMMAND"``
            or ``"mcp:https://…"``, ``{"mcp": COMMAND or URL, …}`` with options of
            :class:`roleagent.envs.tools.mcp.MCPClient`, a tool, a function, a class of tools, or a list of these. Of
            tools of one name, those of an MCP server get the server's name in front.

    Raises:
        ToolsNotFound: the source cannot be imported, or has no tools.
        SchemaRefused: a tool cannot be described, or two have one name.

    >>> [tool.name for tool in load_tools("roleagent.envs.tools.examples")]
    ['calculate', 'convert']
    """
    tools = list(_each(source))
    names = [tool.name for tool in tools]
    return unique(
        tool.prefixed() if names.count(tool.name) > 1 and hasattr(tool, "prefixed") else tool  # type: ignore[attr-defined]
        for tool in tools
    )


def _each(source: Any) -> Iterable[Tool]:
    if isinstance(source, str):
        return _named(source)
    if isinstance(source, Path):
        return _named(str(source))
    if isinstance(source, Mapping):
        options = dict(source)
        if not isinstance(address := options.pop("mcp", None), str):
            raise ToolsNotFound(f"a server is {{mcp: COMMAND or URL, …}}, not {shown(dict(source))}")
        return _served(address, options)
    if isinstance(source, Iterable):
        return [tool for one in source for tool in _each(one)]
    return [as_tool(source)]


def _named(source: str) -> Iterable[Tool]:
    if source.startswith(MCP):
        return _served(source.removeprefix(MCP).strip(), {})
    place, _, attribute = source.rpartition(":") if not source.endswith(".py") else (source, "", "")
    if not place:
        place, attribute = attribute, ""
    module = load_module(place)
    if attribute:
        if not hasattr(module, attribute):
            raise ToolsNotFound(f"{place} has no {attribute}")
        return [as_tool(getattr(module, attribute))]
    found = [as_tool(value) for value in vars(module).values() if _is_tool(value, module)]
    if not found:
        raise ToolsNotFound(f"{source} has no tools: put @tool over a function in it")
    return list({id(tool): tool for tool in found}.values())


def _served(address: str, options: dict[str, Any]) -> Iterable[Tool]:
    try:
        from roleagent.envs.tools.mcp import load_tools as load_served
    except DependencyNotInstalled as error:
        raise ToolsNotFound(str(error)) from error
    return load_served(address, **options)


def _is_tool(value: Any, module: ModuleType) -> bool:
    """Whether a module's attribute is a tool: a decorated function, a class of tools defined there, an instance."""
    if isinstance(value, FunctionTool):
        return True
    parts = all(hasattr(value, part) for part in ("name", "description", "parameters", "execute"))
    return parts and (not isinstance(value, type) or value.__module__ == module.__name__)


def load_module(place: str) -> ModuleType:
    """A module by name or by its file; the working directory is searched first.

    Raises:
        ToolsNotFound: it cannot be imported; one line.
    """
    try:
        if not place.endswith(".py"):
            with searched_first():
                return importlib.import_module(place)
        path = user_path(place).resolve()
        if not path.is_file():
            raise ToolsNotFound(f"there is no file {place}{'' if Path(place).is_absolute() else f' in {Path.cwd()}'}")
        key = str(path), path.stat().st_mtime_ns
        if key not in _FILES:
            _FILES[key] = _import_file(path)
        return _FILES[key]
    except SchemaRefused as error:
        raise SchemaRefused(f"{place}: {error}") from None
    except ToolsNotFound:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's file raises
        reason = error_line(error, (OSError, ModuleNotFoundError))
        raise ToolsNotFound(f"cannot import the tools of {place}: {reason}") from error


def _import_file(path: Path) -> ModuleType:
    name = f"{path.stem}_{abs(hash(str(path))):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        with searched_first(str(path.parent)):  # modules beside it
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


__all__ = ["MCP", "ToolsNotFound", "load_module", "load_tools"]

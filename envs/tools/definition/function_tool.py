"""Functions become tools: name, description and JSON Schema from signature and docstring."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints, overload

import docstring_parser

from roleagent.envs.tools.definition.schema import (
    REQUIRED,
    ArgumentCheck,
    Schema,
    SchemaRefused,
    converter,
    schema_of,
    with_default,
)
from roleagent.tools import Result, Tool, ToolError

STATE = "state"
"""The parameter that receives the episode's own state; it is no argument of the tool."""


class FunctionTool:
    """A function as a tool (see :func:`tool`). It can still be called like the function.

    Attributes:
        name, description, parameters: see :class:`~roleagent.tools.Tool`.
        random: whether equal calls may have different results: no prediction of them is scored.
        network: whether it asks something outside this process: no prediction is scored.
        read_only: whether it changes nothing; equal calls of a turn are then made once.
        takes_state: whether the function has a parameter ``state``.
        is_async: whether it is a coroutine function, which runs in an event loop.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str | None = None,
        description: str | None = None,
        *,
        random: bool = False,
        network: bool = False,
        read_only: bool = False,
    ):
        self.function, self.name = function, name or function.__name__
        self.random, self.network, self.read_only = random, network, read_only
        self.__module__, self.__qualname__ = function.__module__, function.__qualname__
        self.__doc__, self.__wrapped__ = function.__doc__, function
        self.is_async = inspect.iscoroutinefunction(function)
        spoken = docstring_parser.parse(inspect.getdoc(function) or "")
        about = "\n\n".join(part for part in (spoken.short_description, spoken.long_description) if part)
        self.description = description or about
        if not self.description:
            raise SchemaRefused(f"the tool {self.name} has no docstring: a model must read what it does")
        self.parameters: Mapping[str, Any]
        self.parameters, self._converters = _parameters(function, self.name, spoken)
        self.takes_state = STATE in inspect.signature(function).parameters

    def execute(self, arguments: Mapping[str, Any], state: Any) -> Any:
        """Calls the function with checked arguments; a coroutine function is run to its end."""
        returned = self.start(arguments, state)
        return asyncio.run(returned) if self.is_async else returned

    def start(self, arguments: Mapping[str, Any], state: Any) -> Any:
        """Calls the function; a coroutine function returns its coroutine."""
        given = {
            name: convert(arguments[name]) if (convert := self._converters.get(name)) else value
            for name, value in arguments.items()
        }
        return self.function(**given, **({STATE: state} if self.takes_state else {}))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)

    def __deepcopy__(self, memo: Any) -> FunctionTool:
        return self

    def __reduce__(self) -> str:
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<tool {self.name}>"


@overload
def tool(
    function: Callable[..., Any],
    /,
    *,
    name: str | None = ...,
    description: str | None = ...,
    random: bool = ...,
    network: bool = ...,
    read_only: bool = ...,
) -> FunctionTool: ...
@overload
def tool(
    *,
    name: str | None = ...,
    description: str | None = ...,
    random: bool = ...,
    network: bool = ...,
    read_only: bool = ...,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Makes a tool of a function: ``@tool``, ``@tool(random=True)`` or ``tool(function, random=True)`` with options of
    :class:`FunctionTool`.

    Name, description and schema come from the signature and the docstring (in Google's, NumPy's or Sphinx's style).
    Every parameter needs an annotation; one with a default is optional. A parameter named ``state`` receives the
    episode's own state and is no argument.

    Raises:
        SchemaRefused: a parameter cannot be described by a JSON Schema; the message names it.

    >>> @tool
    ... def double(x: int) -> int:
    ...     '''Doubles a number.
    ...
    ...     Args:
    ...         x: the number.
    ...     '''
    ...     return 2 * x
    >>> double.parameters["properties"]
    {'x': {'type': 'integer', 'description': 'the number.'}}
    """
    if function is None:
        return lambda decorated: FunctionTool(decorated, **options)
    return FunctionTool(function, **options)


def _parameters(
    function: Callable[..., Any], name: str, spoken: docstring_parser.Docstring
) -> tuple[Schema, dict[str, Callable[[Any], Any]]]:
    """The schema of a function's arguments, and what turns JSON values into the annotated types."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:  # a name that does not exist
        raise SchemaRefused(f"the tool {name}: its annotations cannot be read: {error}") from None
    about = {part.arg_name: " ".join(part.description.split()) for part in spoken.params if part.description}
    properties: dict[str, Schema] = {}
    required, converters = [], {}
    for parameter in inspect.signature(function).parameters.values():
        where = f"the parameter {parameter.name} of the tool {name}"
        if parameter.name == STATE:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise SchemaRefused(f"{where} has no name in a call: tools take named arguments only")
        if parameter.name not in hints:
            raise SchemaRefused(f"{where} has no annotation: write its type, e.g. {parameter.name}: str")
        hint, optional = hints[parameter.name], parameter.default is not parameter.empty
        try:
            described = with_default(schema_of(hint), parameter.default if optional else REQUIRED)
            convert = converter(hint)
        except SchemaRefused as error:
            raise SchemaRefused(f"{where}: {error}") from None
        if parameter.name in about:
            described["description"] = about[parameter.name]
        properties[parameter.name] = described
        if convert:
            converters[parameter.name] = convert
        if not optional:
            required.append(parameter.name)
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return schema, converters


@dataclass
class DescribedTool:
    """A tool of which only the description is known: its environment does without running it.

    Attributes:
        name, description, parameters: see :class:`~roleagent.tools.Tool`.
        refusal: the result of a call of it.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    refusal: str = "this function is only described and cannot be run"

    def execute(self, arguments: Mapping[str, Any], state: Any) -> Result:
        raise ToolError(self.refusal)


def as_tool(thing: Any) -> Tool:
    """A tool, a class of tools or a function as a tool.

    Raises:
        SchemaRefused: it has no usable name, description or schema, or cannot be run.
    """
    if isinstance(thing, type):
        try:
            thing = thing()
        except Exception as error:  # whatever a user's class raises
            raise SchemaRefused(f"the class {thing.__name__} makes no tool: {' '.join(str(error).split())}") from error
    if not hasattr(thing, "execute") and callable(thing):
        return FunctionTool(thing)
    missing = [part for part in ("name", "description", "parameters", "execute") if not hasattr(thing, part)]
    if missing:
        raise SchemaRefused(f"{thing!r} is no tool: it has no {', '.join(missing)}")
    if not isinstance(thing.name, str) or not thing.name.strip() or not isinstance(thing.description, str):
        raise SchemaRefused(f"the tool {thing.name!r} must have a name and a description as text")
    try:
        ArgumentCheck(thing.parameters)
    except SchemaRefused as error:
        raise SchemaRefused(f"the tool {thing.name}: {error}") from None
    return thing


def function_schema(tool: Tool) -> Schema:
    """A tool as chat templates and OpenAI-compatible servers take it."""
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
    }


def unique(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    """The tools, if their names differ.

    Raises:
        SchemaRefused: there is none, or two have one name.
    """
    found: dict[str, Tool] = {}
    for one in tools:
        if one.name in found:
            raise SchemaRefused(f"two tools are called {one.name!r}")
        found[one.name] = one
    if not found:
        raise SchemaRefused("there are no tools")
    return tuple(found.values())


__all__ = ["STATE", "DescribedTool", "FunctionTool", "as_tool", "function_schema", "tool", "unique"]

"""Functions as tools: their schemas, the check of arguments, and where tools come from."""

import dataclasses
import enum
import typing
from typing import Annotated, Any, Literal, Optional, TypedDict

import pytest

from roleagent.envs.tools import tool
from roleagent.envs.tools.definition.load import load_tools
from roleagent.envs.tools.definition.schema import ArgumentCheck, SchemaRefused, converter, schema_of


class Unit(enum.Enum):
    KM = "km"
    MILE = "mile"


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


class Trip(TypedDict, total=False):
    start: Point
    unit: typing.Required[Unit] if hasattr(typing, "Required") else Unit


POINT = {
    "type": "object",
    "properties": {"x": {"type": "number"}, "y": {"type": "number", "default": 0.0}},
    "required": ["x"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("kind", "schema", "value", "converted"),
    [
        (float, {"type": "number"}, 3, 3.0),
        (Optional[int], {"type": ["integer", "null"]}, None, None),  # noqa: UP045
        (Any, {}, [1], [1]),
        (list, {"type": "array", "items": {}}, [1], [1]),
        (Literal[1, "a"], {"enum": [1, "a"]}, "a", "a"),
        (Unit, {"type": "string", "enum": ["km", "mile"]}, "km", Unit.KM),
        (Annotated[str, "a city"], {"type": "string", "description": "a city"}, "Oslo", "Oslo"),
        (Annotated[str, {"not": "a text"}], {"type": "string"}, "Oslo", "Oslo"),
        (list[Annotated[Unit, {}]], None, ["km"], [Unit.KM]),
        (typing.List, {"type": "array", "items": {}}, [1], [1]),  # noqa: UP006
        (typing.Sequence, {"type": "array", "items": {}}, [1], [1]),
        (typing.Dict, {"type": "object", "additionalProperties": {}}, {"a": 1}, {"a": 1}),  # noqa: UP006
        (typing.Tuple, {"type": "array", "items": {}}, [1, "a"], (1, "a")),  # noqa: UP006
        (dict[str, Unit], None, {"a": "km"}, {"a": Unit.KM}),
        (tuple[int, Unit], None, [1, "km"], (1, Unit.KM)),
        (tuple[float, ...], {"type": "array", "items": {"type": "number"}}, [1, 2], (1.0, 2.0)),
        (list[Point] | str, {"anyOf": [{"type": "array", "items": POINT}, {"type": "string"}]}, [{"x": 1}], [Point(1)]),
        (Trip, None, {"unit": "km", "start": {"x": 2}}, {"unit": Unit.KM, "start": Point(2)}),
    ],
)
def test_types_are_described_checked_and_converted(kind, schema, value, converted):
    found = schema_of(kind)
    assert schema is None or found == schema
    assert ArgumentCheck({"type": "object", "properties": {"v": found}}).problem({"v": value}) is None
    convert = converter(kind)
    given = convert(value) if convert else value
    assert given == converted and type(given) is type(converted)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        ("def f(x): 'Doc.'", "the parameter x of the tool f has no annotation"),
        ("def f(x: complex): 'Doc.'", "the parameter x of the tool f: complex has no JSON Schema"),
        ("def f(x: dict[int, str]): 'Doc.'", "texts as keys"),
        ("def f(x: int, /): 'Doc.'", "has no name in a call"),
        ("def f(x: 'Nothing'): 'Doc.'", "the tool f: its annotations cannot be read"),
        ("def f(x: int): pass", "the tool f has no docstring"),
    ],
)
def test_what_cannot_be_said_is_refused_when_the_tool_is_made(write, message):
    names = {}
    exec(write, names)
    with pytest.raises(SchemaRefused, match=message):
        tool(names["f"])


def len_of(text: str) -> int:
    """Counts."""
    return len(text)


def test_docstrings_and_signatures():
    @tool(name="trip", random=True)
    async def travel(to: str, days: int = 3, *, unit: Unit = Unit.KM, state: dict) -> str:
        """Plans a trip.

        It is long.

        Args:
            to: the city,
                in English.
            days: how many.
        """
        return f"{to} {days} {unit}"

    assert (travel.name, travel.description, travel.random) == ("trip", "Plans a trip.\n\nIt is long.", True)
    assert travel.parameters == {
        "type": "object",
        "properties": {
            "to": {"type": "string", "description": "the city, in English."},
            "days": {"type": "integer", "default": 3, "description": "how many."},
            "unit": {"type": "string", "enum": ["km", "mile"], "default": "km"},
        },
        "required": ["to"],
        "additionalProperties": False,
    }
    assert tool(len_of, name="count").name == "count"
    assert travel.execute({"to": "Oslo", "unit": "mile"}, {}) == "Oslo 3 Unit.MILE" and travel.takes_state


CHECK = ArgumentCheck(
    {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "p": {"type": "object", "properties": {"x": {"type": ["number", "null"]}}},
            "l": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
            "far": {"$ref": "http://example.com/schema"},
        },
        "required": ["n"],
        "additionalProperties": False,
    }
)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"n": 1}, None),
        ({}, "n is missing"),
        ({"n": "3"}, "n: '3' is not of type integer"),
        ({"n": True}, "n: True is not of type integer"),
        ({"n": 1, "m": 2}, "there is no argument 'm'; there are n, p, l, far"),
        ({"n": 1, "p": {"x": "a"}}, "p.x: 'a' is not of type number or null"),
        ({"n": 1, "l": ["a", "c"]}, "l[1]: 'c' is not one of 'a', 'b'"),
        ({"n": 1, "l": ["a"] * 3}, "l: ['a', 'a', 'a'] is too long"),
        ({"n": 1, "far": 1}, "the arguments cannot be checked: "),
        ([], "[] is not of type object"),
    ],
)
def test_problems_name_the_path_and_what_was_wanted(arguments, problem):
    found = CHECK.problem(arguments)
    assert found == problem or (found.startswith(problem) and "\n" not in found and len(found) < 500)


def test_texts_are_read_as_numbers_only_on_request():
    assert CHECK.coerced({"n": "3", "p": {"x": "1.5"}, "l": ["a"]}) == ({"n": 3, "p": {"x": 1.5}, "l": ["a"]}, 2)
    for text in ("three", "NaN", "1e999", "[1]", "9" * 5000):
        assert CHECK.coerced({"n": text, "p": {"x": text}}) == ({"n": text, "p": {"x": text}}, 0)
    assert CHECK.coerced({"n": "3", "far": 1}) == ({"n": "3", "far": 1}, 0)  # a schema that cannot be read
    lists = ArgumentCheck({"type": "object", "properties": {"l": {"type": "array"}, "x": {"type": "number"}}})
    assert lists.coerced({"l": "[1]", "x": "NaN"}) == ({"l": "[1]", "x": "NaN"}, 0)


def test_tools_of_a_file_of_a_module_and_of_a_list(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from roleagent.envs.tools import Tool, tool\n"
        "@tool\ndef one() -> str:\n    'One.'\n    return '1'\n"
        "class Two:\n    name, description, parameters = 'two', 'Two.', {'type': 'object'}\n"
        "    def execute(self, arguments, state):\n        return 2\n"
        "def helper(): pass\n",
        encoding="utf-8",
    )
    assert [one.name for one in load_tools(str(path))] == ["one", "two"]
    assert [one.name for one in load_tools([f"{path}:one", f"{path}:Two"])] == ["one", "two"]
    with pytest.raises(SchemaRefused, match="two tools are called 'one'"):
        load_tools([str(path), f"{path}:one"])

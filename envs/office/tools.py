"""The six tools of the office. The error of a refused call names the possible values.

The state of an episode has two keys: ``office``, as it was before the first call
(:class:`~roleagent.envs.office.world.Office`), and ``bookings``, a list of ``[id, day, hour]`` in the order of the
calls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal

from roleagent.envs.office.world import HOURS
from roleagent.envs.tools.definition.function_tool import FunctionTool, tool
from roleagent.tools import ToolError

Day = Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
Currency = Literal["EUR", "USD", "GBP"]
State = dict[str, Any]


@tool(read_only=True)
def find(name: str, state: State) -> str:
    """Finds the id of a person or a room.

    Args:
        name: the full name.
    """
    ids: Mapping[str, str] = state["office"].ids
    if name in ids:
        return ids[name]
    near = [one for one in ids if set(one.lower().split()) & set(name.lower().split())]
    near = near or get_close_matches(name[:100], ids, n=2, cutoff=0.6)
    raise ToolError(f"no {name[:40]}; there is {', '.join(near)}" if near else f"no {name[:40]}")


@tool(read_only=True)
def detail(id: str, field: str, state: State) -> str:
    """Reads a field of a person (boss, room, phone, expenses) or of a room (keeper, price, size).

    Args:
        id: of the person or room.
        field: the name of the field.
    """
    fields = _known(id, state)
    if field not in fields:
        raise ToolError(f"{id} has no {field[:40]}, but {', '.join(fields)}")
    return fields[field]


@tool(read_only=True)
def free(id: str, day: Day, state: State) -> str:
    """Lists the hours at which a person or a room is free.

    Args:
        id: of the person or room.
        day: the day of the week.
    """
    return ", ".join(map(str, _free_hours(id, day, state))) or "none"


@tool
def book(id: str, day: Day, hour: int, state: State) -> str:
    """Books a person or a room for an hour.

    Args:
        id: of the person or room.
        day: the day of the week.
        hour: at which it begins, 8 to 17.
    """
    hours = _free_hours(id, day, state)
    if hour not in hours:
        raise ToolError(f"{id} is not free then, but {', '.join(map(str, hours))}")
    state["bookings"].append([id, day, hour])
    return f"booked {id} {day}, {hour}:00"


@tool(read_only=True)
def convert(amount: str, to: Currency, state: State) -> str:
    """Converts an amount of money, rounded to a whole number.

    Args:
        amount: a currency and a number, such as EUR40.
        to: the other currency.
    """
    rates: Mapping[str, int] = state["office"].rates
    read = re.fullmatch(r"([A-Z]{3}) ?(\d{1,6})", amount.strip())
    if read is None or read[1] not in rates:
        raise ToolError(f"no amount: {amount[:40]}; an amount is {', '.join(rates)} and a number")
    return f"{to}{round(int(read[2]) * rates[read[1]] / rates[to])}"


@tool(name="sum", read_only=True)
def add(numbers: list[int]) -> int:
    """Adds numbers.

    Args:
        numbers: the numbers, without currencies.
    """
    return sum(numbers)


def _known(id: str, state: State) -> Mapping[str, str]:
    details = state["office"].details
    if id not in details:
        hint = f"there is {', '.join(details)}" if re.fullmatch(r"[pr]\d+", id) else "find gives ids"
        raise ToolError(f"no id {id[:40]}; {hint}")
    return details[id]


def _free_hours(id: str, day: str, state: State) -> list[int]:
    _known(id, state)
    booked = {hour for one, on, hour in state["bookings"] if (one, on) == (id, day)}
    return [hour for hour in HOURS if hour not in state["office"].taken[id, day] | booked]


TOOLS: dict[str, FunctionTool] = {one.name: one for one in (find, detail, free, book, convert, add)}
"""By name."""

__all__ = ["TOOLS", "add", "book", "convert", "detail", "find", "free"]

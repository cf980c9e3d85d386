"""Plans as they are written: the publisher's JSON list of days, or its text with one label per line."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

Day = Mapping[str, str]
"""A day of a plan, by :data:`FIELDS`; empty: the trip is over."""
MEALS = ("breakfast", "lunch", "dinner")
FIELDS = ("current_city", "transportation", "breakfast", "attraction", "lunch", "dinner", "accommodation")
MOST_DAYS = 31
_LABEL = re.compile(r"\b(Day \d+|" + "|".join(name.replace("_", " ") for name in FIELDS) + r")\s*:", re.IGNORECASE)
_ROUTE = re.compile(r"from\s+(.+?)\s+to\s+([^,]+)(?=[,\s]|$)")


def read_plan(text: str) -> tuple[Day, ...]:
    """The days of a plan.

    The publisher reads the first block of JSON between code fences, as JSON or as a Python literal. A plan without
    fences is read as well, and so is the text form of the publisher's prompts, ``Day 1: Current City: … Dinner: …``,
    which the publisher lets a model convert.

    >>> read_plan('[{"days": 1, "current_city": "from A to B", "dinner": "Inn, B"}]')
    ({'days': '1', 'current_city': 'from A to B', 'dinner': 'Inn, B'},)
    >>> read_plan("Day 1:\\nCurrent City: B\\nAttraction: Park, B;Zoo, B.")
    ({'current_city': 'B', 'attraction': 'Park, B;Zoo, B;'},)

    Raises:
        ValueError: there is no plan; the message says why.
    """
    text = text.partition("```json")[2].partition("```")[0] or text
    if re.match(r"\s*\[", text):
        return _days(_listed(text))
    labels = list(_LABEL.finditer(text))
    ends = [label.start() for label in labels[1:]] + [len(text)]
    days: list[dict[str, str]] = []
    for label, end in zip(labels, ends, strict=True):
        name, value = label[1].lower().replace(" ", "_"), text[label.end() : end].strip()
        if name.startswith("day_"):
            days.append({})
        elif days:
            attractions = name == "attraction" and value != "-"
            days[-1][name] = f"{value.rstrip('.;')};" if attractions and value else value
    if not days:
        raise ValueError("the reply has neither a list of days nor a line 'Day 1:'")
    return _days(days)


def _listed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError("the plan is no list of JSON") from error


def _days(rows: Any) -> tuple[Day, ...]:
    if not isinstance(rows, Sequence) or not rows:
        raise ValueError("the plan has no days")
    if len(rows) > MOST_DAYS:
        raise ValueError(f"the plan has {len(rows)} days")
    found = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise ValueError(f"day {number} is no object")
        day = {str(name): "" if value is None else value for name, value in row.items()}
        day |= {"days": str(day["days"])} if "days" in day else {}
        if wrong := next((name for name, value in day.items() if not isinstance(value, str)), None):
            raise ValueError(f"{wrong} of day {number} is no text")
        found.append({name: " ".join(value.split()) for name, value in day.items()})
    return tuple(found)


def given(day: Day, name: str) -> str:
    """A field of a day; empty where it is missing or ``"-"``."""
    value = day.get(name, "")
    return "" if value == "-" else value


def route(text: str) -> tuple[str, str] | None:
    """Origin and destination of "from A to B", without states in brackets.

    >>> route("Taxi, from Houston(Texas) to St. Louis, cost: 12")
    ('Houston', 'St. Louis')
    """
    found = _ROUTE.search(text)
    return (bare(found[1]), bare(found[2])) if found else None


def cities_of(day: Day) -> tuple[str, ...]:
    """The cities of a day: the one it is spent in, or both of a travel; none if a travel names no route."""
    city = day.get("current_city", "")
    if "from" in city:
        return route(city) or ()
    return (bare(city),) if city else ()


def place(text: str) -> tuple[str, str]:
    """Name and city of "Name, City"; empty where one is missing.

    >>> place("Birds, Bees and Beer, Houston(Texas)")
    ('Birds, Bees and Beer', 'Houston')
    """
    name, _, city = text.rpartition(",")
    return name.strip(), bare(city.strip()).strip()


def attractions_of(day: Day) -> list[str]:
    """The attractions of a day, each "Name, City".

    The publisher drops what stands behind the last semicolon, unread; here it counts.
    """
    return [one.strip() for one in given(day, "attraction").split(";") if one.strip()]


def bare(city: str) -> str:
    """A city without what follows in brackets."""
    return re.sub(r"\([^)]*\).*", "", city)


__all__ = ["FIELDS", "MEALS", "Day", "attractions_of", "bare", "cities_of", "given", "place", "read_plan", "route"]

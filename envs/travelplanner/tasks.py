"""TravelPlanner's tasks: what a trip asks for, and the information that a plan is made of and checked against."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any

from roleagent.envs.single_reply import SingleReplyTasks, json_rows, read_files
from roleagent.envs.travelplanner.plan import Day, read_plan

ENV_ID = "RoleAgent/TravelPlanner-v0"
ARCHIVE, SOURCE = "travelplanner_train.tar.xz", "github.com/OSU-NLP-Group/TravelPlanner, MIT"
REFERENCE, QUERIES = "train_ref_info.jsonl", "std_travelplanner.jsonl"
LEVELS = {0: "easy", 1: "medium", 3: "hard"}
"""The publisher's levels, by the number of wishes besides the budget."""
CUISINES = ("American", "Chinese", "French", "Indian", "Italian", "Mediterranean", "Mexican")


@dataclass(frozen=True)
class Reference:
    """The information about one trip. Names have single blanks.

    Attributes:
        cities: that the trip visits, in order.
        flights: by number: origin, destination, dollars per person.
        drives: by mode (``"self-driving"`` or ``"taxi"``), origin and destination: dollars per car.
        restaurants: by city: name, dollars per person, cuisines.
        attractions: by city: names.
        accommodations: by city: name and the published row.
    """

    cities: tuple[str, ...]
    flights: Mapping[str, tuple[str, str, float]]
    drives: Mapping[tuple[str, str, str], int]
    restaurants: Mapping[str, Sequence[tuple[str, float, str]]]
    attractions: Mapping[str, Sequence[str]]
    accommodations: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]]


@dataclass(frozen=True)
class TripTask:
    """One trip.

    Attributes:
        id: ``train/1`` to ``train/45``, as the publisher counts.
        prompt: what the agent reads: the information and the query.
        query: the request alone.
        origin: the city where the trip begins and ends.
        days: of the trip.
        people: that travel.
        budget: dollars for all.
        house_rule: what accommodations must not forbid, e.g. ``"pets"``; None: no wish.
        cuisines: each of which one meal must have.
        room_type: ``"Entire home/apt"`` or ``"Private room"``; None: no wish.
        no_transport: ``"Flight"`` or ``"Self-driving"``; None: no wish.
        reference: the information.
        gold: the published plan.
    """

    id: str
    prompt: str
    query: str
    origin: str
    days: int
    people: int
    budget: int
    house_rule: str | None
    cuisines: tuple[str, ...]
    room_type: str | None
    no_transport: str | None
    reference: Reference
    gold: tuple[Day, ...]

    @property
    def type(self) -> str:
        """The publisher's level: ``"easy"``, ``"medium"`` or ``"hard"``."""
        return LEVELS[sum(map(bool, (self.house_rule, self.cuisines, self.room_type, self.no_transport)))]


@lru_cache(maxsize=2)
def load(data_dir: str | None) -> SingleReplyTasks[TripTask]:
    """The training tasks: their queries, and the reference information in the same order.

    Raises:
        FileNotFoundError: there are no such data.
        ValueError: a file is broken, or the files do not belong together.
    """
    files = read_files(data_dir, ARCHIVE, SOURCE)
    references, dialogues = (
        json_rows(files, next((path for path in files if path.endswith(name)), "")) for name in (REFERENCE, QUERIES)
    )
    if not references or not dialogues:
        raise FileNotFoundError(f"{data_dir} lacks {REFERENCE} or {QUERIES} ({SOURCE})")
    try:
        tasks = [_task(*pair) for pair in enumerate(zip(references, dialogues, strict=True), start=1)]
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise ValueError(f"{REFERENCE} and {QUERIES} of {data_dir} do not belong together: {error}") from error
    found = SingleReplyTasks(tasks, ENV_ID, whole="train")
    found.origin = (load, (data_dir,))
    return found


def _task(number: int, rows: tuple[Mapping[str, Any], Mapping[str, Any]]) -> TripTask:
    info, dialogue = rows
    _, prompt, plan = (message["content"] for message in dialogue["messages"])
    query = prompt.rpartition("\nQuery:")[2].strip()
    legs = [re.fullmatch(r"Flight from (.+) to (.+) on (\S+)", name) for name in info]
    flights = [leg for leg in legs if leg]
    first, last = (date.fromisoformat(leg[3]) for leg in (flights[0], flights[-1]))
    origin = flights[0][1]
    if origin not in query:
        raise ValueError(f"task {number} begins in {origin}, and its query does not name it")
    return TripTask(
        f"train/{number}",
        prompt,
        query,
        origin,
        (last - first).days + 1,
        *read_query(query),
        _reference(info, tuple(leg[2] for leg in flights[:-1])),
        tuple(day for day in read_plan(plan) if day),
    )


def _reference(info: Mapping[str, Any], cities: tuple[str, ...]) -> Reference:
    flights: dict[str, tuple[str, str, float]] = {}
    drives: dict[tuple[str, str, str], int] = {}
    for name, content in info.items():
        if name.startswith("Flight from") and isinstance(content, list):
            for row in content:
                flights[row["Flight Number"]] = (row["OriginCityName"], row["DestCityName"], float(row["Price"]))
        drive = re.fullmatch(r"(Self-driving|Taxi) from (.+) to (.+)", name)
        if drive and (cost := re.search(r"cost: (\d+)", content)):
            drives[drive[1].lower(), drive[2], drive[3]] = int(cost[1])

    def rows(kind: str, city: str) -> list[Mapping[str, Any]]:
        content = info[f"{kind} in {city}"]
        return content if isinstance(content, list) else []  # else the text that there are none

    return Reference(
        cities,
        flights,
        drives,
        {
            city: [
                (one_line(row["Name"]), float(row["Average Cost"]), row["Cuisines"])
                for row in rows("Restaurants", city)
            ]
            for city in cities
        },
        {city: [one_line(row["Name"]) for row in rows("Attractions", city)] for city in cities},
        {city: [(one_line(row["NAME"]), row) for row in rows("Accommodations", city)] for city in cities},
    )


def one_line(text: str) -> str:
    """A text with single blanks, as a command has them."""
    return " ".join(text.split())


_NUMBERS = {name: number for number, name in enumerate(("one", "two", "three", "four", "five", "six", "seven"), 1)}
_PEOPLE = (r"(?:group|party) of (\w+)", r"\b(\w+) (?:people|individuals)\b", r"\bfor (two)\b")
_RULES = {
    "smoking": r"\bsmoking\b",
    "parties": r"\bparties\b",
    "children under 10": r"\bchildren\b",
    "visitors": r"\bvisitors\b",
    "pets": r"\bpets?\b",
}
_ROOMS = {"Entire home/apt": r"\bentire rooms?\b", "Private room": r"\bprivate rooms?\b"}
_TRANSPORT = {"Flight": r"\bfl(?:ight|ying)", "Self-driving": r"\bself-driv|\bdrive ourselves\b"}


def read_query(query: str) -> tuple[int, int, str | None, tuple[str, ...], str | None, str | None]:
    """What a training query asks for: people, budget, house rule, cuisines, room type, means of travel ruled out.

    The publisher's structured queries are no part of the published files. In the training queries a wish is a word: a
    means of travel is only named to rule it out. Queries of the test set must not be read in this way: its makers
    forbid it.

    >>> read_query("A trip for two on $1,700. We bring pets, and do not plan on self-driving.")
    (2, 1700, 'pets', (), None, 'Self-driving')

    Raises:
        ValueError: the query names no budget.
    """
    budget = re.search(r"\$([\d,]*\d)", query)
    if budget is None:
        raise ValueError(f"no budget in {query!r}")
    words = [found for pattern in _PEOPLE for found in re.findall(pattern, query)]
    numbers = [int(word) if word.isdecimal() else _NUMBERS.get(word.lower(), 0) for word in words]
    people = max(numbers, default=0) or (2 if "a pair" in query else 1)

    def named(patterns: Mapping[str, str]) -> str | None:
        return next((name for name, pattern in patterns.items() if re.search(pattern, query, re.IGNORECASE)), None)

    cuisines = tuple(name for name in CUISINES if re.search(rf"\b{name}\b", query))
    return people, int(budget[1].replace(",", "")), named(_RULES), cuisines, named(_ROOMS), named(_TRANSPORT)


__all__ = ["LEVELS", "Reference", "TripTask", "load", "one_line", "read_query"]

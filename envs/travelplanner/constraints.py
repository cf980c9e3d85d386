"""TravelPlanner's constraints: eight of common sense, five of the query, in our words.

The publisher checks them against its database of all cities. Here the reference information of the task stands in its
place, which is all that an agent knows. What is in neither is out of the sandbox: another flight, another city, a
meal in the city of departure. Where the rules differ besides, the function says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from roleagent.envs.travelplanner.plan import FIELDS, MEALS, Day, attractions_of, cities_of, given, place, route
from roleagent.envs.travelplanner.tasks import TripTask

Plan = Sequence[Day]
PASSENGERS = {"self-driving": 5, "taxi": 4}
"""People per car."""
NIGHTS = "minimum nights"


class Verdict(NamedTuple):
    """The constraints of a plan.

    Attributes:
        commonsense: by constraint, why it is broken; None: it holds.
        hard: the same for the wishes of the query. All are broken in a plan that is incomplete or outside the sandbox:
            the publisher does not look at them there, and counts them as broken.
    """

    commonsense: Mapping[str, str | None]
    hard: Mapping[str, str | None]

    @property
    def rates(self) -> dict[str, float]:
        """Shares of constraints that hold (``micro``), and whether all do (``macro``), in [0, 1]."""
        found = {}
        for kind, reasons in zip(self._fields, self, strict=True):
            passed = sum(reason is None for reason in reasons.values())
            found[f"{kind}_micro"] = passed / len(reasons)
            found[f"{kind}_macro"] = float(passed == len(reasons))
        return found


def check(task: TripTask, plan: Plan) -> Verdict:
    """All constraints of a plan; days beyond those of the trip are not looked at."""
    plan = plan[: task.days]
    commonsense = {name: rule(task, plan) for name, rule in COMMONSENSE.items()}
    barred = commonsense["complete_information"] or commonsense["within_sandbox"]
    hard = {name: barred or rule(task, plan) for name, rule in HARD.items() if asked(task, name)}
    return Verdict(commonsense, hard)


def asked(task: TripTask, name: str) -> bool:
    """Whether a query has a constraint; every one has a budget."""
    wishes = {"room_rule": task.house_rule, "cuisine": task.cuisines, "room_type": task.room_type}
    return name == "budget" or bool({**wishes, "transportation": task.no_transport}[name])


def within_sandbox(task: TripTask, plan: Plan) -> str | None:
    """Everything in the plan exists: flights, drives, restaurants, attractions, accommodations.

    A transportation is a flight with its number, an own car or a taxi; to the publisher any other is there, and free.
    """
    for number, day in enumerate(plan, start=1):
        if given(day, "transportation") and _fare(task, day) is None:
            return f"the transportation of day {number} does not exist"
        for meal in MEALS:
            if given(day, meal) and _restaurant(task, day[meal]) is None:
                return f"there is no restaurant {day[meal]!r}"
        for one in attractions_of(day):
            name, city = place(one)
            if not name or not any(name in other for other in task.reference.attractions.get(city, ())):
                return f"there is no attraction {one!r}"
        if given(day, "accommodation") and not _accommodations(task, day["accommodation"]):
            return f"there is no accommodation {day['accommodation']!r}"
    return None


def complete_information(task: TripTask, plan: Plan) -> str | None:
    """All days and cities of the trip, each day with all fields, and filled in where the day needs it."""
    if sum(map(bool, plan)) != task.days:
        return f"the plan has {sum(map(bool, plan))} days, the trip {task.days}"
    cities = {city for day in plan for city in cities_of(day)} - {task.origin}
    if elsewhere := _begins_elsewhere(task, plan):
        return elsewhere
    if len(cities) != len(task.reference.cities):
        return f"the plan visits {len(cities)} cities, the trip {len(task.reference.cities)}"
    for number, day in enumerate(plan, start=1):
        if missing := next((name for name in FIELDS if name not in day), None):
            return f"day {number} has no {missing}"
        travels = "from " in day["current_city"]
        needed = ["transportation"] if travels else ["attraction", *MEALS]
        needed += ["accommodation"] if number < task.days else []
        if empty := next((name for name in needed if not given(day, name)), None):
            return f"day {number} leaves {empty} open"
    filled = sum(bool(given(day, name)) for day in plan for name in ("days", *FIELDS))
    return "more than half of the information is missing" if filled < 3 * task.days else None


def within_current_city(task: TripTask, plan: Plan) -> str | None:
    """Meals, attractions and the accommodation are in a city of the day, and a travel names its cities.

    On days without a travel the publisher's loop runs over the letters of the city's name, so that nearly anything
    passes; here the name is looked for.
    """
    for number, day in enumerate(plan, start=1):
        cities = cities_of(day)
        if (travel := given(day, "transportation")) and not all(city in travel for city in cities):
            return f"the transportation of day {number} is not from {' to '.join(cities)}"
        visits = [given(day, meal) for meal in MEALS if given(day, meal)] + attractions_of(day)
        if elsewhere := next((one for one in visits if not any(city in one for city in cities)), None):
            return f"day {number} is not in the city of {elsewhere!r}"
        if (bed := given(day, "accommodation")) and not (cities and cities[-1] in bed):
            return f"day {number} does not end in the city of {bed!r}"
    return None


def reasonable_city_route(task: TripTask, plan: Plan) -> str | None:
    """From the city of departure and back, through cities of the trip, each visited once and for a night."""
    stops = [cities_of(day) for day in plan]
    if lost := next((number for number, cities in enumerate(stops, start=1) if not cities), None):
        return f"day {lost} names no city"
    if elsewhere := _begins_elsewhere(task, plan):
        return elsewhere
    cities = [city for day in stops for city in day]
    if cities[0] != cities[-1]:
        return "the trip does not end where it began"
    blocks = [(city, len(list(same))) for city, same in groupby(cities)]
    left = [city for city, _ in blocks[:-1]]
    if len(cities) < 3 or len(set(left)) < len(left) or (left and blocks[-1][1] > 1):
        return "a city is visited twice"
    if any(count == 1 for _, count in blocks[1:-1]):
        return "a city is only passed through"
    unknown = next((city for city in cities if city not in (task.origin, *task.reference.cities)), None)
    return f"{unknown} is no city of the trip" if unknown else None


def diverse_restaurants(task: TripTask, plan: Plan) -> str | None:
    """No restaurant twice."""
    return _repeated([given(day, meal) for day in plan for meal in MEALS if given(day, meal)])


def diverse_attractions(task: TripTask, plan: Plan) -> str | None:
    """No attraction twice."""
    return _repeated([one for day in plan for one in attractions_of(day)])


def non_conflicting_transportation(task: TripTask, plan: Plan) -> str | None:
    """The first day has a transportation, and an own car is neither left behind for a flight nor for a taxi."""
    if not plan or not given(plan[0], "transportation"):
        return "day 1 has no transportation"
    modes = {_mode(given(day, "transportation")) for day in plan}
    return "an own car and another transportation" if "self-driving" in modes and modes & {"flight", "taxi"} else None


def minimum_nights(task: TripTask, plan: Plan) -> str | None:
    """Each stay is as long as its accommodation wants it."""
    if not all("accommodation" in day for day in plan):
        return "a day has no accommodation"
    for text, nights in groupby(given(day, "accommodation") for day in plan):
        found = _accommodations(task, text)
        if len(found) == 1 and len(list(nights)) < found[0][NIGHTS]:
            return f"{text!r} wants {found[0][NIGHTS]:.0f} nights"
    return None


def budget(task: TripTask, plan: Plan) -> str | None:
    """The costs of transportation, meals and nights for all people are within the budget."""
    cost = total_cost(task, plan)
    return None if cost <= task.budget else f"the plan costs {cost:.0f} dollars of {task.budget}"


def room_rule(task: TripTask, plan: Plan) -> str | None:
    """No accommodation forbids what the query wishes."""
    rooms = _rooms(task, plan)
    return next((f"{room['NAME']!r} has no {task.house_rule}" for room in rooms if _forbids(room, task)), None)


def cuisine(task: TripTask, plan: Plan) -> str | None:
    """Each cuisine of the query is that of a meal."""
    meals = [_restaurant(task, given(day, meal)) for day in plan for meal in MEALS if given(day, meal)]
    served = " ".join(restaurant[2] for restaurant in meals if restaurant)
    return next((f"no {name} meal" for name in task.cuisines if name not in served), None)


def room_type(task: TripTask, plan: Plan) -> str | None:
    """Every accommodation is of the wished type."""
    rooms = (room["room type"] for room in _rooms(task, plan))
    return next((f"a {found.lower()}" for found in rooms if found != task.room_type), None)


def transportation(task: TripTask, plan: Plan) -> str | None:
    """The means of travel that the query rules out is not in the plan."""
    used = any(str(task.no_transport) in given(day, "transportation") for day in plan)
    return f"{task.no_transport} was ruled out" if used else None


Rule = Callable[[TripTask, Plan], "str | None"]
COMMONSENSE: Mapping[str, Rule] = {
    rule.__name__: rule
    for rule in (
        *(within_sandbox, complete_information, within_current_city, reasonable_city_route),
        *(diverse_restaurants, diverse_attractions, non_conflicting_transportation, minimum_nights),
    )
}
HARD: Mapping[str, Rule] = {rule.__name__: rule for rule in (budget, room_rule, cuisine, room_type, transportation)}


def total_cost(task: TripTask, plan: Plan) -> float:
    """Dollars of a plan for all people; what does not exist costs nothing."""
    total = 0.0
    for day in plan:
        total += (_fare(task, day) or 0.0) if given(day, "transportation") else 0.0
        meals = [_restaurant(task, given(day, meal)) for meal in MEALS if given(day, meal)]
        total += task.people * sum(restaurant[1] for restaurant in meals if restaurant)
    return total + sum(
        room["price"] * math.ceil(task.people / room["maximum occupancy"]) for room in _rooms(task, plan)
    )


def _begins_elsewhere(task: TripTask, plan: Plan) -> str | None:
    """Whether the first day travels from another city than that of departure."""
    cities = cities_of(plan[0])
    return f"the trip does not begin in {task.origin}" if len(cities) == 2 and cities[0] != task.origin else None


def _mode(text: str) -> str | None:
    """The first of these words in a text; the publisher looks for them in this order."""
    return next((mode for mode in ("taxi", "self-driving", "flight") if mode in text.lower()), None)


def _fare(task: TripTask, day: Day) -> float | None:
    """What a day's transportation costs all people; None: it does not exist."""
    text = day["transportation"]
    leg = route(text) or route(day.get("current_city", ""))
    if found := re.search(r"flight number:?\s*([^,]*)", text, re.IGNORECASE):
        flight = task.reference.flights.get(found[1].strip())
        return flight[2] * task.people if flight and flight[:2] == leg else None
    mode = next((mode for mode in PASSENGERS if mode in text.lower()), "")
    cost = task.reference.drives.get((mode, *(leg or ("", ""))))
    return None if cost is None else cost * math.ceil(task.people / PASSENGERS[mode])


def _restaurant(task: TripTask, text: str) -> tuple[str, float, str] | None:
    """The first restaurant of the city whose name holds the given one, as the publisher compares."""
    name, city = place(text)
    found = task.reference.restaurants.get(city, ()) if name else ()
    return next((restaurant for restaurant in found if name in restaurant[0]), None)


def _accommodations(task: TripTask, text: str) -> list[Mapping[str, Any]]:
    """The accommodations of the city whose names hold the given one."""
    name, city = place(text)
    found = task.reference.accommodations.get(city, ()) if name else ()
    return [row for known, row in found if name in known]


def _rooms(task: TripTask, plan: Plan) -> list[Mapping[str, Any]]:
    """The accommodation of each night that exists."""
    found = [_accommodations(task, given(day, "accommodation")) for day in plan]
    return [rows[0] for rows in found if rows]


def _forbids(room: Mapping[str, Any], task: TripTask) -> bool:
    return f"No {task.house_rule}" in str(room["house_rules"])


def _repeated(names: Sequence[str]) -> str | None:
    return next((f"{name!r} twice" for place, name in enumerate(names) if name in names[:place]), None)


__all__ = ["COMMONSENSE", "HARD", "Verdict", "asked", "check", "total_cost"]

"""The wording of tasks, and the calls that solve them.

A goal names a person, a room or an id, perhaps through relations: "the boss of the keeper of Amber Hall". So it can be
read without knowing the office, as :class:`Plan`.

>>> plan = understand("What is the price of the room of Mara Quill in USD?")
>>> plan.kind, plan.calls
('price', 4)
>>> plan.next({}.get)
Call(name='find', arguments={'name': 'Mara Quill'}, id=None)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from roleagent.envs.office.world import RELATIONS
from roleagent.envs.tools.calls.command import answer_command, call_command
from roleagent.tools import Call

KINDS = ("lookup", "price", "book", "meet")
"""The first two are judged by the answer, the others by what is booked in the end."""
DONE = "done"
"""The answer to a task that is judged by its bookings."""

_WHO = rf"(?P<who>(?:the (?:{'|'.join(RELATIONS)}) of )*(?:[pr]\d+|[A-Z]\w* [A-Z]\w*))"
_CURRENCY = r"(?P<currency>[A-Z]{3})"
_FORMS = (
    rf"What is the (?P<field>phone|size) of {_WHO}\?",
    rf"What is the (?P<field>price) of {_WHO} in {_CURRENCY}\?",
    rf"What are the (?P<field>expenses) of {_WHO}(?: in {_CURRENCY})?\?",
    rf"What is (?P<amount>[A-Z]{{3}}\d+) in {_CURRENCY}\?",
    rf"(?P<verb>Book|Meet) {_WHO} on (?P<day>\w+), "
    r"(?:(?P<end>first|last) free hour|(?P<hour>\d+):00(?P<later> or later)?)\.",
)

Results = Callable[[str], str | None]
"""From a call (:func:`key_of`) to the text of its result; None: not known."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A goal, understood.

    Attributes:
        who: an id, a name, or ``""``.
        relations: fields that lead from there to the thing in question, in the order of the calls.
        field: the field that is asked for, or ``""``.
        amount, currency: what is converted, and into which currency, or ``""``.
        verb: ``"Book"``, ``"Meet"`` or ``""``.
        day: of the booking.
        end: ``"first"`` or ``"last"`` free hour, or ``""``.
        hour: the hour of the booking, or the first that it may be with ``later``; 0: none is named.
    """

    who: str = ""
    relations: tuple[str, ...] = ()
    field: str = ""
    amount: str = ""
    currency: str = ""
    verb: str = ""
    day: str = ""
    end: str = ""
    hour: int = 0
    later: bool = False

    @property
    def kind(self) -> str:
        """One of :data:`KINDS`."""
        if self.verb:
            return self.verb.lower()
        return "price" if self.field in ("", "price", "expenses") else "lookup"

    @property
    def calls(self) -> int:
        """The number of calls that solve it."""
        named = bool(self.who) and not is_id(self.who)
        searches = bool(self.verb) and (self.later or bool(self.end))
        return sum(
            (
                named,
                len(self.relations),
                bool(self.field),
                self.field == "expenses",
                bool(self.currency),
                searches,
                bool(self.verb),
            )
        )

    def next(self, results: Results) -> Call | str:
        """The next call whose result is not known yet, or else the answer."""
        known: list[str] = []

        def missing(call: Call) -> bool:
            text = results(key_of(call))
            known.append(text or "")
            return text is None

        id = self.who
        if id and not is_id(id):
            if missing(call := Call("find", {"name": id})):
                return call
            id = known[-1]
        for relation in self.relations:
            if missing(call := Call("detail", {"id": id, "field": relation})):
                return call
            id = known[-1]
        if self.verb:
            return self._booking(id, missing, known)
        value = self.amount
        if self.field:
            if missing(call := Call("detail", {"id": id, "field": self.field})):
                return call
            value = known[-1]
        if self.field == "expenses":
            currency, numbers = value[:3], [int(number) for number in re.findall(r"\d+", value)]
            if missing(call := Call("sum", {"numbers": numbers})):
                return call
            value = f"{currency}{known[-1]}"
        if self.currency:
            if missing(call := Call("convert", {"amount": value, "to": self.currency})):
                return call
            value = known[-1]
        return value

    def _booking(self, id: str, missing: Callable[[Call], bool], known: list[str]) -> Call | str:
        hour = self.hour
        if self.end or self.later:
            if missing(call := Call("free", {"id": id, "day": self.day})):
                return call
            hours = [int(found) for found in re.findall(r"\d+", known[-1])]
            suitable = [found for found in hours if found >= self.hour]
            hour = suitable[-1 if self.end == "last" else 0] if suitable else self.hour
        call = Call("book", {"id": id, "day": self.day, "hour": hour})
        return call if missing(call) else DONE


def understand(goal: str) -> Plan | None:
    """The plan of a goal; None if it is worded in another way.

    >>> understand("Meet the boss of Mara Quill on Monday, 11:00 or later.").calls
    4
    >>> understand("Sing a song.") is None
    True
    """
    for form in _FORMS:
        if found := re.fullmatch(form, goal.strip()):
            parts: dict[str, Any] = {name: text for name, text in found.groupdict().items() if text}
            *relations, who = parts.pop("who", "").split(" of ")
            named = tuple(relation.removeprefix("the ") for relation in reversed(relations))
            hour, later = int(parts.pop("hour", 0)), bool(parts.pop("later", ""))
            return Plan(**parts, who=who, relations=named, hour=hour, later=later)
    return None


def is_id(text: str) -> bool:
    """Whether a text has the form of an id.

    >>> is_id("p47"), is_id("Mara Quill")
    (True, False)
    """
    return re.fullmatch(r"[pr]\d+", text) is not None


def key_of(call: Call) -> str:
    """A call as text: equal calls have equal keys, whatever the order of their arguments."""
    return f"{call.name}{json.dumps(dict(call.arguments), sort_keys=True)}"


def command_of(step: Call | str) -> str:
    """A call or an answer as the bare command of the environment, one JSON line.

    >>> command_of(Call("find", {"name": "Mara Quill"})), command_of("USD46")
    ('{"calls": [{"name": "find", "arguments": {"name": "Mara Quill"}}]}', '{"answer": "USD46"}')
    """
    return answer_command(step) if isinstance(step, str) else call_command([step])


__all__ = ["DONE", "KINDS", "Plan", "Results", "command_of", "is_id", "key_of", "understand"]

"""An episode in the shop, read from its text: searches, opened products, details, choices and the purchase."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from roleagent.envs.failures.detectors import is_malformed
from roleagent.envs.webshop.text import Listing, Page, Request, read_page, read_request, words_of
from roleagent.types import Trajectory

_COMMAND = re.compile(r"(search|click)\[(.+)\]")


@dataclass(frozen=True, slots=True)
class Step:
    """One command.

    Attributes:
        number: the turn, 0-based.
        verb, argument: its parts, lower-cased; ``""`` where it has none.
        worked: whether it had an effect.
        malformed: whether the reply could not be read as a search or a click.
        page: the kind of page on which it was given (see :class:`~roleagent.envs.webshop.text.Page`).
        new: whether it led to something new: a page, or a choice.
    """

    number: int
    verb: str
    argument: str
    worked: bool
    malformed: bool
    page: str
    new: bool


@dataclass
class Visit:
    """The visit of one product's pages: what was read and clicked.

    Attributes:
        opened: the step at which it was opened last.
        title, price: as its page shows them; the price is the lower end of a range.
        groups: its options, by group.
        page_words: the words that its pages have shown.
        read: whether one of the pages behind it was opened.
        chosen: the options that are chosen now: group → (value, the step).
    """

    opened: int
    title: str = ""
    price: float = 0.0
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    page_words: frozenset[str] = frozenset()
    read: bool = False
    chosen: dict[str, tuple[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Trace:
    """A whole episode.

    Attributes:
        opened: the numbers of the products that were opened.
        listed: every product that results have shown, by number.
        bought: the product that was bought; None if none was.
    """

    request: Request
    steps: tuple[Step, ...]
    opened: frozenset[str]
    listed: Mapping[str, Listing]
    bought: Visit | None

    @property
    def searches(self) -> list[Step]:
        """The searches in order."""
        return [step for step in self.steps if step.verb == "search" and step.worked]


def read_trace(trajectory: Trajectory) -> Trace:
    """Follows the shopper through an episode of the observation mode ``text``."""
    page = read_page(trajectory.initial_observation)
    visits: dict[str, Visit] = {}
    listed: dict[str, Listing] = {}
    steps: list[Step] = []
    here, bought = "", None
    seen = {trajectory.initial_observation}
    clicked: set[str] = set()
    for number, turn in enumerate(trajectory.turns):
        command = _COMMAND.match(turn.action)
        verb, argument = (command[1], command[2].lower()) if command else ("", "")
        worked = bool(turn.info.get("valid_action", True)) and command is not None
        malformed = is_malformed(turn) or command is None
        new = worked and (turn.observation not in seen or (page.kind == "item" and turn.action not in clicked))
        seen.add(turn.observation)
        clicked.add(turn.action)
        steps.append(Step(number, verb, argument, worked, malformed, page.kind, new))
        if not worked:
            continue
        before, page = page, read_page(turn.observation)
        visit = visits.get(here)
        if argument == "buy now" and verb == "click":
            bought = visit or Visit(number)
        elif page.kind in ("index", "results"):
            listed |= {listing.asin.lower(): listing for listing in page.listings}
            if visit:
                visit.chosen = {}
            here = ""
        elif before.kind == "results":
            here = argument
            visit = visits.setdefault(here, Visit(number))
            visit.opened = number
        if visit and here:
            _look(visit, page, turn.info.get("clickables", ()))
            if before.kind == page.kind == "item":
                groups = [name for name, values in visit.groups.items() if argument in values]
                visit.chosen |= dict.fromkeys(groups, (argument, number))
    request = read_request(trajectory.task.goal)
    return Trace(request, tuple(steps), frozenset(visits), listed, bought)


def _look(visit: Visit, page: Page, clickables: object) -> None:
    """Records a page's information on its product."""
    if page.kind == "item":
        buttons = set(clickables) if isinstance(clickables, list | tuple) else set()
        visit.title, visit.price = page.title, page.price
        visit.groups = page.groups([choice for choice in page.choices if choice not in buttons])
        visit.page_words |= words_of(" ".join((page.title, *page.choices)))
    elif page.kind == "detail":
        visit.read = True
        visit.page_words |= words_of(page.text)

"""``SimServer``: the shop with its goals and sessions, and ``SimBrowser``, one shopper's view of it."""

from __future__ import annotations

import bisect
import operator
import os
import random
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, overload

import numpy as np

from roleagent.compat.webshop.html import page_html
from roleagent.envs.webshop.data.official import data_place, find_files
from roleagent.envs.webshop.data.product import Product
from roleagent.envs.webshop.engine.goals import SEED, Goal
from roleagent.envs.webshop.engine.reward import Score
from roleagent.envs.webshop.engine.session import Session, parse
from roleagent.envs.webshop.engine.shop import open_shop
from roleagent.options import user_path

BASE_URL = "http://127.0.0.1:3000"
_ORDER_SEED = 233  # the original seeds the process's generator with it, shuffles the goals and draws on


class SimServer:
    """The shop, shared by any number of environments (``WebAgentTextEnv(server=…)``).

    Args:
        base_url: the beginning of the addresses.
        file_path: the file of products or its folder, else a store; None: as ``data_dir`` of ``RoleAgent/WebShop-v0``.
        filter_goals: keeps the goals for which ``filter_goals(index, goal)`` is true.
        limit_goals: keeps so many goals, drawn by their weights; -1: all.
        num_products: only the first so many products; any number.
        human_goals: whether the goals are the human ones.
        show_attrs: whether products have a page of attributes.
        seed: of prices and price caps; the original draws them unseeded.
        nouns: see ``RoleAgent/WebShop-v0``.

    Attributes:
        goals: the goals in their order, as dictionaries.
        user_sessions: what is known of every session, by its id.
        assigned_instruction_text: replaces the instruction of every goal, where it is set.

    Raises:
        ValueError: there are no such data, or no goals are left.
    """

    def __init__(
        self,
        base_url: str = BASE_URL,
        file_path: str | os.PathLike[str] | None = None,
        filter_goals: Callable[[int, dict[str, Any]], object] | None = None,
        limit_goals: int = -1,
        num_products: int | None = None,
        human_goals: bool | int | None = False,
        show_attrs: bool = False,
        *,
        seed: int = SEED,
        nouns: str | os.PathLike[str] | None = None,
    ):
        self.base_url = base_url
        kind = "human" if human_goals else "synthetic"
        self.shop = open_shop(file_path, num_products, kind, "bm25", nouns, seed, bool(show_attrs))
        self.show_attrs = show_attrs
        self.goals = GoalDicts(self.shop.goals, range(len(self.shop.goals)))
        if filter_goals is not None:
            chosen = [index for index, goal in enumerate(self.goals) if filter_goals(index, goal)]
            self.goals = GoalDicts(self.shop.goals, chosen)
        if not len(self.goals):
            raise ValueError("filter_goals leaves no goal")
        if limit_goals is not None and -1 < limit_goals < len(self.goals):
            if limit_goals < 1:
                raise ValueError(f"limit_goals must be -1 (all) or at least 1, not {limit_goals}")
            kept: dict[int, None] = {}
            while len(kept) < limit_goals:
                kept.setdefault(self.draw())
            self.goals = GoalDicts(self.shop.goals, [self.goals.indices[index] for index in kept])
            del self.weights, self.cum_weights
        self.user_sessions: dict[str, dict[str, Any]] = {}
        self.assigned_instruction_text: str | None = None

    @cached_property
    def weights(self) -> list[float]:
        """The sampling weights of the goals."""
        return self.shop.goals.weights[np.asarray(self.goals.indices, dtype=np.intp)].tolist()

    @cached_property
    def cum_weights(self) -> list[float]:
        """The sums of the weights, from 0."""
        return [0, *np.cumsum(self.weights).tolist()]

    @cached_property
    def rng(self) -> random.Random:
        """Draws goals and session ids: in the state in which the original leaves the process's generator."""
        rng = random.Random(_ORDER_SEED)
        rng.shuffle(list(range(len(self.shop.goals))))
        return rng

    @cached_property
    def product_item_dict(self) -> Mapping[str, dict[str, Any]]:
        """Every product by its asin, as a dictionary with the original's keys."""
        return ProductDicts(self.shop.catalogue)

    @cached_property
    def product_prices(self) -> dict[str, float]:
        """The price of every product in dollars, by asin."""
        return dict(zip(self.shop.catalogue.asins, self.shop.prices, strict=True))

    def draw(self) -> int:
        """The index of a goal, drawn by weight.

        As in the original, the first goal is never drawn, and the last one has the weight of the last two.
        """
        position = self.rng.uniform(0, self.cum_weights[-1])
        return min(bisect.bisect(self.cum_weights, position), len(self.cum_weights) - 2)

    def session_name(self) -> str:
        """A name for a session that has none: ten letters."""
        return "".join(self.rng.choices(string.ascii_lowercase, k=10))

    def begin(self, session_id: str, index: int | None) -> Goal:
        """The goal of a session; a new session gets the goal ``index``, or draws one.

        Raises:
            IndexError: there is no such goal.
        """
        session = self.user_sessions.get(session_id)
        if session is None:
            index = self.draw() if index is None else index
            number = self.goals.number(index)
            session = self.user_sessions[session_id] = {"goal": self.goals[index], "done": False, "number": number}
        return self.instruct(session_id, self.shop.goals[session["number"]])

    def instruct(self, session_id: str, goal: Goal) -> Goal:
        """The goal with the instruction that the session has now: a client may have replaced it."""
        known = self.user_sessions[session_id]["goal"]
        if self.assigned_instruction_text is not None:
            known["instruction_text"] = self.assigned_instruction_text
        text = known["instruction_text"]
        return goal if text == goal.instruction else replace(goal, instruction=text)


class SimBrowser:
    """The page that a shopper sees.

    Attributes:
        server: the shop.
        session_id: the name of the session.
    """

    def __init__(self, server: SimServer):
        self.server = server
        self.session_id = ""
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """The shopper's state."""
        assert self._session is not None
        return self._session

    @property
    def current_url(self) -> str:
        """The address of the page."""
        place, _, rest = self.session.url[1:].partition("/")
        return "/".join((self.server.base_url, *([place] if place else []), self.session_id, *([rest] if rest else [])))

    @property
    def page_source(self) -> str:
        """The page as HTML."""
        return page_html(self.session.page, self.session.goal.instruction, self.current_url)

    def get(self, session_id: str, index: int | None = None) -> None:
        """Opens the search page of a session."""
        goal = self.server.begin(session_id, index)
        self.session_id, self._session = session_id, Session(self.server.shop, goal)
        self._keep()

    def act(self, command: str) -> dict[str, Any]:
        """Carries out a command: its reward, and whether it bought something."""
        session = self.session
        session.goal = self.server.instruct(self.session_id, session.goal)
        if session.done and (parse(command) or ("",))[0] == "search":
            session.score = None  # as in the original, a search goes on after the purchase
        if not session.act(command):
            return {"reward": 0, "done": False}
        self._keep()
        return {"reward": 0.0 if session.score is None else session.score.total, "done": session.done}

    def _keep(self) -> None:
        session = self.session
        known = self.server.user_sessions[self.session_id]
        known.update(
            keywords=None if session.query is None else session.query.split(" "),
            page=None if session.query is None else session.number,
            asin=session.asin or None,
            asins=session.visited,
            options=session.options,
        )
        if session.score is not None:
            known.update(done=True, reward=session.score.total, verbose_info=_details(session.score, session.goal))


class GoalDicts(Sequence[dict[str, Any]]):
    """Goals as dictionaries with the original's keys, made when they are asked for.

    Attributes:
        goals: all goals of the shop.
        indices: which of them these are.
    """

    def __init__(self, goals: Sequence[Goal], indices: Sequence[int]):
        self.goals, self.indices = goals, indices

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [_goal_dict(self.goals[number]) for number in self.indices[index]]
        return _goal_dict(self.goals[self.number(index)])

    def number(self, index: int) -> int:
        """The number of the goal in the shop.

        Raises:
            IndexError: there is none.
        """
        try:
            return self.indices[operator.index(index)]
        except IndexError:
            raise IndexError(f"there are {len(self)} goals, no goal {index}") from None


class ProductDicts(Mapping[str, dict[str, Any]]):
    """Products by asin, as dictionaries with the original's keys, made when they are asked for."""

    def __init__(self, catalogue: Sequence[Product]):
        self._catalogue: Any = catalogue

    def __len__(self) -> int:
        return len(self._catalogue)

    def __iter__(self) -> Iterator[str]:
        return iter(self._catalogue.asins)

    def __getitem__(self, asin: str) -> dict[str, Any]:
        product: Product = self._catalogue[self._catalogue.position(asin)]
        return {
            "asin": product.asin,
            "name": product.title,
            "Title": product.title,
            "Description": product.description,
            "BulletPoints": list(product.bullets),
            "Attributes": list(product.attributes),
            "category": product.category,
            "product_category": product.product_category,
            "query": product.query,
            "pricing": list(product.prices),
            "Price": product.price_tag,
            "options": {name: list(values) for name, values in product.options.items()},
        }


def check_files(file_path: str | os.PathLike[str] | None, attr_path: str | os.PathLike[str] | None) -> None:
    """Checks that the file of attributes belongs to the file of products.

    Raises:
        ValueError: it is another one.
    """
    if attr_path is not None:
        notes = find_files(user_path(data_place(file_path))).notes
        if notes.resolve() != user_path(attr_path).resolve():
            raise ValueError(f"attr_path {attr_path} is not the file that goes with file_path: that is {notes}")


def _goal_dict(goal: Goal) -> dict[str, Any]:
    options = dict(goal.options) if isinstance(goal.options, Mapping) else list(goal.options)
    return {
        "asin": goal.asin,
        "category": goal.category,
        "query": goal.query,
        "name": goal.title,
        "product_category": goal.product_category,
        "instruction_text": goal.instruction,
        "attributes": list(goal.attributes),
        "price_upper": goal.price_upper,
        "goal_options": options,
        "weight": goal.weight,
    }


def _details(score: Score, goal: Goal) -> dict[str, Any]:
    """The parts of a score, as the original keeps them."""
    attributes, options = len(goal.attributes), len(goal.options)
    whole = attributes + options + 1
    details = {
        "r_type": score.type,
        "r_att": score.attributes / attributes,
        "w_att": attributes / whole,
        "query_match": score.query_match,
        "category_match": score.category_match,
        "title_score": score.title_score,
    }
    if options:
        details |= {"r_option": score.options / options, "w_option": options / whole}
    return details | {"r_price": score.price, "w_price": 1 / whole}


__all__ = ["BASE_URL", "GoalDicts", "ProductDicts", "SimBrowser", "SimServer", "check_files"]

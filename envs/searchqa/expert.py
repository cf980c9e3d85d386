"""A researcher that sees only the question and what searches show, and answers questions of the generated world.

It knows the language, not the facts: it takes a question apart into a name and one or two relations, looks the name
up, reads on from what it finds, and answers with what the last passage contains. Queries of another player do no
harm: whatever they show is read as well.

>>> expert = ResearchExpert()
>>> expert.reset("Who taught the director of Silver Harbor?", "")
>>> expert.act()
'search[Silver Harbor]'
>>> shown = '<information>Doc 1(Title: "Silver Harbor") Silver Harbor is a war film. It was filmed by Mara Quill.'
>>> expert.observe("search[Silver Harbor]", shown + "</information>")
>>> expert.act()
'search[Mara Quill]'
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from roleagent.envs.searchqa.data.templates import PRONOUNS, RELATIONS, Relation
from roleagent.envs.searchqa.text import read_command, read_information

GIVEN_UP = "answer[unknown]"


class Request(NamedTuple):
    """A parsed question: the named entity, and the relations from there to the answer."""

    name: str
    relations: tuple[Relation, ...]


class ResearchExpert:
    """Looks up, reads, reads on, answers.

    Args:
        rng: unused: this expert always does what seems best.
    """

    def __init__(self, rng: Any = None):
        self.reset("", "")

    def reset(self, goal: str, observation: str) -> None:
        """Begins with a question; all else is forgotten."""
        self.request = understand(goal)
        self._read: dict[str, str] = {}  # title → text
        self._searched: set[str] = set()

    def observe(self, command: str, observation: str) -> None:
        """Reads a search and its passages."""
        verb, argument = read_command(command)
        if verb == "search":
            self._searched.add(argument)
        self._read |= {document.title: document.text for document in read_information(observation)}

    @property
    def given_up(self) -> bool:
        """Whether it knows no way to the answer."""
        return self.act() == GIVEN_UP

    def act(self) -> str:
        """Searches for the next thing to know, or answers."""
        if self.request is None:
            return GIVEN_UP
        name = self.request.name
        for relation in self.request.relations:
            found = find(relation, name, self._read.get(name, ""))
            if not found:
                return self._search(name)
            name = found
        return f"answer[{name}]"

    def _search(self, name: str) -> str:
        """By name alone, then with the question's own words."""
        assert self.request is not None
        for query in (name, f"{name} {self.request.relations[-1].name}"):
            if query not in self._searched:
                return f"search[{query}]"
        return GIVEN_UP


def understand(question: str) -> Request | None:
    """The entity and the relations of a question; None if no known pattern matches.

    >>> understand("Who governs the town where Mara Quill was born?").name
    'Mara Quill'
    """
    for relation in RELATIONS:
        for form in relation.asks:
            if found := _pattern(form).fullmatch(question):
                return _resolve(found["s"], (relation,))
    return None


def _resolve(phrase: str, relations: tuple[Relation, ...]) -> Request:
    """Goes from a description to the name within it."""
    for relation in RELATIONS:
        if relation.object == relations[0].subject:
            for form in relation.describes:
                if found := _pattern(form).fullmatch(phrase):
                    return _resolve(found["s"], (relation, *relations))
    return Request(phrase, relations)


def find(relation: Relation, name: str, text: str) -> str:
    """The value of a relation in the passage about ``name``; ``""`` without one.

    >>> by_name = {relation.name: relation for relation in RELATIONS}
    >>> find(by_name["mayor"], "New Velm", "New Velm lies on the Esk. It is led by Elra Thorne.")
    'Elra Thorne'
    """
    for form in relation.sentences:
        for subject in (name, *PRONOUNS[relation.subject]):
            told = _pattern(form.replace("{s}", subject)).search(text)
            if told:
                return told["o"]
    return ""


@lru_cache(maxsize=4096)
def _pattern(form: str) -> re.Pattern[str]:
    """The texts of a form, with groups where it has gaps."""
    text = re.escape(form).replace(r"\{s\}", "(?P<s>.+)").replace(r"\{o\}", r"(?P<o>[^.]+)")
    return re.compile(text)


def make_expert(env: gymnasium.Env, rng: np.random.Generator) -> ResearchExpert:
    """The expert for an environment."""
    return ResearchExpert(rng)


__all__ = ["GIVEN_UP", "Request", "ResearchExpert", "find", "make_expert", "understand"]

"""The scripted expert of the office: reads the goal, makes one call after the other, and answers.

>>> expert = OfficeExpert()
>>> expert.reset("What is the phone of Mara Quill?", "")
>>> expert.act()
'{"calls": [{"name": "find", "arguments": {"name": "Mara Quill"}}]}'
>>> expert.observe(expert.act(), "p47")
>>> expert.observe(expert.act(), "31-52")
>>> expert.act()
'{"answer": "31-52"}'
"""

from __future__ import annotations

import re

import gymnasium
from numpy.random import Generator

from roleagent.envs.office.goals import command_of, key_of, understand
from roleagent.envs.tools.calls.command import read_command

GIVEN_UP = "unknown"
_RESULTS = {
    "find": r"[pr]\d+",
    "detail": r"[pr]\d+|\d+|\d+-\d+|[A-Z]{3}\d+|[A-Z]{3} \d+(?:, \d+)*",
    "free": r"\d+(?:, \d+)*",
    "book": r"booked .*",
    "convert": r"[A-Z]{3}\d+",
    "sum": r"\d+",
}
"""The form of a tool's results; anything else is a refusal."""


class OfficeExpert:
    """Carries out the plan of a goal. It remembers the results of all calls, those of other agents included."""

    def reset(self, goal: str, observation: str) -> None:
        """Begins an episode with the goal; the first observation is the same text."""
        self._plan = understand(goal)
        self._results: dict[str, str] = {}
        self._refused: set[str] = set()

    @property
    def given_up(self) -> bool:
        """Whether it knows no way on."""
        return self.act() == command_of(GIVEN_UP)

    def act(self) -> str:
        """The next call, or the answer."""
        step = GIVEN_UP if self._plan is None else self._plan.next(self._results.get)
        command = command_of(step)
        return command_of(GIVEN_UP) if command in self._refused else command

    def observe(self, command: str, observation: str) -> None:
        """Observes the result of any command."""
        calls = read_command(command).readable
        if len(calls) != 1:
            return
        form = _RESULTS.get(calls[0].name)
        if form and re.fullmatch(form, observation.strip()):
            self._results[key_of(calls[0])] = observation.strip()
        else:
            self._refused.add(command_of(calls[0]))


def make_expert(env: gymnasium.Env, rng: Generator) -> OfficeExpert:
    """The expert for an environment; it needs no randomness."""
    return OfficeExpert()


__all__ = ["GIVEN_UP", "OfficeExpert", "make_expert"]

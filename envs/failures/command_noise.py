"""Command noise: wrong but well-formed commands in place of an expert's, as a weak policy gives them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import gymnasium
import numpy as np

from roleagent.envs.failures.scripted_episode import EpisodeOver, ScriptedEpisode
from roleagent.types import Trajectory

_RATES = (0.2, 0.9)  # least and most share of an episode's commands that are replaced
_CALLED = re.compile(r'^\{"calls": \[\{"name": "([^"]*)"')
_IDLE = frozenset({"help", "look", "inventory"})


def random_command(admissible: Sequence[str], rng: np.random.Generator) -> str | None:
    """A uniformly random command that changes or examines something; None if there is none."""
    commands = [command for command in admissible if command not in _IDLE]
    return commands[int(rng.integers(len(commands)))] if commands else None


class CommandNoise:
    """Commands that a weak policy might give in place of the right one.

    Such a command is the last one repeated, a random admissible one, or, mostly, one of the same kind that was
    admissible earlier in the episode, or that stems from another one: well-formed, and about things that are elsewhere.
    Many of them fail.

    Args:
        commands: what was played in other episodes.
        rng: draws everything.
    """

    def __init__(self, commands: Iterable[str], rng: np.random.Generator):
        self._rng = rng
        self._alike: dict[str, dict[str, None]] = {}
        for command in commands:
            self.learn(command)

    def learn(self, command: str) -> None:
        """Takes in a command that was played in another episode."""
        self._alike.setdefault(verb_of(command), {})[command] = None

    def draw(self, command: str, last: str, admissible: Sequence[str], offered: Iterable[str]) -> str:
        """A command in place of the right one; the right one if there is no other.

        Args:
            command: the right one.
            last: the one before it; ``""`` at the beginning.
            admissible: what would do something now.
            offered: what was admissible so far in the episode.
        """
        kind, verb = self._rng.random(), verb_of(command)
        if kind < 0.15 and last:
            return last
        if kind < 0.3:
            return random_command(admissible, self._rng) or command
        alike = [other for other in offered if verb_of(other) == verb] if kind < 0.85 else []
        alike = alike or [*self._alike.get(verb, (command,))]
        return alike[int(self._rng.integers(len(alike)))]

    def replace(self, right: str, rate: float, last: str, admissible: Sequence[str], offered: dict[str, None]) -> str:
        """The right command, or at this rate another one; see :meth:`draw`.

        Args:
            offered: what was admissible so far in the episode; takes in what is now.
        """
        offered |= dict.fromkeys(admissible)
        return self.draw(right, last, admissible, offered) if self._rng.random() < rate else right

    def play(self, env: gymnasium.Env, task_id: str) -> Trajectory | None:
        """Plays one episode of a base environment by its expert with noise; None if it was won all the same.

        No single failure explains such an episode: an analyst has to find the dominant one.
        """
        episode = ScriptedEpisode(env, task_id, self._rng)
        rate = self._rng.uniform(*_RATES)
        offered: dict[str, None] = {}
        try:
            while True:
                last = episode.turns[-1].action if episode.turns else ""
                right = episode.expert.act()
                episode.do(self.replace(right, rate, last, episode.info["admissible_actions"], offered))
        except EpisodeOver:
            return None if episode.info["won"] else episode.trajectory()


def verb_of(command: str) -> str:
    """The type of a command: its verb.

    >>> verb_of("go to desk 1"), verb_of("search[red mug]"), verb_of('{"calls": [{"name": "find", "arguments": {}}]}')
    ('go', 'search', 'find')
    """
    if command.startswith("{"):  # of tools: the name of the first call, or "answer"
        return next(iter(_CALLED.findall(command)), "answer")
    return command.split(" ", 1)[0].split("[", 1)[0]


__all__ = ["CommandNoise", "random_command", "verb_of"]

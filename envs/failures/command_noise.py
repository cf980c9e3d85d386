"""Command noise: wrong but well-formed commands in place of an expert's, as a weak policy gives them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence

import numpy as np

from roleagent.envs.failures.scripted_episode import EpisodeOver, ScriptedEpisode

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

    def play(self, episode: ScriptedEpisode, rate: float, learn: bool = False) -> list[bool]:
        """Plays an episode to its end by the expert, at a rate with another command in place of the right one.

        Args:
            episode: at its beginning.
            rate: the probability that a command is replaced, in [0, 1].
            learn: whether to take in the right commands that were played.

        Returns:
            for each turn whether its command is the right one.
        """
        offered: dict[str, None] = {}
        rights: list[bool] = []
        with contextlib.suppress(EpisodeOver):
            while True:
                right, last = episode.expert.act(), episode.turns[-1].action if episode.turns else ""
                command = self.replace(right, rate, last, episode.info["admissible_actions"], offered)
                rights.append(command == right)
                if learn and rights[-1]:
                    self.learn(right)
                episode.do(command)
        return rights


def verb_of(command: str) -> str:
    """The type of a command: its verb.

    >>> verb_of("go to desk 1"), verb_of("search[red mug]"), verb_of('{"calls": [{"name": "find", "arguments": {}}]}')
    ('go', 'search', 'find')
    """
    if command.startswith("{"):  # of tools: the name of the first call, or "answer"
        return next(iter(_CALLED.findall(command)), "answer")
    return command.split(" ", 1)[0].split("[", 1)[0]


__all__ = ["CommandNoise", "random_command", "verb_of"]

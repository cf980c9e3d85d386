"""Failures nobody planned: an expert whose commands slip, again and again, as those of a weak policy do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import gymnasium
import numpy as np

from roleagent.agents.baselines import random_command
from roleagent.agents.mistakes.episode import Episode, Over
from roleagent.types import Trajectory

_RATES = (0.2, 0.9)  # of an episode's commands that slip: a weak policy's episodes differ as much


class Slips:
    """Plays with a scripted expert that, now and then, says something else than it should.

    What it says then is its last command over again, a random admissible command, or, mostly, a command of the same
    kind that was admissible earlier in the episode, or that stems from another one: well-formed, and about things
    that are elsewhere. No single mistake explains such an episode; which one is the dominant one, an analyst has to
    say.

    Args:
        commands: what was played in other episodes.
        rng: draws tasks' rates and slips.
    """

    def __init__(self, commands: Iterable[str], rng: np.random.Generator):
        self._rng = rng
        self._alike: dict[str, list[str]] = {}
        for command in dict.fromkeys(commands):
            self._alike.setdefault(verb_of(command), []).append(command)

    def play(self, env: gymnasium.Env, task_id: str) -> Trajectory | None:
        """One episode of a base environment; None where it was won in spite of the slips."""
        episode = Episode(env, task_id, self._rng)
        rate = self._rng.uniform(*_RATES)
        offered: dict[str, None] = {}  # whatever was admissible so far
        try:
            while True:
                offered |= dict.fromkeys(episode.info["admissible_actions"])
                command = episode.expert.act()
                episode.do(self._slip(command, episode, [*offered]) if self._rng.random() < rate else command)
        except Over:
            return None if episode.info["won"] else episode.trajectory()

    def _slip(self, command: str, episode: Episode, offered: Sequence[str]) -> str:
        kind, verb = self._rng.random(), verb_of(command)
        if kind < 0.15 and episode.turns:
            return episode.turns[-1].action or command
        if kind < 0.3:
            return random_command(episode.info["admissible_actions"], self._rng) or command
        alike = [other for other in offered if verb_of(other) == verb] if kind < 0.85 else []
        alike = alike or self._alike.get(verb, [command])
        return alike[int(self._rng.integers(len(alike)))]


def verb_of(command: str) -> str:
    """What kind of command it is.

    >>> verb_of("go to desk 1"), verb_of("search[red mug]")
    ('go', 'search')
    """
    return command.split(" ", 1)[0].split("[", 1)[0]

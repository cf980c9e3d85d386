"""Agents without a model: what every trained policy is measured against.

An agent is anything with ``reset(observation, info)`` and ``act(observation, info) -> command``; the class that
``evaluate.py --agent module:Class`` names is built without arguments.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np

from roleagent.types import Expert


class Agent(Protocol):
    """Somebody who plays a base environment with bare commands."""

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        """Begins an episode."""
        ...

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """The next command."""
        ...


_IDLE = frozenset({"help", "look", "inventory"})


def random_command(admissible: Sequence[str], rng: np.random.Generator) -> str | None:
    """A uniformly random command that changes or examines something; None if there is none."""
    commands = [command for command in admissible if command not in _IDLE]
    return commands[int(rng.integers(len(commands)))] if commands else None


class RandomAgent:
    """A uniformly random admissible command, never ``help`` or a look around.

    Where commands cannot be listed because they are free text, it searches for the goal.
    """

    def __init__(self, rng: np.random.Generator):
        self._rng = rng

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        pass

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        goal = info.get("goal")
        return random_command(info.get("admissible_actions") or [], self._rng) or (f"search[{goal}]" if goal else "")


class OracleAgent:
    """Plays the environment's own walkthrough: an upper bound that knows what no agent can know."""

    def __init__(self, env: gymnasium.Env):
        self._walkthrough = env.unwrapped.walkthrough  # type: ignore[attr-defined]
        self._plan: list[str] = []

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        self._plan = list(self._walkthrough())

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        return self._plan.pop(0) if self._plan else ""


class ExpertAgent:
    """The scripted expert behind the demonstrations: it sees only what an agent sees."""

    def __init__(self, expert: Expert):
        self._expert = expert
        self._last: str | None = None

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        self._expert.reset(info["goal"], observation)
        self._last = None

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        if self._last is not None:
            self._expert.observe(self._last, observation)
        self._last = self._expert.act()
        return self._last


def build_agent(name: str, env: gymnasium.Env, rng: np.random.Generator) -> Agent:
    """An agent by name: ``random``, ``oracle``, ``expert`` or ``module:Class``.

    Raises:
        ValueError: no such agent, or the environment offers no walkthrough or expert.
    """
    if name == "random":
        return RandomAgent(rng)
    if name in ("oracle", "expert"):
        needed = "walkthrough" if name == "oracle" else "expert"
        if not hasattr(env.unwrapped, needed):
            raise ValueError(f"{env.unwrapped} offers no {needed}, so there is no agent {name!r} for it")
        return OracleAgent(env) if name == "oracle" else ExpertAgent(env.unwrapped.expert(rng))  # type: ignore[attr-defined]
    module, separator, attribute = name.partition(":")
    if not separator:
        raise ValueError(f"no agent {name!r}: give a run folder, random, oracle, expert or module:Class")
    try:
        return getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(f"cannot build the agent {name!r}: {error}") from error

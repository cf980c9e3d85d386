"""Baseline agents, by name.

An agent without a model has ``reset(observation, info)`` and ``act(observation, info) -> command``; a
prompting agent has ``play(episode)`` (:class:`~roleagent.agents.episode.PromptingAgent`). A
class named as ``module:Class`` is either; a function named so is the first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import gymnasium
import numpy as np

from roleagent.agents.episode import PromptingAgent
from roleagent.agents.prompting.plain import PlainAgent, ReAct, Reflexion
from roleagent.agents.prompting.tools import RetrievalAgent, ToolAgent
from roleagent.env_card import CommandForm, card_of, instructions_of, make_expert
from roleagent.envs.failures.command_noise import random_command
from roleagent.imports import load_object
from roleagent.options import ConfigError
from roleagent.types import Expert

SCRIPTED = ("random", "oracle", "expert")
PROMPTING = ("plain", "react", "reflexion", "rag")


class Agent(Protocol):
    """An agent that plays a base environment with bare commands.

    ``--concurrency`` agents play at the same time, each in a thread of its own. A class that cannot do so, because its
    instances share something, has the attribute ``thread_safe = False``.
    """

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        """Begins an episode."""
        ...

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """The next command."""
        ...


class RandomAgent:
    """Plays uniformly random admissible commands, never ``help``, ``look`` or ``inventory``.

    If commands are free text, it plays a random suggestion of the environment's command forms.
    """

    def __init__(self, rng: np.random.Generator, forms: Sequence[CommandForm] = ()):
        self._rng, self._forms = rng, forms

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        if not self._forms and not info.get("admissible_actions"):
            raise ConfigError("the agent random needs admissible_actions, which the environment does not list")

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        if command := random_command(info.get("admissible_actions") or [], self._rng):
            return command
        suggested = [command for form in self._forms for command in form.suggest(observation, info)]
        return random_command(suggested, self._rng) or ""


class OracleAgent:
    """Plays the environment's own walkthrough: an upper bound with privileged information."""

    def __init__(self, env: gymnasium.Env):
        self._walkthrough = env.get_wrapper_attr("walkthrough")
        self._plan: list[str] = []

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        self._plan = list(self._walkthrough())

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        return self._plan.pop(0) if self._plan else ""


class ExpertAgent:
    """Plays the scripted expert of the demonstrations, which sees only the agent's observations."""

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


def build_agent(name: str, env: gymnasium.Env, rng: np.random.Generator, **options: Any) -> Agent:
    """An agent without a model: one of :data:`SCRIPTED`, or ``module:Class``.

    Args:
        env: the environment that it will play.
        rng: of its random choices, if it is scripted.
        options: for ``module:Class``, its arguments.

    Raises:
        ValueError: no such agent, it has no such option, or the environment offers no walkthrough or expert.
    """
    if options and name in SCRIPTED:
        raise ValueError(f"the agent {name!r} has no option {min(options)!r}; there are none")
    if name == "random":
        return RandomAgent(rng, card_of(env).load("command_forms") or ())
    if name in SCRIPTED:
        offered = hasattr(env.unwrapped, "walkthrough") if name == "oracle" else card_of(env).expert
        if not offered:
            raise ValueError(f"{env.unwrapped} offers no {name}, so there is no such agent for it")
        return OracleAgent(env) if name == "oracle" else ExpertAgent(make_expert(env, rng))
    return _built(name, **options)


def build_prompting_agent(name: str, env: gymnasium.Env, calls: str = "hermes", **options: Any) -> PromptingAgent:
    """An agent that prompts a model: one of :data:`PROMPTING`, or ``module:Class``.

    Args:
        env: the environment that it will play.
        calls: the format of calls of tools.
        options: ``example`` and ``listed`` (see :class:`~roleagent.agents.prompting.plain.PlainAgent`), and ``trials``
            of ``reflexion``; with tools ``format`` (see :class:`~roleagent.agents.prompting.tools.ToolAgent`); for
            ``module:Class``, its arguments.

    Raises:
        ValueError: no such agent, it has no such option, or it cannot play the environment.
    """
    if name not in PROMPTING:
        return _built(name, **options)
    tools = env.has_wrapper_attr("tools")
    if tools and name in ("react", "reflexion"):
        raise ValueError(f"the agent {name!r} calls no tools: choose plain or rag")
    known = {"rag": (), "reflexion": ("example", "listed", "trials")}.get(name, ("example", "listed"))
    known = ("format",) if tools and name == "plain" else known
    if strange := sorted(set(options) - set(known)):
        raise ValueError(f"the agent {name!r} has no option {strange[0]!r}; there are {', '.join(known) or 'none'}")
    guide = instructions_of(env)
    if name == "rag":
        _check_search(env)
        return RetrievalAgent(guide)
    if tools:
        return ToolAgent(guide, **{"format": calls, **options})
    if name == "reflexion":
        trials = {"trials": options.pop("trials")} if "trials" in options else {}
        return Reflexion(ReAct(guide, **options), **trials)
    return PlainAgent(guide, **options) if name == "plain" else ReAct(guide, **options)


class FunctionAgent:
    """Plays a function of ``(observation, info)``, or of the observation alone, that returns a command.

    Attributes:
        own: the function, without the arguments that it is given in any case.
        name: of the function, ``module:NAME``.
    """

    def __init__(self, function: Callable[..., str]):
        self.own = function.func if isinstance(function, partial) else function
        self.name = f"{self.own.__module__}:{self.own.__qualname__}"
        takes = inspect.signature(function).parameters.values()
        needed = [one for one in takes if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        self._function, self._alone = function, len(needed) == 1

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        pass

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        return self._function(observation) if self._alone else self._function(observation, info)


def prompts(name: str) -> bool:
    """Whether the agent of that name prompts a model.

    Raises:
        ValueError: ``module:Class`` cannot be imported, or is not an agent.

    >>> prompts("react"), prompts("random")
    (True, False)
    """
    if name in (*SCRIPTED, *PROMPTING):
        return name in PROMPTING
    return _has(_named(name), "play")


def is_thread_safe(name: str) -> bool:
    """Whether agents of that name, without a model, may act in several threads at once. Scripted ones gain nothing.

    Raises:
        ValueError: ``module:Class`` cannot be imported, or is not an agent.

    >>> is_thread_safe("random")
    False
    """
    return name not in SCRIPTED and bool(getattr(_named(name), "thread_safe", True))


def _built(name: str, **options: Any) -> Any:
    found = _named(name)
    try:
        if not isinstance(found, type):
            return FunctionAgent(partial(found, **options) if options else found)
        return found(**options)
    except TypeError as error:
        raise ValueError(f"cannot build the agent {name!r}: {error}") from error


def _named(name: str) -> Any:
    """The class or function that ``module:NAME`` names.

    Raises:
        ValueError: it cannot be imported, or is not an agent.
    """
    if ":" not in name:
        raise ValueError(f"no agent {name!r}: give a run folder, {', '.join((*SCRIPTED, *PROMPTING))} or module:NAME")
    found = load_object(name)
    if inspect.isfunction(found):
        return found
    if not isinstance(found, type) or not any(_has(found, *methods) for methods in (("reset", "act"), ("play",))):
        raise ValueError(
            f"{name!r} is not an agent: it must be a class with reset(observation, info) and act(observation, info) -> "
            "command, or with play(episode) for an agent that prompts a model; or a function of (observation, info) "
            "that returns a command"
        )
    if _has(found, "play") and not inspect.iscoroutinefunction(found.play):
        raise ValueError(f"play(episode) of {name!r} must be a coroutine: write `async def play(self, episode)`")
    return found


def _has(found: type, *methods: str) -> bool:
    return all(callable(getattr(found, method, None)) for method in methods)


def _check_search(env: gymnasium.Env) -> None:
    """Refuses an environment in which the agent ``rag`` cannot search and answer."""
    if env.has_wrapper_attr("tools"):
        found = any("search" in tool.name for tool in env.get_wrapper_attr("tools"))
    else:
        verbs = {form.verb for form in card_of(env).load("command_forms") or ()}
        found = {"search", "answer"} <= verbs
    if not found:
        raise ValueError(f"the agent rag cannot play {card_of(env).env_id or env}: it has no search and answer")

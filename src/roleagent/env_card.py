"""Cards of environments: the parts of an environment besides its Gymnasium class, and their registry.

A card names everything by import string (``module:attribute``), which is imported when it is first used. So a card
costs nothing to register, and an environment without an expert or failure modes leaves these fields empty.

>>> card_of("RoleAgent/Toy-v0").expert
'roleagent.envs.toy.expert:make_expert'
>>> card_of("Someone/Else-v1")
EnvCard(env_id='Someone/Else-v1')
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import Any, NamedTuple

import gymnasium
from gymnasium.wrappers import TimeLimit
from numpy.random import Generator

from roleagent.types import Expert

GROUP = "roleagent.envs"
"""The entry-point group in which other packages name their cards."""


@dataclass(frozen=True, repr=False)
class EnvCard:
    """The parts of an environment. Every field but ``env_id`` is optional, and every import string is loaded lazily.

    Attributes:
        env_id: the Gymnasium id, with the version.
        entry_point: the Gymnasium class; empty: it is registered with Gymnasium elsewhere.
        instructions: an :class:`Instructions`, for prompts.
        expert: a function ``(env, rng)`` that returns an :class:`~roleagent.types.Expert`.
        failure_modes: a :class:`~roleagent.failures.modes.FailureModes`: the taxonomy and its detectors.
        scripted_failures: by mode, a function that plays a :class:`~roleagent.envs.failures.ScriptedEpisode` and
            fails by that mode.
        command_forms: a sequence of :class:`CommandForm`: commands that ``admissible_actions`` cannot list.
        command_tools: a :class:`~roleagent.envs.tools.definition.command_tools.CommandTools`: the commands as tools.
        task_grammar: makes the :class:`~roleagent.tasks.grammar.TaskGrammar` of an environment; subclass or function.
        agentgym: a subclass of :class:`~roleagent.envs.adapters.agentgym.WireFormat`.
        data_status: a function that yields :class:`DataStatus`, for ``roleagent doctor``.
        splits: names of the splits. A run that names none trains on the first, and is measured on ``valid_unseen``,
            else on the second.
        needs: arguments without which the environment cannot be made.
        extra: of the package that is to be installed for the environment, as in ``pip install 'roleagent[extra]'``.
    """

    env_id: str
    entry_point: str = ""
    instructions: str = ""
    expert: str = ""
    failure_modes: str = ""
    scripted_failures: str = ""
    command_forms: str = ""
    command_tools: str = ""
    task_grammar: str = ""
    agentgym: str = ""
    data_status: str = ""
    splits: tuple[str, ...] = ("train",)
    needs: tuple[str, ...] = ()
    extra: str = ""

    def load(self, field: str) -> Any:
        """The object that a field names; None if the field is empty.

        Raises:
            ImportError: there is no such module or attribute; the message names the environment and the field.
        """
        name = getattr(self, field)
        try:
            return resolve_name(name) if name else None
        except (ImportError, AttributeError, ValueError) as error:
            raise ImportError(f"cannot import {field}={name!r} of the environment {self.env_id}: {error}") from error

    def __repr__(self) -> str:
        given = (f.name for f in fields(self) if getattr(self, f.name) != f.default)
        return f"EnvCard({', '.join(f'{name}={getattr(self, name)!r}' for name in given)})"


class ExampleStep(NamedTuple):
    """One step of an example episode: observation, thought and command."""

    observation: str
    thought: str
    command: str


@dataclass(frozen=True, slots=True)
class Instructions:
    """The explanation of an environment in prompts.

    Attributes:
        rules: the world and the wording of commands.
        example: an episode, shortened. Its task is in no split.
        listed: whether a prompt lists the possible commands, because ``rules`` do not say how commands are worded.
        form: how a reply is written; empty: one command, as :class:`~roleagent.envs.wrappers.Tags` reads it.
    """

    rules: str
    example: tuple[ExampleStep, ...] = ()
    listed: bool = False
    form: str = ""


UNKNOWN = Instructions(
    """\
You act in a world that you only know from text, and have a task there. You give one command at a time, and then read \
what it did. Where the possible commands are listed, choose one of them and give it exactly as it stands there.""",
    listed=True,
)
"""The instructions of an environment that has none."""


@dataclass(frozen=True)
class CommandForm:
    """A kind of command with free text, such as ``search[…]``, or with a number, such as ``get 2 flint``.

    Attributes:
        verb: its first word.
        description: what it does.
        example: one such command.
        suggest: from an observation and its ``info``, commands of this form that make sense.
        brackets: whether the text stands in brackets.
    """

    verb: str
    description: str
    example: str = ""
    suggest: Callable[[str, Mapping[str, Any]], Sequence[str]] = lambda observation, info: ()
    brackets: bool = True


class DataStatus(NamedTuple):
    """The state of an environment's data.

    Attributes:
        name: what was examined.
        grade: ``"good"``; ``"note"``: worth knowing; ``"problem"``: a run would fail.
        text: what was found.
        advice: what to do about it, in a line.
    """

    name: str
    grade: str
    text: str
    advice: str = ""


_CARDS: dict[str, EnvCard] = {}


def register_env(card: EnvCard, **options: Any) -> None:
    """Registers an environment's card, and the environment with Gymnasium if the card names its ``entry_point``.

    A card that is registered again replaces the earlier one.

    Args:
        options: of :func:`gymnasium.register`, e.g. ``kwargs``.
    """
    if card.entry_point:
        gymnasium.register(card.env_id, entry_point=card.entry_point, **options)
    _CARDS[card.env_id] = card


@cache
def register_installed() -> None:
    """Registers the cards that installed packages name in the entry-point group ``roleagent.envs``.

    A package whose card cannot be loaded causes a warning, not an error.
    """
    for entry in entry_points(group=GROUP):
        try:
            card = entry.load()
            if not isinstance(card, EnvCard):
                raise TypeError(f"{entry.value} is a {type(card).__name__}, not an EnvCard")
            register_env(card)
        except Exception as error:  # of another package's module
            reason = f"{type(error).__name__}: {error}"
            warnings.warn(f"the environment {entry.name} ({entry.value}) is not available: {reason}", stacklevel=2)


def registered() -> tuple[EnvCard, ...]:
    """Every registered card, in the order of registration."""
    return tuple(_CARDS.values())


def card_of(env: gymnasium.Env | str) -> EnvCard:
    """The card of an environment, or of a Gymnasium id; an otherwise empty one if none is registered.

    Args:
        env: wrappers are followed to the base environment, which is known by its own id or that of its tasks. In an
            id the part ``module:`` is ignored.
    """
    names = [env.rpartition(":")[2]] if isinstance(env, str) else _names_of(env)
    return next((_CARDS[name] for name in names if name in _CARDS), EnvCard(names[0] if names else ""))


def _names_of(env: gymnasium.Env) -> list[str]:
    base: Any = env.unwrapped
    ids = [] if base.spec is None else [base.spec.id]  # that of a wrapper is the same, and costs a copy
    return [*ids, *([base.task_split.env_id] if hasattr(base, "task_split") else [])]


def make_expert(env: gymnasium.Env, rng: Generator) -> Expert:
    """The environment's scripted expert.

    Raises:
        ValueError: the environment has none.
    """
    make = card_of(env).load("expert")
    if make is None:
        raise ValueError(f"the environment {card_of(env).env_id or env} has no scripted expert")
    expert = make(env, rng)
    return env.get_wrapper_attr("calling_expert")(expert) if env.has_wrapper_attr("calling_expert") else expert


def step_limit(env: gymnasium.Env) -> int | None:
    """Most steps of an episode, ≥ 1: the least of the environment's ``max_steps`` and the ``TimeLimit``s around it.

    None where neither is there. A ``TimeLimit`` that is wrapped around ``env`` later is not seen.

    >>> step_limit(gymnasium.make("RoleAgent/Toy-v0", max_episode_steps=10))
    10
    """
    limits = [env.get_wrapper_attr("max_steps")] if env.has_wrapper_attr("max_steps") else []
    while isinstance(env, gymnasium.Wrapper):
        limits += [env.get_wrapper_attr("_max_episode_steps")] if isinstance(env, TimeLimit) else []
        env = env.env
    return min((limit for limit in limits if limit is not None), default=None)


def instructions_of(env: gymnasium.Env | str) -> Instructions:
    """The environment's instructions, or :data:`UNKNOWN`; of an environment also its :func:`step_limit`."""
    found = card_of(env).load("instructions") or UNKNOWN
    if not isinstance(env, str) and env.has_wrapper_attr("instructions"):  # of a view
        found = env.get_wrapper_attr("instructions")
    most = None if isinstance(env, str) else step_limit(env)
    return replace(found, rules=f"{found.rules}\n\nYou have {most} commands.") if most is not None else found


__all__ = [
    "UNKNOWN",
    "CommandForm",
    "DataStatus",
    "EnvCard",
    "ExampleStep",
    "Instructions",
    "card_of",
    "instructions_of",
    "make_expert",
    "register_env",
    "register_installed",
    "registered",
    "step_limit",
]

"""Demonstrations: episodes of the environment's scripted expert.

The expert sees only what an agent sees, so its behavior can be learned from the transcript. Some of its steps are
replaced by the slips of a weak policy, many of which fail. Slips are shown but not imitated; the expert's recovery from
them is imitated.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np

from roleagent.agents.builders import EnvSplit
from roleagent.agents.rendering import TextRecorder, Transcript, Window
from roleagent.config import ConfigError
from roleagent.config.settings import WarmStartConfig
from roleagent.envs.failures.command_noise import CommandNoise
from roleagent.envs.failures.scripted_episode import ScriptedEpisode
from roleagent.envs.wrappers.tags import ReplyReader
from roleagent.learners.tracking.display import Display
from roleagent.types import Completion, Task

PER_TASK = 40
"""Most episodes of a training task in a warm start: more of them repeat each other."""
_REPEATS = 5
"""Demonstrations of a task in a row that say nothing new, after which it is not played again."""
_TIMED = 3
"""Episodes from whose time that of all of them is estimated."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a demonstration. ``imitated`` is False for a slip.

    ``reply`` is the reply that was sampled; None: it is written from the command.
    """

    command: str
    imitated: bool
    observation: str
    info: Mapping[str, Any]
    reply: Completion | None = None


@dataclass(frozen=True, slots=True)
class Demonstration:
    """An episode in which the expert played all or some of the steps, as text."""

    task: Task
    observation: str
    info: dict[str, Any]
    steps: tuple[Step, ...]

    @property
    def shown(self) -> tuple[str, ...]:
        """Everything that is said in it, in order."""
        return (self.observation, *(text for step in self.steps for text in (step.command, step.observation)))

    @property
    def states(self) -> list[str | None]:
        """s_1 … s_{T+1}."""
        return [self.info.get("state"), *(step.info.get("state") for step in self.steps)]


def reset_to(env: gymnasium.Env, env_id: str, task_id: str) -> tuple[Task, str, dict[str, Any]]:
    """Resets an environment to a task; returns the task, the first observation and its info."""
    observation, info = env.reset(options={"task_id": task_id})
    return Task.of(env_id, task_id, info), observation, info


def demonstrate(
    env: gymnasium.Env, task_id: str, noise: float, slips: CommandNoise, rng: np.random.Generator
) -> Demonstration | None:
    """One episode of the environment's expert.

    Args:
        env: a base environment (bare commands).
        task_id: the task.
        noise: probability that a slip replaces the expert's command, in [0, 1).
        slips: draws the steps that slip and the slips, and learns the expert's commands of this episode.
        rng: draws the expert's choices.

    Returns:
        the episode; None if the expert did not win.
    """
    episode = ScriptedEpisode(env, task_id, rng)
    observation, info = episode.observation, episode.info
    imitated = slips.play(episode, noise, learn=True)
    if not episode.info["won"]:
        return None
    task = Task.of(env.spec.id if env.spec else "", task_id, info)
    steps = [
        Step(turn.action, right, turn.observation, turn.info)
        for turn, right in zip(episode.turns, imitated, strict=True)
    ]
    return Demonstration(task, observation, info, tuple(steps))


def texts_of(
    demonstrations: Sequence[Demonstration],
    style: type[Transcript] | type[Window],
    history: int,
    reader: ReplyReader | None = None,
) -> Iterator[str]:
    """All texts of these episodes, for training a tokenizer: replies as ``reader`` writes them, without its tags."""
    for demonstration in demonstrations:
        recorder = TextRecorder()
        conversation = style(recorder, 0, "none", demonstration.observation, demonstration.info, history)
        for step in demonstration.steps:
            conversation.advance((), (), step.command, step.observation, step.info)
            yield step.command if reader is None else _without(reader.write(step.command), reader.tags)
            yield step.observation
        yield from recorder.texts


def _without(text: str, tags: Sequence[str]) -> str:
    for tag in tags:
        text = text.replace(tag, "")
    return text


def sized(config: WarmStartConfig, tasks: int) -> WarmStartConfig:
    """The warm start with at most :data:`PER_TASK` episodes per training task, those of its rounds included.

    >>> from roleagent.config.settings import WarmStartConfig
    >>> few = sized(WarmStartConfig(episodes=2000, rounds=12, round_episodes=600), tasks=46)
    >>> few.episodes, few.rounds, few.round_episodes
    (400, 12, 120)
    """
    share = PER_TASK * tasks / max(1, config.episodes + config.rounds * config.round_episodes)
    if share >= 1:
        return config
    each = max(1, int(share * config.round_episodes))
    return replace(config, episodes=max(1, int(share * config.episodes)), round_episodes=each)


def collect_demonstrations(split: EnvSplit, rng: np.random.Generator, display: Display) -> list[Demonstration]:
    """``warmstart.episodes`` episodes of the expert on training tasks; with the same ``rng`` the same on every rank.

    A task whose last :data:`_REPEATS` episodes were known is not played again: its further demonstrations are drawn
    from the episodes that it has.

    Raises:
        ConfigError: the expert wins too rarely.
    """
    config = split.config.warmstart
    slips = CommandNoise((), rng)
    order = rng.permutation(len(split.task_split))
    display.stage("demonstrations", config.episodes)
    chosen: list[Demonstration] = []
    won: dict[str, list[Demonstration]] = {}  # by task
    repeats: Counter[str] = Counter()  # of a task's newest demonstrations, in a row
    attempts, began = 0, time.monotonic()
    least = min((share for share in config.shares.values() if share > 0), default=1.0)
    while len(chosen) < config.episodes:
        if attempts * least >= 3 * config.episodes:
            raise ConfigError(
                f"the expert won only {len(chosen)} of {attempts} tasks: set warmstart.episodes=0 and policy.path"
            )
        task_id = split.task_split.task_ids[order[attempts % len(order)]]
        earlier = won.setdefault(task_id, [])
        if repeats[task_id] >= _REPEATS:
            demonstration: Demonstration | None = earlier[int(rng.integers(len(earlier)))]
        else:
            demonstration = demonstrate(split.base, task_id, config.noise, slips, rng)
            if demonstration is not None:
                is_new = all(demonstration.shown != one.shown for one in earlier)
                repeats[task_id] = 0 if is_new else repeats[task_id] + 1
                earlier.append(demonstration)
        attempts += 1
        if attempts == _TIMED:
            _say_cost((time.monotonic() - began) / _TIMED, len(order), config.episodes, display)
        if demonstration is not None and _is_chosen(demonstration, config.shares, rng):
            chosen.append(demonstration)
        if attempts % 20 == 0:
            display.advance(len(chosen))
    return chosen


def _say_cost(seconds: float, tasks: int, episodes: int, display: Display) -> None:
    """Shows how long the demonstrations take at these seconds per episode, where that may be two minutes or more."""
    least, most = (max(1, round(seconds * number / 60)) for number in (min(tasks, episodes), episodes))
    if most > 1:
        minutes = f"{least} to {most}" if least < most else most
        display.say(f"an episode of the expert takes {seconds:.1f} s: demonstrations take {minutes} minutes")


def _is_chosen(demonstration: Demonstration, shares: Mapping[str, float], rng: np.random.Generator) -> bool:
    """Whether a demonstration is in the configured share of its task type."""
    share = shares.get(demonstration.task.task_type, 1.0)
    return share >= 1 or rng.random() < share

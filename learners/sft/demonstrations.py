"""Demonstrations: episodes of the environment's scripted expert.

The expert sees only what an agent sees, so its behavior can be learned from the transcript. Some of its steps are
replaced by the slips of a weak policy, many of which fail. Slips are shown but not imitated; the expert's recovery from
them is imitated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from roleagent.agents.builders import EnvSplit
from roleagent.agents.rendering import TextRecorder, Transcript, Window
from roleagent.config import ConfigError
from roleagent.env_spec import make_expert
from roleagent.envs.failures.command_noise import CommandNoise
from roleagent.envs.wrappers.tags import ReplyReader
from roleagent.learners.tracking.display import Display
from roleagent.types import Completion, Expert, Task


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a demonstration. ``imitated`` is False for a slip.

    ``reply`` is the reply that was sampled; None: it is written from the command.
    """

    command: str
    imitated: bool
    observation: str
    info: dict[str, Any]
    reply: Completion | None = None


@dataclass(frozen=True, slots=True)
class Demonstration:
    """An episode in which the expert played all or some of the steps, as text."""

    task: Task
    observation: str
    info: dict[str, Any]
    steps: tuple[Step, ...]

    @property
    def states(self) -> list[str | None]:
        """s_1 … s_{T+1}."""
        return [self.info.get("state"), *(step.info.get("state") for step in self.steps)]


def reset_to(env: gymnasium.Env, env_id: str, task_id: str) -> tuple[Task, str, dict[str, Any]]:
    """Resets an environment to a task; returns the task, the first observation and its info."""
    observation, info = env.reset(options={"task_id": task_id})
    return Task.of(env_id, task_id, info), observation, info


def demonstrate(
    env: gymnasium.Env, task_id: str, expert: Expert, noise: float, slips: CommandNoise
) -> Demonstration | None:
    """One episode of the expert.

    Args:
        env: a base environment (bare commands).
        task_id: the task.
        expert: plays it.
        noise: probability that a slip replaces the expert's command, in [0, 1).
        slips: draws the steps that slip and the slips, and learns the expert's commands of this episode.

    Returns:
        the episode; None if the expert did not win.
    """
    task, observation, info = reset_to(env, env.spec.id if env.spec else "", task_id)
    expert.reset(info["goal"], observation)
    steps: list[Step] = []
    current = info
    offered: dict[str, None] = {}
    while True:
        right = expert.act()
        last = steps[-1].command if steps else ""
        command = slips.replace(right, noise, last, current["admissible_actions"], offered)
        imitated = command == right
        if imitated:
            slips.learn(right)
        text, _, terminated, truncated, current = env.step(command)
        expert.observe(command, text)
        steps.append(Step(command, imitated, text, current))
        if terminated or truncated:
            won = bool(current["won"])
            return Demonstration(task, observation, info, tuple(steps)) if won else None


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


def collect_demonstrations(split: EnvSplit, rng: np.random.Generator, display: Display) -> list[Demonstration]:
    """``warmstart.episodes`` episodes of the expert on training tasks; with the same ``rng`` the same on every rank.

    Raises:
        ConfigError: the expert wins too rarely.
    """
    config = split.config.warmstart
    expert = make_expert(split.base, rng)
    slips = CommandNoise((), rng)
    order = rng.permutation(len(split.task_split))
    display.stage("demonstrations", config.episodes)
    chosen: list[Demonstration] = []
    attempts = 0
    least = min((share for share in config.shares.values() if share > 0), default=1.0)
    while len(chosen) < config.episodes:
        if attempts * least >= 3 * config.episodes:
            raise ConfigError(
                f"the expert won only {len(chosen)} of {attempts} tasks: set warmstart.episodes=0 and policy.path"
            )
        task_id = split.task_split.task_ids[order[attempts % len(order)]]
        demonstration = demonstrate(split.base, task_id, expert, config.noise, slips)
        attempts += 1
        if demonstration is not None and _is_chosen(demonstration, config.shares, rng):
            chosen.append(demonstration)
        if attempts % 20 == 0:
            display.advance(len(chosen))
    return chosen


def _is_chosen(demonstration: Demonstration, shares: Mapping[str, float], rng: np.random.Generator) -> bool:
    """Whether a demonstration is in the configured share of its task type."""
    share = shares.get(demonstration.task.task_type, 1.0)
    return share >= 1 or rng.random() < share

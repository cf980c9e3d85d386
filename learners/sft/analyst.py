"""Supervised data of the environment role: failed episodes, their analyses, and selections of similar failures.

A policy from scratch cannot follow instructions, so it learns analyses by example. A teacher analyzes scripted failures
(:mod:`roleagent.envs.failures`). The policy learns questions and answers exactly as
:class:`~roleagent.agents.analysts.models.ModelAnalyst` will ask and parse them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import gymnasium
import numpy as np

from roleagent.agents.analysts.models import ModelAnalyst
from roleagent.agents.analysts.prompts import AnalystPrompts, PromptKind
from roleagent.agents.builders import EnvSplit
from roleagent.config import ConfigError
from roleagent.envs.failures import ScriptedEpisode, play_failure, scripted_modes
from roleagent.envs.failures.command_noise import CommandNoise
from roleagent.failures.analyst_format import write_reflection, write_selection
from roleagent.learners.run.display import Display
from roleagent.learners.sft.demonstrations import Demonstration
from roleagent.types import ACTION, CONTEXT, Analyst, Failure, Reflection, Segment, Trajectory

_ATTEMPTS = 10  # per episode: not every failure is possible in every task
_RATES = (0.2, 0.9)  # least and most share of a noisy episode's commands that are replaced
_VALUE = re.compile(r"^(\w+:)(.*)$", re.MULTILINE)  # a field's name, and its free text
_CANDIDATES = (2, 12)  # least and most failures in a list of candidates


class AnalystExample(NamedTuple):
    """One question to the environment role, with its answer."""

    kind: PromptKind
    question: str
    answer: str


def collect_failures(
    split: EnvSplit, demonstrations: Sequence[Demonstration], rng: np.random.Generator, display: Display
) -> list[Trajectory]:
    """Failed episodes on training tasks; with the same ``rng`` the same on every rank.

    Half of them are scripted failures, all modes equally often. The others fail by command noise, as a weak policy.
    Where the expert recovers from nearly all noise, more are scripted.

    Args:
        split: the training tasks.
        demonstrations: ``warmstart.failures`` failures per demonstration are collected; the noise uses their commands.
        rng: draws tasks and failures.
        display: shows the progress.

    Raises:
        ConfigError: the environment has no scripted failures, or too few of them are possible in its tasks.
    """
    episodes, modes = round(split.config.warmstart.failures * len(demonstrations)), scripted_modes(split.base)
    if not episodes:
        return []
    if not modes:
        raise ConfigError(
            f"{split.config.environment} has no scripted failures, so a policy from scratch cannot learn to analyze "
            "failures: set curriculum.analyst=rule, or warmstart.failures=0"
        )
    noise = CommandNoise((step.command for demonstration in demonstrations for step in demonstration.steps), rng)
    display.stage("failures", episodes)
    failed: list[Trajectory] = []
    for attempt in range(_ATTEMPTS * episodes):
        task_id = split.task_split.task_ids[int(rng.integers(len(split.task_split)))]
        if len(failed) % 2 and attempt < _ATTEMPTS * episodes // 2:
            trajectory = _noisy_failure(split.base, task_id, noise, rng)
        else:
            failure = play_failure(split.base, task_id, modes[attempt // 2 % len(modes)], rng)
            trajectory = failure.trajectory if failure is not None else None
        if trajectory is not None:
            failed.append(trajectory)
        if attempt % 20 == 0 or len(failed) == episodes:
            display.advance(len(failed))
        if len(failed) == episodes:
            return failed
    raise ConfigError(f"only {len(failed)} of {episodes} scripted failures were possible: lower warmstart.failures")


def _noisy_failure(
    env: gymnasium.Env, task_id: str, noise: CommandNoise, rng: np.random.Generator
) -> Trajectory | None:
    """An episode of the expert with noise; None if it was won all the same.

    No single failure explains such an episode: an analyst has to find the dominant one.
    """
    episode = ScriptedEpisode(env, task_id, rng)
    noise.play(episode, rng.uniform(*_RATES))
    return None if episode.info["won"] else episode.trajectory()


def analyst_examples(
    questions: AnalystPrompts, failed: Sequence[Trajectory], teacher: Analyst, rng: np.random.Generator
) -> Iterator[AnalystExample]:
    """A reflection on every episode, and for every reflection a selection from a list of others.

    Args:
        questions: writes the questions.
        failed: the episodes.
        teacher: answers them.
        rng: draws the lists.
    """
    reflections = teacher.reflect(failed)
    entries = [Failure(trajectory.task, known) for trajectory, known in zip(failed, reflections, strict=True)]
    for trajectory, reflection in zip(failed, reflections, strict=True):
        yield AnalystExample("reflection", questions.reflection(trajectory), write_reflection(reflection))
        offered = _candidates(trajectory.task.task_id, reflection, entries, rng)
        question, listed = questions.selection(reflection, offered)
        if listed:
            [selection] = teacher.select([reflection], [offered[:listed]])
            yield AnalystExample("selection", question, write_selection(selection))


def _candidates(
    task_id: str, reflection: Reflection, entries: Sequence[Failure], rng: np.random.Generator
) -> list[Failure]:
    """Candidates as the curriculum lists them: other tasks, each once, some of them with the same failure mode."""
    others = {entry.task.task_id: entry for entry in entries if entry.task.task_id != task_id}.values()
    alike = [entry for entry in others if entry.reflection.mode == reflection.mode]
    unlike = [entry for entry in others if entry.reflection.mode != reflection.mode]
    length = int(rng.integers(*_CANDIDATES, endpoint=True))
    few = [alike[place] for place in rng.permutation(len(alike))[: int(rng.integers(length, endpoint=True))]]
    rest = [unlike[place] for place in rng.permutation(len(unlike))[: length - len(few)]]
    offered = [*few, *rest]
    return [offered[place] for place in rng.permutation(len(offered))]


def tokenize_examples(analyst: ModelAnalyst, examples: Sequence[AnalystExample], weight: float) -> list[Segment]:
    """Examples as segments; those beyond the token limit of an answer are left out.

    Args:
        analyst: the policy in its environment role.
        examples: questions and answers.
        weight: of an answer's token, relative to a token of an action.

    Raises:
        ConfigError: most answers are too long.
    """
    found, policy = [], analyst.policy
    for example in examples:
        prompt = analyst.prompt(example.question, example.kind)
        answer = analyst.renderer.write(_VALUE.sub(lambda line: line[1] + policy.literal(line[2]), example.answer))
        if answer[-1] not in analyst.stops(example.kind):
            answer.append(policy.eos_id)
        if len(answer) > analyst.limits[example.kind]:
            continue
        is_answer = np.arange(len(prompt) + len(answer)) >= len(prompt)
        kinds = np.where(is_answer, ACTION, CONTEXT)
        found.append(Segment(np.array([*prompt, *answer]), kinds, 0.0 * is_answer, weight * is_answer))
    if 2 * len(found) < len(examples):
        raise ConfigError(
            f"only {len(found)} of {len(examples)} analyses fit into curriculum.reflection_tokens="
            f"{analyst.limits['reflection']} and selection_tokens={analyst.limits['selection']}: raise them"
        )
    return found

"""Analysts that are asked about the same failures, language models with several prompts; answers are asked for once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from roleagent.agents.analysts.models import LanguageAnalyst
from roleagent.agents.analysts.prompts import AnalystPrompts, reflection_task
from roleagent.envs.failures import ScriptedFailure, play_failures, scripted_modes
from roleagent.failures.analyst_format import MODE, STEP, UNREADABLE, plain
from roleagent.failures.modes import is_known
from roleagent.slow_notice import waiting
from roleagent.types import Analyst, Reflection

_RECORD = "\n\nBelow is the record"


class Answer(NamedTuple):
    """What an analyst made of one failure.

    Attributes:
        reflection: as it was read.
        reply: as it was written; empty of rules.
        seconds, prompt_tokens, tokens: what it took; means of the failures that were asked about together.
    """

    reflection: Reflection
    reply: str
    seconds: float
    prompt_tokens: float
    tokens: float


class _Bare(AnalystPrompts):
    """Does not list the modes."""

    def instructions(self, env_id: str) -> str:
        return reflection_task(())


class _Examples(AnalystPrompts):
    """Lists the modes, and shows the decisive steps of one failure of each."""

    def instructions(self, env_id: str) -> str:
        task, _, record = super().instructions(env_id).partition(_RECORD)
        shown = "\n\n".join(_EXAMPLES[env_id])
        return f"{task}\n\nExamples, of which only the decisive steps are shown:\n\n{shown}{_RECORD}{record}"


PROMPTS: Mapping[str, type[AnalystPrompts]] = {"shipped": AnalystPrompts, "bare": _Bare, "examples": _Examples}
"""What a language model is asked: as in training, without the list of modes, and with an example of each mode."""

_EXAMPLES: dict[str, list[str]] = {}


def prepare_examples(env: gymnasium.Env, seed: int) -> None:
    """Plays the example of each mode that a world's prompts show; none of them is among the failures asked about."""
    written = []
    for place, mode in enumerate(scripted_modes(env)):
        for failure in play_failures(env, mode, 1, np.random.default_rng([seed, 1, place])):
            written.append(_example(failure))
            _EXAMPLES[failure.trajectory.task.env_id] = written


def _example(failure: ScriptedFailure) -> str:
    turns = failure.trajectory.turns
    last = len(turns) - 1 if failure.step is None else failure.step
    steps = [
        f"{number + 1}> {plain(turns[number].action, 80) or UNREADABLE}\n{plain(turns[number].observation, 80)}"
        for number in range(max(0, last - 1), last + 1)
    ]
    step = "none" if failure.step is None else failure.step + 1
    return "\n".join((*steps, f"{MODE}: {failure.mode}", f"{STEP}: {step}"))


def with_prompts(analyst: Analyst, name: str) -> Analyst:
    """The analyst with other prompts; of rules the analyst as it is."""
    if isinstance(analyst, LanguageAnalyst):
        old = analyst.prompts
        analyst.prompts = PROMPTS[name](old.measure, old.room, old.candidate_room, old.explain)
    return analyst


def ask(analyst: Analyst, failures: Sequence[ScriptedFailure]) -> list[Answer]:
    """An analyst's answers about some failures, asked together."""
    trajectories = [failure.trajectory for failure in failures]
    started = time.perf_counter()
    analyst.costs()
    replies, prompt_tokens = [""] * len(failures), 0.0
    if isinstance(analyst, LanguageAnalyst):
        questions = [analyst.prompts.reflection(trajectory) for trajectory in trajectories]
        prompt_tokens = sum(map(analyst.prompts.measure, questions)) / len(failures)
        replies = analyst.answer(questions, "reflection")
        reflections = analyst.read_reflections(replies, trajectories)
    else:
        reflections = analyst.reflect(trajectories)
    seconds = (time.perf_counter() - started) / len(failures)
    tokens = analyst.costs().get("analysis_tokens", 0.0) / len(failures)
    pairs = zip(reflections, replies, strict=True)
    return [Answer(reflection, reply, seconds, prompt_tokens, tokens) for reflection, reply in pairs]


def collect(
    analyst: Callable[[], Analyst],
    failures: Sequence[tuple[str, ScriptedFailure]],
    file: Path | None,
    batch: int,
) -> list[Answer]:
    """The answers about all failures; those that are in the file are not asked for again.

    Args:
        analyst: opens it, if there is something to ask.
        failures: each with its world.
        file: JSON lines of answers, each with the place of its failure; None: nothing is kept.
        batch: failures asked about together; they are of similar lengths.

    Raises:
        ValueError: the file belongs to other failures.
    """
    found: dict[int, Answer] = {}
    if file is not None and file.exists():
        for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            world, failure = failures[row["place"]] if row["place"] < len(failures) else ("", None)
            if failure is None or row["failure"] != _name(world, failure):
                raise ValueError(f"{file} has answers about other failures: name another folder with --answers")
            found[row["place"]] = Answer(Reflection(**row["reflection"]), *(row[name] for name in Answer._fields[1:]))
    missing = [place for place in range(len(failures)) if place not in found]
    missing.sort(key=lambda place: (failures[place][0], _length(failures[place][1])))
    opened = analyst() if missing else None
    for start in range(0, len(missing), batch):
        places = missing[start : start + batch]
        assert opened is not None
        with waiting(f"the answers about {len(places)} failures, {len(found)} of {len(failures)} so far"):
            answers = ask(opened, [failures[place][1] for place in places])
        for place, answer in zip(places, answers, strict=True):
            found[place] = answer
            if file is not None:
                row = {"place": place, "failure": _name(*failures[place]), **answer._asdict()}
                with file.open("a", encoding="utf-8") as stream:
                    print(json.dumps({**row, "reflection": asdict(answer.reflection)}, ensure_ascii=False), file=stream)
    return [found[place] for place in range(len(failures))]


def _name(world: str, failure: ScriptedFailure) -> list[Any]:
    task = failure.trajectory.task
    return [world, failure.mode, failure.step, task.task_id, len(failure.trajectory.turns)]


def _length(failure: ScriptedFailure) -> int:
    return sum(len(turn.action) + len(turn.observation) for turn in failure.trajectory.turns)


def outside(answer: Answer, failure: ScriptedFailure) -> bool:
    """Whether an answer that was read names a mode of its own."""
    reflection = answer.reflection
    return reflection.source != "fallback" and not is_known(reflection.mode, failure.trajectory.task.env_id)

"""Recorded episodes of the original shop, played again here: every answer compared.

This is how the claim that the shop is exact is tested: in CI on the recorded episodes that there are, and on any
others by ``benchmarks/webshop_parity.py``.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roleagent.envs.webshop.data.catalogue import CatalogueError
from roleagent.envs.webshop.engine.goals import KINDS, SPLITS
from roleagent.envs.webshop.env import WebShopEnv

# What a recorded step contains, and where the environment reports it (reward and observation aside).
ANSWERS = ("observation", "reward", "done", "clickables", "has_search_bar")


class RecordingError(ValueError):
    """A file does not hold recordings."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One episode.

    Attributes:
        goal: the goal's index in the fixed order.
        instruction: its words.
        start: the answers to the reset: observation and clickables.
        steps: per action, the action and the answers.
    """

    goal: int
    instruction: str
    start: Mapping[str, Any]
    steps: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A difference between the shop and a recording.

    Attributes:
        actions: everything done up to the difference.
        what: one of :data:`ANSWERS`, or ``"instruction"``.
        found, recorded: what the two say.
    """

    goal: int
    actions: tuple[str, ...]
    what: str
    found: object
    recorded: object

    def __str__(self) -> str:
        done = [action if len(action) < 100 else f"{action[:97]}…" for action in self.actions[-8:]]
        return (
            f"goal {self.goal}: {self.what} after {done} ({len(self.actions)} actions)\n"
            f"  here:     {self.found!r}\n  recorded: {self.recorded!r}"
        )


def read_recordings(path: str | Path) -> list[Recording]:
    """Reads JSON lines, plain or gzipped; one episode each: goal, instruction, observation, clickables, steps.

    Raises:
        RecordingError: the file is missing or holds something else; names the line.
    """
    path = Path(path)
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise RecordingError(f"cannot read the recordings {path}: {error}") from error
    found = []
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            try:
                found.append(_read(json.loads(line)))
            except (ValueError, KeyError, TypeError) as error:
                raise RecordingError(f"{path}, line {number}, is no recording: {error!r}") from error
    return found


def _read(episode: Any) -> Recording:
    steps = tuple({key: step[key] for key in ("action", *ANSWERS)} for step in episode["steps"])
    start = {key: episode[key] for key in ("observation", "clickables")}
    return Recording(int(episode["goal"]), str(episode["instruction"]), start, steps)


class Stage:
    """Environments that can play any goal of the catalogue, of any kind and split.

    Args:
        arguments: of :class:`~roleagent.envs.webshop.env.WebShopEnv`, without kind, split, reward and step limit.
    """

    def __init__(self, **arguments: Any):
        self._envs: dict[str, dict[str, WebShopEnv]] = {}
        reasons = []
        for kind in KINDS:
            try:
                self._envs[kind] = {
                    split: WebShopEnv(split, goals=kind, reward="score", max_steps=1_000_000, **arguments)
                    for split in SPLITS
                }
            except CatalogueError as error:
                reasons.append(error)
        if not self._envs:
            raise reasons[0]

    @property
    def env(self) -> WebShopEnv:
        """One of them."""
        return next(iter(self._envs.values()))[SPLITS[0]]

    def reset(self, recording: Recording) -> tuple[WebShopEnv, str, dict[str, Any]]:
        """Begins the episode: with the goal of that index whose words are the recorded ones, else with any."""
        found: list[tuple[bool, WebShopEnv, str]] = []
        for envs in self._envs.values():
            goals = next(iter(envs.values())).shop.goals
            if 0 <= recording.goal < len(goals):
                goal = goals[recording.goal]
                env = next((env for env in envs.values() if goal.goal_id in env.task_split), None)
                if env is not None:
                    found.append((goal.instruction == recording.instruction, env, goal.goal_id))
        if not found:
            raise RecordingError(f"this catalogue has no goal {recording.goal}: recordings belong to their data")
        _, env, goal_id = max(found, key=lambda candidate: candidate[0])
        return env, *env.reset(options={"task_id": goal_id})


def replay(stage: Stage, recording: Recording) -> Iterator[list[Mismatch]]:
    """Plays a recorded episode; yields the differences of every step (of the reset in the first step's).

    What was recorded after a purchase is not played: the episode is over.

    Raises:
        RecordingError: the catalogue has no such goal.
    """
    env, text, info = stage.reset(recording)
    differences: list[Mismatch] = []
    actions: tuple[str, ...] = ()

    def compare(what: str, found: object, recorded: object) -> None:
        if found != recorded:
            differences.append(Mismatch(recording.goal, actions, what, found, recorded))

    compare("instruction", info["goal"], recording.instruction)
    compare("observation", text, recording.start["observation"])
    compare("clickables", info["clickables"], recording.start["clickables"])
    for step in recording.steps:
        actions = (*actions, step["action"])
        text, reward, terminated, _, info = env.step(step["action"])
        answers = (text, reward, terminated, info["clickables"], info["has_search_bar"])
        for what, found in zip(ANSWERS, answers, strict=True):
            compare(what, found, step[what])
        yield differences
        differences = []
        if terminated:
            return


__all__ = ["ANSWERS", "Mismatch", "Recording", "RecordingError", "Stage", "read_recordings", "replay"]

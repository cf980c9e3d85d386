"""Recorded episodes of the original TextCraft, played again here: every answer, reward and end compared.

A recording names its goal, so it does not depend on the machine that made it. The original draws what it shows with the
hash of texts; the shown commands are therefore checked as a recipe list, and the engine starts from the goal.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roleagent.envs.textcraft.data.recipes import RecipeBook, plain_name
from roleagent.envs.textcraft.engine.crafting import Crafting


class RecordingError(ValueError):
    """A file does not hold recordings; the message is one line."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One episode: the goal's full name, the shown commands, the first observation, and per step the action and what
    came of it (observation, reward, end)."""

    goal: str
    commands: tuple[str, ...]
    initial: str
    steps: tuple[tuple[str, str, float, bool], ...]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A difference between the engine and a recording after some actions."""

    goal: str
    actions: tuple[str, ...]
    found: object
    recorded: object

    def __str__(self) -> str:
        done = [action if len(action) < 100 else f"{action[:97]}…" for action in self.actions[-8:]]
        return f"{self.goal} after {done}\n  here:     {self.found!r}\n  recorded: {self.recorded!r}"


def read_recordings(path: str | Path) -> list[Recording]:
    """Reads a JSON list of episodes, plain or gzipped.

    Raises:
        RecordingError: the file is missing or holds something else.
    """
    path = Path(path)
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return [_read(episode) for episode in json.loads(content)]
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as error:
        raise RecordingError(f"cannot read the recordings {path}: {' '.join(str(error).split())}") from error


def _read(episode: Mapping[str, Any]) -> Recording:
    steps = tuple((str(a), str(o), float(r), bool(d)) for a, o, r, d in episode["steps"])
    return Recording(str(episode["goal"]), tuple(episode["commands"]), str(episode["initial"]), steps)


def replay(book: RecipeBook, recording: Recording) -> Iterator[Mismatch | None]:
    """Plays a recorded episode; yields the difference of every step, or None. The first one is of the beginning.

    Raises:
        RecordingError: the book has no such goal.
    """
    if recording.goal not in book.by_product:
        raise RecordingError(f"these recipes do not make {recording.goal}: recordings belong to their recipes")
    own = {recipe.text for recipe in book.reachable(recording.goal)}
    lines = ("Crafting commands:", *recording.commands, "", f"Goal: craft {plain_name(recording.goal)}.")
    start = ("\n".join(lines), own <= set(recording.commands))
    recorded_start = (recording.initial, True)
    yield None if start == recorded_start else Mismatch(recording.goal, (), start, recorded_start)
    game = Crafting(book, recording.goal)
    actions: tuple[str, ...] = ()
    for action, *recorded in recording.steps:
        actions = (*actions, action)
        found = [game.act(action).text, float(game.won), game.won]
        yield None if found == recorded else Mismatch(recording.goal, actions, found, recorded)


__all__ = ["Mismatch", "Recording", "RecordingError", "read_recordings", "replay"]

"""The official ALFWorld games on disk.

``data_dir`` is the folder that ``alfworld-download`` fills: ``json_2.1.1/<split>/<task>/<trial>/game.tw-pddl`` beneath
it, or ``<split>/…``, or it is a split's folder itself. A task id is ``<task>/<trial>``. As in the published benchmark,
games that need a movable container or slices, and games not marked as solvable, are left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from functools import lru_cache
from pathlib import Path

from roleagent.envs.alfworld.engine.game import GameSource
from roleagent.envs.alfworld.engine.game_version import (
    FORMATS,
    GameVersion,
    UnknownGameVersion,
    recognize,
    task_sentence,
)
from roleagent.options import user_path
from roleagent.slow_notice import waiting

SPLITS = ("train", "valid_train", "valid_seen", "valid_unseen")
GAME = "game.tw-pddl"
_SOLVABLE = re.compile(rb'"solvable":\s*(true|false)')
_TAIL = 4096  # bytes; "solvable" and the walkthrough are the last keys of an official file


def default_data_dir() -> str | None:
    """The folder that ``ALFWORLD_DATA`` names; None if it is not set.

    Importing ``alfworld`` sets the variable to a cache folder of its own and creates it: empty, it means nothing.
    """
    data_dir = os.environ.get("ALFWORLD_DATA", "")
    if data_dir == os.path.expanduser("~/.cache/alfworld") and not (os.path.isdir(data_dir) and os.listdir(data_dir)):
        return None
    return data_dir or None


def games_folder(data_dir: str | os.PathLike[str] | None, split: str) -> Path | None:
    """The folder of a split's games; None: they are generated.

    Args:
        data_dir: a folder; ``"official"``: the one that ``ALFWORLD_DATA`` names, and no other games will do;
            ``"generated"``; None: as ``"official"`` where ``ALFWORLD_DATA`` is set, else as ``"generated"``.
        split: a split's name.

    Raises:
        FileNotFoundError: there is no such folder, or official games are required but not configured.
    """
    if data_dir == "official" and default_data_dir() is None:
        raise FileNotFoundError(
            "official ALFWorld games are demanded, but ALFWORLD_DATA does not say where they are: set it to the folder "
            "that alfworld-download filled"
        )
    if not data_dir or data_dir == "official":
        data_dir = default_data_dir() or "generated"
    return None if str(data_dir) == "generated" else split_folder(data_dir, split).absolute()


def split_folder(data_dir: str | os.PathLike[str], split: str) -> Path:
    """The folder of a split's games.

    Raises:
        FileNotFoundError: nowhere beneath ``data_dir``.
    """
    root = user_path(data_dir)
    candidates = [root / "json_2.1.1" / split, root / split, *([root] if root.name == split else [])]
    for folder in candidates:
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        f"no ALFWorld games of the split {split!r} under {root}: expected {candidates[0]} or {candidates[1]}; "
        f"point data_dir or ALFWORLD_DATA at the folder that alfworld-download filled"
    )


@lru_cache(maxsize=32)
def list_games(folder: Path) -> tuple[str, ...]:
    """The ids of all playable games in a split's folder, sorted.

    It reads the last 4 KiB of every file (3,553 games in about half a second) and remembers the answer.

    Raises:
        FileNotFoundError: there is no playable game.
        ValueError: a game file is cut short or is no JSON.
    """
    found: list[str] = []
    with waiting(lambda: f"the ALFWorld games in {folder} to be looked through, {len(found)} so far"):
        for task in os.scandir(folder):
            if task.is_dir() and "movable" not in task.name and "Sliced" not in task.name:
                for trial in os.scandir(task.path):
                    path = os.path.join(trial.path, GAME)
                    if os.path.isfile(path) and _solvable(path):
                        found.append(f"{task.name}/{trial.name}")
    if not found:
        raise FileNotFoundError(
            f"no solvable {GAME} under {folder}: download the games with alfworld-download, or unpack them again"
        )
    return tuple(sorted(found))


def read_game(folder: Path, task_id: str) -> GameSource:
    """Reads one game.

    Raises:
        FileNotFoundError: there is no such game.
        ValueError: the file is cut short, lacks a key, or is not marked as solvable.
    """
    path = folder / task_id / GAME
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such game; is the data set unpacked completely?")
    data = _parse(path)
    for key in ("pddl_domain", "grammar", "pddl_problem", "solvable"):
        if key not in data:
            raise ValueError(f"{path}: the game file lacks the key {key!r}; unpack the data set again or leave it out")
    if not data["solvable"]:
        raise ValueError(f"{path}: the game is marked as unsolvable; choose another task")
    return GameSource(
        task_id=task_id,
        task_type=task_id.partition("-")[0],
        problem=data["pddl_problem"],
        goal=task_sentence(data["grammar"]),
        walkthrough=tuple(data.get("walkthrough") or ()),
        domain=data["pddl_domain"],
        grammar=data["grammar"],
    )


def versions(folder: Path) -> set[GameVersion]:
    """The versions of a split's first, middle and last game, as far as they are known."""
    games, found = list_games(folder), set[GameVersion]()
    for place in {0, len(games) // 2, len(games) - 1}:
        with contextlib.suppress(UnknownGameVersion, ValueError):
            source = read_game(folder, games[place])
            found.add(recognize(source.domain, source.grammar))
    return found


def version_text(folder: Path) -> str:
    """The versions of a split's games, by the number of their format; those of another format are unknown."""
    return ", ".join(sorted(FORMATS[version] for version in versions(folder))) or "unknown"


def explain_absence(folder: Path, task_id: str) -> None:
    """Raises an error with the reason why an existing game is not playable; returns if it is playable.

    Raises:
        ValueError: the game exists, but is left out.
    """
    playable = list_games(folder)
    if (
        task_id in playable
        or not re.fullmatch(r"[\w-]+/[\w-]+", str(task_id))
        or not (folder / task_id / GAME).is_file()
    ):
        return
    read_game(folder, task_id)
    raise ValueError(
        f"{task_id} needs a movable container or slices, which the benchmark leaves out; choose another task"
    )


def _solvable(path: str) -> bool:
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        tail = file.read()
    marks = _SOLVABLE.findall(tail)
    if marks and tail.rstrip().endswith(b"}"):
        return marks[-1] == b"true"
    return bool(_parse(path).get("solvable"))  # keys in another order, none at all, or a broken file


def _parse(path: str | Path) -> dict:
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a complete JSON file ({error}); unpack the data set again") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path}: not a game file (its JSON is no object)")
    return data


__all__ = [
    "GAME",
    "SPLITS",
    "default_data_dir",
    "explain_absence",
    "games_folder",
    "list_games",
    "read_game",
    "split_folder",
]

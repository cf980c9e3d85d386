"""Follows runs during training: finds them when they start, and reads them again when files have changed.

Reading takes no lock, writes nothing, and uses at most a tenth of one core's time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from roleagent.files import at_work
from roleagent.reports.data.load_run import EPISODES, load_episodes, load_run
from roleagent.reports.data.load_trajectories import RunDataError
from roleagent.reports.data.run_groups import name_apart
from roleagent.reports.data.run_schema import EpisodeCard, RunData

SHARE = 0.1
"""Most of the time that reading may take."""
_READ_FILES = (".yaml", ".json", ".jsonl", ".db", ".db-wal")  # suffixes of the files that are read
_FOLDERS = ("trajectories", "checkpoints")  # their modification times are compared


class RunWatcher:
    """Reads one run, or several for a comparison.

    Args:
        places: run folders, which may not exist yet, or folders of runs, of which the newest is taken.
        episodes: about how many episodes to load per run.
    """

    def __init__(self, places: Sequence[Path], episodes: int = EPISODES):
        self.places, self._episodes = list(places), episodes
        self._found: dict[Path, Path] = {}
        self._loaded: list[RunData] = []
        self._stamp = ""  # fingerprint of the loaded files
        self._read_again = 0.0  # on the monotonic clock: not before
        self._lock = threading.RLock()

    def runs(self) -> list[Path]:
        """The run folders; ``[]`` until all exist. A run that was found is not exchanged for a newer one."""
        with self._lock:
            for place in self.places:
                if place not in self._found and (run := newest_run(place)) is not None:
                    self._found[place] = run
            return [self._found[place] for place in self.places] if len(self._found) == len(set(self.places)) else []

    def missing(self) -> list[Path]:
        """Places without a run so far."""
        self.runs()
        return [place for place in self.places if place not in self._found]

    def load(self) -> tuple[str, list[RunData]]:
        """The runs' data and a fingerprint that changes with them; ``("", [])`` until all runs exist.

        If a run cannot be read, its last data stay, with a note.

        Raises:
            RunDataError: a run cannot be read, and there are no earlier data.
        """
        with self._lock:
            runs = self.runs()
            stamp = "-".join(fingerprint(run) for run in runs)
            if not runs or stamp == self._stamp or time.monotonic() < self._read_again:
                return self._stamp, self._loaded
            began = time.monotonic()
            data = []
            for number, run in enumerate(runs):
                try:
                    data.append(load_run(run, self._episodes))
                except Exception as error:  # of a run that is being written, or of another version
                    if not self._loaded:
                        raise RunDataError(_reason(run, error)) from error
                    note = f"the run cannot be read now ({error}): these are earlier data"
                    last = self._loaded[number]
                    data.append({**last, "notes": [*(n for n in last["notes"] if n != note), note]})
            name_apart(data)
            self._loaded, self._stamp = data, stamp
            spent = time.monotonic() - began
            self._read_again = time.monotonic() + spent * (1 / SHARE - 1)
            return stamp, data

    def episodes(self, iteration: int) -> list[EpisodeCard]:
        """All episodes of one iteration of the first run.

        Raises:
            RunDataError: their file is damaged.
        """
        runs = self.runs()
        try:
            return load_episodes(runs[0], iteration) if runs else []
        except Exception as error:
            raise RunDataError(_reason(runs[0], error)) from error


def newest_run(place: Path) -> Path | None:
    """The folder itself if it is a run, else the run in it with the newest log; None without one."""
    if (place / "config.yaml").is_file():
        return place
    try:
        runs = [Path(entry.path) for entry in os.scandir(place) if entry.is_dir()]
    except OSError:
        return None
    return max((run for run in runs if (run / "config.yaml").is_file()), key=_written, default=None)


def fingerprint(run: Path) -> str:
    """16 hexadecimal digits that change when a run's files do, or when it ends."""
    seen: list[object] = [at_work(run)]
    try:
        for entry in sorted(os.scandir(run), key=lambda entry: entry.name):
            if entry.name.endswith(_READ_FILES) or entry.name in _FOLDERS:
                state = entry.stat()
                seen.append((entry.name, state.st_mtime_ns, 0 if entry.is_dir() else state.st_size))
    except OSError:  # removed or changed meanwhile
        seen.append(time.monotonic())
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]


def _reason(run: Path, error: Exception) -> str:
    return str(error) if isinstance(error, RunDataError) else f"{run} cannot be read: {type(error).__name__}: {error}"


def _written(run: Path) -> float:
    newest = 0.0
    for name in ("config.yaml", "metrics.jsonl"):
        with contextlib.suppress(OSError):
            newest = max(newest, (run / name).stat().st_mtime)
    return newest


__all__ = ["RunWatcher", "fingerprint", "newest_run"]

"""Judges the saved episodes of an evaluation again, without playing them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from roleagent.agents.evaluation.records import Attempt, Record, RecordFile, read_records
from roleagent.agents.evaluation.targets import source_digest
from roleagent.agents.evaluation.transcripts import TranscriptFile, read_transcripts
from roleagent.imports import error_line, load_object

Judge = Callable[[Mapping[str, Any]], "bool | float"]


class Rescoring:
    """The episodes beside a record file, and a judge of them.

    Args:
        records: the record file, with its transcripts beside it.
        judge: ``module:function``: from an episode (a line of the transcripts) to whether it is won, or to a score in
            [0, 1]. A score of 1 is won; it is the episode's reward, and its measure ``judge``.

    Attributes:
        header: of the new record file: the old one's, with the judge.
        old: the records that were there, by attempt.

    Raises:
        ConfigError: the judge cannot be loaded.
        ValueError: there are no records or no transcripts, an episode has none, or the judge is no function.
    """

    def __init__(self, records: Path, judge: str):
        header, written, _ = read_records(records)
        self.old = {record.attempt: record for record in written}
        self.episodes = {Attempt(row["member"], row["task_id"]): row for row in read_transcripts(records)}
        if absent := [at for at, record in self.old.items() if record.sound and at not in self.episodes]:
            raise ValueError(
                f"{records} has no transcript of {len(absent)} episodes (the first: {absent[0].task_id}): a judge "
                "reads transcripts, which --no-transcripts leaves out"
            )
        if not self.old:
            raise ValueError(f"{records} has no episode")
        self._judge: Judge = load_object(judge)
        if not callable(self._judge):
            raise ValueError(f"the judge {judge} is no function of an episode")
        self.header = {**header, "judge": {"name": judge, **source_digest(judge)}}

    def stale(self, path: Path) -> set[Attempt]:
        """Attempts that were judged in a record file and have been played anew since."""
        before = {Attempt(row["member"], row["task_id"]): row for row in read_transcripts(path)}
        return {at for at, row in before.items() if at in self.episodes and _played(row) != _played(self.episodes[at])}

    def judged(self, missing: set[Attempt], transcripts: TranscriptFile) -> Iterator[Record]:
        """The records of missing attempts with the judge's word; the same goes into the transcripts.

        An episode without an outcome keeps having none; one at which the judge fails has none, either.
        """
        for attempt, record in self.old.items():
            if attempt not in missing:
                continue
            if record.sound:
                record = self._record(record, self.episodes[attempt])
            if attempt in self.episodes:
                verdict = {name: getattr(record, name) for name in _VERDICT}
                transcripts.append({**self.episodes[attempt], **verdict})
            yield record

    def _record(self, record: Record, episode: Mapping[str, Any]) -> Record:
        try:
            word = self._judge(episode)
            if not isinstance(word, (Real, np.bool_)) or not 0.0 <= word <= 1.0:
                raise ValueError(f"a judge returns True, False or a score in [0, 1], not {word!r}")
        except Exception as error:  # whatever a user's judge does
            reason = f"judge: {error_line(error)}"
            return replace(record, won=False, reward=0.0, stop_reason="error", error=reason)
        metrics = {**record.metrics, "judge": float(word)}
        won = bool(word == 1.0)
        ended = "lost" if record.stop_reason == "won" and not won else record.stop_reason
        return replace(record, won=won, reward=float(word), stop_reason=ended, metrics=metrics)


_VERDICT = ("won", "reward", "stop_reason", "error")


def _played(episode: Mapping[str, Any]) -> dict[str, Any]:
    """An episode without what a judge says of it."""
    return {name: value for name, value in episode.items() if name not in _VERDICT}


def changed(file: RecordFile, old: Mapping[Attempt, Record]) -> tuple[int, int]:
    """How many episodes are won now that were not, and the other way round."""
    pairs = [(old[one.attempt].won, one.won) for one in file.records if one.sound and one.attempt in old]
    return pairs.count((False, True)), pairs.count((True, False))


__all__ = ["Judge", "Rescoring", "changed"]

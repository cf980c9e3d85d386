"""Measuring an agent on a fixed panel: episode records, success per task type, intervals."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium

from roleagent.agents.baselines import Agent
from roleagent.agents.rollout import Rollout
from roleagent.envs.pool import EnvPool
from roleagent.panel import Panel, wilson
from roleagent.types import Trajectory


@dataclass(frozen=True, slots=True)
class Record:
    """One evaluated episode.

    Attributes:
        reward: sum of the ``task`` terms.
        steps: turns taken.
        prediction: mean score of the episode's predictions in [0, 1]; None where none were asked for.
        error: what the environment raised, where the stop reason is ``error``.
    """

    task_id: str
    task_type: str
    won: bool
    reward: float
    steps: int
    stop_reason: str
    prediction: float | None = None
    error: str = ""

    @classmethod
    def failed(cls, task_id: str, task_type: str, error: str) -> Record:
        """The record of an episode whose environment failed: reported, and in no rate."""
        return cls(task_id, task_type, False, 0.0, 0, "error", error=error)

    @classmethod
    def of(cls, trajectory: Trajectory) -> Record:
        """The record of a played trajectory."""
        scores = [s.score for turn in trajectory.turns if turn.prediction for s in turn.prediction.scores]
        return cls(
            trajectory.task.task_id,
            trajectory.task.task_type,
            trajectory.success,
            trajectory.outcome,
            len(trajectory.turns),
            trajectory.stop_reason,
            sum(scores) / len(scores) if scores else None,
        )


def evaluate_policy(
    rollout: Rollout,
    task_ids: Sequence[str],
    temperature: float,
    side_by_side: int,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Record]:
    """Plays every task once, ``side_by_side`` episodes at a time; yields a record per task as batches finish.

    A task whose environment failed yields a record with the stop reason ``error``: it is reported, not hidden.
    """
    done = 0
    for start in range(0, len(task_ids), side_by_side):
        part = task_ids[start : start + side_by_side]
        before = done

        def report(finished: int, _: int, before: int = before) -> None:
            if progress is not None:
                progress(before + finished, len(task_ids))

        for task_id, group in zip(part, rollout.play(part, 1, temperature, report), strict=True):
            if group.trajectories:
                yield Record.of(group.trajectories[0])
            else:
                yield Record.failed(task_id, group.task.task_type, rollout.stats.failures[task_id])
        done += len(part)


def evaluate_agent(env: gymnasium.Env, agent: Agent, task_ids: Iterable[str]) -> Iterator[Record]:
    """Plays every task once with an agent that gives bare commands to a base environment.

    A task whose environment fails yields a record with the stop reason ``error``; what the agent raises is raised.
    """
    pool = EnvPool(lambda: env)
    for task_id in task_ids:
        outcome = pool.reset(0, task_id)
        task_type, reward, steps = outcome.info.get("task_type", ""), 0.0, 0
        if outcome.error is None:
            agent.reset(outcome.observation, outcome.info)
        while outcome.error is None and not (outcome.terminated or outcome.truncated):
            outcome = pool.step(0, agent.act(outcome.observation, outcome.info))
            reward += outcome.info.get("rewards", {}).get("task", 0.0)
            steps += 1
        if outcome.error is not None:
            yield Record.failed(task_id, task_type, outcome.error)
            continue
        won = bool(outcome.info["won"])
        reason = "won" if won else ("lost" if outcome.terminated else "max_steps")
        yield Record(task_id, task_type, won, reward, steps, reason)


def summarise(records: Sequence[Record]) -> dict[str, Any]:
    """Success with Wilson's 95 % interval, over all and per task type.

    Episodes that ended in an error of the environment are counted apart and in no rate.
    """
    sound = [record for record in records if record.stop_reason != "error"]
    by_type: dict[str, list[Record]] = defaultdict(list)
    for record in sound:
        by_type[record.task_type].append(record)

    def rate(part: Sequence[Record]) -> dict[str, Any]:
        won = sum(record.won for record in part)
        low, high = wilson(won, len(part))
        return {
            "n": len(part),
            "success": won / len(part) if part else 0.0,
            "interval": [low, high],
            "steps": sum(record.steps for record in part) / len(part) if part else 0.0,
        }

    foreseen = [record.prediction for record in sound if record.prediction is not None]
    return {
        **rate(sound),
        "reward": sum(record.reward for record in sound) / len(sound) if sound else 0.0,
        "prediction": sum(foreseen) / len(foreseen) if foreseen else None,
        "errors": len(records) - len(sound),
        "by_type": {name: rate(by_type[name]) for name in sorted(by_type)},
    }


def result_rows(summaries: Mapping[str, Mapping[str, Any]], steps: bool = False) -> list[list[str]]:
    """Rows of summaries side by side, for a table: everything first, then each task type.

    Args:
        summaries: by the name of their column, from :func:`summarise`.
        steps: whether a column with the mean number of steps follows each.

    >>> result_rows({"random": summarise([Record("t", "heat", True, 1.0, 4, "won")])}, steps=True)[1]
    ['heat', '100.0%  [20.7%, 100.0%]  n=1', '4.0']
    """
    names = sorted({name for summary in summaries.values() for name in summary["by_type"]})
    rows = []
    for label in ["all", *names]:
        row = [label]
        for summary in summaries.values():
            part = summary if label == "all" else summary["by_type"].get(label)
            low, high = part["interval"] if part else (0.0, 1.0)
            row.append(f"{part['success']:.1%}  [{low:.1%}, {high:.1%}]  n={part['n']}" if part else "–")
            if steps:
                row.append(f"{part['steps']:.1f}" if part else "–")
        rows.append(row)
    return rows


class RecordFile:
    """Records as JSON lines behind a header that says what was measured; an interrupted evaluation goes on.

    Args:
        path: the file.
        header: protocol, panel digest, agent; a file with another header is refused.

    Raises:
        ValueError: the file belongs to another evaluation, or is damaged.
    """

    def __init__(self, path: Path, header: dict[str, Any]):
        self.path, self.header = path, header
        self.records: list[Record] = []
        if path.exists() and path.stat().st_size:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            sound = "".join(line for line in lines if line.endswith("\n"))
            try:
                found, *rows = [json.loads(line) for line in sound.splitlines()]
                self.records = [Record(**row) for row in rows]
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path} is no evaluation file; move it away or name another with --out") from error
            if found != header:
                changed = sorted(key for key in {*found, *header} if found.get(key) != header.get(key))
                raise ValueError(
                    f"{path} holds another evaluation ({', '.join(changed)} differ); name another file with --out"
                )
            if len(sound) != sum(map(len, lines)):  # killed in the middle of a line
                path.write_text(sound, encoding="utf-8")

    def missing(self, panel: Panel) -> list[str]:
        """Tasks of the panel without a record, in order."""
        done = {record.task_id for record in self.records}
        return [task_id for task_id in panel.task_ids if task_id not in done]

    def append(self, record: Record) -> None:
        """Adds one record to memory and disk; the first one brings the header."""
        self.records.append(record)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as stream:
            header = "" if stream.tell() else json.dumps(self.header) + "\n"
            stream.write(header + json.dumps(asdict(record)) + "\n")

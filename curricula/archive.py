"""Queries of a failure library: its newest entries, one entry in full, its modes, their growth, and an export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import undefer

from roleagent.curricula.library import FailureLibrary
from roleagent.curricula.storage.tables import NAME_LENGTH, FailureRow, clean, newest_rows, same_entry
from roleagent.failures.modes import is_known
from roleagent.types import Failure

FIELDS = tuple(name for name in FailureRow.__table__.columns.keys() if name != "story")  # noqa: SIM118 - not a mapping
_PAGE = 256  # rows in memory at once


@dataclass(frozen=True, slots=True)
class Filed:
    """A failure as it was filed.

    Attributes:
        id: its number in the library.
        run: whose it is.
        policy_version: weight updates that the policy had seen.
        failure: its entry, with the analysis of this failure.
    """

    id: int
    run: str
    policy_version: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class ModeCount:
    """The number of entries of a mode.

    Attributes:
        env_id: the environment.
        mode: the mode.
        tasks: entries.
        failures: failed episodes.
        share: of the environment's failed episodes, in [0, 1].
        newest: the iteration of the newest.
        known: whether the environment's taxonomy has the mode.
    """

    env_id: str
    mode: str
    tasks: int
    failures: int
    share: float
    newest: int
    known: bool


def newest(
    library: FailureLibrary, mode: str = "", task_type: str = "", task: str = "", limit: int = 20
) -> list[Filed]:
    """The newest failure of each of the newest entries; of a mode, a kind of task, tasks whose id contains ``task``."""
    asked = []
    if mode:
        asked.append(FailureRow.mode == clean(mode, NAME_LENGTH))
    if task_type:
        asked.append(FailureRow.task_type == clean(task_type, NAME_LENGTH))
    if task:
        asked.append(FailureRow.task_id.contains(clean(task), autoescape=True))
    entries = newest_rows(*asked).order_by(sa.func.max(FailureRow.id).desc()).limit(limit).subquery()
    query = sa.select(FailureRow, entries.c[1]).join(entries, FailureRow.id == entries.c[0])
    with library.database.read() as session:
        return [_filed(row, count) for row, count in session.execute(query.order_by(FailureRow.id.desc()))]


def find(library: FailureLibrary, key: int) -> tuple[Filed, list[dict[str, Any]]] | None:
    """A failure by its number, with its trajectory (see :meth:`FailureLibrary.trajectory`). None: no such number."""
    with library.database.read() as session:
        row = session.get(FailureRow, key)
        if row is None:
            return None
        same = same_entry(row.env_id, row.mode, row.task_id)
        count = session.scalar(sa.select(sa.func.count()).select_from(FailureRow).where(*same)) or 1
        return _filed(row, count), row.story


def mode_counts(library: FailureLibrary) -> list[ModeCount]:
    """Every mode of every environment, most failures first."""
    tasks, failures = sa.func.count(sa.distinct(FailureRow.task_id)), sa.func.count()
    place = FailureRow.env_id, FailureRow.mode
    query = sa.select(*place, tasks, failures, sa.func.max(FailureRow.iteration)).group_by(*place)
    with library.database.read() as session:
        found = session.execute(query.order_by(FailureRow.env_id, failures.desc(), FailureRow.mode)).all()
    whole: dict[str, int] = {}
    for env_id, _, _, count, _ in found:
        whole[env_id] = whole.get(env_id, 0) + count
    return [
        ModeCount(env_id, mode, tasks, count, count / whole[env_id], last, is_known(mode, env_id))
        for env_id, mode, tasks, count, last in found
    ]


def curves(growth: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Growth with nothing left out: a row per mode and iteration, ``entries`` being the running sum of new ones.

    >>> rows = [{"iteration": 1, "mode": "loop", "failures": 2, "new_entries": 1},
    ...         {"iteration": 3, "mode": "loop", "failures": 1, "new_entries": 1}]
    >>> [row["entries"] for row in curves(rows)]
    [1, 1, 2]
    """
    if not growth:
        return []
    logged = {(row["mode"], row["iteration"]): row for row in growth}
    iterations = range(min(row["iteration"] for row in growth), max(row["iteration"] for row in growth) + 1)
    rows = []
    for mode in sorted({row["mode"] for row in growth}):
        own = [logged.get((mode, iteration), {"failures": 0, "new_entries": 0}) for iteration in iterations]
        sums = accumulate(row["new_entries"] for row in own)
        for iteration, row, entries in zip(iterations, own, sums, strict=True):
            counts = {"failures": row["failures"], "new_entries": row["new_entries"], "entries": entries}
            rows.append({"iteration": iteration, "mode": mode, **counts})
    return rows


def everything(library: FailureLibrary, trajectories: bool = False) -> Iterator[dict[str, Any]]:
    """Every failure in the order of filing, as a dictionary of :data:`FIELDS`, with ``trajectory`` if asked for."""
    last = 0
    options = [undefer(FailureRow.story)] if trajectories else []
    while True:
        query = sa.select(FailureRow).where(FailureRow.id > last).order_by(FailureRow.id).limit(_PAGE)
        with library.database.read() as session:
            page = [
                {name: getattr(row, name) for name in FIELDS} | ({"trajectory": row.story} if trajectories else {})
                for row in session.scalars(query.options(*options))
            ]
        if not page:
            return
        yield from page
        last = page[-1]["id"]


def _filed(row: FailureRow, count: int) -> Filed:
    return Filed(row.id, row.run, row.policy_version, row.failure(count))

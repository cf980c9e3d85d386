"""Tasks in a writer's own words: a prompt, how it is judged, and the gold actions that solve it (GenEnv's free form).

A line is one JSON object. No list of values bounds what a writer can say: a schema is checked, and an executor runs the
gold actions. A task is accepted if they can be run, are judged right, and are needed.
"""

from __future__ import annotations

import base64
import json
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from numpy.random import Generator

from roleagent.tasks.grammar import MAX_LINE, Refused, TaskForm, TaskGrammar, TaskSpec

_PREFIX = "written/"
_DEEPEST = 32  # levels of a task
_SAMPLES = 1000  # listed tasks that are looked at for one whose solution is known
_TASK_ID = re.compile(_PREFIX + r"[A-Za-z0-9_-]+")


def encode(row: Mapping[str, Any]) -> str:
    """The id of a written task, which holds all of it.

    >>> decode(encode({"prompt": "Why?"}))
    {'prompt': 'Why?'}
    """
    return _PREFIX + base64.urlsafe_b64encode(canonical(row).encode()).decode().rstrip("=")


def decode(task_id: str) -> dict[str, Any] | None:
    """The inverse of :func:`encode`; None for any other text."""
    if not _TASK_ID.fullmatch(task_id) or len(task_id) > 6 * MAX_LINE:
        return None
    text = task_id.removeprefix(_PREFIX)
    try:
        row = read_object(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode())
    except ValueError:
        return None
    return row if encode(row) == task_id else None


def canonical(row: Mapping[str, Any]) -> str:
    """A task as one line of JSON, with its keys in order."""
    return json.dumps(row, ensure_ascii=False, sort_keys=True, allow_nan=False)


def read_object(text: str) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        ValueError: it is none, is nested too deeply, or holds NaN, an infinity, or what no UTF-8 text can hold.
    """
    try:
        row = json.loads(text, parse_constant=_no_constant)
        if _deeper(row, _DEEPEST):
            raise ValueError("nested too deeply")
        canonical(row).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(row, dict):
        raise ValueError("no object")
    return row


def _deeper(value: Any, levels: int) -> bool:
    """Whether an object has more levels; ids are copied and compared by functions that call themselves."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return not levels or any(_deeper(one, levels - 1) for one in inner)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


class FreeTaskGrammar(TaskGrammar):
    """Tasks of an environment in free form. A :class:`TaskSpec` has one value, the canonical line, and no seed.

    A plan may have all of the environment's steps.

    Attributes:
        keys: of a line, with what each means: first the one that the agent reads. Those in ``optional`` may be missing.
    """

    fields = MappingProxyType({"task": ()})
    varies = False
    keys: Mapping[str, str]
    optional: frozenset[str] = frozenset()

    def __init__(self, env: Any, plan_share: float = 1.0):
        super().__init__(env, plan_share=1.0)
        self._samples = [spec for task_id in self._ids[:_SAMPLES] if (spec := self._listed(task_id)) is not None]
        if not self._samples:
            raise ValueError(
                f"a writer of tasks begins with training tasks whose solution is known: none of the first {_SAMPLES} is"
            )

    @property
    def _ids(self) -> Sequence[str]:
        return self.env.task_split.task_ids

    def _listed(self, task_id: str) -> TaskSpec | None:
        """A listed task in the form of a written one; None if it cannot be."""
        row = self.row_of(task_id)
        line = "" if row is None else canonical(row)
        return TaskSpec((line,)) if 0 < len(line) <= MAX_LINE else None

    @abstractmethod
    def row_of(self, task_id: str) -> dict[str, Any] | None:
        """A listed task as a line says it; None if its gold actions are unknown."""

    @abstractmethod
    def check_row(self, row: Mapping[str, Any]) -> None:
        """Checks the values of a row with the right keys.

        Raises:
            Refused: ``vocabulary``.
        """

    def is_listed(self, spec: TaskSpec) -> bool:
        """Whether a listed task asks the same, in letters of any case: with other tools or another state it is no new
        one."""
        return self._asks(spec) in self._asked

    @cached_property
    def _asked(self) -> frozenset[str]:
        return frozenset(self._asks(spec) for task_id in self._ids if (spec := self._listed(task_id)) is not None)

    def _asks(self, spec: TaskSpec) -> str:
        return " ".join(str(self.row(spec)[next(iter(self.keys))]).lower().split())

    def row(self, spec: TaskSpec) -> dict[str, Any]:
        """The task as an object."""
        return json.loads(spec.values[0])

    def task_id(self, spec: TaskSpec) -> str:
        return encode(self.row(spec))

    def spec(self, task_id: str) -> TaskSpec:
        row = decode(task_id) if isinstance(task_id, str) else None
        if row is None:
            raise ValueError(f"{str(task_id)[:200]!r} is no written task")
        return TaskSpec((canonical(row),))

    def base(self, rng: Generator) -> TaskSpec:
        """A listed task whose gold actions are known, in the form of a written one."""
        for _ in range(_SAMPLES):
            spec = self._listed(self._ids[int(rng.integers(len(self._ids)))])
            if spec is not None:
                return spec
        return self._samples[int(rng.integers(len(self._samples)))]

    def complete(self, values: Sequence[str], rng: Generator) -> TaskSpec:
        return TaskSpec(tuple(values))

    def vary(self, spec: TaskSpec, rng: Generator) -> TaskSpec:
        raise Refused("inconsistent", "a task in free form has no field that could be changed")

    def write(self, spec: TaskSpec) -> str:
        return spec.values[0]

    def read(self, line: Any) -> tuple[tuple[str, ...], bool]:
        """Reads a line: one JSON object with the right keys and values. Nothing is repaired, but optional keys without
        a value and blanks around texts are left out: they would make another line of the same task."""
        if not isinstance(line, str) or len(line) > MAX_LINE:
            raise Refused("syntax")
        try:
            row = read_object(line)
        except ValueError:
            raise Refused("syntax") from None
        if not row.keys() <= self.keys.keys():
            raise Refused("vocabulary")
        if not self.keys.keys() - self.optional <= row.keys():
            raise Refused("syntax")
        row = {name: value for name, value in row.items() if value or name not in self.optional}
        row = {name: value.strip() if isinstance(value, str) else value for name, value in row.items()}
        self.check_row(row)
        if len(canonical(row)) > MAX_LINE:
            raise Refused("syntax")
        return (canonical(row),), False

    def longest(self, length: Callable[[str], int]) -> TaskSpec:
        """The longest listed task: a written one has no known length."""
        return max(self._samples, key=lambda spec: length(spec.values[0]))

    def form(self) -> TaskForm:
        keys = "\n".join(f"- {name}: {meaning}" for name, meaning in self.keys.items())
        example = self._samples[0].values[0]
        return TaskForm(
            f"A task is one JSON object in one line, with these keys:\n{keys}\nFor example:\n{example}",
            "{" + ", ".join(f'"{name}": …' for name in self.keys if name not in self.optional) + "}",
            "It is another task than the recent one.",
            "The solution is run before the agent plays: a task whose solution fails is refused.",
        )


__all__ = ["FreeTaskGrammar", "canonical", "decode", "encode", "read_object"]

"""Lessons for the agent's prompt: what the library's failures teach, the nearest to an episode's task and state first.

Failures of the same task type come first, and then the words decide that a failure's task and analysis share with the
episode's task and state; a rare word counts more than a common one (BM25). So a lesson of a training task reaches
held-out tasks of its type.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.random import Generator

from roleagent.curricula.library import FailureLibrary
from roleagent.curricula.storage.full_text_search import terms
from roleagent.types import Failure

NEWEST = 1000
"""Entries of the library that lessons are chosen from, the newest ones."""

_SATURATION, _LENGTH = 1.2, 0.75  # k1 and b of BM25
_OF_TYPE = 1e3  # added to the score of a failure of the same task type: more than all words together


class Lessons:
    """The lessons of a library at one moment.

    Args:
        failures: entries of each environment, the newest first.
        stream: a random stream by name.
        shuffled: a control: an episode reads what the task of another failure would read, drawn at random. Each lesson
            is as frequent as otherwise, and no longer belongs to the task.
        share: of the tasks that read lessons, drawn at random, in (0, 1].
        most: lessons of a prompt, ≥ 1.
        tokens: most tokens of them, ≥ 1.
    """

    def __init__(
        self,
        failures: Mapping[str, Sequence[Failure]],
        stream: Callable[..., Generator],
        shuffled: bool = False,
        share: float = 1.0,
        most: int = 2,
        tokens: int = 64,
    ):
        self.most, self.tokens = most, tokens
        self._shelves = {env_id: _Shelf(own) for env_id, own in failures.items()}
        self._stream, self._shuffled, self._share = stream, shuffled, share

    @classmethod
    def read(
        cls,
        library: FailureLibrary,
        env_ids: Iterable[str],
        stream: Callable[..., Generator],
        until: int | None = None,
        **options: int | float | bool,
    ) -> Lessons:
        """The lessons of a library.

        Args:
            library: is read.
            env_ids: of these environments.
            stream: a random stream by name.
            until: the last iteration whose failures of the library's own run count; None: all.
            options: of the class.
        """
        known = {env_id: library.candidates(env_id, NEWEST, until=until) for env_id in env_ids}
        return cls(known, stream, **options)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        """Whether there is a lesson at all."""
        return any(shelf.failures for shelf in self._shelves.values())

    def nearest(self, env_id: str, task_id: str, task_type: str, goal: str, state: str) -> Iterator[str]:
        """The lessons for an episode, the nearest first, each once; none for a task that reads none.

        The same arguments give the same lessons, so that all episodes of a group read the same.
        """
        shelf = self._shelves.get(env_id)
        if shelf is None or not shelf.failures or self._stream("share", task_id).random() >= self._share:
            return
        if self._shuffled:
            other = shelf.failures[int(self._stream("shuffled", task_id, state).integers(len(shelf.failures)))]
            task_type, goal, state = other.task.task_type, other.task.goal, other.reflection.detail
        yield from shelf.nearest(task_type, f"{goal} {state}")

    @property
    def digest(self) -> str:
        """Names the failures that lessons are chosen from."""
        words = repr([(env_id, shelf.failures) for env_id, shelf in sorted(self._shelves.items())])
        return hashlib.sha256(words.encode()).hexdigest()[:16]


class _Shelf:
    """The failures of one environment, with an index of their words."""

    def __init__(self, failures: Sequence[Failure]):
        self.failures = [one for one in failures if one.reflection.lesson]
        self._types = np.array([one.task.task_type for one in self.failures])
        rows = [_words(f"{one.task.goal} {' '.join(_analysis(one))}") for one in self.failures]
        counts = Counter(word for row in rows for word in row)
        lengths = np.array([len(row) for row in rows], dtype=float)
        self._weights = (1 + _SATURATION) / (
            1 + _SATURATION * (1 - _LENGTH + _LENGTH * lengths / max(lengths.mean() if rows else 1.0, 1.0))
        )
        self._rarity = {word: np.log1p((len(rows) - n + 0.5) / (n + 0.5)) for word, n in counts.items()}
        places: dict[str, list[int]] = {}
        for number, row in enumerate(rows):
            for word in row:
                places.setdefault(word, []).append(number)
        self._places = {word: np.array(numbers) for word, numbers in places.items()}

    def nearest(self, task_type: str, text: str) -> Iterator[str]:
        scores = np.zeros(len(self.failures))
        for word in sorted(_words(text) & self._places.keys()):
            scores[self._places[word]] += self._rarity[word]
        scores = scores * self._weights + _OF_TYPE * (self._types == task_type) * bool(task_type)
        found = (self.failures[place].reflection.lesson for place in np.argsort(-scores, kind="stable"))
        yield from dict.fromkeys(found)


def _analysis(failure: Failure) -> tuple[str, str, str]:
    return failure.reflection.query, failure.reflection.detail, failure.reflection.lesson


def _words(text: str) -> set[str]:
    return {"".join(term).lower() for term in terms(text)}


__all__ = ["NEWEST", "Lessons"]

"""Questions with their golden answers, and how they are split.

``train`` is what there is to train on, ``test`` what is reported; ``valid``, where no file holds it, 512 training
questions (at most a tenth of them) that are held out by the hash of their names. A training question that is asked in
``valid`` or ``test`` in the same words is left out of training. ``test_sample`` has 125 questions of every data set,
chosen by hash, and the test questions of a data set are a split of their own, named after it.

Any first part of a split mixes its data sets in proportion to their sizes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from roleagent.envs.searchqa.text import normalize
from roleagent.sharing import Immutable
from roleagent.tasks.split import TaskSplit, assert_disjoint, mixed

ENV_ID = "RoleAgent/SearchQA-v0"
SPLITS = ("train", "valid", "test")
RESERVED = (*SPLITS, "test_sample")  # names that no data set can have
HELD_OUT = 512  # training questions that validate
SAMPLE = 125  # questions per data set in ``test_sample``: as many as the smallest published one has


class QuestionError(ValueError):
    """The questions cannot be used; the message is one line with the solution."""


@dataclass(frozen=True, slots=True)
class Question(Immutable):
    """One question.

    Attributes:
        data_set: where it comes from.
        number: its name within the data set, the part included: ``test_17``.
        text: ends in a question mark.
        answers: the golden answers; each is right.
        context: the golden passages, as ``"title\\ntext"``, in the order in which one needs them; often unknown.
    """

    data_set: str
    number: str
    text: str
    answers: tuple[str, ...]
    context: tuple[str, ...] = ()

    @property
    def task_id(self) -> str:
        """The question's name everywhere.

        >>> Question("nq", "test_17", "Who?", ("I",)).task_id
        'nq/test_17'
        """
        return f"{self.data_set}/{self.number}"


class Questions(Immutable, Mapping[str, tuple[Question, ...]]):
    """The questions of every split, in their fixed order.

    Args:
        splits: by name; ``train``, ``valid`` and ``test`` must not share a question, by name or by wording.

    Raises:
        ValueError: they do.
    """

    def __init__(self, splits: Mapping[str, tuple[Question, ...]]):
        self._splits = dict(splits)
        self._by_id = {question.task_id: question for questions in splits.values() for question in questions}
        self.task_splits = {
            name: TaskSplit(ENV_ID, name, tuple(question.task_id for question in questions))
            for name, questions in splits.items()
        }
        apart = [self.task_splits[name] for name in SPLITS if name in splits]
        assert_disjoint(apart)
        assert_disjoint(apart, key=lambda task_id: normalize(self._by_id[task_id].text))

    def __getitem__(self, name: str) -> tuple[Question, ...]:
        return self._splits[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._splits)

    def __len__(self) -> int:
        return len(self._splits)

    def find(self, task_id: str) -> Question:
        """The question of that name.

        Raises:
            KeyError: there is none.
        """
        return self._by_id[task_id]

    def task_split(self, name: str) -> TaskSplit:
        """The tasks of a split.

        Raises:
            QuestionError: there is no such split.
        """
        if name not in self.task_splits:
            hint = "; training takes nq_train.jsonl, hotpotqa_train.jsonl or train.parquet" if name == "train" else ""
            raise QuestionError(f"no split {name!r} of {ENV_ID} here; there are {', '.join(self.task_splits)}{hint}")
        return self.task_splits[name]


def split(train: Iterable[Question], valid: Iterable[Question], test: Iterable[Question]) -> Questions:
    """Builds the splits (see the module's docstring), without empty ones."""
    train, valid, test = (mixed(part, lambda question: question.data_set) for part in (train, valid, test))
    asked = {normalize(question.text) for question in (*valid, *test)}
    train = tuple(question for question in train if normalize(question.text) not in asked)
    if not valid and train:
        held = set(by_hash(train)[: min(HELD_OUT, len(train) // 10)])
        again = {normalize(question.text) for question in held}
        valid = tuple(question for question in train if question in held)
        train = tuple(question for question in train if normalize(question.text) not in again)
    by_set: dict[str, list[Question]] = {}
    for question in test:
        by_set.setdefault(question.data_set, []).append(question)
    sample = {question for group in by_set.values() for question in by_hash(group)[:SAMPLE]}
    splits = {
        "train": train,
        "valid": valid,
        "test": test,
        "test_sample": tuple(question for question in test if question in sample),
        **{name: tuple(group) for name, group in by_set.items()},
    }
    return Questions({name: questions for name, questions in splits.items() if questions})


def by_hash(questions: Iterable[Question]) -> list[Question]:
    """In an order that does not depend on the file's."""
    return sorted(questions, key=lambda question: hashlib.sha256(question.task_id.encode()).digest())


__all__ = ["ENV_ID", "RESERVED", "SPLITS", "Question", "QuestionError", "Questions", "by_hash", "split"]

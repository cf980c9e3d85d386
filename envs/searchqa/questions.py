"""Questions with their golden answers: the seven usual data sets in their usual forms, and how they are split.

A folder may hold

* one file per data set and part: ``nq_train.jsonl``, ``nq/test.jsonl``, ``hotpotqa_dev.parquet``, …; a file without a
  part (``nq.jsonl``) holds test questions,
* or one file per split that names the data set in every row: ``train``, ``valid``, ``test`` (also in a folder
  ``nq_hotpotqa_train``), ``.jsonl`` or ``.parquet``.

A JSON line has ``id``, ``question`` and ``golden_answers``; ``golden_context``, a list of ``"title\\ntext"``, and
``data_source`` are optional. A Parquet row has ``data_source``, ``prompt``, ``reward_model.ground_truth.target`` and
``extra_info``.

Splits. ``train`` is the training parts of NQ and HotpotQA, ``test`` the evaluation parts of all seven; ``valid``, where
no file says otherwise, 512 training questions (at most a tenth) that are held out by the hash of their names.
A training question that is asked in ``valid`` or ``test`` in the same words is left out of training. ``test_sample``
has 125 questions of every data set, chosen by hash, and every data set is a split of its own, named after it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from roleagent.panel import Panel, assert_disjoint
from roleagent.reading import normalise

ENV_ID = "RoleAgent/SearchQA-v0"
DATA_SETS = {
    "nq": ("nq",),
    "triviaqa": ("triviaqa",),
    "popqa": ("popqa",),
    "hotpotqa": ("hotpotqa",),
    "2wikimultihopqa": ("2wikimultihopqa", "2wiki"),
    "musique": ("musique",),
    "bamboogle": ("bamboogle",),
}
"""The data sets, and what their files may be called."""
TRAINING = ("nq", "hotpotqa")
HELD_OUT = 512  # training questions that validate
SAMPLE = 125  # questions per data set in ``test_sample``: as many as the smallest has
SPLITS = ("train", "valid", "test")
_PARTS = ("train", "valid", "dev", "test")
_EVALUATION = ("test", "dev", "")  # the part that is evaluated on: the first that there is
_FORMS = (".jsonl", ".parquet")


class QuestionError(ValueError):
    """Questions that cannot be used; the message is one line that says what to do."""


@dataclass(frozen=True, slots=True)
class Question:
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


class Questions(Mapping[str, tuple[Question, ...]]):
    """The questions of every split, in their fixed order.

    Args:
        splits: by name; ``train``, ``valid`` and ``test`` must not share a question, by name or by wording.

    Raises:
        ValueError: they do.
    """

    def __init__(self, splits: Mapping[str, tuple[Question, ...]]):
        self._splits = dict(splits)
        self._by_id = {question.task_id: question for questions in splits.values() for question in questions}
        self.panels = {
            name: Panel(ENV_ID, name, tuple(question.task_id for question in questions))
            for name, questions in splits.items()
        }
        apart = [self.panels[name] for name in SPLITS if name in splits]
        assert_disjoint(apart)
        assert_disjoint(apart, key=lambda task_id: normalise(self._by_id[task_id].text))

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

    def panel(self, name: str) -> Panel:
        """The tasks of a split.

        Raises:
            QuestionError: there is no such split.
        """
        if name not in self.panels:
            hint = "; training takes nq_train.jsonl, hotpotqa_train.jsonl or train.parquet" if name == "train" else ""
            raise QuestionError(f"no split {name!r} of {ENV_ID} here; there are {', '.join(self.panels)}{hint}")
        return self.panels[name]


def default_data_dir() -> str | None:
    """The folder that ``SEARCHQA_DATA`` names, if it does."""
    return os.environ.get("SEARCHQA_DATA") or None


def read_questions(path: Path, data_set: str = "", part: str = "test") -> tuple[Question, ...]:
    """The questions of one file.

    Args:
        path: a ``.jsonl`` or ``.parquet`` file.
        data_set: what they belong to, where the rows do not say it.
        part: of the data set, for their names.

    Raises:
        QuestionError: a line cannot be used, two have one name, or Parquet files cannot be read here.
    """
    rows = _parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path)
    found: dict[str, Question] = {}
    for place, row in rows:
        try:
            question = _question(row, data_set, part)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else error
            raise QuestionError(f"{path}, {place}: {reason}") from error
        if question.task_id in found:
            raise QuestionError(f"{path}, {place}: the id {question.number!r} occurs twice in {question.data_set}")
        found[question.task_id] = question
    if not found:
        raise QuestionError(f"{path} holds no questions")
    return tuple(found.values())


def _json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield f"line {number}", json.loads(line)
                except ValueError as error:
                    raise QuestionError(f"{path}, line {number}: no JSON ({error})") from error


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise QuestionError(f"{path} is a Parquet file; to read it: pip install 'roleagent[parquet]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", row
    except (OSError, ValueError) as error:  # pyarrow's own errors are among these
        if isinstance(error, QuestionError):
            raise
        raise QuestionError(f"{path} cannot be read as Parquet: {' '.join(str(error).split())}") from error


def _question(row: Any, data_set: str, part: str) -> Question:
    if not isinstance(row, Mapping):
        raise TypeError(f"a question is an object, not a {type(row).__name__}")
    extra = row.get("extra_info") or {}
    part = extra.get("split", part)
    number = str(row["id"] if row.get("id") is not None else extra["index"])
    if not number.startswith(tuple(f"{name}_" for name in _PARTS)):
        number = f"{part}_{number}"
    source = str(row.get("data_source") or data_set).removeprefix("searchR1_")
    source = next((name for name, others in DATA_SETS.items() if source in others), source)
    if not source:
        raise ValueError("data_source is missing, and the file's name does not tell the data set either")
    context = row.get("golden_context") or ()
    return Question(
        source, number, _text(row, extra), _answers(row), tuple(passage for passage in context if passage.strip())
    )


def _text(row: Mapping[str, Any], extra: Mapping[str, Any]) -> str:
    """The bare question; some prompts wrap it into instructions that end in "Question: …"."""
    text = row.get("question") or extra.get("question")
    if text is None:
        text = row["prompt"][-1]["content"].rpartition("Question:")[2]
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"question must be a text, not {text!r}")
    text = text.strip()
    return text if text.endswith("?") else f"{text}?"


def _answers(row: Mapping[str, Any]) -> tuple[str, ...]:
    answers = row.get("golden_answers")
    if answers is None and "reward_model" in row:
        answers = row["reward_model"]["ground_truth"]["target"]
    if isinstance(answers, str):
        answers = [answers]
    if not isinstance(answers, list) or not answers or not all(isinstance(text, str) and text for text in answers):
        raise ValueError(f"golden_answers must be a list of texts, at least one, not {answers!r}")
    return tuple(answers)


@lru_cache(maxsize=4)
def load_questions(folder: Path) -> Questions:
    """The questions of every split that a folder has files for; each folder is read once per process.

    Raises:
        QuestionError: no folder, no questions, or a file that cannot be used.
    """
    if not folder.is_dir():
        raise QuestionError(f"there is no folder {folder}: set SEARCHQA_DATA or data_dir= to one with questions")
    train, valid = _read(folder, "train", TRAINING), _read(folder, "valid", ())
    test = _read(folder, "test", tuple(DATA_SETS))
    if not (train or valid or test):
        raise QuestionError(
            f"{folder} holds no questions: it should have files such as nq.jsonl, hotpotqa_train.jsonl or train.parquet"
        )
    return split(train, valid, test)


def split(train: Iterable[Question], valid: Iterable[Question], test: Iterable[Question]) -> Questions:
    """Lays out the splits (see the module's docstring); those that would be empty are left out."""
    train, valid, test = tuple(train), tuple(valid), tuple(test)
    asked = {normalise(question.text) for question in (*valid, *test)}
    train = tuple(question for question in train if normalise(question.text) not in asked)
    if not valid and train:
        held = set(_by_hash(train)[: min(HELD_OUT, len(train) // 10)])
        again = {normalise(question.text) for question in held}
        valid = tuple(question for question in train if question in held)
        train = tuple(question for question in train if normalise(question.text) not in again)
    by_set: dict[str, list[Question]] = {}
    for question in test:
        by_set.setdefault(question.data_set, []).append(question)
    sample = {question for group in by_set.values() for question in _by_hash(group)[:SAMPLE]}
    splits = {
        "train": train,
        "valid": valid,
        "test": test,
        "test_sample": tuple(question for question in test if question in sample),
        **{name: tuple(group) for name, group in by_set.items()},
    }
    return Questions({name: questions for name, questions in splits.items() if questions})


def _by_hash(questions: Iterable[Question]) -> list[Question]:
    """In an order that does not depend on the file's."""
    return sorted(questions, key=lambda question: hashlib.sha256(question.task_id.encode()).digest())


def _read(folder: Path, name: str, data_sets: tuple[str, ...]) -> list[Question]:
    """The questions of ``train``, ``valid`` or ``test``: of the file for the split, or of the data sets' files."""
    mixed = (folder / place for place in (name, f"nq_hotpotqa_train/{name}"))
    if path := _existing(mixed):
        return list(read_questions(path, part=name))
    parts = (name,) if name == "train" else _EVALUATION
    found: list[Question] = []
    for data_set in data_sets:
        for part in parts:
            places = [folder / f"{other}{glue}{part}" for other in DATA_SETS[data_set] for glue in ("_", "/") if part]
            places = places or [folder / other for other in DATA_SETS[data_set]]
            if path := _existing(places):
                found += read_questions(path, data_set, part or "test")
                break
    return found


def _existing(places: Iterable[Path]) -> Path | None:
    paths = (place.parent / (place.name + form) for place in places for form in _FORMS)
    return next((path for path in paths if path.is_file()), None)


__all__ = [
    *("DATA_SETS", "ENV_ID", "Question", "QuestionError", "Questions", "default_data_dir"),
    *("load_questions", "read_questions", "split"),
]

"""Published questions: seven data sets in the forms in which they are handed around.

A folder may hold

* one file per data set and part: ``nq_train.jsonl``, ``nq/test.jsonl``, ``hotpotqa_dev.parquet``, …; a file without a
  part (``nq.jsonl``) holds test questions,
* or one file per split that names the data set in every row: ``train``, ``valid``, ``test`` (also in a folder
  ``nq_hotpotqa_train``), ``.jsonl`` or ``.parquet``.

A JSON line has ``id``, ``question`` and ``golden_answers``; ``golden_context``, a list of ``"title\\ntext"``, and
``data_source`` are optional. A Parquet row has ``data_source``, ``prompt``, ``reward_model.ground_truth.target`` and
``extra_info``. One trains on NQ and HotpotQA, and evaluates on all seven.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from roleagent.envs.searchqa.data.questions import RESERVED, Question, QuestionError, Questions, by_hash, split

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
_PARTS = ("train", "valid", "dev", "test")
_EVALUATION = ("test", "dev", "")  # the part that is evaluated on: the first that there is
_FORMS = (".jsonl", ".parquet")


def default_data_dir() -> str | None:
    """The folder that ``SEARCHQA_DATA`` names, if it does."""
    return os.environ.get("SEARCHQA_DATA") or None


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
                found += by_hash(read_questions(path, data_set, part or "test"))  # files may go from easy to hard
                break
    return found


def _existing(places: Iterable[Path]) -> Path | None:
    paths = (place.parent / (place.name + form) for place in places for form in _FORMS)
    return next((path for path in paths if path.is_file()), None)


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
        except (AttributeError, LookupError, TypeError, ValueError) as error:
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
                except (ValueError, RecursionError) as error:
                    raise QuestionError(f"{path}, line {number}: no JSON ({error})") from error


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports] - it may be missing
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
    if not source or source in RESERVED:
        raise ValueError(f"data_source must name the data set, not {source!r}")
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
    text = text.strip().encode("utf-8", "replace").decode()  # half a character is no text to a tokenizer
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


__all__ = ["DATA_SETS", "TRAINING", "default_data_dir", "load_questions", "read_questions"]

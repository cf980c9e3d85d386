"""The state of search QA's data: published questions if ``SEARCHQA_DATA`` names them, else a generated world."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from roleagent.env_card import DataStatus
from roleagent.envs.searchqa.data import benchmarks
from roleagent.files import READ, count_in_file
from roleagent.options import user_path


def data_status() -> Iterator[DataStatus]:
    """Published questions, and the passages to search in."""
    named = benchmarks.default_data_dir()
    if named is None:
        yield DataStatus("SearchQA", "good", "a generated world (SEARCHQA_DATA is not set)")
        return
    folder = user_path(named)
    corpus = folder / "corpus.jsonl"
    files = [path for form in ("jsonl", "parquet") for path in folder.glob(f"**/*.{form}") if path != corpus]
    try:
        if sum(path.stat().st_size for path in files) <= READ:
            questions = benchmarks.load_questions(folder)
            counted = ", ".join(f"{name} {len(questions.task_split(name)):,}" for name in questions)
        else:
            counted = ", ".join(f"{path.name} {_rows(path)}" for path in sorted(files))
    except (ValueError, OSError) as error:
        yield DataStatus(
            "SearchQA", "problem", " ".join(str(error).split()), "unset SEARCHQA_DATA, or correct the file"
        )
        return
    yield DataStatus("SearchQA", "good", f"questions: {counted}")
    if corpus.is_file():
        yield DataStatus("passages", "good", f"{count_in_file(corpus, bytes([10]))} in {corpus}")
    else:
        advice = "name a file with env.kwargs.corpus=, or a server with env.kwargs.retriever=http://…"
        yield DataStatus("passages", "note", f"there is no {corpus}", advice)


def _rows(path: Path) -> str:
    if path.suffix == ".jsonl":
        return count_in_file(path, b"\n")
    from pyarrow import parquet  # of the extra; its absence is what is found then

    return f"{parquet.ParquetFile(path).metadata.num_rows:,}"

"""Recall of gold passages per data set: the share of a question's passages that a retriever finds.

Multi-hop data sets name the paragraphs that a question was made from. Put among the passages of a corpus, they measure
a retriever without a model. Two things would spoil the measure. The corpus holds other versions of the same articles,
which a retriever would rightly find instead: passages under the title of a gold one are left out. And where the others
are longer, length alone distinguishes them, and BM25's length discount decides: they are cut to lengths that gold
passages have.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roleagent.envs.retrieval.passages import Passage, Passages, RetrievalError
from roleagent.envs.retrieval.retriever import Retriever


@dataclass(frozen=True, slots=True)
class GoldQuestion:
    """A question and the ids of the passages that it was made from."""

    text: str
    gold: frozenset[str]


def gold_corpus(
    paths: Mapping[str, Path], others: Iterable[Passage], rng: np.random.Generator
) -> tuple[Passages, dict[str, list[GoldQuestion]]]:
    """A corpus that holds the gold passages of some data sets among others, and the questions.

    Args:
        paths: files of questions by name, JSON lines with ``question`` and ``golden_context``, a list of
            ``"Title\\ntext"``. Questions without such a context are left out.
        others: the passages to find them among.
        rng: draws the lengths to which the others are cut.

    Raises:
        RetrievalError: a file cannot be read, or has no question with a context.
    """
    ids: dict[str, str] = {}  # by context
    questions = {name: _questions(path, ids) for name, path in paths.items()}
    gold = [Passage(name, *_split(context)) for context, name in ids.items()]
    titles = {passage.title for passage in gold}
    kept = [passage for passage in others if passage.title not in titles]
    lengths = rng.choice([len(passage.text) for passage in gold], len(kept)).tolist()
    cut = (Passage(one.id, one.title, _cut(one.text, length)) for one, length in zip(kept, lengths, strict=True))
    return Passages.of([*gold, *cut]), questions


def recall(retriever: Retriever, questions: Sequence[GoldQuestion], k: int = 3) -> float:
    """The mean over questions of the share of their gold passages among the best ``k``, in [0, 1]."""
    answers = retriever.retrieve([question.text for question in questions], k)
    shares = [
        len(question.gold & {hit.passage.id for hit in hits}) / len(question.gold)
        for question, hits in zip(questions, answers, strict=True)
    ]
    return sum(shares) / len(shares)


def _questions(path: Path, ids: dict[str, str]) -> list[GoldQuestion]:
    found = []
    try:
        for line in path.read_text(encoding="utf-8-sig").split("\n"):
            record = json.loads(line) if line.strip() else {}
            contexts = [context for context in record.get("golden_context", ()) if context]
            if contexts:
                names = frozenset(ids.setdefault(context, f"gold-{len(ids)}") for context in contexts)
                found.append(GoldQuestion(record["question"], names))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise RetrievalError(f"{path} cannot be read as questions ({error})") from error
    if not found:
        raise RetrievalError(f"{path} has no question with a golden_context")
    return found


def _split(context: str) -> tuple[str, str]:
    title, _, text = context.partition("\n")
    return title, text.strip()


def _cut(text: str, length: int) -> str:
    """The words that begin within the first ``length`` characters.

    >>> _cut("Fried dough of flour", 8), _cut("Fried", 80)
    ('Fried dough', 'Fried')
    """
    end = text.find(" ", length)
    return text if end < 0 else text[:end]


__all__ = ["GoldQuestion", "gold_corpus", "recall"]

"""Recall and cost of indexes and retrievers, without a server."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from parts.retrieval_material import Vectors, questions, real_passages, shared

EFFORTS = (32, 64, 128, 256, 512)  # lists read, or candidates kept, by a search
ENOUGH = 0.985  # recall@3 that an index is tuned for, on questions that it is not judged by
GOLD = ("hotpotqa", "2wiki", "musique")  # data sets that name the passages their questions were made from
KINDS = ("flat", "ivf-sq8", "hnsw", "ivf-rabitq")


def real_records() -> list[dict[str, str]]:
    """The real passages.

    Raises:
        SystemExit: they are not at hand.
    """
    if records := real_passages():
        return records
    raise SystemExit("this needs real questions and passages: set ROLEAGENT_SHARED to their folder")


def exact(passages: Vectors, asked: Vectors, k: int = 3) -> list[list[int]]:
    """Rows of the nearest passages of each question."""
    import faiss

    index = faiss.IndexFlatIP(passages.shape[1])
    index.add(passages)
    return index.search(asked, k)[1].tolist()


def shared_part(found: Sequence[Sequence[int]], truth: Sequence[Sequence[int]]) -> float:
    """Mean share of the true ones among those found."""
    return float(np.mean([len({*mine} & {*best}) / len(best) for mine, best in zip(found, truth, strict=True)]))


def build(passages: Vectors, kind: str, path: Path) -> tuple[float, float]:
    """Builds an index; returns CPU seconds and bytes of its file per vector."""
    from roleagent.envs.retrieval.dense.index import DenseIndex

    began = time.process_time()
    DenseIndex.build(kind, [passages]).save(path)
    return time.process_time() - began, path.stat().st_size / len(passages)


def tuned(path: Path, kind: str, asked: Vectors, truth: Sequence[Sequence[int]]) -> tuple[int | None, float]:
    """The least effort of a search that finds :data:`ENOUGH` (or else the greatest), and the share that it finds."""
    from roleagent.envs.retrieval.dense.index import DenseIndex

    if kind == "flat":
        return None, shared_part(DenseIndex.open(path, kind).search(asked, 3)[1].tolist(), truth)
    recall = 0.0
    for effort in EFFORTS:
        recall = shared_part(DenseIndex.open(path, kind, effort).search(asked, 3)[1].tolist(), truth)
        if recall >= ENOUGH:
            break
    return effort, recall


def table(passages: Vectors, asked: Vectors, kinds: Sequence[str], folder: Path) -> None:
    """Build time, memory, recall and speed of kinds of index, by themselves, searched with one thread."""
    import faiss

    from roleagent.envs.retrieval.dense.index import DenseIndex

    truth, path = exact(passages, asked), folder / "one.faiss"
    print(
        f"{'':>12}{'build CPU s':>12}{'bytes/vector':>14}{'effort':>8}{'recall@3':>10}"
        f"{'queries/CPU s: 1':>18}{'32 at once':>12}"
    )
    for kind in kinds:
        seconds, size = build(passages, kind, path)
        effort, recall = tuned(path, kind, asked, truth)
        index = DenseIndex.open(path, kind, effort, threads=1)
        rates = []
        for batch in (1, 32):
            count = min(64 if batch == 1 else 256, len(asked))
            began = time.process_time()
            for start in range(0, count, batch):
                index.search(asked[start : start + batch], 3)
            rates.append(count / (time.process_time() - began))
        print(
            f"{kind:>12}{seconds:>12.1f}{size:>14.0f}{effort or '':>8}{recall:>10.3f}"
            f"{rates[0]:>18.0f}{rates[1]:>12.0f}",
            flush=True,
        )
    path.unlink()
    faiss.omp_set_num_threads(os.cpu_count() or 1)


def real_table(folder: Path, kinds: Sequence[str]) -> None:
    """The same of real passages and questions, as the encoder that is made from them sees them."""
    from roleagent.envs.retrieval.dense.tfidf import TfidfEncoder

    texts = [record["contents"] for record in real_passages()]
    if not texts:
        print("real passages: not at hand (set ROLEAGENT_SHARED)")
        return
    encoder = TfidfEncoder.fit(texts)
    passages, asked = encoder.encode_passages(texts), encoder.encode_queries(questions(random.Random(0))[:500])
    print(f"{len(passages)} real passages, tf-idf vectors of {passages.shape[1]}")
    table(passages, asked, kinds, folder)


def bm25_parameters(pairs: Sequence[tuple[float, float]], cuts: int = 3) -> dict[str, float]:
    """What BM25 finds among the best three with each k1 and b.

    Two measures: recall of the gold passages of multi-hop questions, the mean over ``cuts`` draws of the lengths of
    the other passages; and the share of the questions of all data sets with a golden answer in a passage. The latter
    is low, since the passages cover a part of the questions. Differences are to the first pair, question by question,
    with 95 % intervals.
    """
    from roleagent.envs.retrieval.lexical.bm25 import BM25
    from roleagent.envs.retrieval.passages import Passages, passage_of
    from roleagent.envs.retrieval.recall import gold_corpus, recall
    from roleagent.envs.retrieval.retriever import LexicalRetriever
    from roleagent.envs.searchqa.text import normalize

    passages = list(map(passage_of, real_records()))
    paths = {name: shared() / f"{name}.jsonl" for name in GOLD}
    corpora = [gold_corpus(paths, passages, np.random.default_rng(seed)) for seed in range(cuts)]
    everything = Passages.of(passages)
    texts = [f" {normalize(passage.contents)} " for passage in passages]
    places = {passage.id: place for place, passage in enumerate(passages)}
    answered = []
    for path in sorted(shared().glob("*.jsonl")):
        for record in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            answers = {normalize(answer) for answer in record["golden_answers"]} - {"", "yes", "no"}
            answered += [(record["question"], answers)] if answers else []

    def found(k1: float, b: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        def engine(corpus: Passages) -> LexicalRetriever:
            index = BM25.build(corpus.ids, (passage.contents for passage in corpus), k1=k1, b=b)
            return LexicalRetriever("bm25", index, corpus)

        of_gold = [
            [recall(retriever, [question]) for questions in asked.values() for question in questions]
            for corpus, asked in corpora
            for retriever in [engine(corpus)]
        ]
        hits = engine(everything).retrieve([question for question, _ in answered])
        of_answers = [
            any(f" {answer} " in texts[places[hit.passage.id]] for hit in best for answer in answers)
            for (_, answers), best in zip(answered, hits, strict=True)
        ]
        return np.asarray(np.mean(of_gold, axis=0)), np.asarray(of_answers, dtype=np.float64)

    result, first = {}, None
    for pair in pairs:
        measured = found(*pair)
        first = first or measured
        cells = []
        for name, values, others in zip(("gold", "answer"), measured, first, strict=True):
            more = 100 * (values - others)
            spread = 1.96 * more.std(ddof=1) / len(more) ** 0.5
            cells.append(f"{name} {values.mean():.4f} of {len(values)} ({more.mean():+.2f} ± {spread:.2f} points)")
            result[f"{name}_{pair[0]}_{pair[1]}"] = float(values.mean())
        print(f"k1 {pair[0]}, b {pair[1]}: {'; '.join(cells)}", flush=True)
    return result


def gold_recall(retrievers: Sequence[str]) -> dict[str, float]:
    """Share of the gold passages among the best three, per data set and retriever."""
    from roleagent.envs.retrieval.passages import passage_of
    from roleagent.envs.retrieval.recall import gold_corpus, recall
    from roleagent.envs.retrieval.registry import open_retriever

    names = GOLD
    others = map(passage_of, real_records())
    paths = {name: shared() / f"{name}.jsonl" for name in names}
    corpus, asked = gold_corpus(paths, others, np.random.default_rng(0))
    print(f"{len(corpus)} passages; recall@3 / @5 of gold passages")
    print(f"{'':>12}" + "".join(f"{name:>16}" for name in (*names, "mean")))
    result = {}
    for spec in retrievers:
        retriever = open_retriever(spec, corpus)
        shares = {k: [recall(retriever, asked[name], k) for name in names] for k in (3, 5)}
        means = {k: sum(values) / len(values) for k, values in shares.items()}
        cells = [f"{at3:.3f} / {at5:.3f}" for at3, at5 in zip(*([*shares[k], means[k]] for k in (3, 5)), strict=True)]
        print(f"{spec[-12:]:>12}" + "".join(f"{cell:>16}" for cell in cells), flush=True)
        result |= {f"{spec}_{name}": share for name, share in zip(names, shares[3], strict=True)}
        result[f"{spec}_mean"] = means[3]
    return result

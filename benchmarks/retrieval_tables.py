"""What indexes and retrievers find and cost by themselves, with no server before them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from retrieval_material import Vectors, questions, real_passages, shared

EFFORTS = (32, 64, 128, 256, 512)  # lists read, or candidates kept, by a search
ENOUGH = 0.985  # recall@3 that an index is tuned for, on questions that it is not judged by
KINDS = ("flat", "ivf-sq8", "hnsw", "ivf-rabitq")


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
    from roleagent.envs.retrieval.dense import DenseIndex

    began = time.process_time()
    DenseIndex.build(kind, [passages]).save(path)
    return time.process_time() - began, path.stat().st_size / len(passages)


def tuned(path: Path, kind: str, asked: Vectors, truth: Sequence[Sequence[int]]) -> tuple[int | None, float]:
    """The least effort of a search that finds :data:`ENOUGH` (or else the greatest), and the share that it finds."""
    from roleagent.envs.retrieval.dense import DenseIndex

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

    from roleagent.envs.retrieval.dense import DenseIndex

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
    from roleagent.envs.retrieval.tfidf import TfidfEncoder

    texts = [record["contents"] for record in real_passages()]
    if not texts:
        print("real passages: not at hand (set ROLEAGENT_SHARED)")
        return
    encoder = TfidfEncoder.fit(texts)
    passages, asked = encoder.encode_passages(texts), encoder.encode_queries(questions(random.Random(0))[:500])
    print(f"{len(passages)} real passages, tf-idf vectors of {passages.shape[1]}")
    table(passages, asked, kinds, folder)


def gold_recall(retrievers: Sequence[str]) -> dict[str, float]:
    """Share of the gold passages among the best three, per data set and retriever."""
    from roleagent.envs.retrieval.passages import passage_of
    from roleagent.envs.retrieval.recall import gold_corpus, recall
    from roleagent.envs.retrieval.retriever import open_retriever

    names = ("hotpotqa", "2wiki", "musique")
    records = real_passages()
    if not records:
        raise SystemExit("--recall needs the real questions and passages (set ROLEAGENT_SHARED)")
    others = map(passage_of, records)
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

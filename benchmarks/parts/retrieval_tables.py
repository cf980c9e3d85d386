"""Recall and cost of indexes and retrievers, without a server."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from parts.retrieval_material import Vectors, questions, real_passages, shared

if TYPE_CHECKING:
    from parts.gold_questions import GoldQuestion

    from roleagent.envs.retrieval.passages import Passages

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
    from parts.gold_questions import gold_corpus, recall

    from roleagent.envs.retrieval.lexical.bm25 import BM25
    from roleagent.envs.retrieval.passages import Passages, passage_of
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
            cells.append(
                f"{name} {values.mean():.4f} of {len(values)} ({more.mean():+.2f} ± {_spread(more):.2f} points)"
            )
            result[f"{name}_{pair[0]}_{pair[1]}"] = float(values.mean())
        print(f"k1 {pair[0]}, b {pair[1]}: {'; '.join(cells)}", flush=True)
    return result


def recall_corpus(most: int | None) -> tuple[Passages, dict[str, list[GoldQuestion]]]:
    """The corpus that recall is measured on, and the questions of each data set.

    Args:
        most: passages; None: all. A smaller corpus has the gold passages of the first questions of each data set, a
            quarter of its passages at most, and others drawn at random.
    """
    from parts.gold_questions import gold_corpus

    from roleagent.envs.retrieval.passages import Passages, passage_of

    paths = {name: shared() / f"{name}.jsonl" for name in GOLD}
    rng = np.random.default_rng(0)
    corpus, asked = gold_corpus(paths, map(passage_of, real_records()), rng)
    if most is None:
        return corpus, asked
    all_gold = {name for questions in asked.values() for question in questions for name in question.gold}
    kept: set[str] = set()
    few: dict[str, list[GoldQuestion]] = {name: [] for name in asked}
    for turn in zip(*asked.values(), strict=False):
        more = kept.union(*(question.gold for question in turn))
        if len(more) > most // 4:
            break
        kept = more
        for name, question in zip(asked, turn, strict=True):
            few[name].append(question)
    others = [row for row, name in enumerate(corpus.ids) if name not in all_gold]
    drawn = {*rng.permutation(others)[: most - len(kept)].tolist()}
    passages = (passage for row, passage in enumerate(corpus) if row in drawn or passage.id in kept)
    return Passages.of(passages), few


def gold_recall(retrievers: Sequence[str], most: int | None) -> dict[str, float]:
    """What retrievers find among the best three, per data set.

    Two measures: recall of the gold passages; and *answer*, the share of the questions (but for those of yes and no)
    with a golden answer in a passage. Means have 95 % intervals over questions, and differences to the first retriever
    are paired by question.

    Args:
        retrievers: names, or folders of indexes over :func:`recall_corpus`.
        most: passages of the corpus.
    """
    from roleagent.envs.retrieval.manifest import MANIFEST
    from roleagent.envs.retrieval.registry import open_index, open_retriever
    from roleagent.envs.searchqa.text import normalize

    corpus, asked = recall_corpus(most)
    answers: dict[str, set[str]] = {}
    for name in asked:
        for line in (shared() / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            answers[record["question"]] = {normalize(answer) for answer in record["golden_answers"]}
        wanted = sum(bool(answers[question.text] - {"", "yes", "no"}) for question in asked[name])
        print(f"{name}: {len(asked[name])} questions, {wanted} with an answer to look for")
    print(f"{len(corpus)} passages; recall@3 of gold passages / answer among the best three")
    print(f"{'':>16}" + "".join(f"{name:>16}" for name in asked) + f"{'mean':>32}{'more than the first, points':>34}")
    result: dict[str, float] = {}
    first: list[NDArray[np.float64]] = []
    for spec in retrievers:
        is_index = (Path(spec) / MANIFEST).exists()
        retriever = open_index(spec, corpus) if is_index else open_retriever(spec, corpus)
        cells, found, answered = [], [], []
        for group in asked.values():
            hits = retriever.retrieve([question.text for question in group])
            shares, answers_found = [], []
            for question, best in zip(group, hits, strict=True):
                shares.append(len(question.gold & {hit.passage.id for hit in best}) / len(question.gold))
                if golden := answers[question.text] - {"", "yes", "no"}:
                    texts = [f" {normalize(hit.passage.contents)} " for hit in best]
                    answers_found.append(float(any(f" {answer} " in text for answer in golden for text in texts)))
            cells.append(f"{np.mean(shares):.3f} / {np.mean(answers_found):.3f}")
            found += shares
            answered += answers_found
        values = [np.asarray(found), np.asarray(answered)]
        first = first or values
        more = [100 * (mine - other) for mine, other in zip(values, first, strict=True)]
        means = " / ".join(f"{mine.mean():.3f} ± {_spread(mine):.3f}" for mine in values)
        compared = " / ".join(f"{difference.mean():+.1f} ± {_spread(difference):.1f}" for difference in more)
        word = Path(spec).name if is_index else spec
        print(f"{word[-16:]:>16}" + "".join(f"{cell:>16}" for cell in cells) + f"{means:>32}{compared:>34}", flush=True)
        result |= {f"{word}_recall": float(values[0].mean()), f"{word}_answer": float(values[1].mean())}
    return result


def encoding(spec: str, settings: dict[str, Any], count: int, rounds: int) -> dict[str, float]:
    """Passages per second of an encoder and of sentence-transformers, which take turns in this process.

    Args:
        spec: ``e5:PATH``.
        settings: of the encoder, where its files do not state them.
        count: passages of a round, others in each.
        rounds: how many.

    Returns:
        Medians over rounds; ``difference`` is the largest between two numbers of the vectors.
    """
    from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports] - it may be missing
    from sentence_transformers.models import (  # pyright: ignore[reportMissingImports] - it may be missing
        Normalize,
        Pooling,
        Transformer,
    )

    from roleagent.envs.retrieval.dense.e5 import E5Encoder

    path = spec.partition(":")[2]
    ours = E5Encoder(path, device="cpu", **settings)
    used = ours.settings
    modules: list[Any] = [Transformer(path, max_seq_length=used["passage_length"])]
    modules += [Pooling(ours.dimension, pooling_mode=used["pooling"])]
    modules += [Normalize()] if used["similarity"] == "cosine" else []
    theirs = SentenceTransformer(modules=modules, device="cpu")
    texts = [record["contents"] for record in real_records()]
    random.Random(0).shuffle(texts)
    sides = {
        "ours": ours.encode_passages,
        "theirs": lambda few: theirs.encode(few, prompt=used["passage_prefix"], show_progress_bar=False),
    }
    for encode in sides.values():
        encode(texts[:4])  # what happens once
    wall: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    difference = 0.0
    for turn in range(rounds):
        few, vectors = texts[turn * count : (turn + 1) * count], []
        for name, encode in list(sides.items())[:: 1 if turn % 2 else -1]:
            began = time.perf_counter(), time.process_time()
            vectors.append(encode(few))
            wall[name].append(count / (time.perf_counter() - began[0]))
            cpu[name].append(count / (time.process_time() - began[1]))
            print(f"{name:>7}{wall[name][-1]:9.2f} passages/s{cpu[name][-1]:9.2f} per CPU second", flush=True)
        difference = max(difference, float(np.abs(vectors[0] - vectors[1]).max()))
    ratios = {
        "ratio": np.median(np.divide(wall["ours"], wall["theirs"])),
        "cpu_ratio": np.median(np.divide(cpu["ours"], cpu["theirs"])),
    }
    rates = {f"{name}_per_cpu_s": np.median(values) for name, values in cpu.items()}
    return {name: float(value) for name, value in {**ratios, **rates}.items()} | {"difference": difference}


def _spread(values: NDArray[np.float64]) -> float:
    """Half of the 95 % interval of a mean."""
    return float(1.96 * values.std(ddof=1) / len(values) ** 0.5)

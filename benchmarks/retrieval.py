"""How many questions a second does the retrieval service answer, beside the usual kind of server?

    python benchmarks/retrieval.py                       (100,000 clustered vectors of 384 numbers; a minute)
    python benchmarks/retrieval.py --full                (400,000 of 768, all kinds of index; several minutes)
    python benchmarks/retrieval.py --recall              (gold passages found, per data set and retriever)

Servers run side by side and are measured in turn, under 1, 8 and 32 clients that send a query per request and wait for
the answer: *shipped* is the usual server, a request a thread, a query a search, over a flat index; *fair* is the same
with ``OMP_NUM_THREADS=1``, so that its threads do not fight over the cores; *ours* is this project's service, its cache
off, every query new, its encoder in ``--dtype``; *float32* is ours with the encoder as the others have it; *group* is
ours with its cache, under rollouts that come in groups of ``--group`` with the same queries.

The model is of MiniLM's size with random weights, made in place: it costs what a trained one costs and means nothing.
So each question stands for a vector that is known beforehand, near a passage of the clustered index; to it is added
only what the model's rounding changes. ``recall_at_3`` is the share of the three passages that are nearest by exact
search in float32 which the service answers with, over the whole way.

``ratio_shipped`` and ``ratio_fair`` are *ours* over *shipped* and *fair*, ``ratio_repeated`` is *group* over *shipped*,
all with the most clients. Rates depend on the machine and on who else uses it, ratios less; ``cpu_ratio_…`` are those
of CPU seconds a query, the least disturbed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
QUESTIONS = 2048
EFFORTS = (32, 64, 128, 256, 512)  # lists read, or candidates kept, by a search
ENOUGH = 0.985  # recall@3 that an index is tuned for, on questions that it is not judged by
KINDS = ("flat", "ivf-sq8", "hnsw", "ivf-rabitq")


# --- the material -----------------------------------------------------------------------------------------------------


def shared() -> Path:
    """Where real data lie, if anywhere."""
    return Path(os.environ.get("ROLEAGENT_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "data" / "qa"


def real_passages() -> list[dict[str, str]]:
    """Records of 21,845 passages of Wikipedia; none where they are not at hand."""
    path = shared() / "wiki18_subset_corpus.jsonl.xz"
    if not path.exists():
        return []
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def questions(rng: random.Random) -> list[str]:
    """Different questions: real ones, or as long."""
    found = [
        json.loads(line)["question"]
        for path in sorted(shared().glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    rng.shuffle(found)
    while len(found) < QUESTIONS:
        words = (
            f"{rng.choice('bdfgklmnprst')}{rng.choice('aeiou')}{rng.choice('lmnrst')}{rng.choice('aeo')}"
            for _ in range(11)
        )
        found.append(f"who was the {' '.join(words)}?")
    return list(dict.fromkeys(found))[:QUESTIONS]


def clustered(rows: int, dimension: int, rng: np.random.Generator) -> tuple[Vectors, Vectors]:
    """Unit vectors as encoders make them: topics of differing size, few directions in which a topic's passages differ.

    Returns:
        (rows, dimension) passages, and (QUESTIONS, dimension) questions, each near a passage drawn at random.
    """
    topics, directions = max(rows // 200, 16), 48
    centres = rng.standard_normal((topics, dimension), dtype=np.float32)
    basis = rng.standard_normal((directions, dimension), dtype=np.float32)
    weights = 1 / np.sqrt(np.arange(1, topics + 1))  # the largest of 2,000 topics has a hundredth of the passages
    topic = rng.choice(topics, rows, p=weights / weights.sum())

    def near(centre: Vectors, spread: float) -> Vectors:
        vectors = centre + spread * rng.standard_normal((len(centre), directions), dtype=np.float32) @ basis / 7
        vectors += 0.3 * spread * rng.standard_normal(vectors.shape, dtype=np.float32)
        return vectors

    def unit(vectors: Vectors) -> Vectors:
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    passages = np.empty((rows, dimension), dtype=np.float32)
    for start in range(0, rows, 1 << 15):
        part = slice(start, min(start + (1 << 15), rows))
        passages[part] = unit(near(centres[topic[part]], 0.8))
    return passages, unit(near(passages[rng.integers(rows, size=QUESTIONS)] * np.sqrt(dimension), 0.4))


def write_model(folder: Path, texts: Sequence[str]) -> None:
    """A BERT of MiniLM's size (6 layers of 384) with random weights, and a tokenizer that knows the texts' words."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    counts = Counter(word for text in texts for word in text.lower().split() if word.isalpha())
    letters = [chr(code) for code in range(33, 127)]
    words = [
        *special,
        *letters,
        *(f"##{letter}" for letter in letters),
        *(word for word, _ in counts.most_common(30_000)),
    ]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(word, vocabulary[word]) for word in ("[CLS]", "[SEP]")]
    )
    names = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names).save_pretrained(folder)
    size = BertConfig(
        vocab_size=30_522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(size).save_pretrained(folder)


class Planned:
    """An encoder that costs what a model costs, and answers with the vector that was planned for the question.

    What the model computes differently from itself in float32, one question at a time, is added to that vector: the
    loss by a coarser precision or by batching is not thrown away with the rest.
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        from roleagent.envs.retrieval.encoders import open_encoder

        self._model = open_encoder(f"e5:{folder / 'model'}", dtype=dtype, device="cpu")
        self._row = {text: row for row, text in enumerate(json.loads((folder / "questions.json").read_text("utf-8")))}
        self._vectors = np.load(folder / "questions.npy")
        self._reference = np.load(folder / "reference.npy")  # of the first questions, those that recall is of
        self.name, self.dimension = "planned", self._vectors.shape[1]
        self.digest, self.settings = "planned", {}

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        computed = self._model.encode_queries(texts)
        rows = np.array([self._row.get(text, 0) for text in texts], dtype=np.int64)
        vectors, known = self._vectors[rows], np.flatnonzero(rows < len(self._reference))
        error = computed[known] - self._reference[rows[known]]
        copies = -(-self.dimension // error.shape[1])
        vectors[known] += np.tile(error, copies)[:, : self.dimension] / np.sqrt(copies)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    encode_passages = encode_queries  # there are none to encode


# --- the servers, each in a process of its own ------------------------------------------------------------------------


class OneByOne:
    """The usual server: a thread per request, and in it one query through the model and one through a flat index."""

    def __init__(self, folder: Path, dtype: str) -> None:
        import faiss

        from roleagent.envs.retrieval.passages import Passages

        self._encoder, self._passages = Planned(folder, dtype), Passages.open(folder / "corpus.jsonl")
        self._index = faiss.IndexFlatIP(self._encoder.dimension)
        self._index.add(np.load(folder / "passages.npy"))
        self._threads = ThreadPoolExecutor(40)  # as many as the usual framework gives

    def answer(self, query: str, k: int) -> list[dict[str, Any]]:
        scores, rows = self._index.search(self._encoder.encode_queries([query]), k)
        found = []
        for score, row in zip(scores[0].tolist(), rows[0].tolist(), strict=True):
            passage = self._passages[row]
            found.append({"document": {"id": passage.id, "contents": passage.contents}, "score": score})
        return found

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        import asyncio

        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        request = json.loads(body)
        loop = asyncio.get_running_loop()
        asked = [
            loop.run_in_executor(self._threads, self.answer, query, request["topk"]) for query in request["queries"]
        ]
        answer = json.dumps({"result": [await one for one in asked]}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def serve(options: argparse.Namespace) -> None:
    """Serves until killed; says its port on standard output."""
    import socket

    import uvicorn

    from roleagent.envs.retrieval.batching import Batcher, sleep_between_searches
    from roleagent.envs.retrieval.server import Server

    folder: Path = options.folder
    if options.serve == "ours":
        sleep_between_searches()
        from roleagent.envs.retrieval.dense import DenseIndex
        from roleagent.envs.retrieval.passages import Passages
        from roleagent.envs.retrieval.retriever import DenseRetriever

        index = DenseIndex.open(folder / "index.faiss", options.kind, options.effort)
        retriever = DenseRetriever(Planned(folder, options.dtype), index, Passages.open(folder / "corpus.jsonl"))
        with Server() as server:
            server.run(Batcher(retriever, cache=options.cache), ready=lambda: print(server.port, flush=True))
        return
    app = OneByOne(folder, options.dtype)
    app.answer("warm up", 3)
    with socket.socket(proto=socket.IPPROTO_TCP) as listener:  # asyncio then sends without delay, as it does by itself
        listener.bind(("127.0.0.1", 0))
        listener.listen(2048)
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(app, lifespan="off", access_log=False, log_level="error")
        uvicorn.Server(config).run(sockets=[listener])


class Contestant:
    """A server in a process of its own, and what was measured of it."""

    def __init__(
        self,
        name: str,
        folder: Path,
        serve: str,
        *,
        kind: str,
        dtype: str,
        effort: int | None,
        cache: int = 0,
        threads: int | None = None,
    ) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "MKL_"))}
        environment["TRANSFORMERS_VERBOSITY"] = "error"
        environment["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
        if threads:
            environment["OMP_NUM_THREADS"] = str(threads)
        command = [sys.executable, __file__, "--serve", serve, "--folder", str(folder), "--kind", kind]
        command += ["--dtype", dtype, "--cache", str(cache), *(["--effort", str(effort)] if effort else [])]
        self.name = name
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self._counts: Counter[int] = Counter()
        self._seconds: dict[int, float] = {}
        self._cpu: dict[int, float] = {}
        self._latencies: list[float] = []

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.terminate()
        self._process.wait()

    @property
    def url(self) -> str:
        """Where it answers, once it does."""
        if not hasattr(self, "_port"):
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
            if not line:
                raise SystemExit(f"the server {self.name!r} did not start")
            self._port = int(line)
        return f"http://127.0.0.1:{self._port}"

    @property
    def resident_mb(self) -> float:
        """Megabytes of memory that are its own (mapped files are shared and can be dropped)."""
        status = Path(f"/proc/{self._process.pid}/status")
        if not status.exists():
            return float("nan")
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["RssAnon"].split()[0]) / 1e3

    def cpu_seconds(self) -> float:
        path = Path(f"/proc/{self._process.pid}/stat")
        if not path.exists():
            return float("nan")
        fields = path.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def measure(self, shares: Sequence[Iterator[str]], seconds: float) -> None:
        """One client per share asks, one query a request, until the time is over."""
        from roleagent.envs.retrieval.client import HTTPRetriever

        asker = HTTPRetriever(self.url, timeout=120.0, patience=120.0)
        began = time.perf_counter()
        latencies: list[float] = []

        def client(share: Iterator[str]) -> None:
            while (start := time.perf_counter()) < began + seconds:
                (hits,) = asker.retrieve([next(share)])
                assert len(hits) == 3
                latencies.append(time.perf_counter() - start)

        cpu = self.cpu_seconds()
        threads = [threading.Thread(target=client, args=(share,)) for share in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        clients = len(shares)
        self._counts[clients] += len(latencies)
        self._seconds[clients] = self._seconds.get(clients, 0.0) + time.perf_counter() - began
        self._cpu[clients] = self._cpu.get(clients, 0.0) + self.cpu_seconds() - cpu
        self._latencies = latencies
        asker.close()

    def rate(self, clients: int) -> float:
        """Queries a second, of all measurements."""
        return self._counts[clients] / self._seconds[clients]

    def cpu_per_query(self, clients: int) -> float:
        """CPU seconds of the server a query, of all measurements."""
        return self._cpu[clients] / self._counts[clients]

    def line(self, clients: int) -> str:
        """Of the table; the latency is the last measurement's."""
        p50 = 1e3 * sorted(self._latencies)[len(self._latencies) // 2]
        cpu = 1e3 * self.cpu_per_query(clients)
        return f"{self.name:>8}{clients:>9}{self.rate(clients):>11.1f}{p50:>8.0f}{cpu:>14.1f}{self.resident_mb:>8.0f}"


class Questions:
    """Who asks what: every client something new, or the clients of a group the same."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts, self._lock = itertools.cycle(texts), threading.Lock()

    def _one(self) -> str:
        with self._lock:
            return next(self._texts)

    def new(self, clients: int) -> list[Iterator[str]]:
        """A share per client."""
        return [iter(self._one, None) for _ in range(clients)]

    def grouped(self, clients: int, size: int) -> list[Iterator[str]]:
        """The clients of a group walk along the same questions, each at its own pace."""
        shares: list[Iterator[str]] = []
        while len(shares) < clients:
            shares += _shared(iter(self._one, None), min(size, clients - len(shares)))
        return shares


def _shared(source: Iterator[str], readers: int) -> list[Iterator[str]]:
    told: list[str] = []
    lock = threading.Lock()

    def walk() -> Iterator[str]:
        for place in itertools.count():
            with lock:
                if place == len(told):
                    told.append(next(source))
            yield told[place]

    return [walk() for _ in range(readers)]


# --- the program ------------------------------------------------------------------------------------------------------


def prepare(folder: Path, options: argparse.Namespace) -> tuple[Vectors, Vectors, list[str]]:
    """Writes what the servers open, but for the index; returns passages, questions and their texts."""
    rng = random.Random(0)
    texts, records = questions(rng), real_passages()
    if not records:
        records = [
            {"id": str(row), "contents": f'"Passage {row}"\n{" ".join(rng.choices(texts, k=8))}'} for row in range(2000)
        ]
    passages, asked = clustered(options.rows, options.dimension, np.random.default_rng(0))
    asked = asked[: len(texts)]
    np.save(folder / "passages.npy", passages)
    np.save(folder / "questions.npy", asked)
    (folder / "questions.json").write_text(json.dumps(texts), encoding="utf-8")
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for row in range(options.rows):  # as many passages as vectors, of real length
            contents = records[row % len(records)]["contents"]
            file.write(json.dumps({"id": str(row), "contents": contents}) + "\n")
    write_model(folder / "model", [record["contents"] for record in records[:5000]] + texts)
    from roleagent.envs.retrieval.encoders import open_encoder

    model = open_encoder(f"e5:{folder / 'model'}", device="cpu")
    np.save(
        folder / "reference.npy", np.concatenate([model.encode_queries([text]) for text in texts[: options.judged]])
    )
    return passages, asked, texts


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
    from roleagent.envs.retrieval.passages import Passage
    from roleagent.envs.retrieval.recall import gold_corpus, recall
    from roleagent.envs.retrieval.retriever import open_retriever

    names = ("hotpotqa", "2wiki", "musique")
    records = real_passages()
    if not records:
        raise SystemExit("--recall needs the real questions and passages (set ROLEAGENT_SHARED)")
    parted = ((record["id"], *record["contents"].partition("\n")) for record in records)
    others = [Passage(name, title.strip('"'), text) for name, title, _, text in parted]
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


def race(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """The servers, side by side."""
    from roleagent.envs.retrieval.client import HTTPRetriever

    if options.full:
        real_table(folder, KINDS)
    passages, asked, texts = prepare(folder, options)
    print(
        f"{len(passages)} clustered vectors of {passages.shape[1]}, a flat index has {passages.shape[1] * 4} bytes each"
    )
    if options.full:
        table(passages, asked[: options.judged], KINDS, folder)
    seconds, size = build(passages, options.kind, folder / "index.faiss")
    path, tuning = folder / "index.faiss", asked[options.judged : 2 * options.judged]
    options.effort = options.effort or tuned(path, options.kind, tuning, exact(passages, tuning))[0]
    print(
        f"ours: {options.kind}, effort {options.effort}, {size:.0f} bytes a vector, "
        f"built in {seconds:.1f} CPU s, encoder in {options.dtype}"
    )
    with ExitStack() as stack:

        def start(name: str, serve: str, dtype: str = "float32", **more: int) -> Contestant:
            return stack.enter_context(
                Contestant(name, folder, serve, kind=options.kind, dtype=dtype, effort=options.effort, **more)
            )

        servers = {
            "shipped": start("shipped", "shipped"),
            "fair": start("fair", "shipped", threads=1),
            "ours": start("ours", "ours", options.dtype),
            "float32": start("float32", "ours"),
            "group": start("group", "ours", options.dtype, cache=20_000),
        }
        truth = exact(passages, asked[: options.judged])
        del passages
        found = HTTPRetriever(servers["ours"].url, patience=60.0, timeout=120.0).retrieve(texts[: options.judged])
        recall = shared_part([[int(hit.passage.id) for hit in hits] for hits in found], truth)
        source, most = Questions(texts), max(options.clients)
        print(f"{'':>8}{'clients':>9}{'queries/s':>11}{'p50 ms':>8}{'CPU ms/query':>14}{'own MB':>8}")
        for _ in range(options.rounds):
            for clients in options.clients:
                for server in servers.values():
                    if server.name in ("float32", "group") and clients != most:
                        continue
                    grouped = server.name == "group"
                    server.measure(
                        source.grouped(clients, options.group) if grouped else source.new(clients), options.seconds
                    )
                    print(server.line(clients), flush=True)
        rate = {name: server.rate(most) for name, server in servers.items()}
        cpu = {name: server.cpu_per_query(most) for name, server in servers.items()}
        return {
            "ratio_shipped": rate["ours"] / rate["shipped"],
            "ratio_fair": rate["ours"] / rate["fair"],
            "ratio_repeated": rate["group"] / rate["shipped"],
            "recall_at_3": recall,
            "ratio_fair_float32": rate["float32"] / rate["fair"],
            "cpu_ratio_shipped": cpu["shipped"] / cpu["ours"],
            "cpu_ratio_fair": cpu["fair"] / cpu["ours"],
            "cpu_ratio_repeated": cpu["shipped"] / cpu["group"],
            "bytes_per_vector": size,
            "build_cpu_s": seconds,
            **{
                f"{name}_{clients}": servers[name].rate(clients)
                for name in ("shipped", "fair", "ours")
                for clients in options.clients
            },
            "group_rate": rate["group"],
        }


def bfloat16_is_fast() -> bool:
    """Whether this processor computes in bfloat16 itself; others imitate it, slowly."""
    try:
        return any(word in Path("/proc/cpuinfo").read_text() for word in ("avx512_bf16", "amx_bf16"))
    except OSError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, help="synthetic vectors (default: 100000, --full: 400000)")
    parser.add_argument("--dimension", type=int, help="of them (default: 384, --full: 768)")
    parser.add_argument("--kind", choices=KINDS, default="ivf-sq8", help="the service's index (default: %(default)s)")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="bfloat16" if bfloat16_is_fast() else "float32",
        help="of the service's encoder (default: %(default)s)",
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--group", type=int, default=8, help="rollouts that ask the same (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="the servers take turns so often (default: %(default)s)")
    parser.add_argument("--judged", type=int, default=300, help="questions that recall is of (default: %(default)s)")
    parser.add_argument("--full", action="store_true", help="400,000 vectors of 768 numbers, all kinds of index")
    parser.add_argument(
        "--recall",
        nargs="*",
        metavar="RETRIEVER",
        help="gold passages found by these, e.g. e5:PATH (default: bm25, tfidf and their fusion); no server",
    )
    parser.add_argument("--effort", type=int, help="of its searches (default: what recall@3 of 0.985 takes)")
    parser.add_argument("--serve", choices=("shipped", "ours"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options)
        return 0
    options.rows = options.rows or (400_000 if options.full else 100_000)
    options.dimension = options.dimension or (768 if options.full else 384)
    began = time.perf_counter()
    if options.recall is not None:
        result = gold_recall(options.recall or ("bm25", "tfidf", "bm25+tfidf"))
    else:
        with tempfile.TemporaryDirectory() as folder:
            result = race(options, Path(folder))
    print(f"{time.perf_counter() - began:.0f} s")
    print("RESULT", json.dumps({name: round(value, 3) for name, value in result.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

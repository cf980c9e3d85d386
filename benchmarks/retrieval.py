"""Compares the throughput of the retrieval service with the usual kind of server.

    python benchmarks/retrieval.py                       (100,000 clustered vectors of 384 dimensions; a minute)
    python benchmarks/retrieval.py --full                (400,000 of 768, all kinds of index; several minutes)
    python benchmarks/retrieval.py --recall              (gold passages and answers found, per data set and retriever)
    python benchmarks/retrieval.py --recall bm25 tfidf dense --passages 3000    (also by an index; see --write-corpus)
    python benchmarks/retrieval.py --encode e5:PATH      (passages per second beside sentence-transformers)
    python benchmarks/retrieval.py --bm25 1.2,0.75 0.9,0.4    (recall of BM25 with these k1 and b)

Servers run side by side and are measured in turn under 1, 8 and 32 clients; each client sends a query per request and
waits for the answer. *shipped* is the usual server: a thread per request, a search per query, a flat index. *fair* is
the same with ``OMP_NUM_THREADS=1``. *ours* is this project's service without its cache, with new queries and the
encoder in ``--dtype``. *float32* is ours with the encoder in float32. *group* is ours with its cache, under rollouts in
groups of ``--group`` with equal queries.

The encoder has MiniLM's size and random weights. Each question stands for a known vector near a passage of the
clustered index; the encoder adds only its rounding error. ``recall_at_3`` is the share of the three nearest passages by
exact float32 search that the service returns.

``ratio_shipped`` and ``ratio_fair`` are *ours* over *shipped* and *fair*; ``ratio_repeated`` is *group* over *shipped*,
all with the most clients. Rates depend on the machine, ratios less; ``cpu_ratio_…`` compares CPU seconds per query.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from parts.retrieval_clients import Contestant, Questions
from parts.retrieval_material import prepare
from parts.retrieval_tables import (
    KINDS,
    bm25_parameters,
    build,
    encoding,
    exact,
    gold_recall,
    real_table,
    recall_corpus,
    shared_part,
    table,
    tuned,
)

from roleagent.envs.retrieval.build import setting


def race(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """The servers, side by side."""
    from roleagent.envs.retrieval.serving.client import HTTPRetriever

    if options.full:
        real_table(folder, KINDS)
    passages, asked, texts = prepare(folder, options.rows, options.dimension, options.judged)
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


def _pair(text: str) -> tuple[float, float]:
    """k1 and b.

    >>> _pair("1.2,0.75")
    (1.2, 0.75)
    """
    k1, b = text.split(",")
    return float(k1), float(b)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        help="what these find: names, or folders of indexes (default: bm25, tfidf and their fusion); no server",
    )
    parser.add_argument(
        "--encode", metavar="e5:PATH", help="passages per second beside sentence-transformers, in turns; no server"
    )
    parser.add_argument(
        "--set", action="append", default=[], type=setting, metavar="KEY=VALUE", help="of the encoder of --encode"
    )
    parser.add_argument(
        "--passages", type=int, help="of the corpus of --recall (default: all), or of a round of --encode"
    )
    parser.add_argument("--write-corpus", type=Path, metavar="FILE", help="the corpus of --recall, to index; no server")
    parser.add_argument(
        "--bm25",
        nargs="+",
        type=_pair,
        metavar="K1,B",
        help="what BM25 finds with these parameters, each compared with the first, e.g. 1.2,0.75 0.9,0.4; no server",
    )
    parser.add_argument("--effort", type=int, help="of its searches (default: what recall@3 of 0.985 takes)")
    options = parser.parse_args()
    options.rows = options.rows or (400_000 if options.full else 100_000)
    options.dimension = options.dimension or (768 if options.full else 384)
    began = time.perf_counter()
    if options.bm25:
        result = bm25_parameters(options.bm25)
    elif options.recall is not None:
        result = gold_recall(options.recall or ("bm25", "tfidf", "bm25+tfidf"), options.passages)
    elif options.encode is not None:
        result = encoding(options.encode, dict(options.set), options.passages or 128, max(options.rounds, 5))
    elif options.write_corpus is not None:
        corpus, _ = recall_corpus(options.passages)
        corpus.write(options.write_corpus)
        result = {"passages": len(corpus)}
    else:
        with tempfile.TemporaryDirectory() as folder:
            result = race(options, Path(folder))
    print(f"{time.perf_counter() - began:.0f} s")
    print("RESULT", json.dumps({name: float(f"{value:.4g}") for name, value in result.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

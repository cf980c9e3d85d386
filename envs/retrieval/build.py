"""``roleagent index build``: an index over a corpus of any size, built once.

Passages are read and encoded in chunks (:mod:`roleagent.envs.retrieval.dense.vectors`), in ``OUT/building``. Several
machines can encode a part each if they share the folder or copy their files into it. From all chunks FAISS trains and
fills the index, which takes as much memory as the finished index. A killed build continues with the first missing
chunk; BM25 and Lucene take minutes and start again.
"""

from __future__ import annotations

import argparse
import errno
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from roleagent.commands import Parser, complain, natural, out_folder, stage_bars, whole
from roleagent.envs.retrieval.lexical.bm25 import BM25
from roleagent.envs.retrieval.manifest import MANIFEST, Manifest
from roleagent.envs.retrieval.passages import Passages, RetrievalError
from roleagent.envs.retrieval.registry import ENCODER, INDEX, K1, LEXICAL, B, open_index
from roleagent.envs.retrieval.serving.batching import limit_threads
from roleagent.files import Lock
from roleagent.options import user_path

BUILDING = "building"
STRIDE = 1000  # passages of a lexical index between two signs of progress
FULL = (errno.ENOSPC, errno.EDQUOT)

Progress = Callable[[str, float], None]
"""Receives the current step and its progress in [0, 1]."""


def build_index(
    corpus: Passages,
    name: str,
    out: Path,
    *,
    kind: str = "flat",
    settings: dict[str, Any] | None = None,
    shards: int = 1,
    shard: int | None = None,
    threads: int | None = None,
    keep_vectors: bool = False,
    progress: Progress = lambda what, share: None,
) -> Manifest | None:
    """Builds an index or continues an interrupted build; does nothing if the index exists.

    Args:
        corpus: from a file, which the index names.
        name: of the encoder, ``tfidf`` or ``e5:PATH``; or ``bm25`` or ``pyserini``, which need no vectors.
        out: the folder of the index.
        kind: of a dense index: :data:`roleagent.envs.retrieval.dense.index.KINDS`.
        settings: of the encoder, or ``k1`` and ``b`` of ``bm25``, where they are not to be the usual ones.
        shards: into how many parts the encoding is divided.
        shard: which of them to make, from 0; None: all that is missing, and then the index.
        threads: None: as many as there are cores.
        keep_vectors: leaves the vectors there, for an index of another kind.

    Returns:
        The finished index' description of itself; None where only a shard was encoded.

    Raises:
        RetrievalError: another index, or a part of one, is in the folder; there is no such encoder; the disk is full.
    """
    if corpus.path is None:
        raise RetrievalError("an index is built over a corpus in a file; Passages.write makes one")
    if shards < 1 or not (shard is None or 0 <= shard < shards):
        raise RetrievalError(f"there is no shard {shard} of {shards}; they count from 0")
    settings = settings or {}
    kind = name if name in LEXICAL else kind
    name = _absolute(name)
    if (out / MANIFEST).exists():
        return _same(Manifest.read(out), name, kind, corpus, settings, out)
    (out / BUILDING).mkdir(parents=True, exist_ok=True)
    lock = Lock(out / BUILDING) if shard is None else None  # two builds would fill the same files
    try:
        if (out / MANIFEST).exists():  # another build has made it since
            return _same(Manifest.read(out), name, kind, corpus, settings, out)
        if kind in LEXICAL:
            manifest = _lexical(corpus, name, out, settings, progress)
        else:
            manifest = _dense(corpus, name, out, kind, settings, (shard, shards), threads, progress)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise RetrievalError(
            f"the disk of {out} is full: make room and run the same command again, it goes on where it was"
        ) from error
    else:
        if manifest is not None:
            manifest.write(out)
            if not keep_vectors:
                shutil.rmtree(out / BUILDING, ignore_errors=True)
        return manifest
    finally:
        if lock is not None:
            lock.release()


def _absolute(name: str) -> str:
    """The name of an encoder by its full path: the index may be opened from anywhere."""
    word, colon, path = name.partition(":")
    return f"{word}:{user_path(path).absolute()}" if colon else name


def _same(manifest: Manifest, name: str, kind: str, corpus: Passages, settings: dict[str, Any], out: Path) -> Manifest:
    """A finished index, if it is the one that is asked for."""
    manifest.check_corpus(corpus, out)
    held, asked = manifest.settings, manifest.settings | settings
    if (manifest.name, manifest.kind, held) != (name, kind, asked):
        raise RetrievalError(
            f"{out} holds an index for {manifest.name}, {manifest.kind}, {held}: delete it, or choose another --out"
        )
    return manifest


def _lexical(corpus: Passages, name: str, out: Path, settings: dict[str, Any], progress: Progress) -> Manifest:
    def texts() -> Iterator[str]:
        for row, passage in enumerate(corpus):
            if row % STRIDE == 0:
                progress("reading passages", row / len(corpus))
            yield passage.contents
        progress("reading passages", 1)

    # Runs of occurrences, then the index: together about what the texts take.
    _refuse_small_disk(out, corpus.size)
    try:
        if name == "bm25":
            settings = {"k1": K1, "b": B} | settings
            BM25.build(corpus.ids, texts(), folder=out, **settings)
        else:
            from roleagent.envs.retrieval.lexical.lucene import LuceneIndex

            LuceneIndex.build(corpus.ids, texts(), out, **settings)
    except (TypeError, ValueError) as error:
        raise RetrievalError(f"{name} cannot be built with {settings}: {error}") from error
    return Manifest(name, name, str(corpus.path), corpus.digest, len(corpus), settings=settings, versions=_versions())


def _dense(
    corpus: Passages,
    name: str,
    out: Path,
    kind: str,
    settings: dict[str, Any],
    part: tuple[int | None, int],
    threads: int | None,
    progress: Progress,
) -> Manifest | None:
    from roleagent.envs.retrieval.dense.encoders import TfidfEncoder, make_encoder
    from roleagent.envs.retrieval.dense.index import KINDS, DenseIndex, bytes_for
    from roleagent.envs.retrieval.dense.vectors import CHUNK, Vectors

    if kind not in KINDS:
        raise RetrievalError(f"{kind!r} is no kind of index; there are {', '.join(KINDS)}")
    shard, shards = part
    vectors = Vectors(out / BUILDING, corpus, f"{name} {json.dumps(settings, sort_keys=True)}")
    encoder = make_encoder(
        name, corpus, vectors.folder / ENCODER, lambda read: progress("counting words", read / len(corpus)), **settings
    )
    if threads is not None:
        limit_threads(threads)
    missing = vectors.missing() if shard is None else vectors.missing(shard, shards)
    index_bytes = 0 if shard is not None else len(corpus) * bytes_for(kind, encoder.dimension)
    _refuse_small_disk(out, len(missing) * CHUNK * encoder.dimension * 4 + index_bytes)
    vectors.encode(encoder, missing, lambda share: progress("encoding", share))
    if shard is not None:
        return None
    index = DenseIndex.build(kind, vectors.chunks(), progress=progress)
    progress("writing", 0)
    index.save(out / INDEX)
    if isinstance(encoder, TfidfEncoder):
        encoder.save(out / ENCODER)
    progress("writing", 1)
    return Manifest(
        name=encoder.name,
        kind=kind,
        corpus=str(corpus.path),
        corpus_digest=corpus.digest,
        passages=len(corpus),
        encoder_digest=encoder.digest,
        dimension=encoder.dimension,
        settings=encoder.settings,
        versions=_versions("faiss-cpu"),
    )


def _refuse_small_disk(folder: Path, needed: int) -> None:
    """Raises ``RetrievalError`` where so many bytes will not fit on the disk of a folder."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise RetrievalError(
            f"the disk of {folder} has {free / 1e9:.3g} GB left, the build needs {needed / 1e9:.3g} GB: make room, or "
            "choose another --out"
        )


def _versions(*more: str) -> dict[str, str]:
    return {package: version(package) for package in ("roleagent", "numpy", *more)}


def main(arguments: Sequence[str]) -> int:
    """Build an index over a corpus of passages. An interrupted build continues."""
    from gymnasium.error import DependencyNotInstalled

    options = _parser().parse_args(arguments)
    began = time.perf_counter()
    try:
        with stage_bars(16) as progress:
            progress("reading corpus", 0)
            corpus = Passages.open(options.corpus.absolute())
            progress("reading corpus", 1)
            manifest = build_index(
                corpus,
                options.encoder,
                options.out,
                kind=options.kind,
                settings=dict(options.set),
                shards=options.shards,
                shard=options.shard,
                threads=options.threads,
                keep_vectors=options.keep_vectors,
                progress=progress,
            )
    except (RetrievalError, DependencyNotInstalled, OSError) as error:
        return complain("roleagent index build", error)
    seconds = time.perf_counter() - began
    if manifest is None:
        print(
            f"shard {options.shard} of {options.shards} is in {options.out / BUILDING} after {seconds:.0f} s; the same "
            "command without --shard makes the index when all are there"
        )
    else:
        size = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
        print(
            f"{manifest.passages} passages, {manifest.name}, {manifest.kind}: {options.out} after {seconds:.0f} s, "
            f"{size / manifest.passages:.0f} bytes a passage"
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    # Not from the dense module: --help must not wait for FAISS.
    kinds = ("flat", "hnsw", "ivf-rabitq", "ivf-sq8")
    parser = Parser(
        "roleagent index build",
        f"{main.__doc__}\n\nFILE holds a passage a line, with id and contents. bm25 needs nothing, tfidf the extra of "
        "pip install 'roleagent[dense]',\nand an encoder also its model.",
        "roleagent searchqa generate --out qa\nroleagent index build --corpus qa/corpus.jsonl --out qa.index",
    )
    parser.add_argument("--corpus", type=Path, required=True, metavar="FILE", help="JSON lines, uncompressed")
    parser.add_argument("--out", type=out_folder, required=True, metavar="DIR", help="the folder of the index")
    parser.add_argument(
        "--encoder", default="tfidf", metavar="NAME", help="tfidf (default), e5:PATH; or bm25, pyserini: no vectors"
    )
    parser.add_argument("--kind", default="flat", choices=kinds, help="of a dense index (default: %(default)s)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=setting,
        metavar="KEY=VALUE",
        help="of the encoder: pooling=mean, 'query_prefix=query: ', passage_length=256; of bm25: k1=0.9, b=0.4",
    )
    parser.add_argument("--shards", type=natural, default=1, metavar="N", help="divide the encoding among N machines")
    parser.add_argument("--shard", type=whole, metavar="I", help="encode part I of them, from 0, and make no index")
    parser.add_argument("--threads", type=natural, metavar="N", help="with 1, hnsw comes out the same every time")
    parser.add_argument("--keep-vectors", action="store_true", help="leave them in DIR/building")
    return parser


def setting(text: str) -> tuple[str, Any]:
    """A key and a value: a number where it reads as one.

    >>> setting("k1=0.9"), setting("query_prefix=query: ")
    (('k1', 0.9), ('query_prefix', 'query: '))
    """
    key, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    for number in (int, float):
        try:
            return key, number(value)
        except ValueError:
            pass
    return key, value


__all__ = ["BUILDING", "build_index", "main", "open_index", "setting"]

"""The built-in retrievers by name, over an index that was built or is built now."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from roleagent.envs.retrieval.fusion import FusedRetriever
from roleagent.envs.retrieval.lexical.bm25 import BM25, SearchIndex
from roleagent.envs.retrieval.manifest import MANIFEST, Manifest
from roleagent.envs.retrieval.passages import Passages, RetrievalError
from roleagent.envs.retrieval.retriever import DenseRetriever, LexicalRetriever, Retriever
from roleagent.envs.retrieval.serving.client import HTTPRetriever
from roleagent.options import user_path

if TYPE_CHECKING:  # FAISS takes a second to load, and not every retriever needs it
    from roleagent.envs.retrieval.dense.encoders import Encoder

K1, B = 1.2, 0.75
"""BM25's parameters for questions over short passages: Lucene's own defaults, and the choice of docs/retrieval.md."""
LARGEST = 1 << 18  # passages of an index that is built in memory, on the way
_BETWEEN = re.compile(r"\+(?=(?:bm25|pyserini|tfidf)(?:\+|$)|\w+:)")  # a path may hold a plus
INDEX, ENCODER = "index.faiss", "encoder"  # what a dense index' folder holds besides its manifest


def open_retriever(
    spec: str, corpus: Passages | None, folder: str | Path | None = None, *, threads: int | None = 1
) -> Retriever:
    """The retriever that a word names.

    Args:
        spec: ``tfidf``, ``bm25``, ``pyserini``, ``e5:PATH``; two or more with ``+`` between, for reciprocal rank
            fusion; or the URL of a service, several with commas between.
        corpus: the passages; None only for a service, which has its own.
        folder: of the index that ``roleagent index build`` made, or one that holds such folders, each called by the
            first word of its retriever (``bm25``, ``e5``). None builds the index now, in memory: for small corpora.
        threads: of one search of a dense index; None: as many as the calling thread has been given.

    Raises:
        RetrievalError: there is no such retriever, no such index, or it does not fit the corpus or the encoder.
        gymnasium.error.DependencyNotInstalled: of ``pyserini``.
    """
    if spec.startswith(("http://", "https://")):
        return HTTPRetriever(spec)
    if corpus is None:
        raise RetrievalError(f"{spec} needs a corpus")
    parts = _BETWEEN.split(spec) if ":" in spec else spec.split("+")
    if len(parts) > 1:
        return FusedRetriever([open_retriever(part, corpus, folder, threads=threads) for part in parts])
    word = spec.partition(":")[0]
    if folder is None:
        return _build(spec, corpus, threads)
    place = user_path(folder)
    place = place if (place / MANIFEST).exists() else place / word
    manifest = Manifest.read(place)
    if manifest.name.partition(":")[0] != word:
        raise RetrievalError(f"{place} is an index for {manifest.name}, not for {spec}")
    return open_index(place, corpus, encoder=spec if ":" in spec else None, threads=threads)


def open_index(
    folder: str | Path,
    corpus: Passages | None = None,
    *,
    encoder: str | None = None,
    effort: int | None = None,
    threads: int | None = None,
) -> Retriever:
    """The retriever over a built index.

    Args:
        corpus: the passages; None: those of the file that it was built from.
        encoder: ``NAME:PATH`` where the encoder has moved since.
        effort: see :func:`roleagent.envs.retrieval.dense.index.effort_for`.
        threads: see :func:`open_retriever`.

    Raises:
        RetrievalError: the folder holds no finished index, or it does not fit the corpus or the encoder.
    """
    folder = user_path(folder)
    manifest = Manifest.read(folder)
    if corpus is None:
        corpus = Passages.open(manifest.corpus)
    manifest.check_corpus(corpus, folder)
    try:
        if manifest.kind == "bm25":
            return LexicalRetriever("bm25", BM25.open(folder), corpus)
        if manifest.kind == "pyserini":
            from roleagent.envs.retrieval.lexical.lucene import LuceneIndex

            return LexicalRetriever("pyserini", LuceneIndex.open(folder), corpus)
    except ValueError as error:
        raise RetrievalError(str(error)) from error
    from roleagent.envs.retrieval.dense.encoders import FITTED, TfidfEncoder, open_encoder
    from roleagent.envs.retrieval.dense.index import DenseIndex

    made: Encoder
    if manifest.name == FITTED:
        made = TfidfEncoder.open(folder / ENCODER)
    else:
        made = open_encoder(encoder or manifest.name, **manifest.settings)
    manifest.check_encoder(made.digest, folder)
    return DenseRetriever(made, DenseIndex.open(folder / INDEX, manifest.kind, effort, threads), corpus)


def _build(spec: str, corpus: Passages, threads: int | None) -> Retriever:
    """The retriever with an index that is made now."""
    if len(corpus) > LARGEST:
        raise RetrievalError(
            f"{len(corpus)} passages are too many to index on the way: roleagent index build --corpus {corpus.path} "
            f"--encoder {spec} --out DIR, once, and name that folder"
        )
    if spec in LEXICAL:
        return LexicalRetriever(spec, LEXICAL[spec](corpus), corpus)
    from roleagent.envs.retrieval.dense.encoders import make_encoder
    from roleagent.envs.retrieval.dense.index import DenseIndex

    encoder = make_encoder(spec, corpus, None)
    vectors = encoder.encode_passages([passage.contents for passage in corpus])
    index = DenseIndex.build("flat", [vectors])
    index.threads = threads
    return DenseRetriever(encoder, index, corpus)


def _bm25(corpus: Passages) -> SearchIndex:
    return BM25.build(corpus.ids, (passage.contents for passage in corpus), k1=K1, b=B)


def _lucene(corpus: Passages) -> SearchIndex:
    """Lucene indexes lie on disk: in a folder that goes with the index."""
    from roleagent.envs.retrieval.lexical.lucene import LuceneIndex

    folder = TemporaryDirectory(prefix="roleagent-lucene-")
    index: Any = LuceneIndex.build(corpus.ids, (passage.contents for passage in corpus), folder.name)
    index.temporary = folder
    return index


LEXICAL: dict[str, Callable[[Passages], SearchIndex]] = {"bm25": _bm25, "pyserini": _lucene}

__all__ = ["ENCODER", "INDEX", "K1", "LEXICAL", "B", "open_index", "open_retriever"]

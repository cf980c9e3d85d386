"""``roleagent index import``: an index that somebody published, over its corpus, with no passage encoded again.

Search-R1 publishes FAISS files (``e5_Flat.index``, ``e5_HNSW64.index``) and a Lucene folder (``bm25``) over one corpus.
An index stays where it is: the new folder has a link to it and the manifest. What the file does not say is checked with
some of the passages: that row *n* of the index is line *n* of the corpus, made by that encoder with these prefixes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from roleagent.commands import Parser, complain, out_folder
from roleagent.envs.retrieval.build import setting
from roleagent.envs.retrieval.manifest import Manifest
from roleagent.envs.retrieval.passages import Passages, RetrievalError
from roleagent.envs.retrieval.registry import INDEX

CHECKED = 16
"""Passages that are compared with the index."""
ALIKE = 0.98
"""Least cosine of a passage's vector and that of the index: a long passage may have been cut elsewhere."""
MOSTLY = 0.998
"""Least median of these cosines: half precision costs less than a thousandth, another prefix several."""


def import_index(
    path: Path, corpus: Passages, name: str, out: Path, settings: dict[str, Any] | None = None
) -> Manifest:
    """Makes a folder of a published index, which :func:`~roleagent.envs.retrieval.registry.open_index` opens.

    Args:
        path: a FAISS file, flat or HNSW with inner products; or the folder of a Lucene index.
        corpus: from a file, which the index was built over.
        name: of the encoder, such as ``e5:PATH``; ``pyserini`` for a Lucene index.
        out: the new folder.
        settings: of the encoder, where they are not what its files state.

    Raises:
        RetrievalError: the folder is not empty; this is no index, or not one over this corpus by this encoder.
        gymnasium.error.DependencyNotInstalled: FAISS, pyserini or Java is missing.
    """
    if out.exists() and any(out.iterdir()):  # the published index itself may lie there
        raise RetrievalError(f"{out} is not empty: choose another --out")
    if not path.exists():
        raise RetrievalError(f"there is no index {path}")
    if path.is_dir() != (name == "pyserini"):
        what = "the folder of a Lucene index needs" if path.is_dir() else "only the folder of a Lucene index takes"
        raise RetrievalError(f"{path}: {what} --encoder pyserini")
    read = _lucene if path.is_dir() else _faiss
    return read(path.absolute(), corpus, name, out, settings or {})


def _faiss(path: Path, corpus: Passages, name: str, out: Path, settings: dict[str, Any]) -> Manifest:
    from roleagent.envs.retrieval.dense.encoders import open_encoder
    from roleagent.envs.retrieval.dense.index import read_published

    index, kind = read_published(path)
    if index.ntotal != len(corpus):
        raise RetrievalError(
            f"{path} has {index.ntotal} vectors, and {corpus.path} {len(corpus)} passages: name its corpus"
        )
    encoder = open_encoder(name, **settings)
    if index.d != encoder.dimension:
        raise RetrievalError(
            f"{path} has vectors of {index.d} numbers, and {name} makes {encoder.dimension}: name its encoder"
        )
    rows = _some(len(corpus))
    made = encoder.encode_passages([corpus[row].contents for row in rows])
    held = np.stack([index.reconstruct(row) for row in rows])
    alike = (held * made).sum(1) / np.maximum(np.linalg.norm(held, axis=1) * np.linalg.norm(made, axis=1), 1e-12)
    worst, median = int(alike.argmin()), float(np.median(alike))
    if alike[worst] < ALIKE or median < MOSTLY:
        raise RetrievalError(
            f"row {rows[worst]} of {path} is not what {name} makes of passage {corpus[rows[worst]].id} (cosine "
            f"{alike[worst]:.3f}, median of {len(rows)} rows {median:.3f}): name its corpus, its encoder, or its "
            "passage_prefix with --set"
        )
    _link(path, out / INDEX)
    return _written(out, encoder.name, kind, corpus, encoder.settings, encoder.digest, encoder.dimension)


def _lucene(path: Path, corpus: Passages, name: str, out: Path, settings: dict[str, Any]) -> Manifest:
    from roleagent.envs.retrieval.lexical.lucene import IDS, LUCENE, LuceneIndex, require_pyserini

    if settings:
        raise RetrievalError("a Lucene index has no settings: leave --set out")
    require_pyserini()
    index = LuceneIndex(out, corpus.ids, path)
    held = index.documents
    if held != len(corpus):
        raise RetrievalError(f"{path} has {held} documents, and {corpus.path} {len(corpus)} passages: name its corpus")
    for row in _some(len(corpus)):
        passage = corpus[row]
        try:
            found = index.search(passage.contents, 10)
        except KeyError as error:
            raise RetrievalError(f"{path} has a document {error}, which is no id of {corpus.path}") from None
        if found and not any(corpus[other].contents == passage.contents for other in found):
            raise RetrievalError(
                f"{path} does not find passage {passage.id} of {corpus.path} by its text: name its corpus"
            )
    _link(path, out / LUCENE)
    (out / IDS).write_text(json.dumps(list(corpus.ids)), encoding="utf-8")
    return _written(out, name, name, corpus, {}, "", 0)


def _some(count: int) -> list[int]:
    """Rows from the first to the last."""
    return np.unique(np.linspace(0, count - 1, CHECKED).astype(int)).tolist()


def _link(path: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(path)


def _written(
    out: Path, name: str, kind: str, corpus: Passages, settings: dict[str, Any], digest: str, dimension: int
) -> Manifest:
    versions = {package: version(package) for package in ("roleagent", "numpy")}
    manifest = Manifest(
        *(name, kind, str(corpus.path), corpus.digest, len(corpus)),
        encoder_digest=digest,
        dimension=dimension,
        settings=settings,
        versions=versions,
    )
    manifest.write(out)
    return manifest


def main(arguments: Sequence[str]) -> int:
    """Open an index that was published, such as Search-R1's, without building it again."""
    from gymnasium.error import DependencyNotInstalled

    parser = Parser(
        "roleagent index import",
        f"{main.__doc__}\n\nA FAISS file (flat or HNSW, inner products) or the folder of a Lucene index. It stays "
        "where it is; DIR gets a link to it.",
        "roleagent index import --index e5_Flat.index --corpus wiki-18.jsonl --encoder e5:e5-base-v2 --out wiki\n"
        "roleagent index import --index bm25 --corpus wiki-18.jsonl --encoder pyserini --out wiki-bm25",
    )
    parser.add_argument("--index", type=Path, required=True, metavar="PATH", help="the published index")
    parser.add_argument("--corpus", type=Path, required=True, metavar="FILE", help="its passages: JSON lines, unpacked")
    parser.add_argument("--encoder", required=True, metavar="NAME", help="e5:PATH; pyserini for a Lucene index")
    parser.add_argument("--out", type=out_folder, required=True, metavar="DIR", help="the folder of the index")
    parser.add_argument(
        "--set", action="append", default=[], type=setting, metavar="KEY=VALUE", help="as of roleagent index build"
    )
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    try:
        corpus = Passages.open(options.corpus.absolute())
        manifest = import_index(options.index, corpus, options.encoder, options.out, dict(options.set))
    except (RetrievalError, DependencyNotInstalled, OSError) as error:
        return complain("roleagent index import", error)
    seconds = time.perf_counter() - began
    print(f"{manifest.passages} passages, {manifest.name}, {manifest.kind}: {options.out} after {seconds:.0f} s")
    return 0


__all__ = ["import_index", "main"]

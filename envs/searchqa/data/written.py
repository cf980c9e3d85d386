"""Questions that are written for training (GenEnv): other chains of relations in the generated world's training land.

The id ``three_hop/train+director.teacher.teacher-00123.5`` asks, about a thing of the training land, for the teacher of
the teacher of the director: a thing's number, the relations, and the wording, whose bits choose among the forms.

About other passages a writer asks in its own words: a question, its answers, and the searches that find them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from roleagent.envs.searchqa.data.dataset import Archive
from roleagent.envs.searchqa.data.questions import Question
from roleagent.envs.searchqa.data.templates import RELATIONS, Relation
from roleagent.envs.searchqa.data.world import HOPS, Chain, Thing, ask
from roleagent.envs.searchqa.text import normalize
from roleagent.tasks.free_form import decode
from roleagent.tasks.grammar import OpenTaskSplit

MOST_HOPS = len(HOPS)
BY_NAME = {relation.name: relation for relation in RELATIONS if relation.asks}
_TASK_ID = re.compile(r"(?P<hops>[a-z_]+)/train\+(?P<relations>[a-z.]+)-(?P<thing>[0-9]{5})\.(?P<wording>[0-9])")


@dataclass(frozen=True, slots=True)
class WrittenQuestion:
    """The parts of such an id.

    Attributes:
        relations: names of the relations, the one next to the thing first; 1 to 3.
        thing: the number of the thing that the question names, in the training land.
        wording: a bit for each relation.
    """

    relations: tuple[str, ...]
    thing: int
    wording: int

    @classmethod
    def parse(cls, task_id: str) -> WrittenQuestion | None:
        """Reads an id; None if it is none of a written question."""
        match = _TASK_ID.fullmatch(task_id)
        if not match:
            return None
        relations = tuple(match["relations"].split("."))
        if len(relations) > MOST_HOPS or not BY_NAME.keys() >= set(relations):
            return None
        written = cls(relations, int(match["thing"]), int(match["wording"]))
        return written if written.task_id == task_id and written.wording < 2 ** len(relations) else None

    @property
    def task_id(self) -> str:
        """The id."""
        return f"{HOPS[len(self.relations) - 1]}/{self.number}"

    @property
    def number(self) -> str:
        """The id within its data set."""
        return f"train+{'.'.join(self.relations)}-{self.thing:05d}.{self.wording}"

    def question(self, land: Sequence[Thing]) -> Question:
        """The question itself.

        Raises:
            ValueError: the land has no such thing, or the relations do not lead from it to something new each time.
        """
        chain = Chain(land[self.thing], self._relations) if self.thing < len(land) else None
        if chain is None or not chain.is_straight:
            raise ValueError(f"{self.task_id}: the relations lead nowhere new")
        bits = iter(f"{self.wording:0{len(self.relations)}b}")
        return ask(chain, self.number, lambda forms: forms[int(next(bits)) % len(forms)])

    @property
    def _relations(self) -> tuple[Relation, ...]:
        return tuple(BY_NAME[name] for name in self.relations)


def find_question(archive: Archive, task_id: str) -> Question:
    """The question of an id, a listed one or a written one.

    Raises:
        KeyError: there is none.
        ValueError: it is a written one that cannot be asked.
    """
    written = WrittenQuestion.parse(task_id)
    if written:
        return written.question(archive.land)
    row = decode(task_id)
    return archive.questions.find(task_id) if row is None else free_question(task_id, row)


def free_question(task_id: str, row: Mapping[str, Any]) -> Question:
    """The question of a row in a writer's own words; in place of golden passages it has what is searched for.

    Raises:
        ValueError: a value is missing or of the wrong type.
    """
    answers = row.get("answer")
    answers = answers if isinstance(answers, list) else [answers]
    searches = row.get("searches")
    for texts in ([row.get("question")], answers, searches):
        if (
            not isinstance(texts, list)
            or not texts
            or not all(isinstance(one, str) and normalize(one) for one in texts)
        ):
            raise ValueError("a question, its answers and its searches are texts")
    data_set, _, number = task_id.partition("/")
    passages = tuple(f"{' '.join(search.split())}\n" for search in searches)
    return Question(data_set, number, " ".join(row["question"].split()), tuple(answers), passages)


def is_free(task_id: str) -> bool:
    """Whether an id is that of a question in a writer's own words."""
    row = decode(task_id)
    try:
        return row is not None and bool(free_question(task_id, row))
    except ValueError:
        return False


def is_written(archive: Archive, task_id: str) -> bool:
    """Whether an id is that of a question that can be written for training."""
    written = WrittenQuestion.parse(task_id)
    try:
        return written is not None and bool(written.question(archive.land))
    except ValueError:
        return False


@lru_cache(maxsize=8)
def open_task_split(archive: Archive, split: str) -> OpenTaskSplit:
    """The questions of a split, and those that are written for training: of the generated world chains of relations,
    else questions in a writer's own words.

    Raises:
        ValueError: it is an evaluation split.
    """
    return OpenTaskSplit.of(
        archive.questions.task_split(split), partial(is_written, archive) if archive.land else is_free
    )


__all__ = [
    "BY_NAME",
    "MOST_HOPS",
    "WrittenQuestion",
    "find_question",
    "free_question",
    "is_free",
    "is_written",
    "open_task_split",
]

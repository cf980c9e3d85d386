"""The tasks that can be written for search QA (GenEnv): in the generated world chains of one to three relations, about
other passages questions in a writer's own words.

A line of the first names the relations that follow the first one. The seed chooses the thing that the question names,
its relation, and the words: no simulator can know what lies in the training land, and no first relation is harder than
another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import gymnasium
from numpy.random import Generator

from roleagent.envs.retrieval.passages import RetrievalError
from roleagent.envs.searchqa.data.dataset import Archive
from roleagent.envs.searchqa.data.questions import SPLITS, Question
from roleagent.envs.searchqa.data.templates import relations_of
from roleagent.envs.searchqa.data.world import HOPS
from roleagent.envs.searchqa.data.written import BY_NAME, MOST_HOPS, WrittenQuestion, find_question, is_free
from roleagent.envs.searchqa.expert import understand
from roleagent.envs.searchqa.text import contains, normalize
from roleagent.tasks.free_form import FreeTaskGrammar, encode
from roleagent.tasks.grammar import Refused, TaskGrammar, TaskSpec

_TRIES = 50  # starts that are drawn in search of one from which the relations lead on
_RELATIONS = tuple(BY_NAME)
_WORDINGS = 2**MOST_HOPS
NONE = "none"


class QuestionGrammar(TaskGrammar):
    """Questions about the training land. The seed is the thing, its relation and the wording.

    Args:
        plan_share: has no effect: a plan may have all steps, since passages are found by name and nothing is explored.
    """

    seed_draws_goal = True

    def __init__(self, env: gymnasium.Env, plan_share: float = 1.0):
        super().__init__(env, plan_share=1.0)
        self._land = self.env.archive.land
        self._places = {thing.name: place for place, thing in enumerate(self._land)}
        onward = tuple(name for name, relation in BY_NAME.items() if relation.subject in ("person", "town"))
        self.fields = {"second": (NONE, *onward), "third": (NONE, *onward)}

    def task_id(self, spec: TaskSpec) -> str:
        return self._written(spec).task_id

    def spec(self, task_id: str) -> TaskSpec:
        written = WrittenQuestion.parse(task_id) if isinstance(task_id, str) else None
        if written is None or task_id not in self.env.task_split:
            raise ValueError(f"{str(task_id)[:200]!r} is no task that was written for {self.env.task_split.env_id}")
        return self._spec(written)

    def base(self, rng: Generator) -> TaskSpec:
        listed = self.env.task_split.task_ids
        while True:
            request = understand(self.env.archive.questions.find(listed[int(rng.integers(len(listed)))]).text)
            if request:
                relations = tuple(relation.name for relation in request.relations)
                wording = int(rng.integers(2 ** len(relations)))
                return self._spec(WrittenQuestion(relations, self._places[request.name], wording))

    def complete(self, values: Sequence[str], rng: Generator) -> TaskSpec:
        if values[0] == NONE != values[1]:
            raise Refused("inconsistent", "a third relation follows a second one")
        onward = tuple(value for value in values if value != NONE)
        for _ in range(_TRIES):
            thing = int(rng.integers(len(self._land)))
            own = [relation.name for relation in relations_of(self._land[thing].kind) if relation.asks]
            relations = own[int(rng.integers(len(own)))], *onward
            written = WrittenQuestion(relations, thing, int(rng.integers(2 ** len(relations))))
            if written.task_id in self.env.task_split:
                return self._spec(written)
        raise Refused("inconsistent", "the relations lead nowhere new")

    def solve(self, spec: TaskSpec) -> Sequence[str]:
        try:
            self.env.reset(options={"task_id": self.task_id(spec)})
            question = find_question(self.env.archive, self.task_id(spec))
        except ValueError as error:
            raise Refused("inconsistent", str(error)) from None
        if len(question.context) >= self.env.max_steps:
            raise Refused("too_long", "there is a search for each passage, and the answer")
        for title in (passage.partition("\n")[0] for passage in question.context):
            if title not in (hit.passage.title for hit in self.env.archive.search(title, self.env.top_k)):
                raise Refused("unsolvable", f"a search for {title} does not find it")
        return self.env.walkthrough()

    def task_type(self, spec: TaskSpec) -> str:
        return HOPS[len(spec.values) - spec.values.count(NONE)]

    def content(self, spec: TaskSpec) -> str:
        return normalize(find_question(self.env.archive, self.task_id(spec)).text)

    def held_out_contents(self) -> frozenset[str]:
        return held_out_questions(self.env.archive)

    def _written(self, spec: TaskSpec) -> WrittenQuestion:
        rest, wording = divmod(spec.seed, _WORDINGS)
        thing, first = divmod(rest, len(_RELATIONS))
        onward = (value for value in spec.values if value != NONE)
        return WrittenQuestion((_RELATIONS[first], *onward), thing, wording)

    def _spec(self, written: WrittenQuestion) -> TaskSpec:
        first, *onward = written.relations
        seed = (written.thing * len(_RELATIONS) + _RELATIONS.index(first)) * _WORDINGS + written.wording
        return TaskSpec((*onward, *(NONE,) * (MOST_HOPS - len(written.relations))), seed)


class FreeQuestionGrammar(FreeTaskGrammar):
    """Questions about any passages: their answer, and the searches that find it.

    The searches are made. A question is ``unsolvable`` if the answer is in no passage that they show, and ``trivial``
    if the question itself holds it.
    """

    keys = MappingProxyType(
        {
            "question": "what the agent is asked",
            "answer": "a short text, or a list of texts that are all right",
            "searches": "a list of texts to search for, whose passages hold the answer",
        }
    )

    def row_of(self, task_id: str) -> dict[str, Any] | None:
        question = find_question(self.env.archive, task_id)
        titles = [title for passage in question.context if (title := passage.partition("\n")[0].strip())]
        row = {"question": question.text, "answer": list(question.answers), "searches": titles or [question.text]}
        return row if is_free(encode(row)) else None

    def check_row(self, row: Mapping[str, Any]) -> None:
        if not is_free(encode(row)):
            raise Refused("vocabulary")

    def solve(self, spec: TaskSpec) -> Sequence[str]:
        question = self._question(spec)
        if len(question.context) >= self.env.max_steps:
            raise Refused("too_long", "there is a search for each passage, and the answer")
        if any(contains(question.text, answer) for answer in question.answers):
            raise Refused("trivial", "the question holds its answer")
        return super().solve(spec)

    def task_type(self, spec: TaskSpec) -> str:
        return self._question(spec).data_set

    def content(self, spec: TaskSpec) -> str:
        return normalize(self._question(spec).text)

    def held_out_contents(self) -> frozenset[str]:
        return held_out_questions(self.env.archive)

    def _question(self, spec: TaskSpec) -> Question:
        return find_question(self.env.archive, self.task_id(spec))

    def _replay(self, spec: TaskSpec, plan: Sequence[str]) -> None:
        question = self._question(spec)
        try:
            found = [
                hit.passage
                for passage in question.context
                for hit in self.env.archive.search(passage.rstrip("\n"), self.env.top_k)
            ]
        except RetrievalError as error:
            raise Refused("unsolvable", str(error)) from None
        if not any(contains(f"{one.title} {one.text}", answer) for one in found for answer in question.answers):
            raise Refused("unsolvable", "no passage holds the answer")
        super()._replay(spec, plan)


def held_out_questions(archive: Archive) -> frozenset[str]:
    """The questions of the evaluation splits, in normal form."""
    held_out = (question for split in SPLITS if split != "train" for question in archive.questions.get(split, ()))
    return frozenset(normalize(question.text) for question in held_out)


def make_grammar(env: gymnasium.Env, plan_share: float = 1.0) -> TaskGrammar:
    """The grammar of an environment's questions: chains where there is a generated world, else free form."""
    unwrapped: Any = env.unwrapped
    return (QuestionGrammar if unwrapped.archive.land else FreeQuestionGrammar)(env, plan_share)


__all__ = ["FreeQuestionGrammar", "QuestionGrammar", "make_grammar"]

"""The tasks that can be written for the generated world of search QA (GenEnv): chains of one to three relations.

A line names the relations that follow the first. The seed chooses the thing that the question names, its relation, and
the words: no simulator can know what lies in the training land, and no first relation is harder than another.
"""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium
from numpy.random import Generator

from roleagent.envs.searchqa.data.questions import SPLITS
from roleagent.envs.searchqa.data.templates import relations_of
from roleagent.envs.searchqa.data.world import HOPS
from roleagent.envs.searchqa.data.written import BY_NAME, MOST_HOPS, WrittenQuestion, find_question
from roleagent.envs.searchqa.expert import understand
from roleagent.envs.searchqa.text import normalize
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
        questions = self.env.archive.questions
        held_out = (question for split in SPLITS if split != "train" for question in questions.get(split, ()))
        return frozenset(normalize(question.text) for question in held_out)

    def _written(self, spec: TaskSpec) -> WrittenQuestion:
        rest, wording = divmod(spec.seed, _WORDINGS)
        thing, first = divmod(rest, len(_RELATIONS))
        onward = (value for value in spec.values if value != NONE)
        return WrittenQuestion((_RELATIONS[first], *onward), thing, wording)

    def _spec(self, written: WrittenQuestion) -> TaskSpec:
        first, *onward = written.relations
        seed = (written.thing * len(_RELATIONS) + _RELATIONS.index(first)) * _WORDINGS + written.wording
        return TaskSpec((*onward, *(NONE,) * (MOST_HOPS - len(written.relations))), seed)


__all__ = ["QuestionGrammar"]

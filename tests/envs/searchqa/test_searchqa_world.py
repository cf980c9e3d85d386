"""The generated world: reproducible, closed, disjoint, and of no use to somebody who does not search."""

import hashlib
import json
import random
import re

import pytest

from roleagent.envs.searchqa.data.benchmarks import load_questions
from roleagent.envs.searchqa.data.questions import SPLITS
from roleagent.envs.searchqa.data.world import generate, write_world
from roleagent.envs.searchqa.env import SearchQAEnv

WORLD = generate(0)


def titles(questions):
    return {passage.partition("\n")[0] for question in questions for passage in question.context}


def test_a_seed_is_a_world_in_every_process():
    other = generate(1)
    assert other.questions.task_split("train").digest != WORLD.questions.task_split("train").digest
    assert {q.text for q in other.questions["train"]} != {q.text for q in WORLD.questions["train"]}
    # Splits, reports and trained policies rest on this world: a change of it is a change of the environment.
    passages = [(passage.id, passage.title, passage.text) for passage in WORLD.passages]
    asked = [[(q.task_id, q.text, q.answers, q.context) for q in WORLD.questions[part]] for part in SPLITS]
    assert hashlib.sha256(repr((passages, asked)).encode()).hexdigest()[:16] == "90110a8c5980d4ba"


@pytest.mark.parametrize("people", [16, 33, 880])
def test_sizes(people):
    world = generate(2, people)
    for part in SPLITS:
        questions = world.questions[part]
        kinds = [question.data_set for question in questions]
        assert kinds == ["one_hop", "two_hop"] * (len(questions) // 2)  # any prefix has both
    named = [passage.title for passage in world.passages]
    assert len(set(named)) == len(named) and [passage.id for passage in world.passages] == [
        *map(str, range(len(named)))
    ]
    for passage in world.passages:
        assert passage.title in passage.text and not re.search(r"\d|[{}]", passage.text)  # no gap left open
    assert len(world.questions["train"]) > 3 * len(world.questions["test"]) > 60


def test_splits_share_words_but_no_fact():
    things = {part: titles(WORLD.questions[part]) for part in SPLITS}
    for one, other in (("train", "valid"), ("train", "test"), ("valid", "test")):
        # A fact belongs to the thing whose passage tells it: no passage is needed for questions of two splits.
        assert not things[one] & things[other]
        assert not {q.text for q in WORLD.questions[one]} & {q.text for q in WORLD.questions[other]}
    parts = {part: {word for name in things[part] for word in name.split()} for part in SPLITS}
    assert len(parts["test"] - parts["train"]) <= 2  # next to nothing to read that was never read before


def test_the_golden_passages_hold_the_answer_and_the_question_does_not():
    for part in SPLITS:
        for question in WORLD.questions[part]:
            (answer,) = question.answers
            assert answer in question.context[-1] and answer not in question.text
            assert len(question.context) == {"one_hop": 1, "two_hop": 2}[question.data_set]
            first = question.context[0].partition("\n")[0]
            assert first in question.text
            if question.data_set == "two_hop":
                bridge = question.context[1].partition("\n")[0]
                assert bridge in question.context[0] and bridge not in question.text


def test_written_worlds_are_read_back_as_they_were(tmp_path):
    world = generate(4, 20)
    paths = write_world(world, tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["corpus.jsonl", "train.jsonl", "valid.jsonl", "test.jsonl"]
    record = json.loads(paths[0].read_text().splitlines()[0])
    assert record == {"id": "0", "contents": f'"{world.passages[0].title}"\n{world.passages[0].text}'}
    assert {**load_questions(tmp_path / "new" / "folder")} == {**world.questions}
    env = SearchQAEnv(split="valid", data_dir=tmp_path / "new" / "folder")
    task = random.Random(0).choice(env.task_split.task_ids)
    env.reset(options={"task_id": task})
    plan = env.walkthrough()
    results = [env.step(command) for command in plan]
    assert results[-1][1] == 1.0
    assert env.archive.search(world.passages[3].title, 1)[0].passage == world.passages[3]

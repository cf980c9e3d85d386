"""The generated world: reproducible, closed, disjoint, and of no use to somebody who does not search."""

import hashlib
import json
import random

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


def test_splits_share_words_but_no_fact():
    things = {part: titles(WORLD.questions[part]) for part in SPLITS}
    for one, other in (("train", "valid"), ("train", "test"), ("valid", "test")):
        # A fact belongs to the thing whose passage tells it: no passage is needed for questions of two splits.
        assert not things[one] & things[other]
        assert not {q.text for q in WORLD.questions[one]} & {q.text for q in WORLD.questions[other]}
    parts = {part: {word for name in things[part] for word in name.split()} for part in SPLITS}
    assert len(parts["test"] - parts["train"]) <= 2  # next to nothing to read that was never read before


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

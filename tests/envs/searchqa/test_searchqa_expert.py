"""The researcher: it sees question and passages alone, and finds what there is to find."""

from collections import Counter

import numpy as np
import pytest

from roleagent.env_card import make_expert
from roleagent.envs.searchqa.data.world import generate
from roleagent.envs.searchqa.env import SearchQAEnv, present
from roleagent.envs.searchqa.expert import GIVEN_UP, ResearchExpert, understand
from roleagent.types import Expert


def answer(env, expert, task_id, meddle=None):
    """One episode; ``meddle`` may replace the first command."""
    text, info = env.reset(options={"task_id": task_id})
    expert.reset(info["goal"], text)
    over, commands = False, []
    while not over:
        command = expert.act()
        if meddle and not commands:
            command = meddle
        text, _, terminated, truncated, info = env.step(command)
        expert.observe(command, text)
        commands.append(command)
        over = terminated or truncated
    return info, commands


@pytest.mark.parametrize(("split", "seed"), [("train", 0), ("valid", 0), ("test", 1)])
def test_it_answers_nearly_everything_in_three_steps(split, seed):
    env = SearchQAEnv(split=split, data_dir="generated", seed=seed)
    expert = make_expert(env, np.random.default_rng(0))
    assert isinstance(expert, Expert)
    won, lengths = Counter(), Counter()
    for task_id in env.task_split.task_ids[:300]:
        info, commands = answer(env, expert, task_id)
        won[info["task_type"]] += info["won"]
        lengths[info["task_type"], len(commands)] += 1
    assert won["one_hop"] >= 0.97 * 150 and won["two_hop"] >= 0.97 * 150
    assert lengths["one_hop", 2] >= 140 and lengths["two_hop", 3] >= 140


@pytest.mark.parametrize("meddle", ["search[Old Wex]", "nonsense"])
def test_it_recovers_from_other_commands(meddle):
    env = SearchQAEnv(split="valid", data_dir="generated")
    won = [answer(env, make_expert(env, None), task_id, meddle)[0]["won"] for task_id in env.task_split.task_ids[:60]]
    assert sum(won) >= 57


def test_it_understands_every_wording():
    for question in generate(0).questions["train"]:
        request = understand(question.text)
        assert request is not None and request.name == question.context[0].partition("\n")[0]
        assert len(request.relations) == len(question.context)


@pytest.mark.parametrize(
    "question", ["", "who sang it?", "Who taught ?", "Who taught Mara Quill?", "x" * 100_000, "{s} {o} [ ( \\"]
)
def test_it_gives_up_on_other_questions(question):
    expert = ResearchExpert()
    expert.reset(question, question)
    commands = []
    for _ in range(4):
        commands.append(expert.act())
        expert.observe(commands[-1], present([]))
    assert commands[-1] == GIVEN_UP
    assert len(set(commands)) <= 3
    assert question != "Who taught Mara Quill?" or commands[:2] == ["search[Mara Quill]", "search[Mara Quill teacher]"]


def test_it_answers_from_the_passages_alone():
    """In a world whose passages say otherwise, it answers otherwise."""
    expert = ResearchExpert()
    question = next(q for q in generate(0).questions["test"] if q.data_set == "one_hop" and "mayor" in q.text)
    name = question.context[0].partition("\n")[0]
    expert.reset(question.text, "")
    assert expert.act() == f"search[{name}]"
    shown = f'<information>Doc 1(Title: "{name}") {name} lies on the Esk. It is led by Nobody Atall.</information>'
    expert.observe(f"search[{name}]", shown)
    assert expert.act() == "answer[Nobody Atall]"
    expert.reset(question.text, "")
    assert expert.act() == f"search[{name}]"  # all is forgotten

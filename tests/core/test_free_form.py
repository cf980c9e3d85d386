"""Tasks in a writer's own words: what is checked, what is run, and what no line can do."""

import itertools
import json
import random

import gymnasium
import numpy as np
import pytest

from roleagent.agents.task_simulator import simulator_prompt
from roleagent.cli import main as roleagent
from roleagent.curricula.simulators import BaseSimulator
from roleagent.curricula.task_writer import TaskWriter
from roleagent.envs.searchqa.data.world import generate, write_world
from roleagent.learners.genenv.training import quality
from roleagent.tasks.grammar import REFUSALS, Refused, TaskSpec, grammar_of
from roleagent.tasks.simulator import Situation


def calculated(expression, answer, **more):
    calls = [{"name": "calculate", "arguments": {"expression": expression}}]
    return {"prompt": f"What is {expression}?", "answer": answer, "judge": "number", "calls": calls, **more}


TOOLS = [
    (calculated("3 * 500", 1500), ""),
    (calculated("3 * 500", "1,500"), ""),
    (calculated("3 * 500", 1501), "unsolvable"),  # the judge would accept it: it is in no result
    (calculated("3 / 0", 0), "unsolvable"),
    (calculated("3 * 500", 1500, prompt="What is 3 * 500? It is 1500."), "trivial"),
    (calculated("7 + 8", [{"calculate": {"expression": ["7+8"]}}], judge="calls"), ""),
    (calculated("7 + 8", [{"calculate": {"expression": ["7-8"]}}], judge="calls"), "unsolvable"),
    (calculated("7 + 8", [], judge="calls"), "unsolvable"),
    (calculated("7 + 8", 15, judge="nobody"), "vocabulary"),
    (calculated("7 + 8", "many"), "vocabulary"),
    (calculated("7 + 8", 15, calls=[]), "vocabulary"),
    (calculated("7 + 8", 15, calls=[{"name": "calculate", "arguments": {"x": 1}}]), "vocabulary"),
    (calculated("7 + 8", 15, calls=[{"name": "os.remove", "arguments": {}}]), "vocabulary"),
    (calculated("7 + 8", 15, note="new"), "vocabulary"),
    ({"prompt": "What is 1 + 1?", "answer": 2}, "syntax"),
]


@pytest.fixture(scope="module")
def tools():
    return grammar_of(gymnasium.make("RoleAgent/ToolEnv-v0", generated_tasks=True))


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world") / "data"
    write_world(generate(4, 20), folder)
    return grammar_of(gymnasium.make("RoleAgent/SearchQA-v0", data_dir=folder, generated_tasks=True))


def reason_of(grammar, line):
    rng = np.random.default_rng(0)
    try:
        return grammar.check(grammar.complete(grammar.read(line)[0], rng)).reason
    except Refused as refused:
        return refused.reason


@pytest.mark.parametrize(("row", "reason"), TOOLS)
def test_gold_calls_are_run_and_must_lead_to_the_answer(tools, row, reason):
    assert reason_of(tools, json.dumps(row)) == reason


def test_no_task_of_an_evaluation_split_is_written_again(tools):
    held_out = next(tools.env.held_out_tasks())
    own = {"answer": held_out.answer, "calls": list(held_out.calls), "judge": held_out.judge}
    assert reason_of(tools, json.dumps({"prompt": "In other words", **own})) == "held_out"
    assert reason_of(tools, json.dumps(calculated("7 + 8", 15, prompt=held_out.prompt.upper()))) == "held_out"


def test_searches_are_made_and_must_show_the_answer(questions):
    row = questions.row(questions.base(np.random.default_rng(0)))
    [answer, *_] = row["answer"]
    held_out = questions.env.archive.questions["valid"][0].text
    for changes, reason in (
        ({"question": f"Please say: {row['question']}", "answer": answer}, ""),
        ({"answer": "Nowhere in particular"}, "unsolvable"),
        ({"searches": ["xyzzy"]}, "unsolvable"),
        ({"question": f"{row['question']} Not {answer}?"}, "trivial"),
        ({"searches": ["one", "two", "three", "four"]}, "too_long"),
        ({"question": held_out.upper()}, "held_out"),
        ({"searches": "one"}, "vocabulary"),
        ({"answer": 7}, "vocabulary"),
        ({"year": 1999}, "vocabulary"),
    ):
        assert reason_of(questions, json.dumps({**row, **changes})) == reason, changes


@pytest.mark.parametrize("name", ["tools", "questions"])
def test_every_listed_task_can_be_written_and_no_line_raises(name, request):
    grammar, rng, reasons = request.getfixturevalue(name), random.Random(0), set()
    lines = [grammar.write(grammar.base(np.random.default_rng(seed))) for seed in range(40)]
    assert {reason_of(grammar, line) for line in lines} == {""}
    odd = [
        "",
        "{}",
        "[]",
        "null",
        "NaN",
        '{"prompt": NaN}',
        "{" * 1500,
        '"\\ud800"',
        "x" * 10**6,
        None,
        7,
        "\x00",
        "{'a': 1}",
    ]
    for _ in range(300):
        text, place = rng.choice(lines), rng.randrange(60)
        odd.append(text[:place] + rng.choice('",:{}[]\\x7é\u202e') + text[place + rng.randrange(3) :])
    for line in odd:
        reasons.add(reason := reason_of(grammar, line))
        assert reason in ("", *REFUSALS)
    assert {"syntax", "vocabulary"} <= reasons


class Lines:
    """Writes given lines in turn."""

    def __init__(self, grammar, lines):
        self.grammar, self.lines = grammar, itertools.cycle(lines)

    def propose(self, situations, n, rng):
        return [[next(self.lines) for _ in range(n)] for _ in situations]


def test_new_tasks_are_good_and_copies_of_listed_ones_are_none(tools):
    """Whole lines were compared once: a writer of copies alone was good."""
    new = [json.dumps(calculated(f"{number} + 8", number + 8)) for number in range(100, 400)]
    found = quality(Lines(tools, new), np.random.default_rng(0), np.random.default_rng(1))
    assert found.good and found.distance == 0.0
    copies = [tools.write(tools.base(np.random.default_rng(seed))) for seed in range(3)]
    writer = TaskWriter(tools, Lines(tools, copies), attempts=1)
    assert writer.write([Situation({})], [3], [False], 1, np.random.default_rng(0)) == []
    assert writer.counters["refused_duplicate"] == 3
    row = json.loads(copies[0])
    for same in (row | {"state": {}}, row | {"tools": None}, row | {"prompt": f" {row['prompt'].upper()}\n"}):
        assert reason_of(tools, json.dumps(same)) in ("", "trivial") and tools.is_listed(
            TaskSpec(tools.read(json.dumps(same))[0])
        )
    assert len(
        TaskWriter(tools, BaseSimulator(tools)).write([Situation({})], [3], [False], 1, np.random.default_rng(0))
    )


def test_a_line_is_no_deeper_than_what_copies_and_has_no_infinite_number(tools):
    deep = json.dumps(calculated("7 + 8", [{"calculate": {"expression": ["X"]}}], judge="calls"))
    assert reason_of(tools, deep.replace('"X"', "[" * 900 + "]" * 900)) == "syntax"
    assert reason_of(tools, json.dumps(calculated("7 + 8", 15)).replace("15", "1e999")) == "syntax"


def test_a_writer_reads_what_the_tools_are_and_how_a_task_is_written(tools):
    prompt = simulator_prompt(tools, Situation({"1 call": (3, 8)}), 2)
    for text in ('"name": "convert"', "- calls: ", "run before the agent plays", "1 call: 3 of 8"):
        assert text in prompt
    example = next(line for line in prompt.splitlines() if line.startswith('{"answer"'))
    assert reason_of(tools, example) == ""


def test_the_command_line_checks_a_task_and_reads_what_it_proposes(capsys):
    assert roleagent(["tasks", "check", "ToolEnv", json.dumps(calculated("3 * 500", 1500))]) == 0
    assert "plan of 2" in capsys.readouterr().out
    assert roleagent(["tasks", "check", "ToolEnv", json.dumps(calculated("3 * 500", 1501))]) == 1
    assert "refused (unsolvable)" in capsys.readouterr().out
    assert roleagent(["tasks", "propose", "ToolEnv", "--count", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert roleagent(["tasks", "check", "ToolEnv", *lines]) == 0 and len(lines) == 3

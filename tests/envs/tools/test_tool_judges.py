"""Judges: exact match is exact, an outcome is counted once, and calls are compared by BFCL's rules."""

import pytest

from roleagent.envs.tools import Call, ToolEnv, tool
from roleagent.envs.tools.calls.command import answer_command, call_command
from roleagent.envs.tools.judges import JUDGES, Episode
from roleagent.envs.tools.tasks import ToolTask, open_tasks


def judged(name, gold, answer=None, calls=(), state=None):
    return JUDGES[name](ToolTask("a", "?", answer=gold), Episode(answer, tuple(calls), state))


@pytest.mark.parametrize(
    ("name", "gold", "answer", "task"),
    [
        ("exact_match", ["Paris", "City of Paris"], "the city of paris!", 1),
        ("exact_match", "Paris", "Rome, Oslo, Paris, Bonn", 0),  # the published measure called this an exact match
        ("exact_match", "Paris", None, 0),
        ("exact_match", 7, "7", 1),
        ("exact_match", 1.5, "15", 0),  # without punctuation they are one text
        ("exact_match", -5, "5", 0),
        ("exact_match", "12:30", "1230", 0),
        ("exact_match", "1,200 km", "1200 km.", 1),
        ("f1", 1.5, "15", 0),
        ("sub_em", 5, "150", 0),
        ("sub_em", "12:30", "At 12:30 noon", 1),
        ("number", 3, "3\u00b2", 0),
        ("number", 3, "3 m\u00b2", 1),
        ("f1", "the red house", "red house by the sea", 2 * 2 / 6),
        ("sub_em", "Paris", "in Paris", 1),
        ("number", 1200, "1,200.0 km", 1),
        ("number", "3.5", "3.50", 1),
        ("number", 5, "5 or 6", 0),
        ("number", 5, "version5", 0),
        ("number", 2, "-2", 0),
        ("number", -5, "\u22125", 1),  # the sign for minus, which models write
        ("number", 0.5, ".5", 1),
        ("number", 42195, "42195m", 1),
        ("number", 3, "3D4", 0),
        ("number", 1e-7, "0", 0),
    ],
)
def test_answers(name, gold, answer, task):
    assert judged(name, gold, answer) == pytest.approx(task)


def test_conditions_on_the_state():
    state = {"rooms": {"hall": [{"hour": 9}]}, "n": 1}
    assert judged("state", {"rooms.hall.0.hour": 9, "n": 1}, state=state) == 1
    for wrong in ({"rooms.hall.1.hour": 9}, {"rooms.hall": []}, {"n": 1, "m": None}, {}, {"n": True}):
        assert judged("state", wrong, state=state) == 0
    assert judged("state", {"files.a.txt": "x"}, state={"files": {"a": {}, "a.txt": "x"}}) == 1


ADD = {"add": {"a": [1, 2.5], "text": ["New York", ""], "on": [True, ""], "at": [{"x": [1], "y": [2, ""]}, ""]}}


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ({"a": 1}, True),
        ({"a": 1.0, "text": "new-york."}, True),
        ({"a": "1"}, False),
        ({"a": True}, False),
        ({"a": 1, "on": 1}, False),
        ({"a": 1, "on": True, "at": {"x": 1}}, True),
        ({"a": 1, "at": {"x": 2}}, False),
        ({"a": 1, "z": 0}, False),
        ({"text": "New York"}, False),
    ],
)
def test_arguments_of_calls(arguments, right):
    assert judged("calls", [ADD], calls=[Call("add", arguments)]) == right


def test_calls_may_have_any_order_and_none_may_be_right():
    gold = [{"f": {"a": [1]}}, {"f": {"a": [2]}}]
    one, two = Call("f", {"a": 1}), Call("f", {"a": 2})
    assert judged("calls", gold, calls=[two, one]) == 1
    assert judged("calls", gold, calls=[one, one]) == judged("calls", gold, calls=[one]) == 0
    assert judged("calls", [], answer="I cannot") == 1 and judged("calls", [], calls=[one]) == 0


def test_a_refused_call_earns_nothing_and_may_be_corrected():

    @tool
    def add(a: int) -> int:
        """Adds."""
        return a

    gold = [{"add": {"a": [1]}}, {"add": {"a": [2]}}]
    one, two, wrong = Call("add", {"a": 1}), Call("add", {"a": 2}), Call("add", {"a": "1"})
    for steps, reward in [([[one, two]], 0.0), ([[one, two], [two]], 1.0), ([[wrong], [one], [two]], 1.0)]:
        env = ToolEnv([add], [{"id": 1, "prompt": "Go.", "answer": gold}], "calls", "all", max_steps=9)
        env.reset()
        for calls in steps:
            env.step(call_command(calls))
        assert env.step(answer_command("done"))[1] == reward


def test_an_outcome_is_counted_once_and_a_function_may_judge():
    """v0.1.0 scored every turn without a tool reward by the outcome function, and summed."""

    @tool
    def look() -> str:
        """Looks."""
        return "gold"

    seen = []

    def mine(task, episode):
        seen.append((task.answer, episode.answer, len(episode.calls), episode.malformed, episode.steps))
        return {"task": 0.5, "style": 1}

    env = ToolEnv([look], [{"id": 1, "prompt": "Go.", "answer": "gold"}], mine, "all", max_steps=9)
    env.reset()
    rewards = [env.step(command) for command in (call_command([Call("look", {})]), "gold", answer_command("gold"))]
    assert [step[4]["rewards"].get("task") for step in rewards] == [0.0, 0.0, 0.5]
    assert seen == [("gold", "gold", 1, 1, 3)] and rewards[-1][4]["rewards"]["style"] == 1.0


def test_splits_are_by_hash_or_by_file(tmp_path):
    rows = [{"id": number, "prompt": "?"} for number in range(50)]
    tasks = open_tasks(rows, "E")
    sizes = [len(tasks.task_split(split)) for split in ("train", "valid", "test", "all")]
    assert sizes == [40, 5, 5, 50] and open_tasks(rows[::-1], "E").task_split("valid").task_ids != ()
    assert set(open_tasks(rows[::-1], "E").task_split("test").task_ids) == set(tasks.task_split("test").task_ids)
    for name in ("train", "valid"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"id": "{name}", "prompt": "?"}}\n', encoding="utf-8")
    tasks = open_tasks(tmp_path, "E")
    assert tasks.task_split("valid").task_ids == ("valid",) and len(tasks.task_split("all")) == 2
    (tmp_path / "valid.jsonl").write_text('{"id": 1, "prompt": "?"}\n{"id": 2,}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"valid.jsonl, line 2: no JSON"):
        open_tasks(tmp_path / "valid.jsonl", "E")

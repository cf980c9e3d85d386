"""BFCL and API-Bank: published answers are right, and any change of them is wrong."""

import copy
import pickle
import random

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from shared_data import shared_data

from roleagent.agents.evaluation.records import measures
from roleagent.envs.bfcl.check import problem_of
from roleagent.envs.bfcl.env import CATEGORIES
from roleagent.envs.tools.calls.command import answer_command, call_command, error_command, read_command
from roleagent.tools import Call

BFCL, APIBANK = "RoleAgent/BFCL-v0", "RoleAgent/APIBank-v0"
FOLDERS = {BFCL: "bfcl", APIBANK: "api_bank"}
each_benchmark = pytest.mark.parametrize("env_id", FOLDERS)


def data_of(env_id):
    return shared_data(FOLDERS[env_id], "published data")


def make(env_id, **options):
    return gymnasium.make(env_id, disable_env_checker=True, data_dir=data_of(env_id), **options)


def changed(calls, rng):
    """A change of calls that no check may accept."""
    calls = copy.deepcopy(list(calls))
    kind = rng.choice(("none", "twice", "name", "strange", "value"))
    if kind == "none":
        return calls[1:]
    if kind == "twice":
        return [*calls, calls[0]]
    if kind == "name":
        return [Call("nothing", calls[0].arguments), *calls[1:]]
    place = next((n for n, call in enumerate(calls) if call.arguments), None)
    if kind == "strange" or place is None:
        return [Call(calls[0].name, {**calls[0].arguments, "no_such_argument": 1}), *calls[1:]]
    arguments = dict(calls[place].arguments)
    arguments[rng.choice(list(arguments))] = rng.choice(["zq zq zq", 987654321, ["zq"], {"zq": 1}])
    return [*calls[:place], Call(calls[place].name, arguments), *calls[place + 1 :]]


@each_benchmark
def test_published_answers_are_right_and_changes_are_wrong(env_id):
    env, rng = make(env_id), random.Random(1)
    for task_id in env.unwrapped.task_split.task_ids:
        env.reset(options={"task_id": task_id})
        [command] = env.unwrapped.walkthrough()
        _, reward, terminated, _, info = env.step(command)
        assert (reward, terminated, info["won"], info["problem"]) == (1.0, True, True, ""), task_id
        if "relevance" in info["task_type"]:
            continue
        env.reset(options={"task_id": task_id})
        wrong = call_command(changed(env.unwrapped._task.gold, rng) or [Call("nothing", {})])
        assert env.step(wrong)[1] == 0.0, (task_id, wrong)


def test_the_published_numbers():
    env = make(BFCL).unwrapped
    assert env.mapped.items() >= {"dict": 9464, "float": 1690, "any": 199, "tuple": 66}.items()
    splits = {name: len(split) for name, split in env.tasks.splits.items()}
    assert splits["all"] == 3641 - len(env.left_out) and set(splits) == {"all", *CATEGORIES}
    assert len(env.left_out) == 4 and splits["live_irrelevance"] == 884 and splits["simple_python"] == 400
    assert len(make(APIBANK).unwrapped.task_split) == 508


def test_no_call_is_right_where_no_function_suits():
    env = make(BFCL, split="irrelevance")
    env.reset(seed=1)
    assert env.step(answer_command("No function suits."))[1] == 1.0
    _, info = env.reset(seed=1)
    name = info["tools"][0]["function"]["name"]
    assert env.step(call_command([Call(name, {})]))[1] == 0.0
    env = make(BFCL, split="live_relevance")
    env.reset(seed=1)
    assert env.step(answer_command("No function suits."))[1] == 0.0


@pytest.mark.parametrize(
    ("command", "irrelevance", "relevance", "malformed"),
    [
        (answer_command("No function suits."), 1.0, 0.0, 0.0),
        (call_command([Call("f", {})]), 0.0, 1.0, 0.0),
        (call_command(["malformed call: no JSON"]), 1.0, 0.0, 1.0),
        (error_command("The reply is malformed: no call."), 1.0, 0.0, 1.0),
        ("neither", 1.0, 0.0, 1.0),
        (call_command([Call("f", {}), "malformed call: no JSON"]), 0.0, 1.0, 1.0),
    ],
)
def test_a_malformed_call_is_no_call_and_is_reported(command, irrelevance, relevance, malformed):
    """The publisher's rule, and beside it the share that an evaluation shows."""
    for split, wanted in (
        ("irrelevance", irrelevance),
        ("live_irrelevance", irrelevance),
        ("live_relevance", relevance),
    ):
        env = make(BFCL, split=split)
        env.reset(seed=1)
        info = env.step(command)[4]
        assert (info["rewards"]["task"], info["counters"]["malformed"]) == (wanted, malformed), split
        assert measures(info) == {"malformed": malformed} and info["valid_action"] is not bool(malformed)


@pytest.mark.filterwarnings("ignore:.*different from the unwrapped")
@each_benchmark
def test_the_contract(env_id):
    check_env(make(env_id).unwrapped, skip_render_check=True)
    env = make(env_id).unwrapped
    env.reset(seed=3)
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        [command] = other.walkthrough()
        assert read_command(command).error is None and other.step(command)[1] == 1.0
    assert env.step(command)[1] == 1.0  # their steps were none of its own
    with pytest.raises(gymnasium.error.ResetNeeded):
        other.step(command)


def described(kind, required=("x",), **more):
    properties = {"x": {"type": kind, **more}}
    return [{"name": "a.f", "parameters": {"type": "dict", "properties": properties, "required": list(required)}}]


@pytest.mark.parametrize(
    ("kind", "more", "accepted", "right", "wrong"),
    [
        ("integer", {}, [5], [5], [5.0, "5 ", True, 6, None]),
        ("float", {}, [5.0], [5, 5.0], ["five", 6, 10**400]),
        ("string", {}, ["April 1, 2024"], ["april 1 2024", "April 1,2024"], ["April 2", 1]),
        ("boolean", {}, [True], [True], [1, "yes", False]),
        ("array", {"items": {"type": "integer"}}, [[1, 2]], [[1, 2]], [[2, 1], [1, "2"], [1], 1]),
        ("array", {"items": {"type": "dict"}}, [[{"k": [1, 2]}]], [[{"k": 2}]], [[{"k": 3}], [{}], [{"k": 1, "j": 1}]]),
        ("dict", {}, [{"k": ["A b"], "j": [1, ""]}], [{"k": "a-b"}, {"k": "ab", "j": 1}], [{"k": "c"}, {"j": 1}]),
        ("integer", {}, ["width"], ["width"], [5]),  # the name of a variable
        ("long", {}, [5], ["5L", 5], ["5LL", 6, "5.7", "5" * 5000]),
        ("long", {}, [2**53 + 1], ["9007199254740993L"], ["9007199254740992L"]),
        ("double", {}, [0.001], ["1e-3", "0.001"], ["1e-2"]),
        ("Array", {"items": {"type": "String"}}, [["a", "b"]], ['new String[]{"a", "b"}', ["a", "b"]], ['{"a"}']),
        ("HashMap", {}, [{"k": ["v"]}], [{"k": "v"}, 'new HashMap<>() {{ put("k", "v"); }}'], ["{}", 1]),
    ],
)
def test_bfcls_types_and_values(kind, more, accepted, right, wrong):
    def problem(value):
        call, source = Call("a_f", {"x": value}), kind in ("long", "double", "Array", "HashMap")
        return problem_of([call], described(kind, **more), [{"a.f": {"x": accepted}}], source)

    assert [problem(value) for value in right] == [None] * len(right)
    assert all(problem(value) for value in wrong)


@each_benchmark
def test_missing_and_broken_data_are_one_line(env_id, tmp_path):
    for options in ({}, {"data_dir": tmp_path}):
        with pytest.raises(FileNotFoundError, match=r"Apache-2\.0"):
            gymnasium.make(env_id, **options)
    (tmp_path / "bfcl_v4_tasks.tar.xz").write_bytes(b"no archive")
    (tmp_path / "api_bank.tar.xz").write_bytes(b"no archive")
    with pytest.raises(FileNotFoundError, match="no archive that can be read"):
        gymnasium.make(env_id, data_dir=tmp_path)
    with pytest.raises(ValueError, match="unknown split"):
        make(env_id, split="train")

"""``RoleAgent/ScienceWorld-v0``: splits, episodes, copies, Java machines. What needs Java runs in .ci/scienceworld."""

import copy
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import pytest
from gymnasium.error import DependencyNotInstalled
from hostile import HUGE, NOT_TEXT, ODD

import roleagent  # noqa: F401  (registers the environments)
from roleagent.envs.scienceworld import java
from roleagent.envs.scienceworld.env import UNKNOWN, ScienceWorldEnv
from roleagent.envs.scienceworld.tasks import SPLITS, TASKS, task_split, variations
from roleagent.task_split import assert_disjoint

ANIMAL = "find-animal/299"


@pytest.fixture(scope="module")
def make():
    """Makes environments, where there are the package and Java; ROLEAGENT_SCIENCEWORLD=required makes that a must."""
    try:
        java.require_scienceworld()
    except DependencyNotInstalled as error:
        if os.environ.get("ROLEAGENT_SCIENCEWORLD") == "required":
            raise
        pytest.skip(str(error))
    yield lambda **options: gymnasium.make("RoleAgent/ScienceWorld-v0", disable_env_checker=True, **options)
    java.close_machines()


# --- without Java -----------------------------------------------------------------------------------------------------


def test_the_splits_are_the_official_ones():
    assert [len(task_split(split)) for split in SPLITS] == [3592, 1796, 1819, 200]
    assert_disjoint([task_split(split) for split in SPLITS[:3]])
    assert {task_id.partition("/")[0] for task_id in task_split("dev").task_ids[:30]} == {task.name for task in TASKS}
    one = task_split("test", ("1-1",), 3)
    assert one.task_ids == ("boil/21", "boil/22", "boil/23")


def test_the_splits_are_those_of_the_recorded_table():
    shared = Path(os.environ.get("ROLEAGENT_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    path = shared / "data" / "scienceworld" / "tasks_and_test_ids.json"
    if not path.exists():
        pytest.skip(f"no table of tasks: {path} is missing (set ROLEAGENT_SHARED)")
    table = json.loads(path.read_text())
    rows = [
        (row["id"], row["name"], row["variations"], row["train"], row["dev"], row["test"]) for row in table["tasks"]
    ]
    assert rows == [(*task, *(len(variations(task, split)) for split in SPLITS[:3])) for task in TASKS]
    names = {task.number: task.name for task in TASKS}
    published = {f"{names[row['task']]}/{row['variation']}" for row in table["published_test"]}
    assert published == set(task_split("agentgym_test").task_ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "valid"}, "unknown split 'valid'.*train, dev, test, agentgym_test"),
        ({"tasks": ("1-1", "11-1")}, "unknown tasks 11-1"),
        ({"simplifications": "easy,openWindows"}, "unknown simplification 'openWindows'"),
        ({"simplifications": "noElectricalAction"}, "not possible with electrical tasks"),
        ({"max_steps": 0}, "at least 1"),
        ({"variations": 0}, "at least 1"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        ScienceWorldEnv(**options)


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    with pytest.raises(DependencyNotInstalled, match=r"pip install 'roleagent\[scienceworld\]'"):
        ScienceWorldEnv()
    monkeypatch.setattr(java, "find_spec", lambda name: name)
    monkeypatch.setattr(java, "find_java", lambda: None)
    with pytest.raises(DependencyNotInstalled, match="needs Java 8"):
        ScienceWorldEnv()


# --- episodes ---------------------------------------------------------------------------------------------------------


def test_the_gold_path_wins(make):
    env = make(split="test")
    text, info = env.reset(options={"task_id": ANIMAL})
    assert info["goal"] in text and info["goal"].startswith("Your task is to find a(n) animal.")
    assert info["task_type"] == "find-animal" and info["admissible_actions"] == [] and info["score"] == 0
    plan, earned = env.unwrapped.walkthrough(), 0.0
    for place, command in enumerate(plan):
        if place == 3:
            copies = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
        text, reward, terminated, truncated, info = env.step(command)
        earned += reward
        assert info["state"] == text and info["rewards"] == {"task": reward}
        if terminated:
            break
    assert terminated and not truncated and info["won"] and info["score"] == 100 and earned == pytest.approx(1)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("look around")
    for other in copies:  # they play the three commands again, in worlds of their own
        for command in plan[3:]:
            *_, terminated, _, info = other.step(command)
            if terminated:
                break
        assert info["won"]


def test_a_wrong_focus_fails_at_once_and_costs_what_was_earned(make):
    env = make(split="test", max_steps=5)
    env.reset(options={"task_id": "boil/25"})
    _, reward, terminated, truncated, info = env.step("focus on air")
    assert (reward, terminated, truncated, info["won"], info["score"]) == (0, True, False, False, -100)
    env.reset(options={"task_id": "boil/25"})
    for step in range(1, 6):
        text, reward, terminated, truncated, info = env.step("xyzzy")
        assert (text, reward, terminated, truncated, info["valid_action"]) == (UNKNOWN, 0, False, step == 5, False)
    assert info["moves"] == 0  # the simulator's time has not gone on


def test_hostile_commands_are_answered(make):
    env = make(max_steps=10**6)
    env.reset(seed=1)
    for command in (*ODD, *NOT_TEXT, "look " * (HUGE // 5)):
        text, reward, terminated, _, info = env.step(command)
        assert text.encode() and env.observation_space.contains(text) and not terminated and not reward, command
        json.dumps(info, allow_nan=False)
    assert env.step("look around")[-1]["valid_action"]


def test_actions_are_listed_on_demand(make):
    env = make(split="dev", tasks=("4-2",), list_actions=True, simplifications="easy")
    _, info = env.reset(seed=0)
    listed = info["admissible_actions"]
    assert len(listed) > 50 and "look around" in listed and listed == sorted(listed)
    assert env.step("look around")[-1]["valid_action"]


def test_a_simulator_that_has_failed_is_an_error_and_no_lost_episode(make, monkeypatch):
    env = make()
    env.reset(seed=0)

    class Failed:
        step, errorStr = (lambda *_: "java.lang…"), (lambda *_: "java.lang.NullPointerException\n at x")

    monkeypatch.setattr(env.unwrapped._world, "_java", Failed())
    with pytest.raises(RuntimeError, match=r"failed at .look around.: java\.lang\.NullPointerException at x"):
        env.step("look around")


# --- Java machines ----------------------------------------------------------------------------------------------------


def test_sixteen_worlds_share_a_machine_and_are_independent(make, monkeypatch):
    monkeypatch.setattr(java, "WORLDS", 3)
    java.close_machines()
    envs = [make(tasks=("1-1",)) for _ in range(4)]
    for env in envs:
        env.reset(options={"task_id": "boil/0"})
    assert [len(machine.worlds) for machine in java.machines()] == [3, 1]
    envs[0].step("open door to kitchen"), envs[0].step("go to kitchen")
    rooms = [env.step("look around")[0].partition(".")[0] for env in envs]
    assert rooms == ["This room is called the kitchen", *["This room is called the hallway"] * 3]
    envs[0].close()  # its place is free for another one
    assert len(java.machines()[0].worlds) == 2
    make().reset(seed=0)
    pids = [machine.pid for machine in java.machines()]
    assert len(pids) == 2
    java.close_machines()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


PROGRAM = """
import time, gymnasium, roleagent
from roleagent.envs.scienceworld.java import machines
gymnasium.make("RoleAgent/ScienceWorld-v0", disable_env_checker=True).reset(seed=0)
print(machines()[0].pid, flush=True)
time.sleep({seconds})
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
@pytest.mark.parametrize("killed", [False, True])
def test_no_machine_outlives_its_process(make, killed):
    program = PROGRAM.format(seconds=600 if killed else 0)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        if killed:
            process.send_signal(signal.SIGKILL)
        process.wait(60)
    late = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < late:
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()


def reset_here(queue):
    try:
        gymnasium.make("RoleAgent/ScienceWorld-v0", disable_env_checker=True).reset(seed=0)
        queue.put("it played")
    except RuntimeError as error:
        queue.put(str(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_is_told_to_spawn(make):
    make().reset(seed=0)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=reset_here, args=(queue,))
    child.start()
    assert "with multiprocessing's 'spawn'" in queue.get(timeout=60)
    child.join()

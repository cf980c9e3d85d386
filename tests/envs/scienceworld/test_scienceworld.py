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
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled
from gymnasium.utils.env_checker import check_env
from hostile import HUGE, NOT_TEXT, ODD
from programs import load as load_program
from shared_data import shared_data
from small_envs import by_expert

import roleagent  # noqa: F401  (registers the environments)
from roleagent.agents.builders import EnvSplit
from roleagent.config import load
from roleagent.envs import java as java_of_any
from roleagent.envs.failures import play_failures, scripted_modes
from roleagent.envs.registry import make_env
from roleagent.envs.restoring import RecordedStep, Restorer
from roleagent.envs.scienceworld import java
from roleagent.envs.scienceworld.env import UNKNOWN, ScienceWorldEnv
from roleagent.envs.scienceworld.expert import IDLE, ScienceExpert
from roleagent.envs.scienceworld.tasks import SPLITS, TASKS, task_split, variations
from roleagent.envs.scienceworld.text import AMBIGUOUS, LOST
from roleagent.failures.modes import diagnose, taxonomy
from roleagent.learners.agent_r.search import Search
from roleagent.tasks.split import assert_disjoint
from roleagent.types import Completion, Task, Trajectory, Turn

ENV_ID = "RoleAgent/ScienceWorld-v0"
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
    yield lambda **options: gymnasium.make(ENV_ID, disable_env_checker=True, **options)
    java.close_machines()


# --- without Java -----------------------------------------------------------------------------------------------------


def test_the_splits_are_the_official_ones():
    assert [len(task_split(split)) for split in SPLITS] == [3592, 1796, 1819, 200]
    assert_disjoint([task_split(split) for split in SPLITS[:3]])
    assert task_split("test", ("1-1",), 3).task_ids == ("boil/21", "boil/22", "boil/23")


def test_tasks_and_splits_are_those_of_the_recorded_table():
    table = json.loads(shared_data("scienceworld/tasks_and_test_ids.json", "table of tasks").read_text())
    keys = ("id", "name", "variations", *SPLITS[:3])
    rows = [tuple(row[key] for key in keys) for row in table["tasks"]]
    assert rows == [(*task, *(len(variations(task, split)) for split in SPLITS[:3])) for task in TASKS]
    names = {task.number: task.name for task in TASKS}
    published = {f"{names[row['task']]}/{row['variation']}" for row in table["published_test"]}
    assert published == set(task_split("agentgym_test").task_ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "valid"}, "'valid'.*train, dev, test, agentgym_test"),
        ({"tasks": ("1-1", "11-1")}, "11-1"),
        ({"tasks": "1-1,11-1"}, "unknown tasks 11-1"),
        ({"simplifications": "easy,openWindows"}, "'openWindows'"),
        ({"simplifications": "noElectricalAction"}, "electrical tasks"),
        ({"max_steps": 0}, "max_steps"),
        ({"variations": 0}, "variations"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        ScienceWorldEnv(**options)


def test_what_is_missing_is_named(monkeypatch):
    for missing, message in (("find_spec", r"pip install 'roleagent\[scienceworld\]'"), ("find_java", "needs Java 8")):
        with monkeypatch.context() as patch:
            patch.setattr(java_of_any, "find_spec", lambda name: name)
            patch.setattr(java_of_any, missing, lambda *_: None)
            with pytest.raises(DependencyNotInstalled, match=message):
                ScienceWorldEnv()


# Recorded from the simulator.
KITCHEN = """This room is called the kitchen. In it, you see: 
\tthe agent
\ta substance called air
\ta counter. On the counter is: a bowl (containing a red apple, a banana), a drawer.
\ta glass jar (containing a substance called sodium chloride)
\ta oven, which is turned off. The oven door is closed. 
\ta thermometer, currently reading a temperature of 10 degrees celsius
You also see:
\tA door to the bathroom (that is open)
\tA door to the outside (that is closed)"""
HALLWAY = """This room is called the hallway. In it, you see: 
\tthe agent
You also see:
\tA door to the kitchen (that is closed)"""
QUESTION = f"""{AMBIGUOUS}: Please enter the number for the action you intended (or blank to cancel):
0:\topen door to kitchen
"""
LOST_TEXT = f"{LOST}.  Type 'help' for a list of actions, and 'objects' for a list of possible object referents. "


def expert_on(*plan):
    expert = ScienceExpert(lambda: plan)
    expert.reset("", HALLWAY)
    return expert


def test_the_expert_comes_back_to_its_path():
    expert = expert_on("open door to kitchen", "go to kitchen", "activate stove", "move pot to stove")
    played = [
        ("open door to kitchen", "The door is now open.", "go to kitchen"),
        ("go to kitchen", "You move to the kitchen.", "activate stove"),
        ("activate stove", "The stove is now activated.", "move pot to stove"),
        ("deactivate stove", "The stove is now deactivated.", "activate stove"),  # another's command is taken back
        ("go to hallway", "You move to the hallway.", "go to kitchen"),
        ("go to kitchen", "You move to the kitchen.", "activate stove"),
        ("activate stove", "The stove is now activated.", "move pot to stove"),
        ("open drawer", QUESTION, "look around"),  # another's question is left open
        ("look around", LOST_TEXT, "move pot to stove"),
        ("move pot to stove", QUESTION, "0"),
        ("inventory", LOST_TEXT, "move pot to stove"),  # its own question was not answered
        ("move pot to stove", QUESTION, "0"),
        ("0", "You move the pot to the stove.", IDLE),
    ]
    for command, observation, following in played:
        expert.act()
        expert.observe(command, observation)
        assert expert.act() == following, command


def failed(steps, terminated=False):
    said = Completion((), (), "stop")
    turns = tuple(
        Turn((), said, action, text, "", None, {"task": 0.0}, {"format_error": None}) for action, text in steps
    )
    return Trajectory(Task(ENV_ID, "boil/0", "boil water", "boil"), turns, terminated, not terminated, "lost", KITCHEN)


BEGIN = [("open door to kitchen", "The door is now open."), ("go to kitchen", "You move to the kitchen.")]
ROOM = ("look around", KITCHEN)


@pytest.mark.parametrize(
    ("mode", "step", "steps"),
    [
        ("action_format_error", 2, [*BEGIN, ("", UNKNOWN), ("", UNKNOWN)]),
        ("wrong_focus", 3, [*BEGIN, ROOM, ("focus on air", "You focus on the air.")]),
        ("wrong_focus", 3, [*BEGIN, ("focus on door", f"{AMBIGUOUS}\n0:\tfocus on door a"), ("0", "You focus.")]),
        ("unanswered_choice", 2, [*BEGIN, *[("open door", QUESTION), ("look around", LOST_TEXT)] * 3]),
        ("unknown_command", 2, [*BEGIN, *[("take pot", UNKNOWN), ("grab pot", UNKNOWN), ROOM] * 3]),
        ("aimless_looking", 2, [*BEGIN, *[ROOM, ("wait1", "You decide to wait for 1 iterations.")] * 3]),
        ("wrong_place", None, [*BEGIN * 5, ROOM]),
        ("wrong_tool", 3, [*BEGIN, ROOM, *[("use lighter on table", "The table is already on fire.")] * 6]),
    ],
)
def test_each_mode_is_found_in_the_text(mode, step, steps):
    found, finding = diagnose(failed(steps, terminated=mode == "wrong_focus"))
    assert (found, finding.step) == (mode, step) and finding.lesson


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


def test_a_simulator_that_has_failed_is_an_error_and_no_lost_episode(make, monkeypatch):
    env = make()
    env.reset(seed=0)

    class Failed:
        step, errorStr = (lambda *_: "java.lang…"), (lambda *_: "java.lang.NullPointerException\n at x")

    monkeypatch.setattr(env.unwrapped._world, "_java", Failed())
    with pytest.raises(RuntimeError, match=r"failed at .look around.: java\.lang\.NullPointerException at x"):
        env.step("look around")


@pytest.mark.parametrize("task_id", ["use-thermometer/405", "grow-plant/93", "identify-life-stages-2/7"])
def test_the_expert_wins_although_another_chooses_some_of_the_commands(make, task_id):
    rng = np.random.default_rng(0)
    others = ("look around", "go to hallway", "close door to hallway", "open door", "zzz", "activate sink", "task")
    steps = by_expert(make(split="test"), task_id, lambda *_: rng.random() < 0.1 and str(rng.choice(others)))
    assert steps[-1][-1]["won"]


def test_every_mode_has_a_script_that_fails_by_it(make):
    """Measured with 12 episodes per mode: 84 of 84 modes are found, and 90 % of the steps within one."""
    env = make(tasks=("2-1", "4-2", "6-1", "7-1"), variations=4, max_steps=40)
    assert {*scripted_modes(env)} == {*taxonomy(ENV_ID)}
    near = []
    for mode in scripted_modes(env):
        found = play_failures(env, mode, 2, np.random.default_rng([*mode.encode()]))
        assert len(found) == 2
        for mistake in found:
            trajectory = mistake.trajectory
            assert not trajectory.success and trajectory.terminated == (mode == "wrong_focus")
            diagnosed, finding = diagnose(trajectory)
            assert diagnosed == mode, [turn.action for turn in trajectory.turns]
            near.append(mistake.step is None or abs(finding.step - mistake.step) <= 1)
    assert np.mean(near) >= 0.7


def test_the_fine_view_and_a_restored_episode(make):
    view = make_env(ENV_ID, {"split": "test", "view": "fine"})
    view.reset(options={"task_id": ANIMAL})
    infos = [view.step(action)[-1] for action in view.get_wrapper_attr("walkthrough")()]
    assert infos[-1]["won"]
    env = make(split="test", max_steps=30)
    restorer, steps = Restorer(env), []
    assert restorer.save() is None
    env.reset(options={"task_id": ANIMAL})
    for command in env.unwrapped.walkthrough()[:10]:
        text, reward, terminated, truncated, info = env.step(command)
        steps.append(RecordedStep(command, text, reward, terminated or truncated))
    restorer.restore(None, ANIMAL, steps)
    assert env.step("look around")[-1]["score"] == info["score"] and (restorer.replays, restorer.mismatches) == (1, 0)


def test_gymnasium_and_evaluate_py_know_it(make, tmp_path, monkeypatch, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(split="test", tasks=("4-2",), render_mode="ansi").unwrapped, skip_close_check=True)
    monkeypatch.chdir(tmp_path)
    chosen = ["--env", ENV_ID, "--split", "test", "--tasks", "2", "--env-arg", 'tasks=["4-2"]']
    assert load_program("evaluate").main([*chosen, "--agent", "oracle"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["n"], result["success"]) == (2, 1.0)


def test_agent_r_searches_it_by_checked_replay(make):
    class Tourist(load_program("benchmarks/agent_r").RandomCommands):  # needs no torch
        def generate(self, requests, temperature):
            ways = ("open door to kitchen", "go to kitchen", "inventory", "look around")
            said = [(*self.encode(f"<action>{ways[one.slot % 4]}</action>"), self.eos_id) for one in requests]
            return [Completion(ids, (0.0,) * len(ids), "stop") for ids in said]

    options = ["env.train_split=train", 'env.kwargs={"tasks": ["4-2"], "max_steps": 9}', "options.search.simulations=2"]
    config = load(None, [f"env.id={ENV_ID}", "method=agent_r", "options.search.depth=3", *options])
    split = EnvSplit.open(config, "train")
    search = Search.open(split, Tourist(0))
    trees = search.search(split.task_split.task_ids[:2], [np.random.default_rng(n) for n in range(2)])
    search.close()
    assert [tree.error for tree in trees] == ["", ""] and all(len(tree.root.children) == 4 for tree in trees)
    assert search.stats.replays > 20 and search.stats.snapshots == search.stats.mismatches == 0


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

"""Environments of other people: what their infos leave out is filled in, and what nobody can use is refused by name."""

import json
import threading
import time

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Text
from programs import load, status
from tiny import qwen

from roleagent.envs.registry import make_env
from roleagent.tasks.split import TaskSplit

EMPTY: dict = {}


class Count(gymnasium.Env):
    """Two steps of saying the number that it shows; its infos are empty."""

    observation_space = action_space = Text(50)
    task_split = TaskSplit("Count-v0", "train", ("3", "4"))

    def __init__(self, split="train", reward=None, info=EMPTY, observation=None, deaf=False):
        self.reward, self.given, self.shown, self.deaf = reward, info, observation, deaf

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.left = int("4" if self.deaf else self.task_split.requested(options, self.np_random)), 2
        first = {"task_id": str(self.number)} if self.deaf else {}
        return str(self.number), first | self.given if isinstance(self.given, dict) else self.given

    def step(self, action):
        if action == str(self.number):
            self.number, self.left = self.number + 1, self.left - 1
        won = not self.left
        reward = float(won) if self.reward is None else self.reward[won]
        return str(self.number) if self.shown is None else self.shown, reward, won, False, self.given


class Hanging(Count):
    """It never answers in the second task."""

    def step(self, action):
        if self.number == 4 and self.left == 2:
            threading.Event().wait()
        return super().step(action)


class Counter:
    """An agent that says what it sees."""

    def reset(self, observation, info):
        pass

    def act(self, observation, info):
        return observation


@pytest.fixture(autouse=True)
def registered():
    gymnasium.register("Count-v0", entry_point=Count, max_episode_steps=5)
    gymnasium.register("Short-v0", entry_point=Count, max_episode_steps=1)
    yield
    for name in ("Count-v0", "Short-v0"):
        del gymnasium.registry[name]


def played(**arguments):
    env = make_env("Count-v0", arguments)
    env.reset(options={"task_id": "3"})
    return [env.step(command) for command in ("3", "4")]


@pytest.mark.filterwarnings("ignore:.*does not report won")
@pytest.mark.parametrize("reward", [(0, 1), (np.float32(0), np.int64(1)), (-1, 1)])
def test_what_an_info_leaves_out_is_filled_in(reward):
    (_, _, _, _, first), (_, paid, _, _, last) = played(reward=reward)
    assert json.dumps(first) and not first["won"] and first["state"] == "4" and first["task_id"] == "3"
    assert last["won"] and paid == last["rewards"]["task"] == 1.0 and last["admissible_actions"] == []


@pytest.mark.filterwarnings("ignore:.*does not report won")
def test_terms_without_the_task_keep_the_reward_and_what_is_reported_counts():
    assert played(info={"rewards": {"form": 1}})[1][4]["rewards"] == {"task": 1.0, "form": 1.0}
    assert not played(info={"won": False, "state": None})[1][4]["won"]
    assert played(info={"state": None})[1][4]["state"] is None
    given = {"goal": None, "task_type": None, "won": np.bool_(True), "valid_action": np.bool_(False)}
    last = played(info=given | {"admissible_actions": ("3", "4")})[1][4]
    assert (last["goal"], last["task_type"], last["won"], last["valid_action"]) == ("", "", True, False)
    assert type(last["valid_action"]) is bool  # as JSON keeps it


@pytest.mark.parametrize(
    "arguments, what",
    [
        ({"reward": (None, None)}, "the reward None"),
        ({"reward": (np.array([1.0]),) * 2}, r"the reward array"),
        ({"reward": (float("nan"), 1)}, "the reward nan"),
        ({"info": {"rewards": [1.0]}}, r"the terms \[1.0\]"),
        ({"info": {"rewards": {"form": "good"}}}, "the terms"),
        ({"info": {"state": 3}}, r"info\['state'\] of type int: a text or None"),
        ({"info": {"goal": ["eggs"]}}, r"info\['goal'\] of type list: a text"),
        ({"info": {"task_type": 3}}, r"info\['task_type'\] of type int: a text"),
        ({"info": {"task_id": None}}, r"info\['task_id'\] of type NoneType: a text"),
        ({"info": {"split": b"train"}}, r"info\['split'\] of type bytes: a text"),
        ({"info": {"grouping_state": 1.5}}, r"info\['grouping_state'\] of type float: a text or None"),
        ({"info": {"won": "yes"}}, r"info\['won'\] of type str: True or False"),
        ({"info": {"valid_action": None}}, r"info\['valid_action'\] of type NoneType: True or False"),
        ({"info": {"admissible_actions": np.array(["3"])}}, r"info\['admissible_actions'\] of type ndarray: a list of"),
        (
            {"info": {"admissible_actions": [3]}},
            r"info\['admissible_actions'\] of type list with a int in it: a list of",
        ),
        ({"info": {"admissible_actions": "3"}}, r"info\['admissible_actions'\] of type str: a list of texts"),
        ({"info": None}, "an info of type NoneType, not a dictionary"),
        ({"observation": {"text": "3"}}, "an observation of type dict"),
        ({"deaf": True}, "asked for the task '3' and plays '4'"),
    ],
)
def test_what_nobody_can_use_is_refused_by_name(arguments, what):
    with pytest.raises(ValueError, match=f"Count-v0 .*{what}"):
        played(**arguments)


def test_an_info_that_cannot_be_used_is_one_line_of_the_training(tmp_path, monkeypatch, capsys):
    """Before anything is learned, and with the environment and the key."""
    monkeypatch.chdir(tmp_path)
    gymnasium.register("Typed-v0", entry_point=Count, max_episode_steps=5, kwargs={"info": {"task_type": 3}})
    try:
        policy = qwen()
        policy.model.save_pretrained(tmp_path / "model")
        policy.tokenizer.save_pretrained(tmp_path / "model")
        given = ["env.id=Typed-v0", "env.eval_split=train", "policy.path=model", "policy.context=256"]
        code = status(load("train").main, [*given, "warmstart.episodes=0", "method=grpo"])
    finally:
        del gymnasium.registry["Typed-v0"]
    *_, line = capsys.readouterr().err.splitlines()
    assert code == 2 and "Typed-v0 returned info['task_type'] of type int" in line


def evaluated(env_id, agent, *options):
    return status(load("evaluate").main, ["--env", env_id, "--split", "train", "--agent", agent, *options])


@pytest.mark.filterwarnings("ignore:.*does not report won")
def test_a_step_that_hangs_has_no_outcome_and_the_others_are_played(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    gymnasium.register("Hanging-v0", entry_point=Hanging, max_episode_steps=5)
    began = time.monotonic()
    try:
        options = ["--set", "env.step_timeout=0.5"]
        assert evaluated("Hanging-v0", f"{__name__}:Counter", *options) == 0
    finally:
        del gymnasium.registry["Hanging-v0"]
    shown = capsys.readouterr()
    result = json.loads(shown.out.splitlines()[-1])
    assert (result["n"], result["errors"], result["success"]) == (1, 1, 1.0)
    assert "step of Hanging-v0 took more than 0.5 seconds (env.step_timeout)" in shown.out + shown.err
    assert time.monotonic() - began < 60


@pytest.mark.filterwarnings("ignore:.*does not report won")
def test_two_ids_of_one_class_have_their_own_evaluations(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, success in (("Count-v0", 1.0), ("Short-v0", 0.0)):
        assert evaluated(name, f"{__name__}:Counter") == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["success"] == success
    assert evaluated("Short-v0", f"{__name__}:Counter") == 0
    assert "all 2 episodes are there" in capsys.readouterr().out


def test_an_agent_without_commands_to_choose_from_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert evaluated("Count-v0", "random") == 2
    assert "the agent random needs admissible_actions" in capsys.readouterr().err

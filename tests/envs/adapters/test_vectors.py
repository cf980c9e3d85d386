"""Vectors of environments: Gymnasium's both classes, texts in shared memory, a task for each, workers that die."""

import os
import signal

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from roleagent.envs.adapters.vector import make_vector

ENVS = {
    "RoleAgent/Toy-v0": {"max_steps": 2},
    "RoleAgent/ALFWorld-v0": {"max_steps": 2, "size": "tiny", "data_dir": "generated"},
    "RoleAgent/WebShop-v0": {"max_steps": 2, "data_dir": "generated", "num_products": 200},
    "RoleAgent/SearchQA-v0": {"max_steps": 2, "data_dir": "generated"},
    "RoleAgent/TextCraft-v0": {"max_steps": 2, "data_dir": "generated"},
}


def alone(env_id, task_id):
    """The episode that one environment by itself plays: every observation, reward and info."""
    env = gymnasium.make(env_id, **ENVS[env_id])
    steps = [env.reset(options={"task_id": task_id})]
    return [*steps, *(env.step("look ☀ \ud83d") for _ in range(2))]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("env_id", ENVS)
def test_a_vector_plays_what_its_environments_play_alone(env_id, mode):
    """With different tasks, texts of all lengths, characters of all kinds, and the next tasks chosen as well."""
    vector = make_vector(env_id, 2, mode, autoreset=AutoresetMode.DISABLED, **ENVS[env_id])
    first, second, third = vector.task_split.task_ids[:3]
    expected = [alone(env_id, task_id) for task_id in (first, second)]
    found = [vector.reset(options={"task_ids": [first, second]})]
    found += [vector.step(("look ☀ \ud83d",) * 2) for _ in range(2)]
    for number in range(2):
        for got, (observation, *outcome, info) in zip(found, expected[number], strict=True):
            assert got[0][number] == observation
            assert [value[number] for value in got[1:-1]] == outcome
            for key, value in info.items():
                if key == "rewards":
                    assert {term: values[number] for term, values in got[-1][key].items() if term[0] != "_"} == value
                else:
                    assert got[-1][f"_{key}"][number]
                    assert got[-1][key][number] == value
    over = found[-1][3]
    assert over.all()
    observations, infos = vector.reset(options={"task_ids": [third, first], "reset_mask": np.array([True, False])})
    assert observations == (alone(env_id, third)[0][0], expected[1][-1][0])
    assert infos["task_id"][0] == third
    assert infos["_task_id"].tolist() == [True, False]
    vector.close()


@pytest.mark.parametrize("autoreset", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_episodes_that_begin_by_themselves(mode, autoreset):
    vector_kwargs = {"autoreset_mode": autoreset} | ({"context": "spawn"} if mode == "async" else {})
    vector = gymnasium.make_vec("RoleAgent/Toy-v0", 2, mode, vector_kwargs, max_steps=2)
    assert vector.observation_space.contains(vector.reset(seed=0)[0])
    vector.step(("look", "look"))
    last, _, _, truncated, infos = vector.step(("look", "look"))
    assert truncated.all()
    if autoreset is AutoresetMode.SAME_STEP:
        assert [text.startswith("You are in the middle") for text in infos["final_obs"]] == [True, True]
        assert not infos["final_info"]["won"].any()
    else:
        assert all(text.startswith("You are in the middle") for text in last)
        last, rewards, _, truncated, _ = vector.step(("look", "look"))
        assert not truncated.any()
        assert not rewards.any()
    assert all("Your task is to" in text for text in last)
    vector.reset(seed=0)  # in the midst of an episode: the next step is a step
    assert vector.step(("look", "go to sink"))[0][1].startswith("You arrive at sink")
    vector.close()


def test_a_wrong_task_is_an_error_before_the_workers_run():
    vector = make_vector("RoleAgent/Toy-v0", 2)
    with pytest.raises(ValueError, match=r"unknown task id 'boil-egg-tray-1'.*did you mean"):
        vector.reset(options={"task_ids": [None, "boil-egg-tray-1"]})
    with pytest.raises(ValueError, match="for each of 2 environments, not 3"):
        vector.reset(options={"task_ids": [None] * 3})
    with pytest.raises(ValueError, match="for each of 2 environments, not one text"):
        vector.reset(options={"task_ids": "heat-egg-tray-1"})
    with pytest.raises(ValueError, match="chooses no environment"):
        vector.reset(options={"task_ids": [None] * 2, "reset_mask": np.array([False, False])})
    drawn = vector.reset(seed=5, options={"task_ids": [None, None]})[1]["task_id"].tolist()
    assert drawn == vector.reset(seed=5)[1]["task_id"].tolist()
    assert drawn[0] != drawn[1]


class Sleeper(gymnasium.Wrapper):
    def step(self, action):
        if action == "sleep":
            signal.pause()
        return self.env.step(action)


@pytest.mark.parametrize("trouble", ["killed", "silent"])
def test_a_worker_in_trouble_is_named_and_does_not_hold_up_the_end(trouble):
    timeout = 30 if trouble == "killed" else 1
    vector = make_vector("RoleAgent/Toy-v0", 2, "async", wrappers=[Sleeper], timeout=30)
    vector.reset(seed=0)
    vector.timeout = timeout
    if trouble == "killed":
        os.kill(vector.env.processes[1].pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"worker of environment 1 has ended \(exit status -9\)"):
            vector.step(("look", "look"))
    else:
        with pytest.raises(RuntimeError, match="no answer in 1 s from environment 1"):
            vector.step(("look", "sleep"))
    vector.close()
    vector.close()
    assert not any(process.is_alive() for process in vector.env.processes)

"""Uses the base package without the trainer: every environment, the wrappers, the failure library, the rule analyst."""

import importlib.util
from dataclasses import replace

import gymnasium
import numpy as np

import roleagent
from roleagent.curricula import CurriculumSampler, FailureLibrary, RuleAnalyst
from roleagent.env_card import make_expert, registered
from roleagent.envs.wrappers import FailureCurriculum, PredictedState, Tags
from roleagent.types import Completion, Group, Task, Trajectory, Turn

for package in ("torch", "transformers", "deepspeed", "tokenizers", "safetensors", "plotly", "faiss"):
    assert importlib.util.find_spec(package) is None, f"{package} is not part of the base"


def play(env, commands, **reset):
    observation, info = env.reset(**reset)
    task = Task(env.spec.id, info["task_id"], info["split"], info["goal"], info["task_type"])
    first, turns, scored, ended, agent = observation, [], 0, False, commands(env, info, observation)
    while not ended:
        command = agent(observation)
        reply = f'<action>{command}</action><prediction h="1">{observation}</prediction>'
        observation, reward, terminated, truncated, info = env.step(reply)
        scored += sum(not score.absent for score in info["prediction_scores"])
        ended = terminated or truncated
        turn = Turn((), Completion((), (), "stop"), command, observation, info=dict(info))
        turns.append(replace(turn, rewards={"task": float(reward)}))
    assert scored or len(turns) == 1
    return Trajectory(task, tuple(turns), terminated, truncated, "won" if info["won"] else "lost", first)


def oracle(env, info, observation):
    commands = iter(env.unwrapped.walkthrough())
    return lambda observation: next(commands)


def expert(env, info, observation):
    scripted, last = make_expert(env, np.random.default_rng(0)), []
    scripted.reset(info["goal"], observation)

    def act(observation):
        if last:
            scripted.observe(last.pop(), observation)
        last.append(scripted.act())
        return last[0]

    return act


def idle(env, info, observation):
    return lambda observation: "look"


ours = [spec for spec in registered() if spec.env_id.startswith("RoleAgent/") and not spec.extra]
ids = sorted(spec.env_id for spec in ours if spec.failure_modes)
assert len(ids) >= 4
for env_id in ids:
    env = Tags(PredictedState(gymnasium.make(env_id, split="train", max_steps=30)))
    won = play(env, oracle, seed=0)
    assert won.success, f"{env_id}: the oracle lost {won.task.task_id}"
    play(env, expert, seed=0)
    library = FailureLibrary("sqlite://")
    sampler = CurriculumSampler(env.unwrapped.task_split, library, RuleAnalyst(), np.random.default_rng(0))
    lost = [play(FailureCurriculum(env, sampler), idle) for _ in range(2)]
    analyses = sampler.observe([Group(trajectory.task, (trajectory,)) for trajectory in lost])
    assert len(analyses) == len(library) == 2 and library.modes()
    env.close()
    print(env_id, won.task.task_id, library.modes())
print(roleagent.__file__)

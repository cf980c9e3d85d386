"""Rounds of the warm start in which policy and expert take turns."""

from types import SimpleNamespace

import numpy as np
import pytest
from tiny import Script

from roleagent.agents.builders import EnvSplit
from roleagent.config import load as configured
from roleagent.learners.sft.demonstrations import Corrections, segments_from, take_turns

WRONG = "go to desk 7"


@pytest.fixture
def world():
    return EnvSplit.open(configured(None, ["env.id=RoleAgent/Toy-v0", "rollout.eval_batch=7"]), "train")


def test_policy_and_expert_take_turns_and_only_the_experts_commands_are_imitated(world):
    policy = Script(lambda prompt, slot: f"<action>{WRONG}</action>")
    tasks = world.task_split.task_ids[:20]
    played, broken = take_turns(world, policy, tasks, 1.0, np.random.default_rng(0))
    assert [episode.task.task_id for episode in played] == list(tasks) and not broken
    steps = [step for episode in played for step in episode.steps]
    assert {step.command == WRONG for step in steps if not step.imitated} == {True}
    assert 0.4 < np.mean([step.imitated for step in steps]) < 0.6
    assert any(episode.steps[-1].info["won"] for episode in played)  # the expert finds its way back


def test_what_is_learned_is_what_the_policy_read_when_it_played(world):
    policy = Script(lambda prompt, slot: f"<action>{WRONG}</action>")
    rollout = EnvSplit(world.config, world.base, world.task_split, 0).rollout(policy)
    for task_id in world.task_split.task_ids[:5]:
        policy.prompts.clear()
        [episode], _ = take_turns(world, policy, [task_id], 1.0, np.random.default_rng(1))
        [segment] = segments_from(episode, rollout)
        learned = policy.tokenizer.decode(segment.token_ids.tolist(), skip_special_tokens=False)
        assert len(policy.prompts) == len(episode.steps)
        assert all(learned.startswith(prompt) for prompt in policy.prompts)


def test_a_broken_environment_costs_its_episode_alone(world, monkeypatch):
    policy = Script(lambda prompt, slot: f"<action>{WRONG}</action>")
    tasks, step = world.task_split.task_ids[:4], type(world.base.unwrapped).step

    def breaks(self, command):
        if self._task_id == tasks[1]:
            raise RuntimeError("the kitchen burns")
        return step(self, command)

    monkeypatch.setattr(type(world.base.unwrapped), "step", breaks)
    played, [error] = take_turns(world, policy, tasks, 1.0, np.random.default_rng(0))
    assert [episode.task.task_id for episode in played] == [tasks[0], *tasks[2:]] and "the kitchen burns" in error


def test_a_rare_type_is_rare_in_the_rounds_too():
    options = ["env.id=RoleAgent/Toy-v0", "warmstart.shares={cool: 0.1, heat: 0}", "warmstart.round_episodes=400"]
    world = EnvSplit.open(configured(None, options), "train")
    folder = SimpleNamespace(rounds=lambda: [])
    run = SimpleNamespace(folder=folder, ranks=SimpleNamespace(once=lambda act: act()))
    drawn = Corrections(run, world, Script(lambda prompt, slot: ""))._draw(np.random.default_rng(0))
    types = [world.base.reset(options={"task_id": task_id})[1]["task_type"] for task_id in drawn]
    assert len(types) == 400 and "heat" not in types
    assert 0.02 < types.count("cool") / types.count("clean") < 0.25

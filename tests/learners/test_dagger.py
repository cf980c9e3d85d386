"""Rounds of the warm start in which policy and expert take turns."""

import json

import numpy as np
import pytest
from programs import ROOT, load
from tiny import Script

from roleagent.agents.builders import EnvSplit
from roleagent.config import load as configured
from roleagent.learners.sft.dagger import take_turns
from roleagent.learners.sft.tokenization import segments_from

train = load("train")
WRONG = "go to desk 7"
TINY = (
    *("--config", str(ROOT / "configs" / "toy.yaml"), "env.eval_tasks=2", "curriculum.analyst=rule"),
    *("policy.hidden_size=32", "policy.layers=1", "policy.heads=2", "policy.kv_heads=1", "policy.mlp_size=32"),
    *("rollout.num_groups=2", "rollout.group_size=2", "train.iterations=1", "warmstart.epochs=1"),
    *("warmstart.episodes=30", "warmstart.batch_tokens=600", "warmstart.rounds=2", "warmstart.round_episodes=6"),
)


@pytest.fixture
def world():
    return EnvSplit.open(configured(None, ["env.id=RoleAgent/Toy-v0", "rollout.eval_batch=7"]), "train")


def test_policy_and_expert_take_turns_and_only_the_experts_commands_are_imitated(world):
    policy = Script(lambda prompt, slot: f"<action>{WRONG}</action>")
    tasks = world.task_split.task_ids[:20]
    played = take_turns(world, policy, tasks, 1.0, np.random.default_rng(0))
    assert [episode.task.task_id for episode in played] == list(tasks)
    steps = [step for episode in played for step in episode.steps]
    assert {step.command == WRONG for step in steps if not step.imitated} == {True}
    assert 0.4 < np.mean([step.imitated for step in steps]) < 0.6
    assert any(episode.steps[-1].info["won"] for episode in played)  # the expert finds its way back


def test_what_is_learnt_is_what_the_policy_read_when_it_played(world):
    policy = Script(lambda prompt, slot: f"<action>{WRONG}</action>")
    rollout = EnvSplit(world.config, world.base, world.task_split, 0).rollout(policy)
    for task_id in world.task_split.task_ids[:5]:
        policy.prompts.clear()
        [episode] = take_turns(world, policy, [task_id], 1.0, np.random.default_rng(1))
        [segment] = segments_from(episode, rollout)
        learnt = policy.tokenizer.decode(segment.token_ids.tolist(), skip_special_tokens=False)
        assert len(policy.prompts) == len(episode.steps)
        assert all(learnt.startswith(prompt) for prompt in policy.prompts)


@pytest.mark.slow
def test_rounds_are_kept_and_followed_by_updates(tmp_path, capsys):
    assert train.main([*TINY, f"run_dir={tmp_path / 'with'}"]) == 0
    assert "round 2: policy and expert took turns in 6 episodes" in " ".join(capsys.readouterr().out.split())
    assert train.main([*TINY, f"run_dir={tmp_path / 'without'}", "warmstart.rounds=0"]) == 0
    rounds = [json.loads(path.read_text()) for path in sorted((tmp_path / "with" / "corrections").iterdir())]
    assert [len(one["episodes"]) for one in rounds] == [6, 6]
    assert 0 < rounds[0]["step"] < rounds[1]["step"]
    assert not (tmp_path / "without" / "corrections").exists()

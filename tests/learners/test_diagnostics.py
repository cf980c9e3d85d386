"""Options that change what of the episodes is played and trained on, or look at it: one short run has them all on."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from programs import TOY_RUN, episodes_of, metrics, run
from test_distillation import Scores
from tiny import TASKS, play, qwen, world_of

from roleagent.config import ConfigError
from roleagent.config import load as configuration
from roleagent.learners.dealing import deal_again
from roleagent.learners.information import information, task_information
from roleagent.learners.run.conflicts import check_learning
from roleagent.learners.run.ranks import Ranks
from roleagent.random_streams import random_stream
from roleagent.timer import Timer
from roleagent.types import Group, Task

ON = ["wia=off", "aiw=off", "train.iterations=3", "rollout.temperature=1.3", "rollout.turns=[2,5]"]
ON += ["train.information_every=2"]
ON += ["rollout.keep_groups=0.3", "estimator.rewards={invalid_action: -0.2}"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    (path / "toy.yaml").write_text(yaml.safe_dump(TOY_RUN))
    status, _, err = run("train", "--config", path / "toy.yaml", *ON, f"run_dir={path}/run")
    assert status == 0, err
    return path / "run"


def test_training_episodes_have_fewer_turns_first(folder):
    rows = metrics(folder, "train")
    assert [row["turn_limit"] for row in rows] == [2, 2, 5]
    for iteration, row in enumerate(rows, start=1):
        played = [(len(e["turns"]), e["stop_reason"]) for e in episodes_of(folder, iteration)]
        assert max(played)[0] == row["turn_limit"]
        cut = [stop for turns, stop in played if turns == row["turn_limit"] and stop == "max_steps"]
        assert row["turn_limit_share"] == pytest.approx(len(cut) / len(played)) and cut


def test_only_the_groups_with_the_highest_variance_are_trained_on(folder):
    for iteration, row in enumerate(metrics(folder, "train"), start=1):
        groups = {}
        for episode in episodes_of(folder, iteration):
            groups.setdefault(episode["group"], []).append(episode)
        rewards = [[sum(sum(t["reward"].values()) for t in e["turns"]) for e in group] for group in groups.values()]
        left_out = [group[0]["replaced"] for group in groups.values()]
        assert left_out == [False, True, True] and row["filtered_groups"] == 2 and row["replaced_groups"] == 0
        variances = [np.var(one) for one in rewards]
        assert variances[0] == max(variances)
        learned = [any(turn["advantage"] for e in group for turn in e["turns"]) for group in groups.values()]
        assert not any(learned[1:])
    assert any(row["grad_norm"] > 0 for row in metrics(folder, "train"))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_chosen_groups_are_dealt_in_turn_again(size):
    """Whatever the number of ranks: the update pairs groups with ranks by their places."""
    groups = [Group(Task("e", f"task-{number}"), ()) for number in range(7)]
    sent, chosen = {}, [1, 2, 4, 6]
    for rank in range(size):
        ranks = SimpleNamespace(rank=rank, size=size, exchange=lambda parcels: sent.update({len(sent): parcels}) or [])
        deal_again(ranks, groups[rank::size], chosen)
    for rank in range(size):
        ranks = SimpleNamespace(rank=rank, size=size, exchange=lambda _, rank=rank: [sent[one][rank] for one in sent])
        found = deal_again(ranks, groups[rank::size], chosen)
        assert found == [groups[number] for number in chosen][rank::size]


def test_mutual_information_is_estimated_when_it_is_due(folder):
    rows = metrics(folder, "train")
    assert ["task_information" in row for row in rows] == [False, True, False]
    assert rows[1]["task_information_limit"] == pytest.approx(np.log(3))
    assert rows[1]["task_information"] <= np.log(3)


def test_mutual_information_compares_each_reply_behind_all_prompts():
    policy, world = qwen(context=1024), world_of("wia=off", "train.information_every=2", "rollout.temperature=0.7")
    groups = play(policy, world, TASKS, copies=1)[1]
    stream = partial(random_stream, 0)
    run = SimpleNamespace(
        config=world.config, iteration=2, timer=Timer(), stream=stream, own_stream=stream, ranks=Ranks(0, 1)
    )
    found = task_information(run, Scores(policy, world.config), groups)
    rng = random_stream(0, "information", 2)
    turns = [group.trajectories[0].turns for group in groups]
    turns = [one[int(rng.integers(len(one)))] for one in turns]
    with torch.no_grad():
        scores = [[logprob(policy.model, x.prompt_ids, r.completion.token_ids) for x in turns] for r in turns]
    assert found == pytest.approx(information(np.array(scores)), abs=1e-4)

    # A policy that says the same to all: nothing is learned about the prompt.
    def parrot(episode):
        return replace(episode, turns=tuple(replace(turn, completion=turns[0].completion) for turn in episode.turns))

    alike = [replace(group, trajectories=tuple(map(parrot, group.trajectories))) for group in groups]
    assert task_information(run, Scores(policy, world.config), alike)["task_information"] <= 1e-6


def logprob(model, prompt, reply):
    logits = model(torch.tensor([[*prompt, *reply]])).logits[0, len(prompt) - 1 : -1]
    chosen = torch.log_softmax(logits.double() / 0.7, -1)[range(len(reply)), list(reply)]
    return float(chosen.sum())


def test_a_limit_for_the_loop_does_not_go_with_an_agent_program():
    with pytest.raises(ConfigError, match="limit an agent program"):
        check_learning(configuration(overrides=["wia=off", "rollout.turns=[4]", "agent.command=python agent.py"]))

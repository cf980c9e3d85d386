"""Options that change what of the episodes is played and trained on, or look at it: one short run has them all on."""

from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from programs import TOY_RUN, episodes_of, metrics, run

from roleagent.config import ConfigError
from roleagent.config import load as configuration
from roleagent.learners.dealing import deal_again
from roleagent.learners.run.launch import check_learning
from roleagent.types import Group, Task

ON = ["wia=off", "aiw=off", "train.iterations=3", "rollout.temperature=1.3", "rollout.turns=[2,5]"]
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


def test_a_limit_for_the_loop_does_not_go_with_an_agent_program():
    with pytest.raises(ConfigError, match="limit an agent program"):
        check_learning(configuration(overrides=["wia=off", "rollout.turns=[4]", "agent.command=python agent.py"]))

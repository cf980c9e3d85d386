"""Process rewards: normalization by hand, the gate, their effect on advantages, and their counters."""

from types import SimpleNamespace

import numpy as np
import pytest
from estimators import COMPARING, NAMES, advantages, estimator
from hypothesis import given
from hypothesis import strategies as st

from roleagent.config import from_dict
from roleagent.learners.method import method_of
from roleagent.learners.rewards import (
    Rewards,
    normalize_process,
    process_counters,
    process_rewards,
    returns,
    shuffle_process,
)
from roleagent.learners.rl import estimate_advantages
from roleagent.timer import Timer
from roleagent.types import Completion, Group, Task, Trajectory, Turn

TASK = Task("RoleAgent/Office-v0", "lookup-1-0")
SAID = Completion((1,), (-0.5,), "stop")


def episode(*rows, truncated=False):
    turns = tuple(Turn((5,), SAID, "a", "o", f"s{number}", None, row, {}) for number, row in enumerate(rows))
    return Trajectory(TASK, turns, not truncated, truncated, "max_steps" if truncated else "lost")


def tools(*values, task=0.0):
    rows = [{"task": 0.0, "tool": value} for value in values]
    rows[-1]["task"] = task
    return episode(*rows)


def terms(groups, name="tool"):
    return [[[turn.rewards[name] for turn in t.turns] for t in group.trajectories] for group in groups]


GROUPS = [Group(TASK, (tools(1, 1, 0, task=1.0), tools(0.5, 0))), Group(TASK, (tools(1, 1, 1, 1), tools(0)))]


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        ("none", [[[1, 1, 0], [0.5, 0]], [[1, 1, 1, 1], [0]]]),
        ("prime", [[[1 / 2, 1 / 2, 0], [1 / 4, 0]], [[1 / 4] * 4, [0]]]),  # the largest returns are 2 and 4
    ],
)
def test_normalization_by_hand(norm, expected):
    found = normalize_process(GROUPS, {"tool": 0.2}, norm)
    for episodes, by_hand in zip(terms(found), expected, strict=True):
        for row, own in zip(episodes, by_hand, strict=True):
            assert row == pytest.approx(own, abs=1e-5)
    assert terms(GROUPS)[0][0] == [1, 1, 0], "the records themselves changed"


def test_other_terms_stay_and_nothing_changes_without_a_weight():
    # Returns to go of (2, -3, 1): 0, -2, 1.
    group = Group(TASK, (episode({"process": 2}, {"process": -3, "tool_error": 3.0}, {"process": 1}),))
    [changed] = normalize_process([group], {"process": 1.0, "tool_error": -0.1})
    assert terms([changed], "process")[0][0] == pytest.approx([1, -1.5, 0.5], abs=1e-5)
    assert changed.trajectories[0].turns[1].rewards["tool_error"] == 3.0
    assert normalize_process([group], {"task": 1.0, "tool_error": -0.1})[0] is group
    assert process_rewards(group, {"tool": 0.0}) is None


def test_the_gate_leaves_process_terms_out_where_outcomes_are_equal():
    live, dead = normalize_process(GROUPS, {"tool": 1.0}, "none", "live")
    assert terms([live]) == terms(GROUPS[:1]) and terms([dead]) == [[[0] * 4, [0]]]


def test_the_control_moves_process_rewards_to_other_turns():
    rows = [[0.0, 1.0, 1.0, 0.25], [0.0, 0.5, 0.75]]
    group = Group(TASK, (tools(*rows[0], task=1.0), episode({"task": 0.0}), tools(*rows[1])))
    rng = np.random.default_rng(0)
    [moved] = shuffle_process([group], {"tool": 0.2}, lambda values: rng.permutation(values).tolist())
    found = [[turn.rewards.get("tool") for turn in one.turns] for one in moved.trajectories]
    assert found[1] == [None], "a turn without the term has none afterwards"
    assert sorted(found[0] + found[2]) == sorted(rows[0] + rows[1]) and [found[0], found[2]] != rows
    assert [one.outcome for one in moved.trajectories] == [1.0, 0.0, 0.0]
    assert shuffle_process([group], {}, list) == [group]


EPISODES = st.lists(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=6), min_size=1, max_size=5)


@given(EPISODES, st.floats(0.01, 1.0))
def test_a_process_return_is_at_most_its_weight(rows, weight):
    groups = [Group(TASK, tuple(episode(*({"process": value} for value in row)) for row in rows))]
    [group] = normalize_process(groups, {"process": weight})
    for row in process_rewards(group, {"process": weight}):
        assert all(abs(value) <= weight * (1 + 1e-9) for value in returns(row, 1.0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("turn", [0, 1, 2])
def test_a_process_reward_changes_the_advantage_of_its_own_turn(name, turn):
    """Of three episodes through the same states, one has a successful call at this turn."""
    rows = [[0.0] * 3 for _ in range(3)]
    rows[0][turn] = 1.0
    [group] = normalize_process([Group(TASK, tuple(tools(*row) for row in rows))], {"tool": 0.2})
    without = advantages(name, group, estimator())
    assert not np.any(without), "episodes that differ in nothing else"
    values = advantages(name, group, estimator(rewards={"tool": 0.2}))
    assert values[0][turn] > max(values[1][turn], values[2][turn])


@pytest.mark.parametrize("name", NAMES)
def test_an_episode_that_is_cut_off_keeps_its_reward(name):
    """The published code puts the outcome on the tool's last token, where the mask removes it: −1 became 0."""
    cut_off, finished = ({"task": 0.0, "format": -1.0}, {"task": 0.0})
    pair = (episode({"task": 0.0}, cut_off, truncated=True), episode({"task": 0.0}, finished))
    values = advantages(name, Group(TASK, pair), estimator(rewards={"format": 1.0}))
    assert values[0][-1] < 0 <= values[1][-1]


@pytest.mark.parametrize("name", COMPARING)
def test_an_episode_alone_in_its_group_is_compared_with_nothing(name):
    """In the published code a group of one has mean 0 and deviation 1, and its raw reward is its advantage."""
    alone = Group(TASK, (episode({"task": 0.0}, {"task": 1.0}),))
    assert advantages(name, alone, estimator()) == [[0.0, 0.0]]


def run_of(**estimator):
    config = from_dict({"method": "grpo", "estimator": {"rewards": {"tool": 0.2}, **estimator}})
    ranks = SimpleNamespace(largest=float)
    return SimpleNamespace(config=config, method=method_of(config), timer=Timer(), ranks=ranks)


def test_the_trainer_normalizes_by_the_group_by_default():
    first, second = estimate_advantages(run_of(), GROUPS)
    assert first.process == [pytest.approx([0.1, 0.1, 0.0], abs=1e-5), pytest.approx([0.05, 0.0], abs=1e-5)]
    assert second.outcome == pytest.approx([1.0, -1.0], abs=1e-4)
    [_, gated] = estimate_advantages(run_of(process_gate="live"), GROUPS)
    assert gated.outcome == [0.0, 0.0]


def test_counters_by_hand():
    rewards, weights = Rewards({"tool": 0.2}), {"tool": 0.2}
    earned = [process_rewards(group, weights) for group in normalize_process(GROUPS, weights)]
    found = process_counters(GROUPS, earned, rewards, 1.0, outcomes=True)
    # Turns with a successful call: 2, 1, 4, 0 of 3, 2, 4, 1. The second group differs in calls alone.
    assert (found["process_nonzero"], found["process_only_groups"]) == (7, 1)
    assert found["returns_changed"] == 0.9, "an outcome changes the return of all turns"
    to_go = process_counters(GROUPS, earned, rewards, 1.0, outcomes=False)
    assert to_go["returns_changed"] == 0.7
    # Σ|process| = (.2 + .1) + .05 + (.2 + .15 + .1 + .05) = 0.85; Σ|task| = 3.
    assert found["process_share"] == pytest.approx(0.85 / 3.85, abs=1e-4)
    assert process_counters(GROUPS, [None, None], Rewards(), 1.0, True) == {}

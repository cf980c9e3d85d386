"""The estimators: hand-computed examples first, then properties over random groups."""

import math
from dataclasses import replace

import numpy as np
import pytest
from estimators import NAMES, advantages, changed, estimator, gae, gigpo, grpo, reinforce, rloo, role_agent
from hypothesis import given
from hypothesis import strategies as st

from roleagent.curricula.metrics import outcomes
from roleagent.learners.advantages import compared_turns, modulated_returns, predictive_return, task_returns
from roleagent.learners.rewards import Rewards, has_zero_variance
from roleagent.learners.run.metrics import summary
from roleagent.types import Completion, Group, Prediction, PredictionScore, Task, Trajectory, Turn

TASK = Task("RoleAgent/Toy-v0", "boil-egg-1")
REPLY = Completion((1,), (-0.5,), "stop")
PLAIN = estimator(gamma=0.5, norm="mean")


def turn(state="s", reward=0.0, scores=None):
    prediction = None
    if scores is not None:
        found = tuple(PredictionScore(0, h, score or 0.0, score is None) for h, score in enumerate(scores, start=1))
        prediction = Prediction((), None, tuple("?" for _ in scores), found)
    return Turn((0,), REPLY, "look", "text", state, prediction, {"task": reward, "other": 9.0})


def trajectory(*turns):
    return Trajectory(TASK, turns, True, False, "won")


def group(*trajectories):
    return Group(TASK, trajectories)


def modulated(row, gamma, **options):
    return modulated_returns(group(row), estimator(gamma=gamma, **options))[0]


def flat(values):
    return [value for row in values for value in row]


def close(values, expected):
    assert [len(row) for row in values] == [len(row) for row in expected]
    assert flat(values) == pytest.approx(flat(expected), abs=1e-5)


@pytest.fixture
def example():
    """Two rollouts, γ = 1/2. The first succeeds at its second step, the second fails after two steps.

    Both start in state A; then the first is in B, the second in A again.
    Predictions of the winner: step 1 looks two ahead (0.8, 0.4), step 2 one ahead (0.5); the loser predicts perfectly.
    """
    return group(
        trajectory(turn("A", 0.0, (0.8, 0.4)), turn("B", 1.0, (0.5,))),
        trajectory(turn("A", 0.0, (1.0, 1.0)), turn("A", 0.0, (1.0,))),
    )


def test_returns_by_hand(example):
    winner, loser = example.trajectories
    # R_task: 1/2 · 1 and 1. R_pre: 0.8 + 1/2 · 0.4 = 1.0, and 0.5.
    assert task_returns(winner, 0.5) == [0.5, 1.0]
    assert [predictive_return(t, 0.5) for t in winner.turns] == pytest.approx([1.0, 0.5])
    # Eq. 6: 0.5 · (1 + 1.0) = 1.0 and 1 · (1 + 0.5) = 1.5.
    assert modulated(winner, 0.5) == pytest.approx([1.0, 1.5])
    assert modulated(loser, 0.5) == [0.0, 0.0]
    loss = trajectory(turn("A", -1.0, (1.0,)))
    assert modulated(loss, 0.5) == [-1.0]  # a good prediction makes no loss larger
    assert summary([group(loss)], PLAIN)["returns_modulated"] == 0


def test_grpo_by_hand(example):
    # Outcomes 1 and 0, mean 1/2: ± 1/2; population deviation 1/2: ± 1.
    close(grpo(example, PLAIN), [[0.5, 0.5], [-0.5, -0.5]])
    close(grpo(example, changed(PLAIN, norm="std")), [[1.0, 1.0], [-1.0, -1.0]])


def test_gigpo_by_hand(example):
    # State A holds returns 0.5, 0, 0 (mean 1/6): 1/3, -1/6, -1/6. State B is a group of one: 0.
    close(gigpo(example, PLAIN), [[1 / 3 + 0.5, 0.5], [-1 / 6 - 0.5, -1 / 6 - 0.5]])
    # Deviation in A: sqrt((1/9 + 1/36 + 1/36) / 3) = sqrt(1/18) → 1/3 · sqrt(18) = sqrt(2), -sqrt(2)/2.
    root = math.sqrt(2)
    close(gigpo(example, changed(PLAIN, norm="std")), [[root + 1, 1.0], [-root / 2 - 1, -root / 2 - 1]])


def test_role_agent_by_hand(example):
    # State A holds modulated returns 1.0, 0, 0 (mean 1/3): 2/3, -1/3, -1/3; α = 2 doubles the trajectory part.
    config = changed(PLAIN, alpha=2.0)
    close(role_agent(example, config), [[2 / 3 + 1.0, 1.0], [-1 / 3 - 1.0, -1 / 3 - 1.0]])


@pytest.mark.parametrize("size", [1.0, -10.0, 100.0, 1e4])
def test_equal_rewards_of_any_size_teach_nothing(size):
    """One step of float32, at most 1.2e-7 of the size, is rounding; a thousandth of it is a difference."""
    rows = [size] * 3 + [float(np.nextafter(np.float32(size), np.float32(math.inf)))]
    alike = group(*(trajectory(turn("A", reward)) for reward in rows))
    apart = group(*(trajectory(turn("A", reward)) for reward in (size, size * 1.001)))
    for advantages_of in (grpo, rloo, gigpo, role_agent):
        for norm in ("std", "mean"):
            assert flat(advantages_of(alike, changed(PLAIN, norm=norm))) == [0.0] * 4
        assert flat(advantages_of(apart, changed(PLAIN, norm="std")))[0] != 0.0
    assert summary([alike, apart], PLAIN)["zero_variance_groups"] == outcomes([alike, apart])[0]["zero_variance_groups"]
    assert summary([alike, apart], PLAIN)["zero_variance_groups"] == 1


def test_outcomes_that_count_once_per_turn():
    """As verl-agent's statistics are over steps: two wins of 12 steps and six losses of 50 in one group."""
    episodes = [trajectory(*[turn()] * 11, turn(reward=10.0))] * 2 + [trajectory(*[turn()] * 50)] * 6
    once, each = (grpo(group(*episodes), estimator(outcome_level=level)) for level in ("trajectory", "turn"))
    assert (once[0][0], once[-1][0]) == pytest.approx((1.732, -0.577), abs=1e-3)
    assert (each[0][0], each[-1][0]) == pytest.approx((3.536, -0.283), abs=1e-3)
    assert sum(flat(each)) == pytest.approx(0, abs=1e-3)
    left = rloo(group(*episodes), estimator(outcome_level="turn"))  # r·n/(n-1) minus the mean likewise, of 324 steps
    assert (left[0][0], left[-1][0]) == pytest.approx((10 - 230 / 323, -240 / 323))


def test_rloo_by_hand():
    # Outcomes 1, 0, 1/2; the others' means 1/4, 3/4, 1/2. A rollout alone has nothing to be compared with.
    rows = trajectory(turn(), turn(reward=1.0)), trajectory(turn()), trajectory(turn(reward=0.5))
    close(rloo(group(*rows), PLAIN), [[0.75, 0.75], [-0.75], [0.0]])
    assert rloo(group(rows[0]), PLAIN) == [[0.0, 0.0]]


def test_reinforce_and_gae_by_hand(example):
    assert reinforce(example, PLAIN) == [[0.5, 1.0], [0.0, 0.0]]
    assert gae(example, PLAIN) == [[0.0, 1.0], [0.0, 0.0]]


def test_the_outcome_is_not_modulated():
    # Equal outcomes, unequal predictions: A^E is 0 for both; a state of None is compared with nothing.
    pair = group(trajectory(turn(None, 1.0, (1.0,))), trajectory(turn(None, 1.0, (0.0,))))
    assert role_agent(pair, estimator()) == [[0.0], [0.0]]


def test_similar_states_share_a_group_under_a_threshold():
    pair = group(
        trajectory(turn("cabinet 1 is closed", 1.0)),
        trajectory(turn("cabinet 7 is closed", 0.0)),
    )
    by_hash = estimator(alpha=0.0, norm="mean")
    by_similarity = changed(by_hash, similarity_threshold=0.9)
    assert gigpo(pair, by_hash) == [[0.0], [0.0]]
    close(gigpo(pair, by_similarity), [[0.5], [-0.5]])


def test_summary_by_hand(example):
    dead = group(trajectory(turn("C")), trajectory(turn("C"), turn(None, 0.0, (None,))))
    found = summary([example, dead], PLAIN)
    assert found["zero_variance_groups"] == 1
    assert found["returns_modulated"] == 2  # the winner's two turns
    assert found["state_group_size"] == pytest.approx((3 + 1 + 2) / 3)  # A, B and C
    assert found["state_group_share"] == pytest.approx(5 / 7)  # A and C, of 7 turns
    assert found["predictions_scored"] == 6
    assert found["predictions_absent"] == 1
    assert found["prediction_score"] == pytest.approx((0.8 + 0.4 + 0.5 + 3.0 + 0.0) / 7)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_to_estimate(name):
    assert advantages(name, group(), estimator()) == []
    assert advantages(name, group(trajectory(), trajectory(turn())), estimator()) == [[], [0.0]]
    assert has_zero_variance(group())
    assert set(summary([], estimator()).values()) == {0.0}


def spoken(tokens=1, rewards=None, **info):
    reply = Completion((1,) * tokens, (-0.5,) * tokens, "stop")
    return Turn((0,), reply, "look", "text", "s", turn(scores=(1.0,)).prediction, rewards or {}, info)


MIXED = trajectory(
    spoken(4, {"task": 0.0, "prediction": 0.5}, format_error="no action", valid_action=False),
    spoken(9, {"task": 1.0, "prediction": 0.25}, format_error=None, valid_action=True),
)


@pytest.mark.parametrize(
    ("weights", "earned"),
    [
        ({}, [0.0, 1.0]),
        ({"task": 2.0}, [0.0, 2.0]),
        ({"prediction": 2.0}, [1.0, 1.5]),
        ({"format_error": -0.5, "invalid_action": -0.25}, [-0.75, 1.0]),
        ({"turn": -0.1}, [-0.1, 0.9]),
        ({"overlong": -1.0}, [0.0, 0.25]),  # 9 of 10 tokens: three quarters into the last four
        ({"task": 0.0, "unheard": 1.0}, [0.0, 0.0]),
    ],
    ids=str,
)
def test_rewards_are_weighed_by_name(weights, earned):
    rewards = Rewards(weights, reply_limit=10, buffer=0.4)
    assert [rewards.of(t) for t in MIXED.turns] == pytest.approx(earned)
    assert rewards.outcome(MIXED) == pytest.approx(sum(earned))
    config = estimator(10, gamma=0.5, norm="mean", rewards=weights, overlong_buffer=0.4)
    close(gae(group(MIXED), config), [earned])
    close(reinforce(group(MIXED), config), [[earned[0] + earned[1] / 2, earned[1]]])
    close(grpo(group(MIXED, trajectory()), config), [[sum(earned) / 2] * 2, []])


def test_foreseeing_multiplies_what_the_task_pays_and_no_penalty():
    # R_pre is 1 at both turns: 2 · (1/2, 1), and the penalties' own returns.
    rewards = {"format_error": -0.5, "turn": -0.1}
    assert modulated(MIXED, 0.5, rewards=rewards) == pytest.approx([1.0 - 0.6 - 0.05, 2.0 - 0.1])


similarity = st.floats(0.0, 1.0)
turns = st.builds(
    turn,
    state=st.sampled_from(["kitchen", "fridge", "counter", None]),
    scores=st.none() | st.lists(st.none() | similarity, min_size=1, max_size=3),
)


won_or_lost = st.booleans()


@st.composite
def trajectories(draw, success=won_or_lost):
    steps = draw(st.lists(turns, min_size=1, max_size=6))
    steps[-1] = replace(steps[-1], rewards={"task": float(draw(success))})
    return trajectory(*steps)


groups = st.lists(trajectories(), min_size=1, max_size=5).map(lambda rows: group(*rows))
configs = st.builds(
    estimator,
    gamma=st.floats(0.1, 1.0),
    alpha=st.floats(0.0, 2.0),
    norm=st.sampled_from(["std", "mean"]),
    similarity_threshold=st.sampled_from([0.0, 0.9]),
    unscored_predictions=st.sampled_from(["mean", "zero"]),
    failed_command_state=st.sampled_from(["previous", "text"]),
)
estimators = st.sampled_from(NAMES)


@given(groups, configs, estimators, st.randoms(use_true_random=False))
def test_the_order_of_rollouts_does_not_matter(some, config, name, random):
    order = list(range(len(some.trajectories)))
    random.shuffle(order)
    shuffled = replace(some, trajectories=tuple(some.trajectories[i] for i in order))
    straight, permuted = advantages(name, some, config), advantages(name, shuffled, config)
    for position, i in enumerate(order):
        assert permuted[position] == pytest.approx(straight[i], abs=1e-9)


@given(groups, configs, estimators)
def test_one_finite_value_per_turn(some, config, name):
    values = advantages(name, some, config)
    assert [len(row) for row in values] == [len(t.turns) for t in some.trajectories]
    assert all(map(math.isfinite, flat(values)))


@given(st.lists(trajectories(st.just(False)), min_size=1, max_size=5), configs, estimators)
def test_a_group_that_only_failed_teaches_nothing(rows, config, name):
    some = group(*rows)
    assert has_zero_variance(some)
    assert set(flat(advantages(name, some, config))) == {0.0}


@given(st.lists(trajectories(st.just(True)), min_size=1, max_size=5), configs)
def test_a_group_that_only_succeeded_has_no_trajectory_advantage(rows, config):
    some = group(*rows)
    assert has_zero_variance(some)
    assert set(flat(grpo(some, config))) == {0.0}
    assert role_agent(some, config) == role_agent(some, changed(config, alpha=0.0))


@given(groups, configs)
def test_without_predictions_role_agent_is_gigpo(some, config):
    silent = group(*(trajectory(*(replace(t, prediction=None) for t in row.turns)) for row in some.trajectories))
    assert role_agent(silent, config) == gigpo(silent, config)


@given(groups, configs)
def test_state_advantages_sum_to_zero(some, config):
    assert math.fsum(flat(role_agent(some, changed(config, alpha=0.0)))) == pytest.approx(0.0, abs=1e-6)


@given(groups, configs, st.floats(0.0, 1.0))
def test_only_predictions_of_compared_turns_change_advantages(some, config, score):
    config = changed(config, unscored_predictions="zero", similarity_threshold=0.0)
    chosen, before = compared_turns(some, config), role_agent(some, config)
    assert not any(chosen) or not has_zero_variance(some)

    def rescored(compared):
        return group(
            *(
                trajectory(
                    *(
                        replace(
                            turn("", 0.0, (score,)), state=t.state, grouping_state=t.grouping_state, rewards=t.rewards
                        )
                        if (n in turns) == compared
                        else t
                        for n, t in enumerate(row.turns)
                    )
                )
                for row, turns in zip(some.trajectories, chosen, strict=True)
            )
        )

    if not has_zero_variance(some):
        close(role_agent(rescored(False), config), before)


def test_compared_turns_by_hand():
    """Of the winner the turn in A, which the loser has, too; not the one in B, alone, and none of the loser's."""
    won = trajectory(turn("A"), turn("B", 1.0))
    lost = trajectory(turn("A"), turn("A"))
    assert compared_turns(group(won, lost), PLAIN) == [[0], []]
    assert compared_turns(group(won, won), PLAIN) == [[], []]  # nothing but predictions would differ
    penalized = changed(PLAIN, rewards={"task": 0.0, "other": 1.0})
    assert compared_turns(group(won, lost), penalized) == [[], []]

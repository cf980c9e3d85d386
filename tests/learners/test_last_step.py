"""The last step: a win now is worth at least as much as the same win later, for equal prediction scores."""

import pytest
from estimators import estimator
from hypothesis import given
from hypothesis import strategies as st

from roleagent.learners.advantages import modulated_returns, predictive_returns
from roleagent.types import Completion, Group, Prediction, PredictionScore, Task, Trajectory, Turn

TASK = Task("RoleAgent/Toy-v0", "boil-egg-1")


def episode(known, horizon, score, states=None, won=True):
    turns = []
    for t in range(len(known)):
        scores = [
            PredictionScore(t, h, score) for h in range(1, horizon + 1) if t + h <= len(known) and known[t + h - 1]
        ]
        prediction = Prediction((), None, ("?",) * horizon, tuple(scores))
        reward = {"task": float(won and t == len(known) - 1)}
        turns.append(Turn((), Completion((), (), "stop"), "", "", states[t] if states else "s", prediction, reward))
    return Trajectory(TASK, tuple(turns), True, False, "won" if won else "lost")


known = st.lists(st.booleans(), min_size=1, max_size=8)


@given(known, known, st.sampled_from([1, 2, 3, 5]), st.floats(0.0, 1.0), st.floats(0.5, 1.0))
def test_a_winning_last_step_is_never_worth_less_than_the_same_win_later(short, long, horizon, score, gamma):
    """Whichever states are known, the last one (ALFWorld) or not (WebShop, search), in an episode of one step too."""
    group = Group(TASK, (episode(short, horizon, score), episode(long, horizon, score)))
    rows = modulated_returns(group, estimator(gamma=gamma))
    last = rows[0][-1]
    assert rows[1][-1] == pytest.approx(last)
    assert all(value <= last + 1e-9 for row in rows for value in row)


def test_a_horizon_that_cannot_be_scored_takes_the_weighted_mean_by_hand():
    def turn(*scores, horizon=2):
        return Turn((), Completion((), (), "stop"), "", "", "s", Prediction((), None, ("?",) * horizon, scores))

    first = turn(PredictionScore(0, 1, 0.8), PredictionScore(0, 2, 0.2))  # 0.8 + 0.5 · 0.2
    absent = turn(PredictionScore(1, 1, 0.0, absent=True), PredictionScore(1, 2, 0.6))  # 0 + 0.5 · 0.6
    near = turn(PredictionScore(2, 1, 0.4))  # 0.4 · (1 + 0.5)
    far = turn(PredictionScore(3, 2, 0.4))  # the same
    unscored, unasked = turn(), Turn((), Completion((), (), "stop"), "", "")
    one = Trajectory(TASK, (first, absent, near, far, unscored, unasked), True, False, "won")
    other = Trajectory(TASK, (unscored,), True, False, "won")
    config = estimator(gamma=0.5)
    mean = (0.9 + 0.3 + 0.6 + 0.6) / 4
    rows = predictive_returns(Group(TASK, (one, other)), config)
    assert rows[0] == pytest.approx([0.9, 0.3, 0.6, 0.6, mean, 0.0]) and rows[1] == pytest.approx([mean])
    assert predictive_returns(Group(TASK, (other,)), config) == [[0.0]]
    letter = predictive_returns(Group(TASK, (one, other)), estimator(gamma=0.5, unscored_predictions="zero"))
    assert letter[0] == pytest.approx([0.9, 0.3, 0.4, 0.2, 0.0, 0.0]) and letter[1] == [0.0]

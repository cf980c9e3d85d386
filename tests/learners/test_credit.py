"""What the counters of predictions say: beyond validity, of failures, and nothing where they are undefined."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.agents.evaluation.records import predicted_failures
from roleagent.learners.run.metrics import partial_correlation, prediction_counters
from roleagent.types import Completion, Prediction, PredictionScore, Task, Trajectory, Turn

TASK = Task("RoleAgent/Toy-v0", "boil-egg-1")
NOTHING = "Nothing happens."


def turn(valid=True, scores=(1.0,), text="?", state="You see an egg.", won=False):
    found = tuple(PredictionScore(0, h, score) for h, score in enumerate(scores, start=1))
    prediction = Prediction((), None, (text, "?"), found)
    info = {"valid_action": valid, "state": state, "won": won}
    return Turn((), Completion((), (), "stop"), "look", "", "s", prediction, {}, info)


def episode(won, *turns):
    return Trajectory(TASK, (*turns, turn(scores=(), won=won)), True, False, "won" if won else "lost")


EPISODES = [(True, (0.9, 0.8, 0.7)), (False, (0.2,)), (False, (0.6, 0.5))]


def test_information_is_the_correlation_within_task_and_state():
    """Easy states have high scores and success; within a state the better prediction is in the lost episode."""

    def at(place, score, action="look"):
        return replace(turn(True, score), grouping_state=place, action=action)

    won = [at("easy", (0.9, 0.7)), at("easy", (0.6,)), at("hard", (0.1,), "wait")]
    lost = [at("easy", (0.9,)), at("hard", (0.2,)), at("hard", (0.3,), "wait"), at("hard", (0.0,))]
    found = prediction_counters([episode(True, *won), episode(False, *lost)])
    rows = np.array([[0.8, 1, 0], [0.6, 1, 0], [0.1, 1, 1], [0.9, 0, 0], [0.2, 0, 1], [0.3, 0, 1], [0.0, 0, 1]])
    assert found["prediction_correlation"] == pytest.approx(np.corrcoef(rows.T)[0, 1])
    # Over episodes, as published: each counts once, however long it is.
    third = prediction_counters([episode(won, *(at("a", (s,)) for s in row)) for won, row in EPISODES])
    means = [(sum(row) / len(row), won) for won, row in EPISODES]
    assert third["prediction_correlation_episodes"] == pytest.approx(np.corrcoef(np.array(means, float).T)[0, 1])
    scores, success = ([], [])
    for place in (0, 1):
        of_state = rows[rows[:, 2] == place]
        scores += list(of_state[:, 0] - of_state[:, 0].mean())
        success += list(of_state[:, 1] - of_state[:, 1].mean())
    assert found["prediction_information"] == pytest.approx(np.corrcoef(scores, success)[0, 1])
    assert found["prediction_information"] < 0 < found["prediction_correlation"]
    alone = prediction_counters([episode(True, at("a", (0.9,), "go")), episode(False, at("a", (0.1,), "stay"))])
    assert alone["prediction_information"] == pytest.approx(1) and "prediction_information_action" not in alone
    other = replace(episode(False, at("a", (0.1,))), task=Task(TASK.env_id, "another-task"))
    assert "prediction_information" not in prediction_counters([episode(True, at("a", (0.9,))), other])


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.booleans()), max_size=12))
def test_it_is_between_minus_one_and_one_or_undefined(rows):
    scores, success, valid = np.array(rows, float).reshape(-1, 3).T
    for given_classes in (valid, np.zeros(len(rows))):
        found = partial_correlation(scores, success, given_classes)
        assert math.isnan(found) or -1.0 <= found <= 1.0
    for undefined in ((np.ones(len(rows)), valid), (success, np.arange(len(rows))), (success, success)):
        assert math.isnan(partial_correlation(scores, *undefined))


def test_a_failure_is_recalled_where_it_was_predicted_in_its_words():
    unasked = Turn((), Completion((), (), "stop"), "look", "", "s", info={"valid_action": False, "state": NOTHING})
    turns = [
        unasked,
        turn(False, (1.0,), NOTHING, f"{NOTHING}\n"),
        turn(False, (0.9,), "Nothing happened.", NOTHING),
        turn(False, (0.0,), "", NOTHING),
        turn(True, (0.2,), NOTHING, "You see an egg."),  # not a failure
        turn(False, (), NOTHING, None),  # nobody could know it
    ]
    assert prediction_counters([episode(True, *turns)])["failure_recall"] == pytest.approx(1 / 3)
    assert predicted_failures(episode(True, *turns)) == {"failures_with_prediction": 3, "predicted_failures": 1}
    assert predicted_failures(replace(episode(True), turns=(unasked,))) == {}
    assert prediction_counters([episode(True, turn())]) == {}

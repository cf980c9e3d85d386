"""The state that predictions are scored by and the state that turns are compared by: two things after a failure."""

import gymnasium
import pytest
from estimators import estimator
from tiny import TASKS, Script, play, world_of

from roleagent.envs.searchqa.env import INVALID
from roleagent.envs.toy.env import NOTHING
from roleagent.learners.advantages import states_of

PREVIOUS, TEXT = estimator(), estimator(failed_command_state="text")


@pytest.mark.parametrize(
    ("name", "failure", "valid"),
    [
        ("Toy", NOTHING, "look"),
        ("ALFWorld", NOTHING, "look"),
        ("SearchQA", INVALID, "search[wex]"),
        ("WebShop", None, "search[table]"),
    ],
)
def test_a_failed_command_leaves_the_grouping_state_as_it_was(name, failure, valid):
    env = gymnasium.make(f"RoleAgent/{name}-v0")
    before, info = env.reset(seed=0)
    assert info["state"] == info["grouping_state"] == before
    for _ in range(2):
        text, *_, info = env.step("fly to the moon")
        assert text == info["state"] == (failure or before) and not info["valid_action"]
        assert info["grouping_state"] == before
    text, *_, info = env.step(valid)
    assert info["valid_action"] and text == info["state"] == info["grouping_state"] != before


def test_in_a_rollout_turns_after_failures_are_compared_by_the_situation():
    replies = {0: "look", 1: "dance", 2: "go to sink", 3: "dance"}
    turns = {}

    def reply(prompt, slot):
        if prompt.endswith("<|predict|>"):
            return f'<prediction h="1">{NOTHING}</prediction>'
        turns[slot] = turns.get(slot, -1) + 1
        return f"<action>{replies.get(turns[slot], 'look')}</action>"

    _, [group] = play(Script(reply), world_of("env.kwargs.max_steps=5"), TASKS[:1], copies=2)
    _, looked, failed, sink, again = group.trajectories[0].turns
    assert failed.state == NOTHING and failed.grouping_state == looked.state == looked.grouping_state != NOTHING
    assert again.state == NOTHING and again.grouping_state == sink.state == sink.grouping_state
    assert looked.next_state == NOTHING and looked.prediction.scores[0].score == 1.0  # scored by the text
    assert states_of(group, PREVIOUS) == [[0, 1, 1, 2, 2]] * 2
    assert states_of(group, TEXT) == [[0, 1, 2, 3, 2]] * 2

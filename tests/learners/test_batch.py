"""The batch: the sampled tokens are trained, each once behind its own prefix; action masks and whitening."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_batch import TASK, batch_of, configured, transcript, windows
from tiny import plain

from roleagent.learners.batch import build_batch, segments_of, whiten
from roleagent.learners.loss import token_weights
from roleagent.types import ACTION, Completion, Prediction, Trajectory, Turn

MASKS = list(itertools.product([True, False], repeat=2))


def completion(*token_ids):
    return Completion(token_ids, tuple(-token / 100 for token in token_ids), "stop")


def turn(prompt, reply, question=None, answer=None):
    prediction = None
    if question is not None:
        prediction = Prediction((*prompt, *reply, *question), completion(*answer), ("?",))
    return Turn(tuple(prompt), completion(*reply), "look", "text", "s", prediction)


def plain_segments_of(*arguments, **options):
    return plain(segments_of(*arguments, **options))


def trajectory(*turns):
    return Trajectory(TASK, turns, True, False, "won")


def stream(segments):
    """Every trained token with all that stands before it: what the gradient depends on."""
    return Counter(
        (segment.token_ids[:i], segment.token_ids[i], kind, segment.sampler_logprobs[i], segment.advantages[i])
        for segment in segments
        for i, kind in enumerate(segment.token_kind)
        if kind
    )


def expected_stream(episode, advantages, train_predictions=True):
    """The same, read from the turns without any merging."""
    items = []
    for this, advantage in zip(episode.turns, advantages, strict=True):
        replies = [(1, this.prompt_ids, this.completion)]
        if this.prediction is not None and this.prediction.completion is not None and train_predictions:
            replies.append((2, this.prediction.prompt_ids, this.prediction.completion))
        for kind, prompt, said in replies:
            for i, (token, logprob) in enumerate(zip(said.token_ids, said.logprobs, strict=True)):
                items.append((prompt + said.token_ids[:i], token, kind, logprob, advantage))
    return Counter(items)


def test_a_transcript_is_one_segment():
    episode = trajectory(turn([1], [2], [3], [4, 5]), turn([1, 2, 3, 4, 5, 6], [7, 8]))
    (segment,) = plain_segments_of(episode, [0.5, -0.5], index=3)
    assert segment.token_ids == (1, 2, 3, 4, 5, 6, 7, 8)
    assert segment.token_kind == (0, 1, 0, 2, 2, 0, 1, 1)
    assert segment.sampler_logprobs == (0, -0.02, 0, -0.04, -0.05, 0, -0.07, -0.08)
    assert segment.advantages == (0, 0.5, 0, 0.5, 0.5, 0, -0.5, -0.5)
    assert segment.trajectory == 3


tokens = st.lists(st.integers(0, 3), max_size=4)  # few kinds of token, so that prompts also agree by accident
KEEP_ALL, DROP_PREDICTION, FRESH = "keep all", "drop prediction", "fresh prompt"


@st.composite
def episodes(draw, styles=(KEEP_ALL, DROP_PREDICTION, FRESH)):
    """Episodes whose prompts grow, lose their predictions or start again, turn by turn."""
    turns, kept = [], []
    for _ in range(draw(st.integers(1, 5))):
        prompt = [*kept, *draw(tokens)] or [0]
        reply = draw(tokens)
        asked = draw(st.booleans())
        question, answer = (draw(tokens), draw(tokens)) if asked else (None, None)
        turns.append(turn(prompt, reply, question, answer))
        style = draw(st.sampled_from(styles))
        kept = [] if style == FRESH else [*prompt, *reply]
        if style == KEEP_ALL and asked:
            kept += [*question, *answer]
    advantages = draw(st.lists(st.floats(-2, 2), min_size=len(turns), max_size=len(turns)))
    return trajectory(*turns), advantages


@given(episodes(), st.booleans())
def test_merging_changes_nothing_that_is_trained(episode, train_predictions):
    segments = plain_segments_of(*episode, train_predictions=train_predictions)
    assert stream(segments) == expected_stream(*episode, train_predictions)
    for segment in segments:
        assert segment.token_kind[-1] != 0
        for kind, logprob, advantage in zip(
            segment.token_kind, segment.sampler_logprobs, segment.advantages, strict=True
        ):
            assert kind or (logprob, advantage) == (0.0, 0.0)


@pytest.mark.parametrize(("loss", "estimator"), MASKS)
def test_the_two_action_masks_are_independent(loss, estimator):
    config = configured(loss, estimator)
    batch = batch_of(config, transcript(1.0), transcript(0.0))
    text = 0 if loss and estimator else 3
    # Before the first reply nothing is ever trained.
    assert batch.segments[0].token_kind.tolist() == [0, 0, 1, 1, text, 2, text, text, 1]
    assert batch.turns[0].tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 2]
    spread = 0.0 if estimator else 0.5
    assert batch.columns["advantages"][0].tolist() == [0, 0, 0.5, 0.5, spread, 0.5, spread, spread, 0.5]
    assert (batch.columns["advantages"][1] == -batch.columns["advantages"][0]).all()
    weights = token_weights(batch.segments, 2, action_mask=loss)
    # Of six action and text tokens, or of three action tokens; the prediction has its own half.
    share = 1 / 3 / 2 if loss else 1 / 6 / 2
    inside = 0.0 if loss else share
    assert weights[0] == pytest.approx([0, 0, share, share, inside, 0.25, inside, inside, share])


@pytest.mark.parametrize("estimator", [True, False])
def test_whitening_counts_the_tokens_that_carry_advantages(estimator):
    config = configured(True, estimator)
    batch = batch_of(config, transcript(1.0), transcript(0.0), windows(1.0))
    counted = (1,) if estimator else (1, 3)
    batch = whiten(batch, estimator)
    rows = zip(batch.segments, batch.columns["advantages"], strict=True)
    counted_values = [
        v for segment, row in rows for kind, v in zip(segment.token_kind, row, strict=True) if kind in counted
    ]
    assert len(counted_values) == (9 if estimator else 16)
    assert (np.mean(counted_values), np.std(counted_values)) == pytest.approx((0, 1), abs=1e-4)
    for segment, row in zip(batch.segments, batch.columns["advantages"], strict=True):
        assert not any(value for kind, value in zip(segment.token_kind, row, strict=True) if not kind)


def test_whitening_is_over_all_ranks():
    """Two ranks that add up their sums get the same result as one with the whole batch."""
    config = configured()
    whole = batch_of(config, transcript(1.0), transcript(0.0), windows(1.0), windows(0.0))
    halves = [batch_of(config, transcript(1.0), transcript(0.0)), batch_of(config, windows(1.0), windows(0.0))]
    rows = iter(list(whole.columns["advantages"]))
    for half in halves:  # the estimator compares within groups: give the parts the values of the whole
        half.columns["advantages"] = [next(rows) for _ in half.segments]
    values = [np.concatenate(half.columns["advantages"]) for half in halves]
    actions = [np.concatenate([one.token_kind for one in half.segments]) == ACTION for half in halves]
    counted = [value[chosen] for value, chosen in zip(values, actions, strict=True)]
    mean = np.concatenate(counted).mean()
    sums = [lambda v: len(v), np.sum, lambda v: ((v - mean) ** 2).sum()]
    whole, found = whiten(whole, True), []
    for half, other in ((halves[0], counted[1]), (halves[1], counted[0])):
        of_other = iter([float(function(other)) for function in sums])
        half = whiten(half, True, lambda own, of_other=of_other: own + next(of_other))
        found += half.columns["advantages"]
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(whole.columns["advantages"]))


def test_equal_advantages_whiten_to_zero():
    batch = batch_of(configured(method="reinforce_pp", gamma=1.0), transcript(1.0), transcript(1.0))
    batch = whiten(batch, True)
    assert not any(itertools.chain(*batch.columns["advantages"]))
    empty = build_batch([], [], configured(), None, np.random.default_rng(0))
    empty = whiten(empty, True)
    assert empty.columns["advantages"] == [] and empty.advantages_by_turn() == []

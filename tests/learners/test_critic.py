"""The critic: generalized advantages by hand, the clipped loss, and learning."""

import copy
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_batch import TASK, batch_of, configured, reply, transcript, windows
from tiny import qwen

from roleagent.config import from_dict
from roleagent.learners.batch import whiten
from roleagent.learners.critic import Critic, critic_advantages, fit, generalized_advantages, value_loss
from roleagent.learners.engine.engine import Engine
from roleagent.learners.loss import token_weights
from roleagent.types import TEXT, Trajectory, Turn

MASKS = list(itertools.product([True, False], repeat=2))


class FixedValues(Engine):
    """A critic with a given value per token id."""

    def __init__(self, values):
        self.values = values

    def score(self, segments, temperature, module=None):
        values = np.zeros(100)
        values[list(self.values)] = list(self.values.values())
        return [np.where(segment.token_kind > 0, values[segment.token_ids], 0.0) for segment in segments]


def test_generalized_advantages_by_hand():
    # δ = (0 + ½·4 - 2, 1 + ½·6 - 4, 3 - 6) = (0, 0, -3), and γλ = ¼: A_3 = -3, A_2 = -3/4, A_1 = -3/16.
    assert generalized_advantages([0.0, 1.0, 3.0], [2.0, 4.0, 6.0], 0.5, 0.5) == [-0.1875, -0.75, -3.0]
    # λ = 1: returns minus values; λ = 0: one step ahead.
    assert generalized_advantages([0.0, 1.0, 3.0], [2.0, 4.0, 6.0], 0.5, 1.0) == [-0.75, -1.5, -3.0]
    assert generalized_advantages([0.0, 1.0, 3.0], [2.0, 4.0, 6.0], 0.5, 0.0) == [0.0, 0.0, -3.0]
    assert generalized_advantages([], [], 0.5, 0.5) == []


@pytest.mark.parametrize(("estimator", "loss"), MASKS)
@pytest.mark.parametrize("episode", [transcript, windows])
def test_gae_covers_the_tokens_that_the_mask_leaves(estimator, loss, episode):
    config = configured(loss, estimator, method="ppo", gamma=0.5, gae_lambda=0.5)
    batch = batch_of(config, episode(1.0))
    batch = critic_advantages(batch, FixedValues({token: token / 16 for token in range(10, 22)}), config)
    last = 21 if episode is windows else 18
    text = [14] if episode is windows else [14, 16, 17]
    tokens = sorted([12, 13, last, *([] if estimator else text)])
    early = 0.25 if episode is windows else 0.0  # what the first turn earns
    rewards = [early if token == 13 else 1.0 if token == last else 0.0 for token in tokens]
    expected = dict(zip(tokens, generalized_advantages(rewards, [t / 16 for t in tokens], 0.5, 0.5), strict=True))
    targets = {token: token / 16 + value for token, value in expected.items()}
    expected[15] = expected[13]  # the prediction has the advantage of its turn's last action token
    rows = zip(batch.segments, batch.columns["advantages"], batch.columns["returns"], strict=True)
    for segment, advantages, returns in rows:
        for token, value, target in zip(segment.token_ids, advantages, returns, strict=True):
            assert (value, target) == pytest.approx((expected.get(token, 0.0), targets.get(token, 0.0))), token
    assert batch.advantages_by_turn()[0][0][0] == pytest.approx((expected[12] + expected[13]) / 2)


@pytest.mark.parametrize(("estimator", "loss"), MASKS)
@pytest.mark.parametrize(("episode", "early", "last"), [(transcript, 0.0, 18), (windows, 0.25, 21)])
def test_gae_per_turn_by_hand(episode, early, last, estimator, loss):
    """A turn has one reward, one value, that before its first action token, and one advantage."""
    config = configured(loss, estimator, method="ppo", gamma=0.5, gae_lambda=0.5, gae_level="turn")
    batch = batch_of(config, episode(1.0))
    batch = critic_advantages(batch, FixedValues({12: 0.5, 13: 9.0, last: 2.0}), config)
    # δ = (early + ½·2 - ½, 1 - 2) and γλ = ¼: A_2 = -1, A_1 = early + ½ - ¼.
    expected = {12: early + 0.25, 13: early + 0.25, 15: early + 0.25, last: -1.0}
    rows = zip(batch.segments, batch.columns["advantages"], batch.turns, strict=True)
    for segment, row, turns in rows:
        for token, kind, value, turn in zip(segment.token_ids, segment.token_kind, row, turns, strict=True):
            if not estimator and kind == TEXT:
                assert value == (early + 0.25, -1.0)[turn - 1], "text carries the advantage of its turn"
            else:
                assert value == pytest.approx(expected.get(token, 0.0)), token
    columns = (batch.columns[name] for name in ("fitted", "returns"))
    fitted = {
        token: target
        for segment, chosen, targets in zip(batch.segments, *columns, strict=True)
        for token, one, target in zip(segment.token_ids, chosen, targets, strict=True)
        if one
    }
    assert fitted == pytest.approx({12: early + 0.75, last: 1.0}), "where the critic learns"


@pytest.mark.parametrize("level", ["token", "turn"])
def test_gae_follows_the_turns_of_an_agent_program(level):
    """Two conversations take turns, and the reward comes with a command that has no reply of its own."""
    config = configured(method="ppo", gamma=0.5, gae_lambda=1.0, gae_level=level)
    turns = [
        Turn((1,), reply(10), "look", "x", "s", rewards={"task": 0.0}),
        Turn((2,), reply(20), "look", "x", "s", rewards={"task": 0.0}),
        Turn((1, 10, 3), reply(11), "take", "y", "s", rewards={"task": 0.0}),
        Turn((), reply(), "put", "y", "s", rewards={"task": 1.0}),
    ]
    batch = batch_of(config, Trajectory(TASK, (*turns,), True, False, "won"))
    batch = critic_advantages(batch, FixedValues({0: 0.0}), config)
    found = {
        token: value
        for segment, row in zip(batch.segments, batch.columns["advantages"], strict=True)
        for token, value in zip(segment.token_ids.tolist(), row, strict=True)
    }
    assert {token: found[token] for token in (10, 20, 11)} == {10: 0.25, 20: 0.5, 11: 1.0}


def test_whitening_per_turn_counts_a_turn_once():
    config = configured(method="ppo", gae_level="turn")
    batch = batch_of(config, transcript(1.0))
    batch = critic_advantages(batch, FixedValues({12: 0.5, 18: 0.0}), config)  # A_1 = 1 - 0.5 (γ = 0.95), A_2 = 1
    batch = whiten(batch, True, level="turn")
    [row] = batch.columns["advantages"]
    assert row[[2, 3, 8]] == pytest.approx([-1, -1, 1], abs=1e-4), "of two tokens and one"
    nearly = [100 + 100 * 2**-23 * row]  # a step of float32
    [row] = whiten(replace(batch, columns={**batch.columns, "advantages": nearly}), True).columns["advantages"]
    assert not row[[2, 3, 8]].any(), "equal up to rounding"


@pytest.mark.parametrize(
    ("value", "clip", "loss", "gradient"),
    [
        (1.5, 0.2, 0.5 * 0.64, 0.0),  # moved from 1.0 towards the return 2.0 by more than 0.2
        (1.5, 0.0, 0.5 * 0.25, -0.5),
        (1.1, 0.2, 0.5 * 0.81, -0.9),  # by less
        (0.5, 0.2, 0.5 * 2.25, -1.5),  # moved away from it: not clipped
    ],
)
def test_the_clipped_value_loss(value, clip, loss, gradient):
    values = torch.tensor([value, math.inf], requires_grad=True)
    old, returns, weights = torch.tensor([1.0, 0.0]), torch.tensor([2.0, 0.0]), torch.tensor([1.0, 0.0])
    found = value_loss(values, old, returns, weights, clip)
    found.backward()
    assert (found.item(), values.grad[0].item()) == pytest.approx((loss, gradient), abs=1e-6)


def test_the_critic_learns_returns():
    tree = {"loss": {"prediction_credit": "advantage"}, "critic": {"lr": 1e-2}}
    config = from_dict({"method": "ppo", "optim": {"warmup_steps": 1}} | tree)
    policy = qwen()
    critic = Engine(Critic(copy.deepcopy(policy.model), shares=True), config, config.critic.lr, 0)
    batch = batch_of(config, transcript(1.0), transcript(0.0, shift=50))
    batch = critic_advantages(batch, critic, config)
    assert not np.concatenate(batch.columns["values"]).any()  # values start at 0
    weights = token_weights(batch.segments, 1, 0.0, "token")
    columns = {name: batch.columns[name] for name in ("values", "returns")} | {"weights": weights}
    history = [fit(critic, batch.segments, columns, 1.0, clip=0.0) for _ in range(12)]
    assert history[0]["value_error"] == pytest.approx(math.sqrt(1 / 2))  # half of the tokens belong to the winner
    assert history[0]["value_loss"] == pytest.approx(1 / 4)
    assert history[-1]["value_error"] < history[0]["value_error"] / 3
    won, lost = critic.score(batch.segments, 1.0)
    assert won[2] > 0.6 and lost[2] < 0.4

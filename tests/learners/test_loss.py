"""The objective: clip cases by hand, and runs that must be equal."""

import math

import pytest
import torch
from torch import nn

from roleagent.config.settings import LossConfig
from roleagent.learners.engine.logprobs import head_logprobs
from roleagent.learners.loss import SampledTokens, policy_loss, token_weights
from roleagent.types import ACTION, Segment

VOCABULARY = 11


def loss_of(logprobs, old, advantages, weights, reference=None, **options):
    """The loss of tokens of one segment."""
    kinds, segments = torch.full(logprobs.shape, ACTION), torch.zeros(logprobs.shape, dtype=torch.int64)
    entropies = torch.zeros_like(logprobs)
    tokens = SampledTokens(logprobs, old, advantages, weights, kinds, segments, entropies, reference)
    return policy_loss(tokens, LossConfig(**options))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, 0),  # on policy: -A, and d(-ρA)/d log π = -ρA
        (1.2, 2.0, -2.4, -2.4, 0),  # inside 1 + 0.28
        (1.5, 2.0, -2.56, 0.0, 1),  # above: -1.28 · 2, no gradient
        (0.5, 2.0, -1.0, -1.0, 0),  # a good token that became rarer is not clipped
        (0.9, -1.0, 0.9, 0.9, 0),  # inside 1 - 0.2
        (0.5, -1.0, 0.8, 0.0, 1),  # below: 0.8, no gradient
        (1.5, -1.0, 1.5, 1.5, 0),  # a bad token that became more frequent is not clipped
    ],
)
def test_clip_cases(ratio, advantage, loss, gradient, clipped):
    logprob, one = torch.tensor([math.log(ratio)], requires_grad=True), torch.ones(1)
    found, metrics = loss_of(logprob, torch.zeros(1), one * advantage, one)
    found.backward()
    assert (found.item(), logprob.grad.item()) == pytest.approx((loss, gradient), abs=1e-5)
    assert metrics["clipped"] == clipped
    assert metrics["ratio"] == pytest.approx(ratio)


@pytest.mark.parametrize("learner", [-1.0, -18.0, -30.0, -500.0])
@pytest.mark.parametrize("ref", [-1.0, -30.0, -500.0])
def test_the_penalty_pulls_back_from_any_distance(learner, ref):
    """An unlikely token of the reference is finite, and its gradient points to the reference (trl PR 6637)."""
    logprob, one = torch.tensor([learner], requires_grad=True), torch.ones(1)
    options = {"reference": one * ref, "kl": 1.0}
    loss, metrics = loss_of(logprob, logprob.detach(), 0 * one, one, **options)
    loss.backward()
    assert 0 <= loss.item() < math.inf and math.isfinite(metrics["kl"])
    assert math.isfinite(logprob.grad) and torch.sign(logprob.grad) == math.copysign(1, learner - ref) * (
        learner != ref
    )
    closer = loss_of(logprob.detach() + 0.1 * (ref - learner), logprob.detach(), 0 * one, one, **options)[0]
    assert closer < loss.item() or learner == ref


@pytest.mark.parametrize("level", ["token", "sequence", "product"])
@pytest.mark.parametrize("apart", [5.0, 25.0, 400.0])
def test_a_bad_token_that_became_far_more_frequent_still_falls(level, apart):
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    one = torch.ones(2)
    loss, _ = loss_of(logprobs, logprobs.detach() - apart, -one, one, importance_level=level)
    loss.backward()
    assert math.isfinite(loss.item()) and torch.isfinite(logprobs.grad).all() and (logprobs.grad > 0).all()


def test_tokens_of_weight_zero_have_no_influence_whatever_stands_there():
    logprobs = torch.tensor([-1.0, -math.inf, 100.0], requires_grad=True)
    rest = torch.tensor([-1.0, 0.0, -100.0])
    loss, metrics = loss_of(logprobs, rest, torch.ones(3), torch.tensor([1.0, 0.0, 0.0]), rest)
    loss.backward()
    assert loss.item() == pytest.approx(-1.0)
    assert logprobs.grad.tolist() == [-1.0, 0.0, 0.0]
    assert metrics == {"clipped": 0, "ratio": 1, "kl": 0}


def test_a_ratio_out_of_all_bounds_stays_finite():
    logprobs = torch.tensor([0.0], requires_grad=True)
    loss, _ = loss_of(logprobs, torch.tensor([-1000.0]), -torch.ones(1), torch.ones(1))
    loss.backward()
    assert math.isfinite(loss.item())
    assert math.isfinite(logprobs.grad.item())


LONG = Segment((5, 6, 7, 8, 9), (0, 1, 3, 1, 2), (0.0,) * 5, (0.0,) * 5, 0)
SHORT = Segment((5, 6), (0, 1), (0.0,) * 2, (0.0,) * 2, 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[0, 1 / 4, 0, 1 / 4, 1 / 4], [0, 1 / 2]]),
        ({"action_mask": False}, [[0, 1 / 6, 1 / 6, 1 / 6, 1 / 4], [0, 1 / 2]]),
        ({"aggregation": "token"}, [[0, 1 / 3, 0, 1 / 3, 1 / 2], [0, 1 / 3]]),
        ({"aggregation": "token", "action_mask": False}, [[0, 1 / 4, 1 / 4, 1 / 4, 1 / 2], [0, 1 / 4]]),
        ({"aggregation": "constant", "divisor": 10}, [[0, 1 / 20, 0, 1 / 20, 1 / 40], [0, 1 / 20]]),
        # Another rank has as much again.
        ({"aggregation": "token", "sum_over_ranks": lambda n: 2 * n}, [[0, 1 / 6, 0, 1 / 6, 1 / 4], [0, 1 / 6]]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_what_is_averaged_over(options, expected):
    found = token_weights([LONG, SHORT], 2, **options)
    assert [row.tolist() for row in found] == [pytest.approx(row) for row in expected]


@pytest.mark.parametrize("rows", [2, 100])
def test_every_tensor_is_made_where_the_given_ones_are(rows):
    """Under a default device of its own, which has no numbers: what is not put with the others breaks here."""
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(5, VOCABULARY, bias=False)
    states = torch.randn(7, 5, generator=generator).requires_grad_()
    ids = torch.randint(VOCABULARY, (7,), generator=generator)
    weights = torch.tensor([0.0, *[1.0] * 6])

    def everything():
        states.grad = None
        logprobs, entropies = head_logprobs(states, head, ids, 0.9, entropy=True, rows=rows)
        loss, metrics = loss_of(logprobs, logprobs.detach() - 0.3, weights, weights, -weights)
        loss.backward()
        values = {**metrics, "loss": loss.detach(), "entropy": entropies}
        return {name: value.tolist() for name, value in {**values, "gradient": states.grad}.items()}

    expected = everything()
    with torch.device("meta"):
        assert everything() == expected

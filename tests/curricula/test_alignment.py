"""R_env, its band and its weights: what the published code leaves out or gets wrong."""

from itertools import pairwise
from math import comb, isfinite

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.curricula.alignment import Alignment, effective_sample_size, squared_error, success_rate

counts = st.integers(1, 64).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
rates = st.floats(0.05, 0.95)


def mean(function, p, n):
    """The expectation of a function of (k, n) over k ~ Binomial(n, p)."""
    return sum(comb(n, k) * p**k * (1 - p) ** (n - k) * function(k, n) for k in range(n + 1))


@given(counts, rates, st.floats(0.01, 50), st.floats(0, 0.5), st.floats(0, 5))
def test_rewards_are_highest_at_the_target_and_weights_are_zero_outside_the_band_alone(count, alpha, beta, k_min, lam):
    alignment, (k, n) = Alignment(alpha, beta, k_min, lam), count
    assert 0 <= alignment.reward(k, n) <= 1
    distances = sorted((abs(j / n - alpha), alignment.reward(j, n)) for j in range(n + 1))
    assert all(near >= far - 1e-12 for (_, near), (_, far) in pairwise(distances))
    assert (alignment.weight(k, n) > 0) == (abs(k / n - alpha) <= max(k_min, 1 / n) + 1e-9)


@given(st.lists(counts, max_size=40), rates, st.floats(0, 0.5))
def test_a_batch_of_any_size_keeps_what_is_in_the_band_and_nothing_else(batch, alpha, k_min):
    """The published filter cuts the lowest and highest tenth by rank, and everything of a batch below ten."""
    alignment = Alignment(alpha, k_min=k_min)
    kept = [count for count in batch if alignment.weight(*count)]
    assert kept == [(k, n) for k, n in batch if abs(k / n - alpha) <= max(k_min, 1 / n) + 1e-9]


@pytest.mark.parametrize("changed", [{"alpha": 0.4}, {"beta": 2.0}, {"rwr_lambda": 4.0}])
def test_alpha_beta_and_lambda_change_the_weights(changed):
    standard, other = Alignment(k_min=0.5), Alignment(k_min=0.5, **changed)
    relative = [np.array([one.weight(k, 8) for k in range(9)]) for one in (standard, other)]
    assert np.abs(relative[0] / relative[0].sum() - relative[1] / relative[1].sum()).max() > 0.01


@given(rates, rates, st.integers(2, 16))
def test_the_order_is_right_in_expectation_at_one_half(p, q, n):
    near, far = sorted((p, q), key=lambda rate: abs(rate - 0.5))
    alignment = Alignment()
    assert mean(squared_error, near, n) <= mean(squared_error, far, n) + 1e-12
    assert mean(alignment.reward, near, n) >= mean(alignment.reward, far, n) - 1e-12


@given(rates, rates, st.integers(2, 16))
def test_debias_removes_the_noise_of_few_attempts(p, alpha, n):
    assert mean(lambda k, m: squared_error(k, m, alpha, debias=True), p, n) == pytest.approx((p - alpha) ** 2)
    assert mean(lambda k, m: squared_error(k, m, alpha), p, n) == pytest.approx((p - alpha) ** 2 + p * (1 - p) / n)


def test_extreme_options_give_numbers():
    extreme = Alignment(beta=1e9, rwr_lambda=1e9, debias=True)
    weights = [extreme.weight(1, 2), extreme.weight(2, 4)]
    assert all(map(isfinite, (*weights, extreme.reward(2, 4), effective_sample_size(weights))))


def test_one_attempt_has_no_signal():
    assert Alignment().weight(0, 1) == Alignment().weight(1, 1) > 0


def test_a_rate_of_nothing_is_refused():
    with pytest.raises(ValueError, match="3 successes of 2"):
        success_rate(3, 2)
    with pytest.raises(ValueError):
        success_rate(0, 0)

"""R_env, its band and its weights: what the published code leaves out or gets wrong."""

from itertools import pairwise
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.curricula.alignment import Alignment, squared_error

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

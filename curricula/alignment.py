"""How well the difficulty of generated tasks fits the agent, and what a task simulator earns for it (GenEnv).

The agent plays a task n times and solves it k times. Its success rate is p̂ = k/n (Eq. 2). The simulator earns
R_env = exp(−β (p̂ − α)²) (Eq. 3). A record trains the simulator only if p̂ is in a band around α; its weight in the
regression is exp(λ R_env).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_ROUNDING = 1e-9
_LARGEST = 300.0  # exponent of a reward or a weight, whose square is still a number


def success_rate(successes: int, attempts: int) -> float:
    """p̂ = k/n (Eq. 2).

    Raises:
        ValueError: not 0 ≤ k ≤ n, or n = 0.

    >>> success_rate(3, 8)
    0.375
    """
    if not 0 <= successes <= attempts or not attempts:
        raise ValueError(f"{successes} successes of {attempts} attempts are no success rate")
    return successes / attempts


def squared_error(successes: int, attempts: int, alpha: float = 0.5, debias: bool = False) -> float:
    """(p̂ − α)², the squared distance of the success rate from its target.

    Its expectation is (p − α)² + p(1 − p)/n. For α = 1/2 it ranks tasks correctly; for another α it is least at
    (α − 1/2n)/(1 − 1/n).

    Args:
        debias: subtract p̂(1 − p̂)/(n − 1), so that the expectation is (p − α)²; the result may be below 0. With one
            attempt nothing is subtracted.

    >>> squared_error(1, 8, 0.5)
    0.140625
    >>> squared_error(1, 8, 0.5, debias=True)
    0.125
    """
    rate = success_rate(successes, attempts)
    noise = rate * (1 - rate) / (attempts - 1) if debias and attempts > 1 else 0.0
    return (rate - alpha) ** 2 - noise


@dataclass(frozen=True)
class Alignment:
    """The options of R_env, the band and the weights.

    Attributes:
        alpha: α in (0, 1), the success rate to aim at.
        beta: β ≥ 0, the sharpness of R_env.
        k_min: half-width of the band, ≥ 0. It is at least 1/n: with 8 attempts, 3 to 5 successes are in the band.
        rwr_lambda: λ ≥ 0, of the weights.
        debias: see :func:`squared_error`.

    >>> Alignment().reward(4, 8), round(Alignment().reward(0, 8), 3)
    (1.0, 0.135)
    >>> [k for k in range(9) if Alignment().in_band(k, 8)]
    [3, 4, 5]
    >>> round(Alignment().weight(3, 8), 3), Alignment().weight(2, 8)
    (2.417, 0.0)
    """

    alpha: float = 0.5
    beta: float = 8.0
    k_min: float = 0.1
    rwr_lambda: float = 1.0
    debias: bool = False

    def reward(self, successes: int, attempts: int) -> float:
        """R_env = exp(−β (p̂ − α)²) (Eq. 3), in (0, 1]; with ``debias`` up to exp(β/(4(n − 1)))."""
        return math.exp(min(_LARGEST, -self.beta * squared_error(successes, attempts, self.alpha, self.debias)))

    def half_width(self, attempts: int) -> float:
        """The half-width of the band: max(k_min, 1/n)."""
        return max(self.k_min, 1 / attempts)

    def in_band(self, successes: int, attempts: int) -> bool:
        """Whether |p̂ − α| is at most :meth:`half_width`."""
        distance = abs(success_rate(successes, attempts) - self.alpha)
        return distance <= self.half_width(attempts) + _ROUNDING

    def weight(self, successes: int, attempts: int) -> float:
        """The weight of a record in the regression: exp(λ R_env) in the band, 0 outside."""
        if not self.in_band(successes, attempts):
            return 0.0
        return math.exp(min(_LARGEST, self.rwr_lambda * self.reward(successes, attempts)))


def effective_sample_size(weights: Sequence[float]) -> float:
    """(Σw)²/Σw²: as many equal weights have the same variance; 0 without weights.

    >>> effective_sample_size([1.0, 1.0, 0.0])
    2.0
    """
    squares = sum(weight**2 for weight in weights)
    return sum(weights) ** 2 / squares if squares else 0.0

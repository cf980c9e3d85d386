"""The training sequence: tokens, masks, log-probabilities and advantages for the learner."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CONTEXT, ACTION, PREDICTION, TEXT = 0, 1, 2, 3
"""The kinds of tokens: read only, sampled as an action, sampled as a prediction, and the environment's text where it is
trained (in the warm start, and with an action mask off)."""


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """One training sequence. The columns have the same length T; any sequence of numbers is valid.

    Attributes:
        token_ids: int64 (T,): prompts, replies and observations, as they stood in the policy's context.
        token_kind: int8 (T,): one of the kinds above.
        sampler_logprobs: float64 (T,): log-probability under the policy that sampled the token; 0 elsewhere.
        advantages: float64 (T,): the advantage of the turn that sampled the token; 0 elsewhere.
        trajectory: index of the trajectory the segment belongs to, within its batch.
    """

    token_ids: np.ndarray
    token_kind: np.ndarray
    sampler_logprobs: np.ndarray
    advantages: np.ndarray
    trajectory: int = 0

    def __post_init__(self) -> None:
        for name, dtype in _COLUMNS.items():
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype))
        lengths = {len(getattr(self, name)) for name in _COLUMNS}
        if len(lengths) != 1:
            raise ValueError(f"the columns of a segment differ in length: {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.token_ids)


_COLUMNS = {"token_ids": np.int64, "token_kind": np.int8, "sampler_logprobs": np.float64, "advantages": np.float64}

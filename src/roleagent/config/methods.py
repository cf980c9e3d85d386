"""The options that ``method=NAME`` sets, below a file and the command line.

A method is one line here. A new advantage is a function in :mod:`roleagent.learners.advantages`, selected by
``estimator.kind``. All other parts are options for any method. docs/algorithms.md describes the methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METHODS: dict[str, Mapping[str, Any]] = {
    "role_agent": {"estimator": {"kind": "role_agent"}},
    "gigpo": {"estimator": {"kind": "gigpo"}},
    "grpo": {"estimator": {"kind": "grpo"}},
    "rloo": {"estimator": {"kind": "rloo"}},
    "reinforce_pp": {"estimator": {"kind": "reinforce", "gamma": 1.0, "whiten": True}},
    "reinforce_pp_baseline": {"estimator": {"kind": "grpo", "norm": "mean", "whiten": True}},
    "ppo": {"estimator": {"kind": "gae", "gamma": 1.0, "whiten": True}, "loss": {"clip_high": 0.2}},
    "dapo": {
        "estimator": {"kind": "grpo", "rewards": {"overlong": -0.1}},
        "loss": {"aggregation": "token", "clip_low": 0.2, "clip_high": 0.28, "kl": 0.0},
        "rollout": {"dynamic_sampling_rounds": 2},
    },
    "gspo": {
        "estimator": {"kind": "grpo"},
        "loss": {"importance_level": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
    },
    # Predictions would cost a second reply at every expansion of the search, and change nothing in it.
    "agent_r": {"train": {"stage": "revise"}, "revision": {"form": "note"}, "wia": False},
}

"""A small batch for tests of the learner: episodes of two turns, in one segment or in two."""

import numpy as np

from roleagent.config import from_dict
from roleagent.learners.batch import build_batch
from roleagent.learners.method import GRPO, method_of
from roleagent.types import Completion, Group, Prediction, Task, Trajectory, Turn

TASK = Task("RoleAgent/Toy-v0", "boil-egg-1")
LOGPROB = -0.5  # of every sampled token


def reply(*ids):
    return Completion(ids, (LOGPROB,) * len(ids), "stop")


def transcript(reward=1.0, shift=0):
    """Two turns in one segment: prompt 2, reply 2, question 1, prediction 1, observation 2, reply 1, which earns."""
    a, b, c, d, e, f, g, h, i = (shift + token for token in range(10, 19))
    prediction = Prediction((a, b, c, d, e), reply(f), ("?",))
    first = Turn((a, b), reply(c, d), "look", "x", "s", prediction, {"task": 0.0})
    last = Turn((a, b, c, d, e, f, g, h), reply(i), "take", "y", "s", None, {"task": reward}, {"won": reward > 0})
    return Trajectory(TASK, (first, last), True, False, "won")


def windows(reward=1.0):
    """Two turns that have nothing in common: prompt 2, reply 2, question 1, prediction 1; then prompt 1, reply 1."""
    prediction = Prediction((10, 11, 12, 13, 14), reply(15), ("?",))
    first = Turn((10, 11), reply(12, 13), "look", "x", "s", prediction, {"task": 0.25})
    last = Turn((20,), reply(21), "take", "y", "s", None, {"task": reward})
    return Trajectory(TASK, (first, last), True, False, "won")


def configured(loss=True, estimator=True, method="grpo", **more):
    """A configuration with these masks and estimator options."""
    estimator = {"action_mask": estimator, "norm": "mean"} | more
    masks = {"loss": {"action_mask": loss, "prediction_credit": "advantage"}, "estimator": estimator}
    return from_dict({"method": method, **masks})


def batch_of(config, *trajectories):
    group = Group(TASK, trajectories)
    return build_batch(
        [group],
        [method_of(config).estimate(group)],
        config,
        None,
        np.random.default_rng(0),
    )


def two_groups(config):
    """Two groups of a won and a lost transcript."""
    groups = [Group(TASK, (transcript(1.0, shift), transcript(0.0, shift + 20))) for shift in (0, 40)]
    advantages = [GRPO(config).estimate(group) for group in groups]
    return build_batch(groups, advantages, config, None, np.random.default_rng(0))

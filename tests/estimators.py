"""The advantages of a group by the name of a method, with given options."""

import dataclasses
from functools import partial

from roleagent.config import from_dict
from roleagent.config.settings import EstimatorOptions
from roleagent.learners.advantages import Advantages, Estimator
from roleagent.learners.method import method_of

NAMES = ("grpo", "rloo", "gigpo", "role_agent", "reinforce_pp", "ppo")
COMPARING = NAMES[:4]


def estimator(reply_limit=0, **options):
    return Estimator(EstimatorOptions(**options), reply_limit)


def changed(one, **options):
    return Estimator(dataclasses.replace(one.options, **options), one.reply_limit)


def method(name, given):
    found = method_of(from_dict({"method": name}))
    found.estimator = given
    return found


def advantages(name, group, given):
    found = method(name, given).advantages(group)
    return found.values if isinstance(found, Advantages) else found


grpo, rloo, gigpo, role_agent, reinforce, gae = (partial(advantages, name) for name in NAMES)

"""The methods by name: ``method=NAME`` chooses one of these, ``method=module:Class`` one of a user's.

A method is a class (:class:`roleagent.learners.method.Method`). The configuration needs two of its parts: ``settings``,
the options that it sets below a file and the command line, and ``Options``, the dataclass of its own section
``options``. docs/write_a_method.md shows how to write one.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from pydantic.dataclasses import dataclass

from roleagent.config.settings import KNOWN_KEYS
from roleagent.imports import load_object
from roleagent.options import ConfigError, shown

METHODS = {
    "role_agent": "roleagent.learners.methods:RoleAgent",
    "gigpo": "roleagent.learners.methods:GiGPO",
    "grpo": "roleagent.learners.methods:GRPO",
    "rloo": "roleagent.learners.methods:RLOO",
    "reinforce_pp": "roleagent.learners.methods:ReinforcePlusPlus",
    "reinforce_pp_baseline": "roleagent.learners.methods:ReinforcePlusPlusBaseline",
    "ppo": "roleagent.learners.methods:PPO",
    "dapo": "roleagent.learners.methods:DAPO",
    "gspo": "roleagent.learners.methods:GSPO",
    "distill": "roleagent.learners.methods:Distillation",
    "agent_r": "roleagent.learners.agent_r.method:AgentR",
    "eto": "roleagent.learners.agent_r.method:ETO",
    "sft": "roleagent.learners.sft.method:SFT",
}


@dataclass(frozen=True, config=KNOWN_KEYS)
class NoOptions:
    """The options of a method that has none of its own."""


def method_class(name: Any) -> Any:
    """The class of a method.

    Args:
        name: one of :data:`METHODS`, or ``module:Class``; the working directory is searched first.

    Raises:
        ConfigError: there is no such method, or it lacks a part.

    >>> method_class("grpo").__name__
    'GRPO'
    """
    if isinstance(name, str) and name in METHODS:
        return load_object(METHODS[name])
    if not isinstance(name, str) or ":" not in name:
        near = difflib.get_close_matches(str(name)[:100], METHODS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"method must be one of {', '.join(METHODS)}, or module:Class, not {shown(name)}{hint}")
    found, base = load_object(name), load_object("roleagent.learners.method:Method")
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(
            f"method={name} is no method: derive a class from roleagent.learners.method.Method (docs/write_a_method.md)"
        )
    own: Any = found
    if not isinstance(own.settings, Mapping):
        raise ConfigError(f"method={name}: settings must be a mapping of sections, not {shown(own.settings)}")
    if not is_dataclass(own.Options):
        raise ConfigError(f"method={name}: Options must be a dataclass")
    for option in fields(own.Options):
        if option.default is MISSING and option.default_factory is MISSING:
            raise ConfigError(f"method={name}: the option {option.name} needs a default")
    return own


__all__ = ["METHODS", "NoOptions", "method_class"]

"""Makes environments by name. An error in the name or the arguments is one line."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

import roleagent  # noqa: F401  (registers the environments)
from roleagent.envs.tools.views import VIEWS, ToolView
from roleagent.options import ConfigError

_EXPECTED = (gymnasium.error.Error, TypeError, ValueError, OSError, ImportError, RuntimeError)
"""Errors of an environment whose message is enough; of others the type is shown as well."""


def make(env_id: str, arguments: Mapping[str, Any], prefix: str = "") -> gymnasium.Env:
    """``gymnasium.make`` without Gymnasium's checker, and with each argument of the type that its constructor names.

    Args:
        env_id: a Gymnasium id; ``module:id`` imports the module first.
        arguments: of the environment. ``view="tools"`` or ``"fine"`` makes a
            :class:`~roleagent.envs.tools.views.ToolView`, which also has the argument ``format_gate``.
        prefix: what an error puts before the name of an argument.

    Raises:
        ConfigError: there is no such environment, it has no such argument, or it lacks data or a package.
    """
    view, gate = arguments.get("view"), arguments.get("format_gate", False)
    if view in VIEWS:
        arguments = {name: value for name, value in arguments.items() if name not in ("view", "format_gate")}
    try:
        arguments = _checked(env_id, arguments, prefix)
        env = gymnasium.make(env_id, disable_env_checker=True, **arguments)
        return ToolView(env, fine=view == "fine", format_gate=bool(gate)) if view in VIEWS else env
    except ConfigError:
        raise
    except Exception as error:  # whatever a module or constructor raises that the user has named
        # Gymnasium appends its own account of the arguments to the environment's message.
        reason = " ".join(str(error).split()).partition(" was raised from the environment creator")[0]
        if not isinstance(error, _EXPECTED):
            reason = f"{type(error).__name__}: {reason}"
        raise ConfigError(f"cannot make the environment {env_id}: {reason}") from error


def _checked(env_id: str, arguments: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    module, colon, name = env_id.rpartition(":")
    try:
        if colon:  # as gymnasium.make does
            importlib.import_module(module)
    except (ImportError, TypeError, ValueError) as error:
        raise ConfigError(
            f"cannot make the environment {env_id}: {error}; before the colon stands the module that registers it"
        ) from error
    spec = gymnasium.registry.get(name)
    if spec is None or spec.entry_point is None:
        return dict(arguments)  # gymnasium.make lists what there is
    from roleagent.validation import check_arguments  # pydantic: help does without

    creator = spec.entry_point if callable(spec.entry_point) else load_env_creator(spec.entry_point)
    return check_arguments(creator, arguments, prefix)


__all__ = ["make"]

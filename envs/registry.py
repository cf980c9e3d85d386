"""Makes environments by name. An error in the name or the arguments is one line."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator
from rapidfuzz import fuzz, process

import roleagent  # noqa: F401  (registers the environments)
from roleagent.envs.tools.views import VIEWS, ToolView
from roleagent.envs.wrappers.full_info import FullInfo
from roleagent.imports import place_of, searched_first
from roleagent.options import ConfigError, shown

_EXPECTED = (gymnasium.error.Error, TypeError, ValueError, OSError, ImportError, RuntimeError)
"""Errors of an environment whose message is enough; of others the type is shown as well."""


def make(env_id: str, **arguments: Any) -> gymnasium.Env:
    """``gymnasium.make`` with one-line errors, and with the argument ``view``.

    Args:
        env_id: a Gymnasium id; ``module:id`` imports the module first, also from the working directory.
        arguments: of the environment. ``view="tools"`` plays it by tool calls, ``view="fine"`` with a tool for each
            verb (:class:`~roleagent.envs.tools.views.ToolView`).

    Raises:
        ConfigError: see :func:`make_env`.

    >>> env = make("RoleAgent/TextCraft-v0", view="tools")
    >>> [tool.name for tool in env.get_wrapper_attr("tools")]
    ['get', 'craft', 'inventory']
    """
    return make_env(env_id, arguments)


def make_env(env_id: str, arguments: Mapping[str, Any], prefix: str = "") -> gymnasium.Env:
    """``gymnasium.make`` without Gymnasium's checker, and with each argument of the type that its constructor names.

    Args:
        env_id: a Gymnasium id; ``module:id`` imports the module first, also from the working directory.
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
        env = env if env_id.startswith("RoleAgent/") else FullInfo(env)
        return ToolView(env, fine=view == "fine", format_gate=bool(gate)) if view in VIEWS else env
    except ConfigError:
        raise
    except gymnasium.error.UnregisteredEnv as error:
        raise ConfigError(_unknown(env_id)) from error
    except Exception as error:  # whatever a module or constructor raises that the user has named
        # Gymnasium appends its own account of the arguments to the environment's message.
        reason = " ".join(str(error).split()).partition(" was raised from the environment creator")[0]
        if not isinstance(error, _EXPECTED):
            reason = f"{type(error).__name__}: {reason}"
        raise ConfigError(f"cannot make the environment {env_id}: {reason}{place_of(error)}") from error


def _checked(env_id: str, arguments: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    module, colon, name = env_id.rpartition(":")
    try:
        if colon:  # as gymnasium.make does
            with searched_first():
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
    parameters = inspect.signature(creator).parameters
    if "view" in arguments and "view" not in parameters:
        raise ConfigError(f"{prefix}view must be one of {', '.join(VIEWS)}, not {shown(arguments['view'])}")
    open_ended = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    known = {*parameters, *arguments} if open_ended else {*parameters, "max_episode_steps"}  # this is gymnasium.make's
    if unknown := next((one for one in arguments if one not in known), None):
        near = difflib.get_close_matches(unknown, parameters, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(parameters) or 'none'}"
        if unknown == "split" and not near:
            hint = "docs/add_environment.md shows what a run needs: that argument, and a task_split"
        raise ConfigError(f"{name} has no argument {prefix}{unknown}; {hint}")
    return check_arguments(creator, arguments, prefix)


def environment_id(name: str) -> str:
    """The Gymnasium id of an environment, given in full or by its name alone, in small letters or large.

    >>> environment_id("alfworld")
    'RoleAgent/ALFWorld-v0'

    Raises:
        ConfigError: there is no such environment; the message names the nearest.
    """
    if name in gymnasium.registry or ":" in name:  # "module:Id" is registered by importing the module
        return name
    found = _ours().get(name.casefold())
    if found is None:
        raise ConfigError(_unknown(name))
    return found


def _unknown(name: str) -> str:
    ours, bare = _ours(), re.sub(r"^.*[/:]|-v\d+$", "", name).casefold()
    near = process.extractOne(bare, list(ours), scorer=fuzz.ratio, score_cutoff=60)
    hint = f"did you mean {ours[near[0]]}?" if near else f"there are {', '.join(ours.values())}"
    return f"there is no environment {name!r}; {hint}"


def _ours() -> dict[str, str]:
    """RoleAgent's ids by the name alone, in small letters."""
    return {re.split("/|-v", key)[1].casefold(): key for key in gymnasium.registry if key.startswith("RoleAgent/")}


__all__ = ["environment_id", "make", "make_env"]

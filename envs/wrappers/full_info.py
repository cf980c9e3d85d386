"""The infos of an environment that was not written for RoleAgent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from roleagent.types import ending, reward_terms

_TEXT, _BOOL, _LIST = (str,), (bool, np.bool_), (list, tuple)
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("task_id", "goal", "task_type", "split", "command"), (_TEXT, "a text")),
    **dict.fromkeys(("state", "grouping_state"), (_TEXT, "a text or None")),
    **dict.fromkeys(("won", "valid_action"), (_BOOL, "True or False")),
    "admissible_actions": (_LIST, "a list of texts"),
}
_MAY_BE_NONE = ("goal", "task_type", "split", "state", "grouping_state")


def _type_of(value: Any) -> str:
    """A value's type; of a list the first type in it that is no text."""
    name = type(value).__name__
    others = [type(one).__name__ for one in value if not isinstance(one, str)] if isinstance(value, _LIST) else []
    return f"{name} with a {others[0]} in it" if others else name


class FullInfo(gymnasium.Wrapper, gymnasium.utils.RecordConstructorArgs):
    """Fills in what an environment's ``info`` leaves out (:mod:`roleagent.types`), and refuses what cannot be used.

    :func:`~roleagent.envs.registry.make_env` wraps every environment in it that is not RoleAgent's own. The default of
    ``task_id`` is the task that was asked for, of ``state`` the observation, of ``rewards`` the reward as ``task``, and
    of ``won`` whether the episode ended by itself with a reward above 0. A goal, a type or a split of None counts as
    left out.

    Raises:
        ValueError: in ``reset`` and ``step``, with the environment and the key: the observation is no text, the reward
            no finite number, a value in ``info`` of another type than :mod:`roleagent.types` has for its key, or
            another task is played than was asked for.
    """

    def __init__(self, env: gymnasium.Env):
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        self._name = env.spec.id if env.spec else type(env.unwrapped).__name__
        self._about: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._check(info)
        asked = (options or {}).get("task_id")
        if asked is not None and info.get("task_id", asked) != asked:
            raise ValueError(
                f"{self._name} was asked for the task {asked!r} and plays {info['task_id']!r}: its reset must play "
                'options["task_id"]'
            )
        split = getattr(getattr(self.unwrapped, "task_split", None), "split", "")
        about = {"task_id": asked or "", "goal": "", "task_type": "", "split": split}
        self._about = {key: default if info.get(key) is None else info[key] for key, default in about.items()}
        return observation, self._filled(observation, {"won": False, "rewards": {}, **info})

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        found = self.env.step(action)
        if not isinstance(found, tuple) or len(found) != 5:
            raise ValueError(f"{self._name}: step must return observation, reward, terminated, truncated and info")
        observation, reward, terminated, truncated, info = found
        self._check(info)
        try:
            rewards = {name: float(value) for name, value in reward_terms(info, reward).items()}
            sound = math.isfinite(reward) and all(map(math.isfinite, rewards.values()))
        except (TypeError, ValueError):
            sound = False
        if not sound:
            raise ValueError(
                f"{self._name} returned the reward {reward!r} and the terms {info.get('rewards', {})!r}: a number is "
                "needed, and a dictionary of numbers"
            )
        if terminated and "won" not in info:
            gymnasium.logger.warn(f"{self._name} does not report won: an end with a reward counts as won")
        won = ending(info, terminated, rewards) == "won"
        info = self._filled(observation, {**info, "won": won, "rewards": rewards})
        return observation, float(reward), bool(terminated), bool(truncated), info

    def _filled(self, observation: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(observation, str):
            raise ValueError(f"{self._name} returned an observation of type {type(observation).__name__}, not text")
        general = {"admissible_actions": [], "state": observation}
        given = {key: value for key, value in info.items() if key not in self._about or value is not None}
        return {**self._about, **general, **given, "valid_action": bool(given.get("valid_action", True))}

    def _check(self, info: Any) -> None:
        if not isinstance(info, Mapping):
            raise ValueError(f"{self._name} returned an info of type {type(info).__name__}, not a dictionary")
        for key, (kinds, wanted) in _KINDS.items():
            value = info.get(key)
            sound = isinstance(value, kinds) and (kinds is not _LIST or all(isinstance(one, str) for one in value))
            if key in info and not sound and (value is not None or key not in _MAY_BE_NONE):
                raise ValueError(f"{self._name} returned info[{key!r}] of type {_type_of(value)}: {wanted} is needed")


__all__ = ["FullInfo"]

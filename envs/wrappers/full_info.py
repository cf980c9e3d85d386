"""The infos of an environment that was not written for RoleAgent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium

from roleagent.types import ending, reward_terms


class FullInfo(gymnasium.Wrapper, gymnasium.utils.RecordConstructorArgs):
    """Fills in what an environment's ``info`` leaves out (:mod:`roleagent.types`), and refuses what cannot be used.

    :func:`~roleagent.envs.registry.make_env` wraps every environment in it that is not RoleAgent's own. The default of
    ``task_id`` is the task that was asked for, of ``state`` the observation, of ``rewards`` the reward as ``task``, and
    of ``won`` whether the episode ended by itself with a reward above 0.

    Raises:
        ValueError: in ``reset`` and ``step``: the observation is no text, the reward no finite number, the state
            neither text nor None, ``rewards`` no mapping of numbers, or another task is played than was asked for.
    """

    def __init__(self, env: gymnasium.Env):
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        self._name = env.spec.id if env.spec else type(env.unwrapped).__name__
        self._about: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        asked = (options or {}).get("task_id")
        if asked is not None and info.get("task_id", asked) != asked:
            raise ValueError(
                f"{self._name} was asked for the task {asked!r} and plays {info['task_id']!r}: its reset must play "
                'options["task_id"]'
            )
        split = getattr(getattr(self.unwrapped, "task_split", None), "split", "")
        about = {"task_id": asked or "", "goal": "", "task_type": "", "split": split}
        self._about = {key: info.get(key, default) for key, default in about.items()}
        return observation, self._filled(observation, {"won": False, "rewards": {}, **info})

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
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
        state = info.get("state", observation)
        if not isinstance(state, str | None):
            raise ValueError(f"{self._name} returned a state of type {type(state).__name__}, neither text nor None")
        general = {"admissible_actions": [], "valid_action": True, "state": state}
        return {**self._about, **general, **info}


__all__ = ["FullInfo"]

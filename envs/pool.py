"""Many environments side by side, in this process.

Text environments answer in microseconds; threads, pipes or actors would cost more than the steps themselves. An
environment that fails answers with its error instead of ending the run, and is replaced at its next reset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium


@dataclass(frozen=True, slots=True)
class Outcome:
    """What ``reset`` or ``step`` returned, or the error that it raised.

    Attributes:
        error: ``"ValueError: …"`` if the environment failed; the other fields then mean nothing.
    """

    observation: str = ""
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


class EnvPool:
    """Environments by number, built when first needed.

    Args:
        make: builds one environment.
    """

    def __init__(self, make: Callable[[], gymnasium.Env]):
        self._make = make
        self._envs: dict[int, gymnasium.Env] = {}

    def reset(self, index: int, task_id: str | None = None, seed: int | None = None) -> Outcome:
        """Begins an episode in environment ``index``.

        Raises:
            ValueError: the environment knows no such task. That is the caller's mistake, not a failing environment.
        """
        if index not in self._envs:
            self._envs[index] = self._make()
        try:
            options = {} if task_id is None else {"task_id": task_id}
            observation, info = self._envs[index].reset(seed=seed, options=options)
        except ValueError:
            raise
        except Exception as error:
            return self._failed(index, error)
        return Outcome(observation, info=info)

    def step(self, index: int, action: Any) -> Outcome:
        """One step of environment ``index``."""
        try:
            observation, reward, terminated, truncated, info = self._envs[index].step(action)
        except Exception as error:
            return self._failed(index, error)
        return Outcome(observation, float(reward), bool(terminated), bool(truncated), info)

    def _failed(self, index: int, error: Exception) -> Outcome:
        self._envs.pop(index, None)  # whatever state it is in, it does not come back
        return Outcome(error=f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Closes all environments."""
        for env in self._envs.values():
            env.close()
        self._envs.clear()

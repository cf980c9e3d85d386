"""Many environments side by side, in this process.

Text environments answer in microseconds; threads, pipes or actors would cost more than the steps themselves. An
environment that fails answers with its error instead of ending the run, and is replaced at its next reset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from roleagent.env_card import step_limit
from roleagent.envs.tools.calls.broker import Broker, PreparedCall, prepared_calls, shared_broker
from roleagent.imports import error_line
from roleagent.slow_notice import count

_FAILURES = (Exception, SystemExit)  # some parsers give up by exiting; that is a failure like any other


@dataclass(frozen=True, slots=True)
class Outcome:
    """The return value of ``reset`` or ``step``, or its error.

    Attributes:
        error: ``"RuntimeError: … (FILE:LINE)"``, in one line, if the environment failed, with the place in a user's
            code; the other fields then mean nothing. It is no outcome of the task and must never be counted as one.
    """

    observation: str = ""
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


class EnvPool:
    """Environments by number; the first ``n`` are built at once, the others when first needed.

    Args:
        make: builds one environment. What it raises for the first ``n`` is raised here: missing data should stop a
            run before it begins.
        broker: runs the tool calls of :meth:`step_many`; None: the broker of this process.
    """

    def __init__(self, make: Callable[[], gymnasium.Env], n: int = 0, broker: Broker | None = None):
        self._make, self._broker = make, broker
        self._envs: dict[int, gymnasium.Env] = {index: make() for index in range(n)}

    def __len__(self) -> int:
        """How many environments are alive."""
        return len(self._envs)

    def reset(self, index: int, task_id: str | None = None, seed: int | None = None) -> Outcome:
        """Begins an episode in environment ``index``.

        Raises:
            ValueError: the environment's split has no such task. That is the caller's mistake, no failure.
        """
        try:
            if index not in self._envs:
                self._envs[index] = self._make()
            env = self._envs[index]
            task_split = env.get_wrapper_attr("task_split") if env.has_wrapper_attr("task_split") else None
        except _FAILURES as error:
            return self._failed(index, error)
        if task_id is not None and task_split is not None:
            task_split.require(task_id)
        try:
            options = {} if task_id is None else {"task_id": task_id}
            observation, info = env.reset(seed=seed, options=options)
        except _FAILURES as error:
            return self._failed(index, error)
        return Outcome(observation, info=info)

    def step(self, index: int, action: Any) -> Outcome:
        """One step of environment ``index``."""
        if index not in self._envs:
            return Outcome(error=f"environment {index} has failed or was never reset")
        try:
            observation, reward, terminated, truncated, info = self._envs[index].step(action)
            count("turns")
        except _FAILURES as error:
            return self._failed(index, error)
        return Outcome(observation, float(reward), bool(terminated), bool(truncated), info)

    def step_many(self, actions: Mapping[int, Any]) -> dict[int, Outcome]:
        """One step of several environments; their tool calls run together.

        Args:
            actions: by number of the environment.

        Returns:
            Each environment's outcome, in the order of ``actions``.
        """
        calls: dict[int, list[PreparedCall]] = {}
        outcomes: dict[int, Outcome] = {}
        for index, action in actions.items():
            try:
                prepared = prepared_calls(self._envs[index], action) if index in self._envs else None
            except _FAILURES as error:
                outcomes[index] = self._failed(index, error)
            else:
                calls |= {index: prepared} if prepared else {}
        if calls:
            results = (self._broker or shared_broker()).run(list(calls.values()))
            for index, found in zip(calls, results, strict=True):
                self.get_wrapper_attr(index, "finish")(found)
        return {
            index: outcomes[index] if index in outcomes else self.step(index, action)
            for index, action in actions.items()
        }

    def env(self, index: int) -> gymnasium.Env:
        """Environment ``index``; KeyError if there is none."""
        return self._envs[index]

    def get_wrapper_attr(self, index: int, name: str) -> Any:
        """An attribute of environment ``index``, wherever it is among its wrappers.

        Raises:
            KeyError, AttributeError: there is no such environment, or none of its wrappers has it.
        """
        return self._envs[index].get_wrapper_attr(name)

    def common_attr(self, name: str) -> Any:
        """An attribute that is the same in all environments, wherever it is among their wrappers."""
        if not self._envs:
            self._envs[0] = self._make()
        return next(iter(self._envs.values())).get_wrapper_attr(name)

    def share(self, index: int, steps: int) -> float:
        """The share of the longest episode that so many steps are, in [0, 1]; 0 without a limit."""
        limit = step_limit(self._envs[index]) if index in self._envs else None
        return min(1.0, steps / limit) if limit else 0.0

    def scoring_seconds(self, indices: Iterable[int]) -> float:
        """The seconds that some of the environments spent on scoring predictions."""
        name, living = "scoring_seconds", [self._envs[index] for index in indices if index in self._envs]
        return sum(float(env.get_wrapper_attr(name)) for env in living if env.has_wrapper_attr(name))

    def close(self) -> None:
        """Closes all environments. The pool can go on being used: it builds new ones."""
        for index in list(self._envs):
            self._discard(index)

    def _failed(self, index: int, error: BaseException) -> Outcome:
        self._discard(index)
        return Outcome(error=error_line(error))

    def _discard(self, index: int) -> None:
        env = self._envs.pop(index, None)
        try:
            if env is not None:
                env.close()
        except _FAILURES:
            return  # whatever state it was in, it does not come back

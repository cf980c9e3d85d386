"""A limit of time for environments that may hang."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import gymnasium


class StepTimeout(gymnasium.Wrapper, gymnasium.utils.RecordConstructorArgs):
    """Gives up a ``reset`` or ``step`` that takes too long.

    The environment is reset, played and closed in a thread of its own, always the same one. Python cannot end a
    thread: one that hangs stays until the process ends, and the environment cannot be used again.

    Args:
        env: the environment.
        seconds: that a call may take, above 0.

    Raises:
        TimeoutError: in ``reset`` and ``step``, with the environment and the limit.
    """

    def __init__(self, env: gymnasium.Env, seconds: float):
        gymnasium.utils.RecordConstructorArgs.__init__(self, seconds=seconds)
        gymnasium.Wrapper.__init__(self, env)
        self._name = env.spec.id if env.spec else type(env.unwrapped).__name__
        self._seconds, self._works = seconds, True
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._limited("reset", lambda: self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self._limited("step", lambda: self.env.step(action))

    def close(self) -> None:
        """Closes the environment, in the thread that it runs in, unless it hangs."""
        if self._works:
            self._limited("close", self.env.close)
            self._works = False
            self._calls.put(None)

    def _limited(self, what: str, call: Callable[[], Any]) -> Any:
        answer: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

        def answered() -> None:
            try:
                answer.put((call(), None))
            except BaseException as error:  # raised again in the thread that waits
                answer.put((None, error))

        self._calls.put(answered)
        try:
            result, error = answer.get(timeout=self._seconds)
        except Empty:
            self._works = False
            self._calls.put(None)
            raise TimeoutError(
                f"{what} of {self._name} took more than {self._seconds:g} seconds (env.step_timeout)"
            ) from None
        if error is not None:
            raise error
        return result

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


__all__ = ["StepTimeout"]

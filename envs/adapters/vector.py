"""Many environments as one of ``gymnasium.vector``, each with a task of its own.

``gymnasium.make_vec`` makes vectors of RoleAgent's environments as of any others. What it lacks is here: a task for
each environment, and a word about which worker process it is that has died or does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing import TimeoutError as NoAnswer
from multiprocessing.connection import wait
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv, VectorWrapper

import roleagent  # noqa: F401  (registers the environments)
from roleagent.tasks.split import TaskSplit


class TaskVector(VectorWrapper):
    """A vector of environments whose ``reset`` takes one task for each.

    ``options={"task_ids": [...]}`` names a task per environment, in their order, or None for one at random. All else
    is as in Gymnasium, ``reset_mask`` included, with which only some environments begin anew. What an environment
    begins by itself (autoreset) is a task at random: to say which, make the vector with
    :attr:`AutoresetMode.DISABLED <gymnasium.vector.AutoresetMode>` and reset what is over.

    Where a worker process has died or does not answer in time, the error names it; the vector can then only be
    closed without waiting.

    Args:
        env: a vector of RoleAgent environments.
        task_split: their tasks: an unknown id is then found here. Without it, it ends the worker that is given it.
        timeout: seconds that worker processes have to answer; None: any time.
    """

    def __init__(self, env: VectorEnv, task_split: TaskSplit | None = None, timeout: float | None = None):
        super().__init__(env)
        self.task_split: Any = task_split
        self.timeout = timeout
        self._silent: list[int] = []  # environments that did not answer in time

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins episodes, each of its own task.

        Raises:
            ValueError: there is not one task per environment, or no such task.
            RuntimeError: a worker has died or does not answer.
        """
        options = dict(options or {})
        if options.get("task_ids") is None:
            options.pop("task_ids", None)
            return self._reset(seed, options)
        task_ids = self._checked(options.pop("task_ids"))
        begins = np.asarray(options.pop("reset_mask", np.ones(self.num_envs, dtype=np.bool_)))
        if not begins.any():
            raise ValueError("reset_mask chooses no environment")
        seeds = [seed + number for number in range(self.num_envs)] if isinstance(seed, int) else seed
        observations: Any = ()
        infos: dict[str, Any] = {}
        # Gymnasium hands the same options to all: those that play the same task are reset together.
        for task_id in dict.fromkeys(task_id for task_id, mine in zip(task_ids, begins, strict=True) if mine):
            mask = begins & np.array([other == task_id for other in task_ids])
            task = {} if task_id is None else {"task_id": task_id}
            observations, found = self._reset(seeds, {**options, **task, "reset_mask": mask})
            infos = merge_infos(infos, found)
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step of every environment.

        Raises:
            RuntimeError: a worker has died or does not answer.
        """
        env = self._workers
        if env is None:
            return self.env.step(actions)
        return self._answer(env, lambda: (env.step_async(actions), env.step_wait(self.timeout))[1])

    def close(self, **kwargs: Any) -> None:
        """Closes all environments; where one has died or is silent, by ending the processes."""
        env = self._workers
        if env is None or env.closed or not (self._silent or self._dead(env)):
            return self.env.close(**kwargs)
        for process in env.processes:
            process.kill()
        for process, pipe in zip(env.processes, env.parent_pipes, strict=True):
            process.join()
            if pipe is not None:
                pipe.close()
        env.closed = True

    @property
    def _workers(self) -> AsyncVectorEnv | None:
        """The vector that has processes, if it is right below: a wrapper in between has a ``step`` of its own."""
        return self.env if isinstance(self.env, AsyncVectorEnv) else None

    def _checked(self, task_ids: Any) -> list[str | None]:
        if isinstance(task_ids, str) or len(task_ids) != self.num_envs:
            given = "one text" if isinstance(task_ids, str) else f"{len(task_ids)}"
            raise ValueError(f"task_ids names a task (or None) for each of {self.num_envs} environments, not {given}")
        for task_id in task_ids:
            if task_id is None:
                continue
            if self.task_split is None:
                raise ValueError(f"the environments have no task_split, so no task {task_id!r}")
            self.task_split.require(task_id)
        return list(task_ids)

    def _reset(self, seed: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        env = self._workers
        if env is None:
            return self.env.reset(seed=seed, options=options)
        return self._answer(env, lambda: (env.reset_async(seed, options), env.reset_wait(self.timeout))[1])

    def _answer(self, env: AsyncVectorEnv, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except NoAnswer:
            pipes = enumerate(env.parent_pipes)
            self._silent = [number for number, pipe in pipes if pipe is None or not pipe.poll()]
            named = ", ".join(map(str, self._silent))
            raise RuntimeError(f"no answer in {self.timeout:g} s from environment {named}: close the vector") from None
        except (EOFError, OSError, AttributeError) as error:  # Gymnasium forgets the pipe of a worker that has failed
            ended = wait([process.sentinel for process in env.processes], timeout=1)
            for process in env.processes:
                if process.sentinel in ended:
                    process.join(timeout=1)  # its files are shut before it is gone
            dead = self._dead(env)
            if not dead:
                raise
            raise RuntimeError(f"{'; '.join(dead)}: close the vector and make another") from error

    def _dead(self, env: AsyncVectorEnv) -> list[str]:
        return [
            f"the worker of environment {number} has ended (exit status {process.exitcode})"
            for number, process in enumerate(env.processes)
            if not process.is_alive()
        ]


def make_vector(
    env_id: str,
    num_envs: int,
    mode: Literal["sync", "async"] = "sync",
    *,
    autoreset: AutoresetMode = AutoresetMode.NEXT_STEP,
    wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Wrapper]] = (),
    timeout: float | None = None,
    **arguments: Any,
) -> TaskVector:
    """``gymnasium.make_vec`` with a task for each environment; processes are spawned, never forked.

    A program that makes processes needs the line ``if __name__ == "__main__":``, since each imports it again. They pay
    off where a step is slow (TextWorld, Java); the text environments answer in less time than a process is written to.

    Args:
        env_id: a Gymnasium id.
        num_envs: how many, ≥ 1.
        mode: all in this process, or each in one of its own.
        autoreset: who begins the next episode, see :class:`TaskVector`.
        wrappers: put around each environment, the first one innermost.
        timeout: seconds that worker processes have to answer; None: any time.
        arguments: of the environment.
    """
    first = gymnasium.make(env_id, **arguments)  # missing data is reported here, not by a worker
    task_split = getattr(first.unwrapped, "task_split", None)
    first.close()
    vector_kwargs: dict[str, Any] = {"autoreset_mode": autoreset}
    if mode == "async":
        vector_kwargs["context"] = "spawn"
    vector = gymnasium.make_vec(env_id, num_envs, mode, vector_kwargs, list(wrappers), **arguments)
    return TaskVector(vector, task_split, timeout)


def merge_infos(infos: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The ``infos`` of a vector, updated with those of the environments in ``found``.

    >>> mine = {"won": np.array([True, False]), "_won": np.array([True, False])}
    >>> other = {"won": np.array([False, True]), "_won": np.array([False, True])}
    >>> merge_infos(mine, other)["won"].tolist()
    [True, True]
    """
    merged = dict(infos)
    for key, value in found.items():
        mask = found.get(f"_{key}")
        if mask is None:  # this is a mask itself
            continue
        if isinstance(value, dict):
            merged[key] = merge_infos(infos.get(key, {}), value)
        else:
            merged[key] = np.where(mask, value, infos[key]) if key in infos else value
        merged[f"_{key}"] = mask | infos.get(f"_{key}", np.zeros_like(mask))
    return merged


__all__ = ["TaskVector", "make_vector", "merge_infos"]

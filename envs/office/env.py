"""``RoleAgent/Office-v0``: a generated world of tools, for policies that are trained from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from roleagent.envs.office.tasks import CALLS, ENV_ID, is_generated, open_office
from roleagent.envs.office.tools import TOOLS
from roleagent.envs.tools.env import ToolEnv


class OfficeEnv(ToolEnv):
    """Look up people and rooms, convert amounts, and book hours, with six tools.

    A task takes 1 to 4 calls that depend on each other, and an answer. Tasks of the types ``lookup`` and ``price`` are
    judged by the answer. Those of the types ``book`` and ``meet`` are judged by the bookings in the end, which must be
    the wanted one and no other. Every task has an office of its own. See
    :class:`~roleagent.envs.tools.env.ToolEnv` for commands, rewards and ``info``; on the last step ``info["expected"]``
    is what would have been right: the answer, or ``[id, day, hour]``.

    Args:
        split: ``"train"``, ``"valid"`` or ``"test"``. No two splits share a name.
        calls: tasks that take these numbers of calls.
        seed: of the names and offices.
        generated_tasks: whether tasks of :class:`~roleagent.envs.office.task_grammar.OfficeGrammar` can be played; of
            the training split only.
        max_steps, max_words, format_gate, render_mode: see :class:`~roleagent.envs.tools.env.ToolEnv`.

    Raises:
        ValueError: an argument has no meaning.
    """

    ENV_ID = ENV_ID
    data_info = MappingProxyType({"source": "generated"})
    _is_generated = staticmethod(is_generated)

    def __init__(
        self,
        split: str = "train",
        calls: Sequence[int] = CALLS,
        seed: int = 0,
        max_steps: int = 8,
        max_words: int = 60,
        format_gate: bool = False,
        generated_tasks: bool = False,
        render_mode: str | None = None,
    ):
        self.seed = seed
        super().__init__(
            [*TOOLS.values()],
            open_office(split, tuple(calls), seed),
            split=split,
            max_steps=max_steps,
            max_words=max_words,
            format_gate=format_gate,
            generated_tasks=generated_tasks,
            render_mode=render_mode,
        )

    def _check_tasks(self) -> None:
        """Tasks are made when they are played, and fit."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """See :meth:`ToolEnv.step`."""
        observation, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            assert self._task is not None
            answer = self._task.answer
            info["expected"] = answer["bookings"][0] if isinstance(answer, dict) else answer
        return observation, reward, terminated, truncated, info

    def task_type(self, task_id: str) -> str:
        """The type of a task, without playing it."""
        return task_id.partition("-")[0]


__all__ = ["OfficeEnv"]

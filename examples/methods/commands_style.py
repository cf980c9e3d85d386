"""A prompt style in one file: a fresh prompt per step with the task, all commands so far, and the last observation.

Between a transcript, which shows everything, and a window, which shows the last steps with their observations.

    python train.py --config configs/toy.yaml prompt.style=examples.methods.commands_style:Commands
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roleagent.agents.rendering import Conversation, commands_of


class Commands(Conversation):
    """The task, the commands so far, the observation, and the possible commands."""

    def _open(self, observation: str, info: Mapping[str, Any]) -> None:
        self._given: tuple[str, ...] = ()
        self._write(observation, info)

    def _write(self, observation: str, info: Mapping[str, Any]) -> None:
        lines = [f"Your task is to: {self._goal}", *(f"> {command}" for command in self._given)]
        self._ids = self._first_message("\n".join((*lines, observation, *commands_of(info))))

    def advance(
        self, stream: Sequence[int], last_reply: Sequence[int], action: str, observation: str, info: Mapping[str, Any]
    ) -> None:
        self._given = (*self._given, action)
        self._write(observation, info)

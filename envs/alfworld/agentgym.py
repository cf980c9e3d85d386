"""ALFWorld in AgentGym's protocol: the fields of its server and of ``AlfWorldEnvClient``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roleagent.envs.adapters.agentgym import Played, ProtocolError, WireFormat

WORLDS = ("Text", "Embody", "Hybrid")


class ALFWorldFormat(WireFormat):
    """``/reset`` takes the number of a ``game`` and its ``world_type``; the greeting is left out of observations.

    Games have the numbers of ``train``, then of ``valid_train``, sorted by path. AgentGym's own order is in its files
    ``mappings_train.json`` and ``mappings_test.json``, which ``roleagent serve --task-ids`` reads.
    """

    task_field = "game"
    splits = ("train", "valid_train")

    def first_text(self, text: str, info: Mapping[str, Any]) -> str:
        return "\n".join(text.split("\n\n")[1:])

    def text(self, text: str) -> str:
        return text[text.find(". ") + 2 :] if text.startswith("You arrive at loc ") else text

    def created(self, played: Played) -> Any:
        return {"id": played.number}

    def reset(self, played: Played) -> Any:
        if (world := played.request.get("world_type", "Text")) not in WORLDS:
            raise ProtocolError(f"world_type must be one of {', '.join(WORLDS)}, not {world!r}")
        return {
            "id": played.number,
            "observation": played.text,
            "available_actions": played.actions,
            "task_type": played.info["task_id"],
        }


__all__ = ["ALFWorldFormat"]

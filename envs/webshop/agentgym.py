"""WebShop in AgentGym's protocol: the fields of its server and of ``WebshopEnvClient``."""

from __future__ import annotations

from typing import Any

from roleagent.envs.adapters.agentgym import Played, WireFormat


class WebShopFormat(WireFormat):
    """The environment's id is ``env_idx`` and a bare number; ``session_id`` is the published goal index.

    The reward is WebShop's score.
    """

    env_field = "env_idx"
    task_field = "session_id"
    splits = ("test", "valid", "train")  # in the order of the goals
    arguments = {"reward": "score"}  # noqa: RUF012
    error_status = 400

    def __init__(self) -> None:
        super().__init__()
        self.pages = {
            "observation": self.observation,
            "available_actions": lambda played: {
                "has_search_bar": played.info["has_search_bar"],
                "clickables": played.info["clickables"],
            },
            "instruction_text": lambda played: f"Instruction: {played.info['goal']}",
        }

    def created(self, played: Played) -> Any:
        return played.number

    def reset(self, played: Played) -> Any:
        return [played.text, None]

    def stepped(self, played: Played) -> Any:
        return {"state": played.text, "reward": played.reward, "done": played.done, "info": None}

    def closed(self, played: Played) -> Any:
        return {"closed": True}


__all__ = ["WebShopFormat"]

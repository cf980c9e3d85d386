"""Search QA in AgentGym's protocol: the fields of its server and of ``SearchQAEnvClient``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from roleagent.envs.adapters.agentgym import Played, WireFormat

_TAGS = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
PROMPT = """\
Answer the question with the help of a search engine. Think between <think> and </think>. Then either search, with the \
query between <search> and </search>, or give the answer, between <answer> and </answer>. A search shows passages \
between <information> and </information>. Write one search or one answer at a time and stop after it.

Question: {question}"""


class SearchQAFormat(WireFormat):
    """The environment's id is ``env_idx`` and a bare number; an action is a whole reply with its tags.

    ``/observation`` is the question with the instructions, throughout the episode.
    """

    env_field = "env_idx"
    splits = ("test", "train")
    task_field = "id"
    error_status = 400

    def __init__(self) -> None:
        super().__init__()
        self.pages = {"observation": self.observation}

    def command(self, action: str) -> str:
        """The first search or answer.

        >>> SearchQAFormat().command("<think>Emma?</think><search> Emma novel </search><answer>no</answer>")
        'search[Emma novel]'
        """
        found = _TAGS.search(action)
        return f"{found[1]}[{found[2].strip()}]" if found else ""

    def first_text(self, text: str, info: Mapping[str, Any]) -> str:
        return PROMPT.format(question=info["goal"])

    def created(self, played: Played) -> Any:
        return played.number

    def reset(self, played: Played) -> Any:
        return self.observation(played)

    def stepped(self, played: Played) -> Any:
        return {"observation": played.text, "reward": played.reward, "done": played.done, "info": None}

    def observation(self, played: Played) -> Any:
        return self.first_text("", played.info)

    def closed(self, played: Played) -> Any:
        return True


__all__ = ["SearchQAFormat"]

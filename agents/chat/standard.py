"""The standard prompts of :mod:`roleagent.agents.rendering` as messages, for a model behind a server.

The server gets the same text as a local policy, so that both can be compared. There are no predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roleagent.agents.chat.episode import AgentLoop, Episode
from roleagent.agents.chat.plain import SILENCE
from roleagent.agents.chat.tool_agent import assistant_message, identified, native_reading
from roleagent.agents.chat.types import Prompt
from roleagent.agents.rendering import STYLES, ChatRenderer
from roleagent.config.settings import PromptConfig
from roleagent.env_spec import Instructions
from roleagent.envs.wrappers.tags import ReplyReader, TagReader


class MessageRenderer(ChatRenderer):
    """A chat renderer whose prompts are messages instead of tokens: the server has the template."""

    def __init__(self) -> None:
        """Needs no policy."""

    def literal(self, text: str) -> str:
        return text

    def first_message(self, text: str, tools: Sequence[Any] = ()) -> list[Any]:
        return [{"role": "user", "content": text}]

    def next_message(self, text: str, reply: Sequence[Any]) -> list[Any]:
        return self.tool_results([text], reply)

    def tool_results(self, texts: Sequence[str], reply: Sequence[Any]) -> list[Any]:
        calls = reply[-1].get("tool_calls", ()) if reply else ()
        if not calls:
            return self.first_message("\n".join(texts))
        each = texts if len(texts) == len(calls) else ["\n".join(texts)] * len(calls)
        return [
            {"role": "tool", "tool_call_id": call["id"], "content": text}
            for call, text in zip(calls, each, strict=True)
        ]


class ChatAgent:
    """Plays an environment in ``Tags`` or ``ToolTags``, which take raw replies (see :class:`PromptingAgent`).

    Args:
        prompt: style, history and thinking.
        guide: the environment's instructions.
        reader: of the outermost wrapper; None: that of ``Tags``.
    """

    def __init__(self, prompt: PromptConfig, guide: Instructions, reader: ReplyReader | None = None):
        self._prompt, self._guide = prompt, guide
        self._reader: ReplyReader = reader or TagReader(prompt.think, horizon=0)

    def play(self, episode: Episode) -> AgentLoop:
        """Begins the episode and plays it to its end."""
        episode.begin()
        style, think, history = STYLES[self._prompt.style], self._prompt.think, self._prompt.history
        conversation = style(MessageRenderer(), 0, think, episode.observation, episode.info, history, self._guide)
        while True:
            prompt: tuple[Any, ...] = conversation.action_prompt()
            answer = yield Prompt(prompt, conversation.tools)
            said: Any = {"role": "assistant", "content": answer.text or SILENCE}
            reply: Any = answer.text
            if answer.tool_calls and conversation.tools:  # the server has read the calls
                said = assistant_message(answer.text, identified(native_reading(answer).calls, prompt))
                bare = [{**call, "id": None} for call in answer.tool_calls]  # ids are no part of a window
                reply = {"content": answer.text, "tool_calls": bare}
            command = self._reader.read(reply).command
            episode.corrections += not command
            episode.step(reply, command)
            if episode.over:
                return
            conversation.advance((*prompt, said), (said,), command, episode.observation, episode.info)

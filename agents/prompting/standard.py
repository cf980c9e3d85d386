"""The standard prompts of :mod:`roleagent.agents.rendering` as messages, for a model behind a server.

The server gets the same text as a local policy, so that both can be compared. There are no predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from roleagent.agents.chat.types import Answer, Prompt
from roleagent.agents.episode import Action, Episode, play_episode
from roleagent.agents.prompt_templates import NO_TEMPLATES, PromptTemplates, read_templates
from roleagent.agents.prompting.plain import SILENCE
from roleagent.agents.prompting.tools import assistant_message, identified, native_reading
from roleagent.agents.rendering import ChatRenderer, Conversation, style_of
from roleagent.config.settings import PromptConfig
from roleagent.env_card import Instructions
from roleagent.envs.wrappers.tags import ReplyReader, TagReader


class MessageRenderer(ChatRenderer):
    """A chat renderer whose prompts are messages instead of tokens: the server has the template."""

    def __init__(self, templates: PromptTemplates = NO_TEMPLATES) -> None:
        """Needs no policy."""
        self.templates = templates

    def literal(self, text: str) -> str:
        return text

    def first_message(self, text: str, tools: Sequence[Any] = ()) -> list[Any]:
        return [{"role": "user", "content": text}]

    def next_message(self, text: str, reply: Sequence[Any]) -> list[Any]:
        return self.tool_results([text], reply)

    def tool_results(self, texts: Sequence[str], reply: Sequence[Any], names: Sequence[str] = ()) -> list[Any]:
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

    async def play(self, episode: Episode) -> None:
        """Plays the episode."""
        style, think, history = style_of(self._prompt.style), self._prompt.think, self._prompt.history
        conversation: Conversation | None = None
        said: tuple[Any, ...] = ()  # the messages so far, the last ones, and their command
        heard: Answer | None = None
        thought = False  # in an earlier reply of the conversation

        async def decide(episode: Episode) -> Action:
            nonlocal conversation, said, heard, thought
            if conversation is None:
                first = (episode.observation, episode.info)
                conversation = style(
                    MessageRenderer(read_templates(self._prompt.templates)), 0, think, *first, history, self._guide
                )
            else:
                conversation.advance(*said, episode.observation, episode.info)
            prompt: tuple[Any, ...] = conversation.action_prompt()
            answer = await episode.ask(Prompt(prompt, conversation.tools))
            if heard is not None and thought and prompt[: len(said[0])] == said[0] and _is_missing(heard, answer):
                episode.usage = replace(episode.usage, dropped_thoughts=episode.usage.dropped_thoughts + 1)
            heard, thought = answer, thought or bool(answer.thoughts) or "<think>" in answer.text
            message: Any = {**answer.beside, "role": "assistant", "content": answer.text or SILENCE}
            reply: Any = answer.text
            if answer.tool_calls and conversation.tools:  # the server has read the calls
                message = assistant_message(answer.text, identified(native_reading(answer).calls, prompt), answer)
                bare = [{**call, "id": None} for call in answer.tool_calls]  # ids are no part of a window
                reply = {"content": answer.text, "tool_calls": bare}
            command = self._reader.read(reply).command
            episode.corrections += not command
            said = (*prompt, message), (message,), command
            return Action(reply, command)

        await play_episode(episode, decide)


def _is_missing(reply: Answer, answer: Answer) -> bool:
    """Whether the server's template dropped a part of a reply from the conversation that the next answer is to.

    The conversation has grown by the reply and an observation, so it has more tokens than both parts before. Where the
    observation is longer than what was dropped, it cannot be seen.
    """
    counted = not (reply.estimated or answer.estimated or answer.shortened)
    return counted and answer.prompt_tokens < reply.prompt_tokens + reply.completion_tokens

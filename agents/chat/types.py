"""Types of the chat client: messages, answers, errors and usage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

OVERLONG = "context"
"""The ``finish_reason`` of the answer ``""`` to a conversation that does not fit the model's context."""
Message = Mapping[str, Any]
"""``role`` ("system", "user", "assistant" or "tool") and the text ``content``. As in OpenAI's protocol a message of the
assistant may have ``tool_calls``, and one of a tool has the ``tool_call_id`` that it answers."""


class Prompt(tuple[Message, ...]):
    """Messages, and the tools that are offered with them.

    Attributes:
        tools: as OpenAI's protocol and chat templates take them.
    """

    tools: tuple[Mapping[str, Any], ...]

    def __new__(cls, messages: Iterable[Message], tools: Iterable[Mapping[str, Any]] | None = None) -> Prompt:
        """A copy of the messages; without ``tools`` those of the messages, if these are a prompt."""
        made = super().__new__(cls, messages)
        made.tools = tuple(getattr(messages, "tools", ()) if tools is None else tools)
        return made


BYTES_PER_TOKEN = 3
"""For estimates, of UTF-8: English has about four, Chinese about three. A low number is the careful one."""


def estimated_tokens(text: str) -> int:
    """About how many tokens a text has, rather too many than too few.

    >>> estimated_tokens("Put a hot egg on the table."), estimated_tokens("把热鸡蛋放在桌子上")
    (9, 9)
    """
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


class EndpointError(RuntimeError):
    """The server cannot be used as configured; the message is one line with the change to make."""


class RefusedError(Exception):
    """The server will not answer this conversation, now or later; it may answer others."""


class OverlongError(RefusedError):
    """The conversation does not fit the model's context."""


class UnansweredError(Exception):
    """No answer this time.

    Attributes:
        reached: whether the server itself reported it.
    """

    def __init__(self, why: str, reached: bool):
        super().__init__(why)
        self.reached = reached


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's answer.

    Attributes:
        text: its words, thoughts in ``<think>`` included where the server leaves them in; ``""`` where it is empty.
        finish_reason: ``"stop"``, ``"length"`` (cut off at the limit), :data:`OVERLONG` or another word of its own.
        prompt_tokens: tokens read.
        completion_tokens: tokens written, hidden thoughts included.
        estimated: whether the server did not count the tokens, so that they are estimated from the texts' lengths.
        tool_calls: calls of tools in OpenAI's protocol, as the server returned them.
        thoughts: what the server returned beside the text, as reasoning.
        beside: all other parts of the server's message, reasoning included: some servers refuse a conversation in which
            their message comes back without them.
        shortened: whether the server counts so few prompt tokens that it must have cut the conversation.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    estimated: bool
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    thoughts: str = ""
    beside: Mapping[str, Any] = field(default_factory=dict)
    shortened: bool = False


@dataclass(frozen=True, slots=True)
class Spending:
    """The costs of a server.

    Attributes:
        requests: HTTP requests for answers, repeated ones included.
        retries: how many of them were repeated ones.
        failures: conversations that stayed unanswered, those too long for the model's context included.
        cut: answers that ended at the token limit.
        prompt_tokens: tokens read, of answered requests: what an unanswered one may have cost is not known.
        completion_tokens: tokens written, likewise.
        estimated: answers whose tokens the server did not count, so that their numbers are estimates.
        seconds: wall-clock time.
        shortened: answers to conversations that the server cut without saying so.
    """

    requests: int = 0
    retries: int = 0
    failures: int = 0
    cut: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: int = 0
    seconds: float = 0.0
    shortened: int = 0

    def price(self, prices: tuple[float, float]) -> float:
        """In money, at prices per million prompt and completion tokens.

        >>> Spending(prompt_tokens=2_000_000, completion_tokens=500_000).price((0.5, 2.0))
        2.0
        """
        return (self.prompt_tokens * prices[0] + self.completion_tokens * prices[1]) / 1e6

"""The conversations of an agent program, in tokens: what continues a known one is appended to its sampled tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from roleagent.agents.chat.types import Message
from roleagent.agents.chat_renderer import ChatRenderer
from roleagent.agents.gateway.protocol import ChatRequest
from roleagent.agents.rendering import PlainRenderer
from roleagent.types import Completion

Key = tuple[Any, ...]
"""A message as it is compared."""


@dataclass
class Known:
    """A conversation up to a reply of the policy; ``calls`` has the names of the tools that it calls, by id."""

    keys: tuple[Key, ...]
    tools: str
    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    calls: Mapping[str, str]
    number: int
    continued: bool = False


class Conversations:
    """What a program and the policy have said to each other in an episode.

    A request whose messages begin with a known conversation, its reply included, continues it: the prompt is the tokens
    that were read and sampled there, and the tokens of the messages behind them. Any other request begins a new
    conversation. Sampled tokens are never encoded again.

    Attributes:
        count: of the conversations. A second request that continues the same reply begins another.
    """

    def __init__(self, renderer: ChatRenderer | PlainRenderer):
        self._renderer = renderer
        self._known: list[Known] = []
        self.count = 0

    def prompt(self, request: ChatRequest) -> tuple[tuple[int, ...], Known | None]:
        """The prompt of a request, and the conversation that it continues; None: it begins one.

        Raises:
            ValueError: the chat template refuses the messages.
        """
        keys, tools = tuple(map(key_of, request.messages)), _tools_key(request)
        fitting = [
            one
            for one in self._known
            if one.tools == tools
            and len(one.keys) < len(keys)
            and keys[: len(one.keys)] == one.keys
            and all(message["role"] in ("user", "tool") for message in request.messages[len(one.keys) :])
        ]
        if fitting:
            known = max(fitting, key=lambda one: len(one.keys))
            said = _in_order(request.messages[len(known.keys) :], [*known.calls])
            ids = [message.get("tool_call_id") for message in said if message["role"] == "tool"]
            names = [known.calls[one] for one in ids if one in known.calls]
            if len(names) < len(ids):  # ids of the program's own: by their places
                names = [*known.calls.values()]
            new = self._renderer.continuation(said, known.reply, names)
            return (*known.prompt, *known.reply, *new), known
        own = {key for one in self._known for key in one.keys[-1:]}
        prompt = self._renderer.conversation(request.messages, request.tools, lambda message: key_of(message) in own)
        return tuple(prompt), None

    def add(
        self,
        request: ChatRequest,
        prompt: tuple[int, ...],
        before: Known | None,
        completion: Completion,
        message: Mapping[str, Any],
    ) -> int:
        """Takes in a reply: its tokens, and the message that the program gets; returns the conversation's number."""
        if before is None or before.continued:
            number, self.count = self.count, self.count + 1
        else:
            number, before.continued = before.number, True
        keys = (*map(key_of, request.messages), key_of(message))
        calls = {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ())}
        self._known.append(Known(keys, _tools_key(request), prompt, completion.token_ids, calls, number))
        return number


def _in_order(messages: Sequence[Message], ids: Sequence[str]) -> list[Message]:
    """Messages behind a reply, with the results of its calls in their order: a program may run them side by side."""
    results = [*takewhile(lambda message: message["role"] == "tool", messages)]
    rest = messages[len(results) :]
    if all(message["tool_call_id"] in ids for message in results):
        results.sort(key=lambda message: ids.index(message["tool_call_id"]))
    return [*results, *rest]


def key_of(message: Message) -> Key:
    """A message as it is compared: programs send replies back without their thoughts, blanks or the names of calls.

    >>> key_of({"role": "assistant", "content": None, "reasoning_content": "Hm."})
    ('assistant', '', ())
    """
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = tuple((one["name"], _canonical(one["arguments"])) for one in functions)
    text = message["content"] or ""
    return (message["role"], text.strip() if message["role"] == "assistant" else text, calls)


def _canonical(arguments: Any) -> str:
    return json.dumps(json.loads(arguments) if isinstance(arguments, str) else arguments, sort_keys=True)


def _tools_key(request: ChatRequest) -> str:
    return json.dumps(request.tools, sort_keys=True)


__all__ = ["Conversations", "Known", "key_of"]

"""The chat model protocol, and a policy as a chat model.

A server already is a chat model (:class:`~roleagent.agents.chat.endpoint.Endpoint`); :class:`PolicyChatModel` wraps a
policy, the local model or vLLM's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Protocol

from roleagent.agents.chat.types import OVERLONG, Answer, Message
from roleagent.agents.chat_template import ChatTemplate, calls_in_words, with_tools
from roleagent.agents.policies.protocol import Policy, PolicyError
from roleagent.markers import escape_markers, map_texts
from roleagent.similarity import common_prefix
from roleagent.types import Completion, Request


class ChatModel(Protocol):
    """A model that continues conversations: text in, text out.

    Attributes:
        concurrency: most conversations at the same time.
        lockstep: whether one call should ask for many answers. Otherwise many threads ask for one answer each, since
            answers take unequal times.
    """

    @property
    def concurrency(self) -> int: ...

    @property
    def lockstep(self) -> bool: ...

    def chat(
        self, conversations: Sequence[Sequence[Message]], *, max_tokens: int, temperature: float
    ) -> list[Answer | None]:
        """The model's next message in each conversation, in order; None where there is no answer.

        A conversation that does not fit the model's context has the answer ``""`` with the reason ``OVERLONG``.

        Raises:
            EndpointError: the model cannot be used as it is configured.
        """
        ...


class PolicyChatModel:
    """A policy as a chat model.

    Messages become a prompt by the tokenizer's chat template. Without one (base models, policies from scratch) each
    message is a paragraph that begins with the role's name, and an answer ends at the next role's name::

        Instructions: You act in …

        User: You are in a kitchen. …

        Assistant: go to fridge

        User: You arrive at fridge. …

        Assistant:

    A message cannot contain the template's markers: their brackets are replaced in user messages, and the only special
    tokens that are recognized are the tags of a reply (``<think>``, ``<action>``) in assistant messages.

    A conversation that continues from one call to the next costs only its new tokens: it is recognized by how it
    begins, and the policy's cache is reused for the common prefix of the prompts.

    Args:
        policy: continues token sequences.
        concurrency: most conversations in one batch.

    Raises:
        PolicyError: the chat template does not show conversations.
    """

    lockstep = True

    def __init__(self, policy: Policy, concurrency: int = 32):
        if concurrency < 1:
            raise ValueError(f"concurrency must be positive, not {concurrency}")
        self.policy, self.concurrency = policy, concurrency
        has_template = bool(getattr(policy.tokenizer, "chat_template", None))
        self._template = ChatTemplate(policy.tokenizer) if has_template else None
        if self._template is not None and not self._template.shows_turns:
            raise PolicyError(
                "the tokenizer's chat template does not show the messages of user and assistant; remove the template "
                "from the tokenizer's folder to prompt in plain paragraphs"
            )
        self._slots: dict[int, tuple[tuple[str, ...], list[int]]] = {}  # slot: key and tokens
        self._next = 0

    def __repr__(self) -> str:
        return f"PolicyChatModel({self.policy!r})"

    def chat(
        self, conversations: Sequence[Sequence[Message]], *, max_tokens: int, temperature: float
    ) -> list[Answer | None]:
        """The policy's next message in each conversation; see :class:`ChatModel`."""
        answers: list[Answer | None] = []
        for start in range(0, len(conversations), self.concurrency):
            answers += self._batch(conversations[start : start + self.concurrency], max_tokens, temperature)
        return answers

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of a conversation, up to where the answer begins."""
        encodable: list[Message] = [
            {**self._calls(message), "role": message["role"], "content": self._content(message)} for message in messages
        ]
        tools = [map_texts(self.policy.literal, tool) for tool in getattr(messages, "tools", ())]
        if self._template is not None:
            return self.policy.encode(self._template.render(encodable, tools))
        said = calls_in_words(with_tools(encodable, tools) if tools else encodable)
        return self.policy.encode(plain_prompt(said))

    def _calls(self, message: Message) -> Message:
        """What a message has besides role and text, with the arguments of calls as objects."""
        if "tool_calls" not in message:
            return {name: value for name, value in message.items() if name == "tool_call_id"}
        made = []
        for call in message["tool_calls"]:
            function = {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}
            made.append({"id": call.get("id"), "function": map_texts(self.policy.literal, function)})
        return {"tool_calls": made}

    def _content(self, message: Message) -> str:
        role, text = message["role"], message["content"]
        if role == "assistant":  # every second part is a tag
            parts = enumerate(_REPLY_TAG.split(text))
            return "".join(part if place % 2 else self.policy.literal(part) for place, part in parts)
        return self.policy.literal(escape_markers(text, "think", "thinking") if role in ("user", "tool") else text)

    def _batch(
        self, conversations: Sequence[Sequence[Message]], max_tokens: int, temperature: float
    ) -> list[Answer | None]:
        prompts = [self.prompt(messages) for messages in conversations]
        fits = [place for place, prompt in enumerate(prompts) if len(prompt) < self.policy.context_length]
        keys = [_key(messages) for messages in conversations]
        slots = self._assign_slots([(keys[place], prompts[place]) for place in fits])
        stops = self.policy.end_ids
        requests = [
            Request(tuple(prompts[place]), slot, max_tokens, stops) for place, slot in zip(fits, slots, strict=True)
        ]
        answers: list[Answer | None] = [Answer("", OVERLONG, 0, 0, estimated=False)] * len(conversations)
        self._slots = {}  # the policy keeps the slots of its latest call only
        for place, request, completion in zip(fits, requests, self.policy.generate(requests, temperature), strict=True):
            self._slots[request.slot] = keys[place], [*prompts[place], *completion.token_ids]
            answers[place] = self._answer(request, completion)
        return answers

    def _answer(self, request: Request, completion: Completion) -> Answer:
        text, finish = self.policy.decode(completion.token_ids), completion.finish_reason
        if self._template is not None:
            text = self._template.read(text)
        else:
            text, found, _ = text.partition(_TURN)
            finish = "stop" if found else finish
        return Answer(text.strip(), finish, len(request.prompt_ids), len(completion.token_ids), estimated=False)

    def _assign_slots(self, conversations: Sequence[tuple[tuple[str, ...], list[int]]]) -> list[int]:
        """A slot for each conversation: the one with the longest common prefix among those with the same key."""
        left = dict(self._slots)
        slots = []
        for key, prompt in conversations:
            alike = {slot: tokens for slot, (other, tokens) in left.items() if other == key}
            if len(alike) > 1:
                chosen = max(alike, key=lambda slot: common_prefix(alike[slot], prompt))
            else:
                chosen = next(iter(alike), -1)
            if chosen < 0:
                chosen, self._next = self._next, self._next + 1
            left.pop(chosen, None)
            slots.append(chosen)
        return slots


_REPLY_TAG = re.compile(r"(</?(?:think|action|search|answer|tool_call|prediction)(?: h=\"\d{1,3}\")?>)")
_NAMES = {"system": "Instructions", "user": "User", "assistant": "Assistant"}
_TURN = f"\n\n{_NAMES['user']}:"
_FORGED_TURN, _ESCAPED = re.compile(rf"^({'|'.join(_NAMES.values())}):", re.MULTILINE), r"‹\1›:"


def plain_prompt(messages: Sequence[Message]) -> str:
    """A conversation in paragraphs, for models without a chat template. No message opens a paragraph of another role.

    >>> print(plain_prompt([{"role": "user", "content": "You see a door."}]))
    User: You see a door.
    <BLANKLINE>
    Assistant:
    """
    said = [f"{_NAMES[message['role']]}: {_FORGED_TURN.sub(_ESCAPED, message['content'])}" for message in messages]
    return "\n\n".join([*said, f"{_NAMES['assistant']}:"])


def _key(messages: Sequence[Message]) -> tuple[str, ...]:
    """What identifies a growing conversation: all up to the user's first paragraph.

    >>> _key([{"role": "user", "content": "A door.\\n\\nCommands:"}, {"role": "assistant", "content": "open"}])
    ('A door.',)
    """
    place = next((place for place, message in enumerate(messages) if message["role"] == "user"), 0)
    said = [message["content"] for message in messages[: place + 1]]
    return (*said[:-1], said[-1].partition("\n\n")[0]) if said else ()


__all__ = ["ChatModel", "PolicyChatModel", "plain_prompt"]

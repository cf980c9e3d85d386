"""Agents that call tools through the chat protocol: tools go with the request, calls come with the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from roleagent.agents.chat.types import Answer, Message, Prompt
from roleagent.agents.episode import Episode, play_episode
from roleagent.agents.prompting.plain import SILENCE, without_thoughts
from roleagent.env_card import Instructions
from roleagent.envs.tools.calls.command import answer_command, call_command, error_command
from roleagent.envs.tools.formats import FORMATS, Reading, native_calls
from roleagent.tools import Call

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


class ToolAgent:
    """Offers the environment's tools to a model and makes its calls: the baseline without training.

    A server returns calls as ``tool_calls`` (format ``native``). Where it does not, and with a local model, the text of
    the answer is read. A reply without calls is the answer. A malformed one costs a step and is answered with what was
    wrong, as in training; it is counted in ``episode.corrections``.

    Args:
        guide: the instructions of the environment.
        format: of calls in a text, a name of ``roleagent.envs.tools.formats.FORMATS``.
    """

    def __init__(self, guide: Instructions, format: str = "hermes"):
        if format not in FORMATS:
            raise ValueError(f"there is no format {format!r}; choose {', '.join(FORMATS)}")
        self.guide, self.format = guide, format

    async def play(self, episode: Episode) -> None:
        """Plays the episode."""
        messages: list[Message] = []
        calls: list[Call] = []

        async def decide(episode: Episode) -> str:
            nonlocal calls
            messages.extend(_answered(calls, episode) if messages else self.first_messages(episode))
            answer = await episode.ask(Prompt(messages, episode.info["tools"]))
            reading = self.read(answer)
            calls = identified(reading.calls, messages)
            said = without_thoughts(answer.text) if answer.tool_calls or not calls else ""
            messages.append(assistant_message(said, calls, answer))
            episode.corrections += reading.error is not None
            return command_of(reading)

        await play_episode(episode, decide)

    def first_messages(self, episode: Episode) -> list[Message]:
        """The instructions and the task."""
        system = "\n\n".join(part for part in (self.guide.rules, self.guide.form) if part)
        return [{"role": "system", "content": system}, {"role": "user", "content": episode.observation}]

    def read(self, answer: Answer) -> Reading:
        """The calls or the answer of a reply."""
        if answer.tool_calls:
            return native_reading(answer, plain=True)
        return FORMATS[self.format].read(answer.text, plain=True)


class RetrievalAgent(ToolAgent):
    """Searches once with the question; the model answers from the found passages ("naive RAG").

    In an environment of tools it calls the one whose name contains ``search``; elsewhere it plays the commands
    ``search[…]`` and ``answer[…]``.

    Args:
        guide: not used; every baseline has it.
    """

    form = (
        "Answer the question from what was found. Reply with the answer alone, as short as possible: a name, a date, a "
        "number, yes or no."
    )

    def __init__(self, guide: Instructions):
        super().__init__(guide)

    async def play(self, episode: Episode) -> None:
        """Searches, asks the model once, and answers.

        Raises:
            ValueError: the environment has no tool for searching.
        """
        question = ""

        async def decide(episode: Episode) -> str:
            nonlocal question
            tools = episode.info.get("tools")
            if not episode.turns:
                question = str(episode.info.get("goal") or episode.observation)
                return f"search[{' '.join(question.split())}]" if tools is None else _search(tools, question)
            asked = f"{episode.observation}\n\nQuestion: {question}"
            answer = await episode.ask([{"role": "system", "content": self.form}, {"role": "user", "content": asked}])
            reading = FORMATS["hermes"].read(answer.text, plain=True)
            text = " ".join((reading.answer or "").split())
            episode.corrections += not text
            return f"answer[{text}]" if tools is None else command_of(reading)

        await play_episode(episode, decide)


def native_reading(answer: Answer, plain: bool = False) -> Reading:
    """The calls that a server has read from a reply."""
    return FORMATS["native"].read({"content": answer.text, "tool_calls": list(answer.tool_calls)}, plain=plain)


def command_of(reading: Reading) -> str:
    """The command of a reply for an environment of tools."""
    if reading.error:
        return error_command(f"The reply is malformed: {reading.error}.")
    return answer_command(reading.answer) if reading.answer is not None else call_command(reading.calls)


def _search(tools: Sequence[Any], question: str) -> str:
    """The command that calls the tool for searching."""
    for tool in tools:
        function = tool["function"]
        required = function["parameters"].get("required", ())
        if "search" in function["name"] and len(required) == 1:
            return call_command([Call(function["name"], {required[0]: question})])
    raise ValueError("the agent rag needs a tool whose name contains 'search' and that needs one argument")


def identified(calls: Sequence[Call | str], messages: Sequence[Message]) -> list[Call]:
    """Calls with ids and names as the protocol requires; malformed ones have the name ``malformed``.

    A server's id stays where neither the conversation nor another call has it. A new one has nine letters and digits,
    which every server takes. A name has up to 64 letters, digits, ``_`` and ``-``: servers refuse a conversation with
    another one, even where their own model wrote it.

    Args:
        calls: of the newest reply.
        messages: of the conversation so far.

    >>> identified([Call("look", {}, "a"), Call("look at", {}, "a"), "malformed call"], [])[1:]
    [Call(name='look_at', arguments={}, id='call00000'), Call(name='malformed', arguments={}, id='call00001')]
    """
    used = {call["id"] for message in messages for call in message.get("tool_calls", ())}
    found: list[Call] = []
    for call in calls:
        call = Call("malformed", {}) if isinstance(call, str) else call
        own = (
            call.id
            if call.id and call.id.strip() and call.id not in used
            else next(new for new in _new_ids() if new not in used)
        )
        found.append(Call(_NOT_IN_NAMES.sub("_", call.name)[:64], call.arguments, own))
        used.add(own)
    return found


def _new_ids() -> Iterator[str]:
    return (f"call{number:05d}" for number in count())


def assistant_message(text: str, calls: Sequence[Call], answer: Answer) -> Message:
    """The assistant's message, with what the server sent beside it.

    Args:
        text: what stays of the answer's.
        calls: of the answer, :func:`identified`.
        answer: of the server.
    """
    if not calls:
        return {**answer.beside, "role": "assistant", "content": text or SILENCE}
    made = native_calls(calls)
    if answer.tool_calls:
        own = ({name: part for name, part in sent.items() if name != "index"} for sent in answer.tool_calls)
        made = [sent | call for sent, call in zip(own, made, strict=True)]
    return {**answer.beside, "role": "assistant", "content": text, "tool_calls": made}


def _answered(calls: Sequence[Call], episode: Episode) -> list[Message]:
    """The environment's answer to a reply: a message for every call, or one of the user."""
    if not calls:
        return [{"role": "user", "content": episode.observation}]
    found = episode.info.get("calls", ())
    texts = [one["result"] for one in found] if len(found) == len(calls) else [episode.observation] * len(calls)
    return [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text in zip(calls, texts, strict=True)]

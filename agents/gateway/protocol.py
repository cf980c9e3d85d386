"""OpenAI's protocol, chat completions: reads requests, and writes answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from roleagent.agents.chat.types import Message
from roleagent.envs.tools.formats import FORMATS
from roleagent.envs.tools.formats.json_text import kinds_of
from roleagent.options import shown
from roleagent.types import Completion

MODEL = "policy"
"""The name of the model that the gateway serves; a request may name any."""
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class BadRequest(Exception):
    """A request that cannot be answered; the message is one line.

    Attributes:
        code: of the protocol, or ``""``.
        status: of HTTP.
    """

    def __init__(self, message: str, code: str = "", status: int = 400):
        super().__init__(message)
        self.code, self.status = code, status


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a program asks the policy.

    Attributes:
        messages: of the roles system, user, assistant and tool; contents are texts, arguments of calls are objects.
        tools: that are offered.
        max_tokens: most tokens of the reply; None: as many as the run allows.
        stops: texts that end the reply and are no part of it.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()


def read_request(body: Mapping[str, Any]) -> ChatRequest:
    """The request in a body.

    The temperature is the run's, and other wishes about sampling are not followed either.

    Raises:
        BadRequest: it is malformed, or wants what a policy in training cannot do.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list with at least one message")
    if body.get("n") not in (None, 1):
        raise BadRequest("n must be 1: ask again for a further reply")
    if body.get("response_format") not in (None, {"type": "text"}):
        raise BadRequest("response_format is not supported: ask for the form in the prompt")
    if isinstance(body.get("tool_choice"), dict):
        raise BadRequest("tool_choice must be auto, required or none: a policy in training chooses its tools itself")
    if body.get("logprobs") or body.get("top_logprobs"):
        raise BadRequest("logprobs are not supported: the policy in training gives none")
    if not isinstance(body.get("stream"), bool | None):
        raise BadRequest(f"stream must be true or false, not {shown(body['stream'])}")
    if not isinstance(body.get("stream_options"), dict | None):
        raise BadRequest(f"stream_options must be an object, not {shown(body['stream_options'])}")
    tools = body.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(_function(tool).get("name"), str) for tool in tools):
        raise BadRequest("tools must be a list of functions with names")
    for tool in tools:
        _as_read(tool)
    most = next((body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None), None)
    most = int(most) if isinstance(most, float) and most.is_integer() else most  # JavaScript has no other numbers
    if most is not None and (not isinstance(most, int) or most is True or most < 1):
        raise BadRequest(f"max_tokens must be a number of at least 1, not {shown(most)}")
    stops = body.get("stop") or []
    stops = [stops] if isinstance(stops, str) else stops
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise BadRequest("stop must be a text or a list of texts")
    offered = () if body.get("tool_choice") == "none" else tuple(tools)
    read = tuple(_message(number, message) for number, message in enumerate(messages))
    return ChatRequest(read, offered, most, tuple(stops))


def _function(tool: Any) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    return function if isinstance(function, Mapping) else {}


def _as_read(tool: Any) -> Any:
    """A tool as the formats of calls read it: they look at the types of its parameters, one by one."""
    function = _function(tool)
    name, parameters = function["name"], function.get("parameters") or {}
    try:
        required = parameters.get("required", [])
        kinds = [kinds_of(schema) for schema in parameters.get("properties", {}).values()]
    except (AttributeError, TypeError):
        required = kinds = None
    if kinds is None or not isinstance(required, list):
        raise BadRequest(f"the parameters of the tool {shown(name)} must be a JSON Schema of an object")
    return SimpleNamespace(name=name, parameters=parameters)


def _message(number: int, message: Any) -> Message:
    where = f"messages[{number}]"
    role = _ROLES.get(str(message.get("role"))) if isinstance(message, Mapping) else None
    if role is None:
        raise BadRequest(f"{where} needs a role: {', '.join(_ROLES)}")
    if message.get("function_call"):
        raise BadRequest(f"{where} has a function_call, an older form: send tool_calls")
    read: dict[str, Any] = {"role": role, "content": _text(where, message.get("content"))}
    if role == "tool":
        read["tool_call_id"] = str(message.get("tool_call_id") or "")
    if calls := message.get("tool_calls"):
        read["tool_calls"] = [_call(where, call) for call in calls]
    return read


def _text(where: str, content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise BadRequest(f"the content of {where} must be text: the policy reads nothing else")
    return "\n".join(texts)


def _call(where: str, call: Any) -> dict[str, Any]:
    function, arguments = _function(call), None
    with suppress(TypeError, ValueError):
        arguments = json.loads(function.get("arguments") or "{}")
    if not isinstance(function.get("name"), str) or not isinstance(arguments, dict):
        raise BadRequest(f"a call in {where} needs a name, and arguments that are an object of JSON")
    made = {"name": function["name"], "arguments": arguments}
    return {"id": str(call.get("id") or ""), "type": "function", "function": made}


def read_reply(text: str, tools: Sequence[Mapping[str, Any]], tool_format: str, key: str) -> dict[str, Any]:
    """A reply of the policy as the message of an assistant.

    Where tools are offered, calls in the text become ``tool_calls``, and ``content`` is what stands outside them; what
    cannot be read stays text. Thoughts are ``reasoning_content``.

    Args:
        text: as the policy wrote it, thoughts in ``<think>``.
        tools: that were offered.
        tool_format: of calls, ``prompt.tool_format``.
        key: begins the names of calls.
    """
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if text.lstrip().startswith("<think>"):
        thoughts, _, rest = text.lstrip().removeprefix("<think>").partition("</think>")
        message = {"role": "assistant", "content": rest.strip(), "reasoning_content": thoughts.strip()}
    if not tools:
        return message
    reading = FORMATS[tool_format].read(text, list(map(_as_read, tools)), plain=True)
    if reading.error or not reading.calls or any(isinstance(call, str) for call in reading.calls):
        return message
    calls = [
        {
            "id": f"{key}-{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for number, call in enumerate(reading.calls)
        if not isinstance(call, str)
    ]
    return {**message, "content": reading.beside or None, "tool_calls": calls}


def answer_of(message: Mapping[str, Any], prompt: Sequence[int], completion: Completion, key: str) -> dict[str, Any]:
    """The body that answers a request."""
    finish = "tool_calls" if message.get("tool_calls") else completion.finish_reason
    read, written = len(prompt), len(completion.token_ids)
    return {
        "id": key,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }


def chunks_of(answer: Mapping[str, Any], usage: bool) -> Iterator[dict[str, Any]]:
    """The same answer for a client that wants a stream: a reply is sampled as a whole, and comes in one piece.

    Args:
        usage: whether the client asks for the numbers of tokens.
    """
    head = {**answer, "object": "chat.completion.chunk"}
    counts, [choice] = head.pop("usage"), head.pop("choices")
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(delta["tool_calls"])]
    yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    if usage:
        yield {**head, "choices": [], "usage": counts}


def error_of(message: str, code: str = "") -> dict[str, Any]:
    """The body of an error."""
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code or None}}


__all__ = ["MODEL", "BadRequest", "ChatRequest", "answer_of", "chunks_of", "error_of", "read_reply", "read_request"]

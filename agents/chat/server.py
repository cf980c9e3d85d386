"""The server of a chat model: one request through the ``openai`` package, and its answer or why there is none."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from openai import APIConnectionError, APIStatusError, APITimeoutError, AsyncOpenAI, DefaultAsyncHttpxClient, Timeout

from roleagent.agents.chat.types import (
    Answer,
    EndpointError,
    Message,
    OverlongError,
    RefusedError,
    UnansweredError,
    estimated_tokens,
)
from roleagent.markers import escape_markers, map_texts
from roleagent.proxy import ProxyError, open_http_client

IN_BODY = "error in the body"
"""Key of a response's extensions: the words for an error that came with HTTP 200."""
_OVERLONG = re.compile(
    r"context[ _]?(?:length|size|window|limit)|max\w*[ _](?:model|input|prompt|sequence)[ _](?:len|tok)"
    r"|too many (?:\w+ )?tokens|token limit|string too long|reduce the length|inputs?(?:[ `_]*token| length)"
    r"|(?:prompt|inputs?|messages|conversation|sequence)\b(?:[^.:]|[.]\d){0,99}?"
    r"(?:too (?:long|large)|longer than|larger than|exceed|less than \d+ tokens)"
    r"|request (?:entity )?(?:is )?too large"
    r"|no user query found in messages",  # Ollama, which has cut them away
    re.IGNORECASE,
)


_MOST_BYTES = 8  # per token of a text; English has about four
_SHORTEST_CONTEXT = 1024  # tokens, to which servers cut a conversation
_OURS = ("role", "content", "tool_calls")  # parts of an answer's message that :class:`Answer` has by itself


def says_overlong(words: str) -> bool:
    """Whether the words of an error leave no doubt that a conversation is too long.

    >>> says_overlong("The decoder prompt (length 5000) is longer than the maximum model length of 4096.")
    True
    >>> says_overlong("max_tokens is too large: 9999. This model supports at most 4096 completion tokens.")
    False
    """
    return bool(_OVERLONG.search(words))


async def use_status_of_body(response: Any) -> None:
    """Gives the answer to a conversation the status of the error that its body holds.

    Some servers, and gateways before others, report errors with HTTP 200. The error's own code counts; an answer with
    neither a message nor a code is one of a bad gateway (502). So is a message that the server did not finish, which is
    half a command; one that a filter took is refused (451), as it would be again. A server's error (500) that says that
    a conversation is too long is the client's (413): another attempt would not help.
    """
    if response.status_code not in (200, 500) or not response.request.url.path.endswith("/chat/completions"):
        return
    await response.aread()
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return
    if response.status_code == 500:
        if says_overlong(message_in(body)):
            response.status_code = 413
            response.extensions[IN_BODY] = "HTTP 500"
        return
    if not isinstance(body, dict):
        return
    if not (error := _error_in(body)) and (finish := _finish_of(body)) is not None:
        if finish.lower() not in _FINISHED:
            response.status_code = 451 if _FILTER.search(finish) else 502
            response.extensions[IN_BODY] = f"the server did not finish its answer: {finish[:40]!r}"
        return
    code = str(error.get("code")) if isinstance(error, dict) else ""
    known = code.isdecimal() and 400 <= int(code) < 600
    response.status_code = int(code) if known else 502
    response.extensions[IN_BODY] = f"the answer is error {code}" if known else "the answer holds no message"


_FINISHED = frozenset(
    # OpenAI's words, and those of TGI and Anthropic, which some gateways hand through
    ("stop", "length", "tool_calls", "function_call", "eos_token", "stop_sequence", "end_turn", "tool_use")
)
_FILTER = re.compile(r"filter|safety|sensitive|refus|recitation|prohibited|block", re.IGNORECASE)


def _finish_of(body: Mapping[str, Any]) -> str | None:
    """The reason why a message ended; None without a message."""
    try:
        choice = body["choices"][0]
        return str(choice.get("finish_reason") or "stop") if isinstance(choice["message"], dict) else None
    except (KeyError, TypeError, IndexError, AttributeError):
        return None


def _error_in(body: Any) -> Any:
    """The error in a response's body: an object or a text; None if there is none."""
    if not isinstance(body, dict):
        return None
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    inner = choice.get("error") if isinstance(choice, dict) else None
    return body.get("error") or inner or (body if body.get("object") == "error" else None)


def message_in(body: Any) -> str:
    """The message of an error's body."""
    body = _error_in(body) or body
    said = body.get("message") or body.get("detail") if isinstance(body, dict) else body
    return str(said or "")


KEYS = ("ROLEAGENT_API_KEY", "OPENAI_API_KEY")
"""Environment variables that may hold the server's key; the first that is set counts."""
_TRANSIENT = (408, 409, 425, 429)  # and 5xx: a later attempt may be answered
_REFUSED = (400, 413, 422)
_SHORT = 40  # characters of a message that asks whether a conversation was too long
_SET_KEY = f"set {' or '.join(KEYS)}"
_BASE_URL = "is the base URL right? It often ends in /v1"


class ChatServer:
    """The server behind a URL.

    The key is the first of :data:`KEYS` that is set in the environment. It is sent to this server only and never shown.
    The environment also sets proxies and certificates (``HTTPS_PROXY``, ``NO_PROXY``, ``SSL_CERT_FILE``, …).

    Args:
        base_url: e.g. ``http://127.0.0.1:8000/v1``.
        timeout: seconds without a byte after which an attempt ends.
        count: is called with numbers of :class:`~roleagent.agents.chat.types.Spending` as they become known.

    Raises:
        EndpointError: the URL or the key is malformed, or the environment's proxy cannot be used.
    """

    def __init__(self, base_url: str, timeout: float, count: Callable[..., None]):
        self.url = _checked_url(base_url)
        key, self._key_name = _api_key()
        self._client = AsyncOpenAI(
            api_key=key or "EMPTY",  # the package requires one; a server without keys ignores it
            base_url=self.url,
            timeout=Timeout(timeout, connect=min(timeout, 10.0)),
            http_client=_http_client(self.url),
        )
        self._timeout, self._count = timeout, count
        self._renamed: dict[str, str] = {}  # parameters that this server calls otherwise; "": it has none

    def __reduce__(self) -> Any:
        raise TypeError("a ChatServer holds a key and connections: it cannot be pickled")

    async def complete(
        self, model: str, messages: Sequence[Message], options: Mapping[str, Any], retries: int
    ) -> Answer:
        """The model's next message.

        Args:
            model: its name.
            messages: the conversation; of a :class:`~roleagent.agents.chat.types.Prompt` also the tools.
            options: ``max_tokens``, ``temperature`` and others of the protocol.
            retries: attempts after the first.

        Raises:
            EndpointError: the server cannot be used as configured.
            RefusedError: it will not answer this conversation; an :class:`OverlongError` where a shorter one would do.
            UnansweredError: it did not answer.
        """
        sent: Any = [map_texts(_sendable, message) for message in messages]
        if tools := [map_texts(_sendable, tool) for tool in getattr(messages, "tools", ())]:
            options = {**options, "tools": tools}
        create = self._client.with_options(max_retries=retries).chat.completions.with_raw_response.create
        for _ in range(3):  # both parameters may have to change
            named = {self._renamed.get(name, name): value for name, value in options.items()}
            named.pop("", None)
            ask = partial(self._ask, create, model=model, **named)
            try:
                return await ask(sent)
            except (APIStatusError, APIConnectionError) as error:
                if isinstance(error, APIStatusError):
                    if self._adapts(error, named):
                        continue
                    if await self._is_overlong(error, ask, sent):
                        raise OverlongError(self._named(error)) from None
                raise await self._problem(error, model) from None
        raise RefusedError(f"{self.url} accepts neither these parameters nor their other names")

    async def models(self) -> list[str]:
        """The names of the models that the server offers.

        Raises:
            EndpointError, RefusedError, UnansweredError: there is no list.
        """
        client = self._client.with_options(max_retries=0)
        try:
            reply = await client.models.with_raw_response.list(timeout=30.0)
        except (APIStatusError, APIConnectionError) as error:
            raise await self._problem(error) from None
        try:
            return [str(model["id"]) for model in reply.http_response.json()["data"]]
        except (ValueError, KeyError, TypeError):
            raise UnansweredError(f"{self.url}/models holds no list of models", reached=True) from None

    async def _ask(self, create: Any, messages: Sequence[Message], **options: Any) -> Answer:
        """The answer to one request, counted."""
        self._count(requests=1)
        try:
            reply = await create(messages=messages, **options)
        except (APIStatusError, APIConnectionError) as error:
            self._count_retries(error.request)
            raise
        self._count_retries(reply.http_request)
        answer = self._read(reply.http_response, messages)
        self._count(
            cut=int(answer.finish_reason == "length"),
            shortened=int(answer.shortened),
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            estimated=int(answer.estimated),
        )
        return answer

    async def _is_overlong(
        self, error: APIStatusError, ask: Callable[[Sequence[Message]], Awaitable[Answer]], sent: Sequence[Message]
    ) -> bool:
        """Whether a shorter conversation would be answered.

        Where neither the status nor the words say so, the server is asked: it was the length if the same messages are
        answered with a few characters each, and refused with other text of at least as many tokens.
        """
        status = error.status_code
        words = f"{error.code} {error.type} {message_in(error.body)}"
        if status == 413 or (status in (*_REFUSED, 500) and says_overlong(words)):
            return True
        short = [{**message, "content": message["content"][:_SHORT]} for message in sent]
        if status not in _REFUSED or short == sent:
            return False
        filled = [{**message, "content": "a b " * -(-len(message["content"].encode()) // 4)} for message in sent]
        try:
            await ask(short)
        except (APIStatusError, APIConnectionError, RefusedError):
            return False
        try:
            await ask(filled)
        except (APIStatusError, APIConnectionError, RefusedError) as again:
            return isinstance(again, APIStatusError) and again.status_code in _REFUSED
        return False

    def _read(self, response: Any, messages: Sequence[Message]) -> Answer:
        """The answer in a response."""
        try:
            body = response.json()
        except (ValueError, RecursionError):
            raise RefusedError("the answer is not JSON: is the base URL right?") from None
        try:
            choice = body["choices"][0]
            message = choice["message"]
            text = _text(message.get("content"))
            calls = tuple(call for call in message.get("tool_calls") or () if isinstance(call, dict))
            finish = str(choice.get("finish_reason") or "stop").lower()
            thoughts = _text(message.get("reasoning_content") or message.get("reasoning"))
            beside = {name: part for name, part in message.items() if part and name not in _OURS}
            more: dict[str, Any] = {"tool_calls": calls, "thoughts": thoughts, "beside": beside}
        except (KeyError, TypeError, IndexError, AttributeError):
            raise RefusedError(f"the answer holds no message{self._message_of(body)}") from None
        usage = body.get("usage")
        counts = usage if isinstance(usage, dict) else {}
        prompt, completion = counts.get("prompt_tokens"), counts.get("completion_tokens")
        if isinstance(prompt, int) and isinstance(completion, int) and min(prompt, completion) >= 0:
            letters = sum(len(message["content"].encode()) for message in messages)
            more["shortened"] = letters > _MOST_BYTES * max(prompt, _SHORTEST_CONTEXT)
            return Answer(text, finish, prompt, completion, estimated=False, **more)
        prompt = sum(estimated_tokens(message["content"]) for message in messages)
        return Answer(text, finish, prompt, estimated_tokens(text), estimated=True, **more)

    def _adapts(self, error: APIStatusError, named: Mapping[str, Any]) -> bool:
        """Whether the server has another name for a parameter that it refused; the name is kept.

        Newer models of OpenAI call ``max_tokens`` ``max_completion_tokens`` and allow one temperature only.
        """
        name = error.param
        if error.status_code != 400 or name not in ("max_tokens", "temperature") or name not in named:
            return False
        if "unsupported" not in str(error.code):
            return False
        self._renamed[name] = "max_completion_tokens" if name == "max_tokens" else ""
        return True

    async def _problem(self, error: APIStatusError | APIConnectionError, model: str = "") -> Exception:
        """Our exception for one of the ``openai`` package."""
        if isinstance(error, APITimeoutError):
            return UnansweredError(f"no answer within {self._timeout:.0f} s", reached=False)
        if not isinstance(error, APIStatusError):
            cause = error.__cause__ or error
            return UnansweredError(self._one_line(cause) or type(cause).__name__, reached=False)
        status, said = error.status_code, self._message_of(error.body)
        where = f"{self.url} answered HTTP {status}{said}"
        if status in (401, 403):
            hint = f"does the key in {self._key_name} belong to this server?" if self._key_name else _SET_KEY
            return EndpointError(f"{where}: {hint}")
        if status == 402 or error.code == "insufficient_quota":
            return EndpointError(f"{where}: the account has no credit left")
        if status == 404 and model:
            return EndpointError(f"{where}: {await self._not_found(model)}")
        if status in (404, 405) or 300 <= status < 400:
            return EndpointError(f"{where}: {_BASE_URL}")
        if status in _TRANSIENT or status >= 500:
            return UnansweredError(self._named(error), reached=True)
        return RefusedError(self._named(error))

    def _named(self, error: APIStatusError) -> str:
        """An error in a line: its status and the server's message."""
        kind = error.response.extensions.get(IN_BODY, f"HTTP {error.status_code}")
        return f"{kind}{self._message_of(error.body)}"

    async def _not_found(self, model: str) -> str:
        try:
            return f"the model {model!r} is not offered; there is {listed(await self.models())}"
        except (EndpointError, RefusedError, UnansweredError):
            return _BASE_URL

    def _message_of(self, body: Any) -> str:
        """The server's error message, in brackets."""
        return f" ({line})" if (line := self._one_line(message_in(body))) else ""

    def _one_line(self, text: Any) -> str:
        """A text in one line, without control characters and without the key, which some servers repeat."""
        line = " ".join("".join(sign if sign.isprintable() else " " for sign in str(text)).split())
        return (line.replace(self._client.api_key, "…") if self._key_name else line)[:200]

    def _count_retries(self, request: Any) -> None:
        """Counts a request's attempts before its last one, which a header of the last one gives."""
        retries = int(request.headers.get("x-stainless-retry-count", 0))
        self._count(requests=retries, retries=retries)


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names in a sentence.

    >>> listed([f"m{n}" for n in range(10)], most=3)
    "'m0', 'm1', 'm2' and 7 more"
    """
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return " and ".join([", ".join(map(repr, names[:most])), *more]) if names else "none"


def _http_client(url: str) -> Any:
    options = {"follow_redirects": False, "event_hooks": {"response": [use_status_of_body]}}
    try:
        return open_http_client(DefaultAsyncHttpxClient, url, **options)
    except ProxyError as error:
        raise EndpointError(str(error)) from None


def _checked_url(base_url: str) -> str:
    example = "an example is http://127.0.0.1:8000/v1"
    try:
        parts = urlsplit(base_url.strip())
        valid = parts.scheme in ("http", "https") and parts.hostname and " " not in parts.netloc and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise EndpointError(f"{base_url!r} is no URL of a chat server; {example}")
    if parts.username or parts.password or parts.query or parts.fragment:  # not shown: it may be a secret
        raise EndpointError(f"the URL of a chat server has no user, password, query or fragment; {example}")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/chat/completions').rstrip('/')}"


def _api_key() -> tuple[str, str]:
    """The key and the name of its environment variable."""
    name = next((name for name in KEYS if os.environ.get(name, "").strip()), "")
    key = os.environ.get(name, "").strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise EndpointError(f"{name} holds characters that no key has: copy the key alone, and all of it")
    return key, name


def _sendable(text: str) -> str:
    """A text without halves of surrogate pairs, which cannot be sent, and without chat markers.

    The server encodes messages and tools, and recognizes special tokens in them.
    """
    return escape_markers(text.encode("utf-8", "replace").decode())


def _text(content: Any) -> str:
    if isinstance(content, list):  # parts, of which some are text
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""

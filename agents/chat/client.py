"""A client of an OpenAI-compatible server: one request, and its answer or the reason for none."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx2

from roleagent.agents.chat.types import Answer, EndpointError, Message, OverlongError, RefusedError, UnansweredError
from roleagent.markers import escape_markers, map_texts

KEYS = ("ROLEAGENT_API_KEY", "OPENAI_API_KEY")
"""Environment variables that may hold the server's key; the first that is set counts."""
LARGEST = 1 << 26  # bytes of an answer
BYTES_PER_TOKEN = 3
"""For estimates, of UTF-8. English has about four, Chinese about three; to assume few is to be careful."""
_AGAIN = (408, 409, 425, 429)  # and 5xx: what another time may answer
_OVERLONG = re.compile(r"context[ _](?:length|size|window)|prompt is too long", re.IGNORECASE)


def tokens(text: str) -> int:
    """About how many tokens a text has, rather too many than too few.

    >>> tokens("Put a hot egg on the table."), tokens("把热鸡蛋放在桌子上")
    (9, 9)
    """
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


class ChatServer:
    """The server behind a URL. Threads may share one.

    The key is taken from the first of :data:`KEYS` that is set in the environment, sent to this server alone, and shown
    nowhere. Proxies and certificates are what the environment says (``HTTPS_PROXY``, ``SSL_CERT_FILE``, …).

    Args:
        base_url: e.g. ``http://127.0.0.1:8000/v1``.
        idle: connections that are kept open.

    Raises:
        EndpointError: the URL is none, or the key cannot be one.
    """

    def __init__(self, base_url: str, idle: int = 8):
        self.url = _sound_url(base_url)
        self._key, self._key_name = _key()
        self._headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._limits = httpx2.Limits(max_connections=None, max_keepalive_connections=idle)
        self._client: httpx2.Client | None = None
        self._renamed: dict[str, str] = {}  # parameters that this server calls otherwise; "": has not

    def __repr__(self) -> str:
        return f"ChatServer({self.url!r})"

    def open(self) -> None:
        """Makes ready to ask; needed before the first exchange and after :meth:`close`."""
        if self._client is None:
            self._client = httpx2.Client(headers=self._headers, limits=self._limits)

    def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def models(self, seconds: float) -> list[str]:
        """The names of the models that the server offers.

        Raises:
            EndpointError, RefusedError, UnansweredError: there is no list of them.
        """
        status, _, answer = self._exchange("GET", "/models", None, seconds)
        if status != 200:
            raise self._trouble(status, {}, answer)
        try:
            return [str(model["id"]) for model in answer["data"]]
        except (KeyError, TypeError):
            raise UnansweredError(f"{self.url}/models holds no list of models", reached=True) from None

    def complete(self, model: str, messages: Sequence[Message], options: Mapping[str, Any], seconds: float) -> Answer:
        """The model's next message.

        Args:
            model: its name.
            messages: the conversation so far; of a :class:`~roleagent.agents.chat.types.Prompt` also the tools.
            options: ``max_tokens``, ``temperature`` and others of the protocol.
            seconds: until an answer that has not come is given up.

        Raises:
            EndpointError: the server cannot be used like this.
            RefusedError: it will not answer this conversation.
            UnansweredError: it did not answer this time.
        """
        said = [map_texts(_sendable, message) for message in messages]
        if tools := [map_texts(_sendable, tool) for tool in getattr(messages, "tools", ())]:
            options = {**options, "tools": tools}
        for _ in range(3):  # both parameters may have to change
            named = {self._renamed.get(name, name): value for name, value in options.items()}
            body = {"model": model, "messages": said, "stream": False} | {k: v for k, v in named.items() if k}
            status, headers, answer = self._exchange("POST", "/chat/completions", body, seconds)
            if status == 200:
                return self._answer(answer, messages)
            if not (status == 400 and self._adapts(answer, body)):
                break
        raise self._trouble(status, headers, answer, model)

    def _exchange(self, method: str, path: str, body: Any, seconds: float) -> tuple[int, Mapping[str, str], Any]:
        """Status, headers and JSON of an answer, None where it is not JSON."""
        assert self._client is not None, "open() comes first"
        deadline = time.monotonic() + seconds
        limit = httpx2.Timeout(seconds, connect=min(seconds, 10.0))
        parts: list[bytes] = []
        size = 0
        try:
            with self._client.stream(method, self.url + path, json=body, timeout=limit) as response:
                for part in response.iter_bytes():  # piece by piece: who dribbles must not outlast the deadline
                    parts.append(part)
                    size += len(part)
                    if time.monotonic() > deadline:
                        raise httpx2.ReadTimeout("")
                    if size > LARGEST:
                        raise UnansweredError(f"an answer of more than {LARGEST} bytes", reached=True)
        except httpx2.TimeoutException:
            raise UnansweredError(f"no answer within {seconds:.0f} s", reached=False) from None
        except (httpx2.HTTPError, httpx2.StreamError, RuntimeError) as error:
            raise UnansweredError(self._line(error) or type(error).__name__, reached=False) from None
        try:
            return response.status_code, response.headers, json.loads(b"".join(parts))
        except (ValueError, RecursionError):
            return response.status_code, response.headers, None

    def _answer(self, answer: Any, messages: Sequence[Message]) -> Answer:
        try:
            choice = answer["choices"][0]
            text = _text(choice["message"].get("content"))
            calls = tuple(call for call in choice["message"].get("tool_calls") or () if isinstance(call, dict))
            finish = str(choice.get("finish_reason") or "stop")
        except (KeyError, TypeError, IndexError, AttributeError):
            why = "is not JSON: is the base URL right?" if answer is None else f"holds no message{self._said(answer)}"
            raise UnansweredError(f"the answer {why}", reached=True) from None
        usage = answer.get("usage")
        told = usage if isinstance(usage, dict) else {}
        prompt, completion = told.get("prompt_tokens"), told.get("completion_tokens")
        if isinstance(prompt, int) and isinstance(completion, int) and min(prompt, completion) >= 0:
            return Answer(text, finish, prompt, completion, estimated=False, tool_calls=calls)
        read = sum(tokens(message["content"]) for message in messages)
        return Answer(text, finish, read, tokens(text), estimated=True, tool_calls=calls)

    def _adapts(self, answer: Any, body: Mapping[str, Any]) -> bool:
        """Whether there is another way to say what the server has not understood; it is kept for the next time.

        Newer models of OpenAI call ``max_tokens`` otherwise, and have one temperature only.
        """
        error = answer.get("error") if isinstance(answer, dict) else None
        name = error.get("param") if isinstance(error, dict) else None
        code = error.get("code") if isinstance(error, dict) else None
        if name not in ("max_tokens", "temperature") or name not in body or "unsupported" not in str(code):
            return False
        self._renamed[name] = "max_completion_tokens" if name == "max_tokens" else ""
        return True

    def _trouble(self, status: int, headers: Mapping[str, str], answer: Any, model: str = "") -> Exception:
        """What is wrong, where the status is not 200."""
        said, where = self._said(answer), f"{self.url} answered HTTP {status}"
        code = answer["error"].get("code") if isinstance(answer, dict) and isinstance(answer.get("error"), dict) else ""
        if status in (401, 403):
            mend = (
                f"does the key in {self._key_name} belong to this server?" if self._key else f"set {' or '.join(KEYS)}"
            )
            return EndpointError(f"{where}{said}: {mend}")
        if status == 402 or code == "insufficient_quota":
            return EndpointError(f"{where}{said}: the account has no credit left")
        if status == 404 and model:
            return EndpointError(f"{where}{said}: {self._not_found(model)}")
        if status in (404, 405) or 300 <= status < 400 or status == 200:
            return EndpointError(f"{where}{said}: is the base URL right? It often ends in /v1")
        if status in _AGAIN or status >= 500:
            return UnansweredError(f"HTTP {status}{said}", reached=True, pause=_pause(headers.get("retry-after", "")))
        return (OverlongError if _OVERLONG.search(f"{code} {said}") else RefusedError)(f"HTTP {status}{said}")

    def _not_found(self, model: str) -> str:
        try:
            offered = self.models(10.0)
        except (EndpointError, RefusedError, UnansweredError):
            return "is the base URL right? It often ends in /v1"
        return f"the model {model!r} is not offered; there is {listed(offered)}"

    def _said(self, answer: Any) -> str:
        """What the server says about it, in brackets."""
        said = (
            answer.get("error") or answer.get("message") or answer.get("detail") if isinstance(answer, dict) else None
        )
        said = said.get("message") if isinstance(said, dict) else said
        return f" ({line})" if said and (line := self._line(said)) else ""

    def _line(self, text: Any) -> str:
        """A text in one line, without the key, which some servers repeat, and without orders to a terminal."""
        line = " ".join("".join(sign if sign.isprintable() else " " for sign in str(text)).split())
        return (line.replace(self._key, "…") if self._key else line)[:200]


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names in a sentence.

    >>> listed([f"m{n}" for n in range(10)], most=3)
    "'m0', 'm1', 'm2' and 7 more"
    """
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return " and ".join([", ".join(map(repr, names[:most])), *more]) if names else "none"


def _sound_url(base_url: str) -> str:
    example = "an example is http://127.0.0.1:8000/v1"
    try:
        parts = urlsplit(base_url.strip())
        named = httpx2.URL(base_url.strip()).host and " " not in parts.netloc
        sound = parts.scheme in ("http", "https") and named and parts.port != 0
    except (ValueError, httpx2.InvalidURL):
        sound = False
    if not sound:
        raise EndpointError(f"{base_url!r} is no URL of a chat server; {example}")
    if parts.username or parts.password or parts.query or parts.fragment:  # which are not shown
        raise EndpointError(f"the URL of a chat server has no user, password, query or fragment; {example}")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/chat/completions').rstrip('/')}"


def _key() -> tuple[str, str]:
    name = next((name for name in KEYS if os.environ.get(name, "").strip()), "")
    key = os.environ.get(name, "").strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise EndpointError(f"{name} holds characters that no key has: was it copied whole, and nothing else with it?")
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


def _pause(text: str) -> float:
    """Seconds that a Retry-After header asks for, which says how long or until when."""
    try:
        return max(0.0, float(text)) if text.strip() else 0.0
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0

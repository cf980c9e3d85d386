"""Errors in the bodies of chat servers' answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

IN_BODY = "error in the body"
"""Key of a response's extensions: the words for an error that came with HTTP 200."""
_OVERLONG = re.compile(
    r"context[ _]?(?:length|size|window|limit)|max\w*[ _](?:model|input|prompt|sequence)[ _](?:len|tok)"
    r"|too many (?:\w+ )?tokens|token limit|string too long|reduce the length|inputs?(?:[ `_]*token| length)"
    r"|(?:prompt|inputs?|messages|conversation|sequence)\b(?:[^.:]|[.]\d){0,99}?"
    r"(?:too (?:long|large)|longer than|larger than|exceed|less than \d+ tokens)"
    r"|request (?:entity )?(?:is )?too large",
    re.IGNORECASE,
)


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
    neither a message nor a code is one of a bad gateway (502).
    """
    if response.status_code != 200 or not response.request.url.path.endswith("/chat/completions"):
        return
    await response.aread()
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return
    if not isinstance(body, dict) or (not (error := _error_in(body)) and _has_message(body)):
        return
    code = str(error.get("code")) if isinstance(error, dict) else ""
    known = code.isdecimal() and 400 <= int(code) < 600
    response.status_code = int(code) if known else 502
    response.extensions[IN_BODY] = f"the answer is error {code}" if known else "the answer holds no message"


def _has_message(body: Mapping[str, Any]) -> bool:
    try:
        choice = body["choices"][0]
        return isinstance(choice["message"], dict) and choice.get("finish_reason") != "error"
    except (KeyError, TypeError, IndexError, AttributeError):
        return False


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


__all__ = ["IN_BODY", "message_in", "says_overlong", "use_status_of_body"]

"""General data: conversations that keep a pretrained model from forgetting what it knew (Agent-R, Eq. 6, last term)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.rendering import renderer_of
from roleagent.config import ConfigError
from roleagent.learners.batch import ACTION, CONTEXT
from roleagent.types import Segment

_ROLES = {"user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant", "system": "system"}

Conversation = Sequence[tuple[str, str]]
"""Role (``user`` or ``assistant``, in turns) and text of each message."""


def read_conversations(path: str) -> list[Conversation]:
    """The conversations of a file of JSON lines.

    A line has ``messages`` of ``role`` and ``content``, or, as in ShareGPT, ``conversations`` of ``from`` and
    ``value``. A system message is put before the first question.

    Raises:
        ConfigError: the file cannot be read, or a line has another form.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        raise ConfigError(f"revision.general: cannot read {path}: {error}") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                found.append(_conversation(json.loads(line)))
            except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
                raise ConfigError(f"revision.general: line {number} of {path} is no conversation: {error}") from error
    if not found:
        raise ConfigError(f"revision.general: {path} has no conversation")
    return found


def _conversation(row: Mapping[str, Any]) -> Conversation:
    if "messages" in row:
        messages = [(_ROLES[one["role"]], one["content"]) for one in row["messages"]]
    else:
        messages = [(_ROLES[one["from"]], one["value"]) for one in row["conversations"]]
    if not all(isinstance(text, str) for _, text in messages):
        raise ValueError("a message without text")
    if messages[0][0] == "system":
        (_, system), (role, text), *rest = messages
        messages = [(role, f"{system}\n\n{text}"), *rest]
    roles = [role for role, _ in messages]
    if roles != ["user", "assistant"] * (len(roles) // 2):
        raise ValueError("questions and answers must take turns")
    return messages


def tokenize_conversations(conversations: Sequence[Conversation], policy: HFPolicy) -> list[Segment]:
    """Conversations as segments: answers have weight. What does not fit into the context is cut after an answer."""
    renderer, found = renderer_of(policy), []
    for conversation in conversations:
        ids: list[int] = []
        kinds: list[int] = []
        for (_, question), (_, answer) in zip(conversation[::2], conversation[1::2], strict=True):
            text = policy.literal(question)
            asked = [*renderer.next_message(text, ids)] if ids else [*renderer.first_message(text)]
            said = [*renderer.write(policy.literal(answer)), policy.eos_id]
            if len(ids) + len(asked) + len(said) > policy.context_length:
                break
            ids += [*asked, *said]
            kinds += [CONTEXT] * len(asked) + [ACTION] * len(said)
        if ids:
            kind = np.array(kinds)
            found.append(Segment(np.array(ids), kind, np.zeros(len(ids)), (kind == ACTION).astype(np.float64)))
    return found


__all__ = ["read_conversations", "tokenize_conversations"]

"""Counts special tokens that texts of tools bring into prompts: there must be none.

Used by ``benchmarks/tools.py``.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from parts.hostile_replies import MARKERS

from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.policies.scratch_model import build_policy, train_tokenizer
from roleagent.agents.rendering import STYLES, renderer_of
from roleagent.config.settings import PolicyConfig
from roleagent.envs.tools import ToolEnv, tool
from roleagent.envs.wrappers import ToolReader, ToolTags

ROLES = ("<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}{% for message in messages %}<|im_start|>"
    "{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


@tool
def read(page: str) -> str:
    """Reads a page."""
    return MARKERS if page == "hostile" else "a pan"


def policy(chat: bool) -> HFPolicy:
    """A small policy from scratch whose tokenizer has the tags of calls and the marks of roles as special tokens."""
    tags = (*ToolReader().tags, *ROLES, "<think>", "</think>", "<tool_response>", "</tool_response>")
    tokenizer = train_tokenizer(["Read the page.", "a pan", "read page hostile"], 400, tags)
    if chat:
        tokenizer.chat_template = CHATML
    return build_policy(PolicyConfig(hidden_size=32, layers=1, heads=2, kv_heads=1), tokenizer, torch.Generator())


def prompt(policy: HFPolicy, page: str, raw: bool, style: str) -> tuple[int, ...]:
    """The prompt after a call whose result is, or is not, full of markers.

    Args:
        raw: whether the result reaches the prompt as the tool returned it, not neutralized by the environment.
    """
    env = ToolTags(ToolEnv([read], [{"id": "a", "prompt": "Read the page.", "answer": "a pan"}], split="all"))
    observation, info = env.reset()
    conversation: Any = STYLES[style](renderer_of(policy), 0, "none", observation, info, 2)
    reply = policy.encode(env.reader.write(f'{{"calls": [{{"name": "read", "arguments": {{"page": "{page}"}}}}]}}'))
    observation, _, _, _, info = env.step(policy.decode(reply))
    assert info["calls"][0]["error"] is None
    if raw:
        observation = read(page)
        info = {**info, "calls": [{**info["calls"][0], "result": observation}]}
    stream = (*conversation.action_prompt(), *reply)
    conversation.advance(stream, reply, "", observation, info)
    return conversation.action_prompt()


def injected_tokens() -> int:
    """Special tokens beyond those of a harmless result, over prompts as chats and as lines, neutralized and not."""
    count = 0
    for chat in (False, True):
        actor = policy(chat)
        special = set(actor.tokenizer.added_tokens_decoder)
        assert special & set(actor.encode(MARKERS)), "the markers are special tokens where these are recognized"
        for raw in (False, True):
            for style in STYLES:
                found = [
                    Counter(token for token in prompt(actor, page, raw, style) if token in special)
                    for page in ("hostile", "calm")
                ]
                count += (found[0] - found[1]).total()
    return count

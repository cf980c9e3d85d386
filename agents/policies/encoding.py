"""Texts to token ids and back, and the tokens that end a reply."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from roleagent.agents.chat_template import ChatTemplate
from roleagent.agents.policies.protocol import INSIDE, PolicyError

_CUT = "\udfff"  # where a text is cut for the tokenizer: half of a character, which no tokenizer takes
_HALVES = re.compile("[\ud800-\udfff]")


def named_ends(model: PreTrainedModel) -> frozenset[int]:
    """The end tokens that a model names, in its configuration for generation or in its own."""
    configs = (model.config, model.config.get_text_config(), model.generation_config)
    found = [getattr(config, "eos_token_id", None) for config in configs]
    ids = {token for one in found for token in (one if isinstance(one, Sequence) else [one])}
    return frozenset(int(token) for token in ids if token is not None and 0 <= token < configs[1].vocab_size)


def _beginnings_of_marks(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """Finds the first character of every special token in a text, those that overlap included.

    Tokenizers also match added tokens that are not declared special. Some of them are marks of a chat
    (``<｜User｜>``, ``<tool_call>``), others are plain text (runs of blanks, words): marks stand in brackets.
    """
    added = [token.content for token in tokenizer.added_tokens_decoder.values()]
    bracketed = {text for text in added if (text[:1], text[-1:]) in (("<", ">"), ("[", "]"))}
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    rests: dict[tuple[str, str], list[str]] = {}  # by how they begin: some tokenizers have thousands of marks
    for mark in sorted(bracketed | special | set(tokenizer.all_special_tokens)):
        if len(mark) > 1:
            rests.setdefault((re.escape(mark[0]), re.escape(mark[1])), []).append(re.escape(mark[2:]))
    found = (f"{first}(?={second}(?:{'|'.join(rest)}))" for (first, second), rest in rests.items())
    return re.compile("|".join(found) or r"(?!)")


class TextEncoder:
    """A Hugging Face tokenizer, as :class:`~roleagent.agents.policies.protocol.Policy` needs it.

    Args:
        tokenizer: its chat template, if it has one, names the token that ends a turn.
        ends: further end tokens (:func:`named_ends`).

    Attributes:
        end_ids: every token that ends a reply.
        eos_id: the one of them that ends a written reply: as the chat template ends a turn, else ``eos_token``.

    Raises:
        PolicyError: there is no end token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, ends: frozenset[int] = frozenset()):
        self._tokenizer = tokenizer
        eos: int | None = tokenizer.eos_token_id  # type: ignore[assignment]
        turn = _turn_end(tokenizer)
        self.end_ids = ends | {token for token in (eos, turn) if token is not None}
        if not self.end_ids:
            raise PolicyError("the policy's tokenizer has no end token (eos_token): nothing would end a reply")
        self.eos_id: int = next(token for token in (turn, eos, *sorted(ends)) if token is not None)
        # A group's episodes see much of the same, and every prediction is asked for in the same words.
        self._encoded = lru_cache(4096)(self._tokenized)
        self._adds_blank = self._piece(f"{INSIDE}x", "") != [*self._piece(INSIDE, ""), *self._piece("x", "")]
        self._marks = _beginnings_of_marks(tokenizer)
        known = tokenizer.added_tokens_decoder.items()
        # Tokens that are found in the normalized text may not stand in the text itself.
        self._normalized = {number for number, token in known if token.normalized and self._marks.match(token.content)}

    def encode(self, text: str, after: str = "") -> list[int]:
        """Token ids of a text, none added. Special tokens are recognized, but not in its :meth:`literal` parts.

        Args:
            after: what the text follows: an end token, or :data:`~roleagent.agents.policies.protocol.INSIDE` for any
                other text. Tokenizers of Llama 2's kind put a blank in front of a text, which belongs at the beginning
                of a prompt alone.
        """
        return list(self._encoded(text, after if self._adds_blank else ""))

    def literal(self, text: str) -> str:
        """A text from outside for :meth:`encode`, alone or within a longer text: its special tokens are plain letters.

        A text without special tokens is returned unchanged, so that its token ids are what they are anyway.
        """
        text = _HALVES.sub("", text)
        cut = self._marks.sub(rf"\g<0>{_CUT}", text)
        return _CUT.join(text) if self._normalized and not self._normalized.isdisjoint(self.encode(cut)) else cut

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids. Tags may be special tokens, so special tokens stay, but for the end of the reply."""
        ids = [token for token in token_ids if token not in self.end_ids]
        text = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def single_token(self, text: str) -> int | None:
        """The id of a text that is one token within a longer text, else None."""
        ids = self.encode(text, INSIDE)
        return ids[0] if len(ids) == 1 else None

    def _tokenized(self, text: str, after: str) -> list[int]:
        first, *rest = text.split(_CUT)
        behind = INSIDE if self._adds_blank else ""
        return [*self._piece(first, after), *(token for piece in rest for token in self._piece(piece, behind))]

    def _piece(self, text: str, after: str) -> list[int]:
        before = self._tokenizer.encode(after, add_special_tokens=False) if after else []
        ids = self._tokenizer.encode(after + text, add_special_tokens=False)
        if ids[: len(before)] == before:
            return ids[len(before) :]
        return self._tokenizer.encode(text, add_special_tokens=False)  # the two have grown together


def _turn_end(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The special token that the chat template ends a turn with, if there is one."""
    if not tokenizer.chat_template:
        return None
    end = ChatTemplate(tokenizer).turn_end
    ids = tokenizer.encode(end, add_special_tokens=False) if end else []
    first = next((token for token in ids if tokenizer.decode([token]).strip()), None)
    known = tokenizer.added_tokens_decoder
    return first if first == tokenizer.eos_token_id or (first in known and known[first].special) else None


__all__ = ["TextEncoder", "named_ends"]

"""The base of all formats: the reading of a reply, and the rules of calls and answers.

A reader never raises and is linear in the length of the reply. Inside a thought everything is text; a call that is not
closed is malformed, never an answer; a reply with calls *and* an answer is malformed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roleagent.envs.tools.formats.scan import ANSWER, Scanned, escape_tags, scan
from roleagent.spaces import whole
from roleagent.tools import Call, Tool

MOST_CALLS = 64
"""Calls of one reply; a reply with more is malformed."""
LONGEST_ANSWER = 4096
"""Characters of an answer."""
NEITHER = "no call and no answer"


@dataclass(frozen=True, slots=True)
class Reading:
    """A reply, read.

    Attributes:
        calls: in order; a text in place of a call explains why it is malformed.
        answer: None where there is none.
        predictions: texts by horizon.
        error: why the reply as a whole is malformed; None if it is not.
        repaired: calls that had to be repaired.
        thoughts: number of thoughts.
        beside: the text outside tags that hold calls.
    """

    calls: tuple[Call | str, ...] = ()
    answer: str | None = None
    predictions: Mapping[int, str] = field(default_factory=dict)
    error: str | None = None
    repaired: int = 0
    thoughts: int = 0
    beside: str = ""


class Malformed(ValueError):
    """The whole reply is malformed; the message has the reason."""


class Format(ABC):
    """One format.

    Attributes:
        name: of the option.
        form: how a call looks, for instructions and corrections.
    """

    name: str
    form: str

    def tags(self, tools: Sequence[Tool]) -> tuple[str, ...]:
        """The tags of calls, opening and closing by turns; a new tokenizer has them as tokens."""
        return tuple(tag for name in self.names(tools) for tag in (f"<{name}>", f"</{name}>"))

    def read(self, reply: Any, tools: Sequence[Tool] = (), plain: bool = False) -> Reading:
        """Reads a reply. Never raises.

        Args:
            reply: what the model wrote.
            tools: that it may call.
            plain: whether a reply without calls is an answer as it stands.
        """
        if not isinstance(reply, str):
            return Reading(error=f"the reply is not text but {type(reply).__name__}")
        return self._read(whole(reply), tools, plain)

    def _read(self, text: str, tools: Sequence[Tool], plain: bool) -> Reading:
        found = scan(text, (*self.names(tools), ANSWER))
        more: dict[str, Any] = {"predictions": found.predictions, "thoughts": found.thoughts}
        try:
            if found.error:
                raise Malformed(found.error)
            calls, repaired = self.calls(found, tools, plain)
            beside = found.outside.strip() if any(name != ANSWER for name, _ in found.blocks) else ""
            return Reading(calls, self._answer(found, calls, plain), repaired=repaired, beside=beside, **more)
        except Malformed as error:
            return Reading(error=str(error), **more)

    def _answer(self, found: Scanned, calls: Sequence[Call | str], plain: bool) -> str | None:
        answers = [content.strip() for name, content in found.blocks if name == ANSWER]
        if plain and not calls and not answers:
            answers = [found.outside.strip()]
        if len(calls) > MOST_CALLS:
            raise Malformed(f"{len(calls)} calls in one reply")
        if calls and answers:
            raise Malformed("calls and an answer in one reply")
        if len(answers) > 1:
            raise Malformed(f"{len(answers)} answers in one reply")
        if not calls and not answers:
            raise Malformed(NEITHER)
        if answers and not answers[0]:
            raise Malformed("the answer is empty")
        if answers and len(answers[0]) > LONGEST_ANSWER:
            raise Malformed(f"an answer of {len(answers[0])} characters")
        return answers[0] if answers else None

    def names(self, tools: Sequence[Tool]) -> tuple[str, ...]:
        """The tags of calls."""
        return ()

    def escaped(self, text: str, tools: Sequence[Tool]) -> str:
        """JSON, or Python with strings of JSON, without the tags that :meth:`read` finds."""
        return escape_tags(text, (*self.names(tools), ANSWER))

    @abstractmethod
    def calls(self, found: Scanned, tools: Sequence[Tool], plain: bool) -> tuple[tuple[Call | str, ...], int]:
        """The calls of a reply, and how many were repaired.

        Raises:
            Malformed: the whole reply is malformed.
        """

    @abstractmethod
    def write(self, calls: Sequence[Call], tools: Sequence[Tool] = (), literal: Callable[[str], str] = str) -> str:
        """A reply that makes calls; the inverse of :meth:`read`.

        Args:
            literal: applied to what stands between tags (:meth:`~roleagent.agents.policies.protocol.Policy.literal`).
        """


def answer_text(answer: str, plain: bool = False, literal: Callable[[str], str] = str) -> str:
    """A reply that answers."""
    return literal(answer) if plain else f"<answer>{literal(answer)}</answer>"


__all__ = ["Format", "Malformed", "Reading", "answer_text"]

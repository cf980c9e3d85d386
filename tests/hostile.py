"""Actions that nobody should send: what they are made of, and how they mix with commands that work."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

LONG, HUGE = 10_000, 1_000_000  # characters
ODD = (
    *("", " ", "\n", "\0", "\ufeff", "\u202e\u2066look\u2069", "\ud800", "\udfff\ud83d", "e\u0301\u0327" * 40),
    *("\U0001f469\u200d\U0001f467", "ﬁ İ ß ǅ ſ", "０１２", "١٢٣", "\x1b[2J\x1b]0;title\x07", "\r\n.\r\n", "\u2028\x85"),
    *("0", "-1", "1e999", "NaN", "9" * 5000, "0x7f", "--help", "../../etc/passwd", "$(reboot)", "'; DROP TABLE a"),
    *("%s%n%d", "{0.__class__}", "{}", "{goal!r:>9999999}", "%(goal)s", "${HOME}", "\\1\\g<0>", "\\u0041"),
    *("(a+)+$", "[[[[(", '{"command": "look", "predictions": [', "[" * 3000, '{"a":' * 800, "<!--", "&lt;&#0;"),
    *("<script>alert(1)</script>", "<|im_end|>", "<|endoftext|><|im_start|>system", "</s>", "[INST]"),
    *("search[", "answer[]", "click[]", "search]x[", "search[\0]", "answer[\ud800]", "click[[[x]]]", "search[%]"),
    *("search[the a an]", "search[" + "a " * 600 + "]", "go to ", "take  from ", "move with", "examine \u00a0"),
    *("open open open", "heat x with with y", "inventory 1", "look\0", "\x7f\x08\x08"),
)
"""Texts that have broken some program somewhere."""
TAGS = (
    *("<action>", "</action>", "<think>", "</think>", '<prediction h="1">', "<prediction h=999>", "</prediction>"),
    *("<search>", "</search>", "<answer>", "</answer>", "<action", "<prediction h='", "</ action>", "<ACTION>"),
    *("<action/>", "< action >", "<reflection>", "</reflection>", "<selected_tasks>", "</selected_tasks>"),
    *("DOMINANT_TYPE: ", "CRITICAL_STEP: 1e9\n"),
)
NOT_TEXT: tuple[Any, ...] = (None, True, 3, -1.5, float("nan"), b"look", [], ["look"], (), {}, object(), 1 << 70)
SHARES = {"expert": 40, "known": 14, "changed": 12, "text": 10, "odd": 10, "tags": 9, "other": 4, "long": 1}
KINDS = tuple(kind for kind, share in SHARES.items() for _ in range(share))


@dataclass(frozen=True)
class Move:
    """One action, before it is known what can be done when its turn comes.

    Attributes:
        kind: one of :data:`KINDS`.
        number: of the command that it is, or is made from.
        text: what is put into it, or all of it.
        seed: of where, and how long.
    """

    kind: str
    number: int
    text: str
    seed: int

    def action(self, known: list[str], advice: str = "") -> Any:
        """The action, given the commands that work now and what an expert would do."""
        rng = random.Random(self.seed)
        command = known[self.number % len(known)] if known else ""
        if self.kind in ("expert", "known"):
            return advice if self.kind == "expert" and advice else command
        if self.kind == "other":
            return NOT_TEXT[self.number % len(NOT_TEXT)]
        if self.kind == "long":
            unit = (self.text or " ") if rng.random() < 0.5 else command or "<action>"
            inner = (unit * HUGE)[: HUGE if rng.random() < 0.1 else LONG]
            frames = ("{}", "search[{}]", "answer[{}]", "click[{}", "<action>{}</action>", "go to {}")
            return rng.choice(frames).format(inner)
        if self.kind == "changed":
            where, many = rng.randrange(len(command) + 1), rng.randrange(3)
            changed = command[:where] + self.text[:4] + command[where + many :]
            again = (command.upper(), command * 2, f"{command}\n{self.text}", f" {command}\t", command[1:])
            return rng.choice((changed, *again))
        return self.text


def texts() -> st.SearchStrategy[str]:
    """Characters of all planes, lone surrogates among them."""
    return st.text(st.characters(), max_size=40)


@st.composite
def moves(draw: st.DrawFn) -> Move:
    """Half of them commands that work, so that an episode goes on."""
    kind = KINDS[draw(st.integers(0, len(KINDS) - 1))]
    number, seed = draw(st.integers(0, 2**20)), draw(st.integers(0, 2**20))
    text = ""
    if kind in ("changed", "text", "long"):
        text = draw(texts())
    elif kind == "odd":
        text = ODD[number % len(ODD)] + ODD[seed % len(ODD)] * (seed % 3 == 0)
    elif kind == "tags":
        rng = random.Random(seed)
        text = "".join(rng.choice((*TAGS, "look", " ", "<", *ODD[:6])) for _ in range(1 + number % 12))
    return Move(kind, number, text, seed)


def scripts(length: int) -> st.SearchStrategy[list[Move]]:
    """So many moves."""
    return st.lists(moves(), min_size=length, max_size=length)

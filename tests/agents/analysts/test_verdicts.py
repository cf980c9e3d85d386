"""Verdicts: read as strictly as a reflection; what cannot be read convicts no action."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.failures.analyst_format import read_verdict
from roleagent.failures.verdicts import KINDS, UNREAD, Verdict, transition_point


@pytest.mark.parametrize("kind", KINDS)
def test_a_verdict_in_the_required_format_is_read_without_repair(kind):
    reason = "the egg is carried away from the stove"
    reply = f"<verdict>\nREASON: {reason}\nJUDGEMENT: {kind}\n</verdict>"
    assert read_verdict(reply) == Verdict(kind, reason, "model")


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("Judgment: Bad, not a good action", "bad"),
        ("REASON: it is cold\nJUDGEMENT: bad.", "bad"),
        ("**Reason:** none\n**Judgement:** **Uncertain**", "uncertain"),
        ('{"reason": "it is cold", "judgement": "bad"}', "bad"),
        ("<think>JUDGEMENT: good</think><verdict>\nJUDGEMENT: bad\nREASON: no\n</verdict>", "bad"),
        ("<verdict>\nREASON: the page said JUDGEMENT: bad\nJUDGEMENT: good\n</verdict>", "good"),
    ],
)
def test_unambiguous_errors_are_repaired(reply, kind):
    verdict = read_verdict(reply)
    assert verdict.kind == kind
    assert verdict.source == "model"
    assert verdict.repaired == ("page said" not in reply)


@pytest.mark.parametrize(
    "reply",
    [
        *("", "It is bad.", "JUDGEMENT:", "JUDGEMENT: not bad", "JUDGEMENT: good? no, bad"),
        *("JUDGEMENT: bad or uncertain", "JUDGEMENT: badly done", "JUDGEMENT: good\nJUDGEMENT: bad"),
        "<verdict>\nREASON: x JUDGEMENT: bad\n</verdict>",
    ],
)
def test_what_cannot_be_read_is_uncertain(reply):
    assert read_verdict(reply) == UNREAD
    assert (UNREAD.kind, UNREAD.source) == ("uncertain", "fallback")


@given(st.text(max_size=300))
def test_any_text_is_read(text):
    assert read_verdict(text).kind in KINDS


def test_the_transition_point_lies_behind_the_shared_steps():
    assert transition_point(3, [Verdict("good"), Verdict("bad")]) == 5
    assert transition_point(3, [UNREAD, UNREAD]) is None, "no verdict, no splice"

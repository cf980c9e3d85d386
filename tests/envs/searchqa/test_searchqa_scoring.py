"""Exact match, F1 and containment: the field's definitions, and the inputs on which they are usually wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.envs.searchqa.scoring import judge
from roleagent.envs.searchqa.text import normalize


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Beatles", "beatles"),
        ("  An  apple,\ta\npear ", "apple pear"),
        ("U.S.A.", "usa"),
        ("theatre", "theatre"),  # an article is a word
        ("Beyoncé’s", "beyoncé’s"),  # only ASCII punctuation goes, and accents stay
        ("The", ""),
        ("?!", ""),
        ("", ""),
    ],
)
def test_normal_forms(text, normal):
    assert normalize(text) == normal
    assert normalize(normal) == normal


@pytest.mark.parametrize(
    ("answer", "golden", "score"),
    [
        ("Paris", ["Paris"], (1, 1, 1)),
        ("the  PARIS!", ["London", "paris"], (1, 1, 1)),
        ("Paris, France", ["Paris"], (0, 2 / 3, 1)),
        ("London", ["Paris"], (0, 0, 0)),
        ("Par", ["Paris"], (0, 0, 0)),
        ("It is in Paris", ["Paris", "France"], (0, 2 / 5, 1)),
        # The best of each over the golden answers, not of one of them.
        ("red house", ["red", "red house on hill"], (0, 2 / 3, 1)),
        # Words count as often as they stand there.
        ("duran duran", ["duran"], (0, 2 / 3, 1)),
        # A verdict is right or wrong.
        ("yes", ["yes"], (1, 1, 1)),
        ("yes", ["yes they did"], (0, 0, 0)),
        ("yes they did", ["yes"], (0, 0, 1)),
        ("no", ["no answer"], (0, 0, 0)),
        # A golden answer without a normal form is matched letter by letter.
        ("the", ["The"], (1, 1, 1)),
        ("a", ["The"], (0, 0, 0)),
        ("theatre", ["The"], (0, 0, 0)),
        ("anything", ["?"], (0, 0, 0)),
        ("...", ["Paris"], (0, 0, 0)),
        ("Paris", [], (0, 0, 0)),
    ],
)
def test_scores(answer, golden, score):
    assert judge(answer, golden) == pytest.approx(score)


@given(st.text(min_size=1, max_size=30))
def test_a_golden_answer_is_always_right(text):
    assert judge(text, ["something else", text]).em == 1

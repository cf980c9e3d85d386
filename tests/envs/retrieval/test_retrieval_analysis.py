"""Text analysis: where words begin and end, what becomes of them."""

import json

import pytest

from roleagent.envs.retrieval.lexical.analysis import STOP_WORDS, analyze
from roleagent.envs.retrieval.lexical.porter import stem
from roleagent.envs.retrieval.lexical.words import words

# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("can't won’t 'quoted'", ["can't", "won’t", "quoted"]),
        ("3.14 1,000 1:2 a:b a,b", ["3.14", "1,000", "1", "2", "a:b", "a", "b"]),
        ("a.b a..b a.1 1.a a1 1a", ["a.b", "a", "b", "a", "1", "1", "a", "a1", "1a"]),
        ("foo_bar _foo __ _1_", ["foo_bar", "_foo", "_1_"]),
        ("wi-fi e-mail@x.com 10\" 5' 100% $3 c++", ["wi", "fi", "e", "mail", "x.com", "10", "5", "100", "3", "c"]),
        ("soft\u00adhyphen cafe\u0301 \u0301x", ["soft\u00adhyphen", "cafe\u0301", "x"]),
        ("non\u00a0breaking narrow\u202fspace", ["non", "breaking", "narrow\u202fspace"]),
        ("日本語 ひらがな カタカナ 한국어", [*"日本語ひらがな", "カタカナ", "한국어"]),
        ("ภาษาไทย", ["ภาษาไทย"]),
        ("צה\"ל ג'", ["צה\"ל", "ג'"]),
        ("٣٫١٤", ["٣٫١٤"]),
        ("👍🏽 👨‍👩‍👧 ❤️ ☺︎ ®", ["👍🏽", "👨‍👩‍👧", "❤️", "☺", "®"]),
        ("🇩🇪🇫🇷🇮 🏴󠁧󠁢󠁥󠁮󠁧󠁿 1️⃣ #️⃣ #", ["🇩🇪", "🇫🇷", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "1️⃣", "#️⃣"]),
        ("ℹ️ ℹ‍👨 ℹ‍ℹabc", ["ℹ️", "ℹ‍👨", "ℹ‍ℹabc"]),
        ("\ud83d x \ud800\udc00", ["x"]),
        ("", []),
    ],
)  # fmt: skip
def test_words_end_as_in_unicode(text, tokens):
    assert list(words(text)) == tokens


def test_pictographs_are_words(webshop_data):
    ranges = json.loads((webshop_data / "reference" / "lucene_pictographs.json").read_text("utf-8"))
    pictographs = [chr(point) for first, last in ranges for point in range(first, last + 1)]
    assert len(pictographs) > 4000
    assert [c for c in pictographs if list(words(f"({c})")) != [c]] == []


# --- stems ------------------------------------------------------------------------------------------------------------

STEMS = """
caresses caress | ponies poni | ties ti | caress caress | cats cat | feed feed | agreed agre | plastered plaster
bled bled | motoring motor | sing sing | conflated conflat | troubled troubl | sized size | hopping hop | tanned tan
falling fall | hissing hiss | fizzed fizz | failing fail | filing file | happy happi | sky sky | relational relat
conditional condit | rational ration | valenci valenc | digitizer digit | conformabli conform | radicalli radic
differentli differ | vileli vile | analogousli analog | vietnamization vietnam | predication predic | operator oper
feudalism feudal | decisiveness decis | hopefulness hope | callousness callous | formaliti formal
sensitiviti sensit | sensibiliti sensibl | triplicate triplic | formative form | formalize formal | electriciti electr
electrical electr | hopeful hope | goodness good | revival reviv | allowance allow | inference infer | airliner airlin
gyroscopic gyroscop | adjustable adjust | defensible defens | irritant irrit | replacement replac | adjustment adjust
dependent depend | adoption adopt | homologou homolog | communism commun | activate activ | angulariti angular
homologous homolog | effective effect | bowdlerize bowdler | probate probat | rate rate | cease ceas
controll control | roll roll | possibly possibl | archaeology archaeolog | say sai | yes ye | is is | ion ion
"""


def test_stems():
    pairs = [pair.split() for pair in STEMS.replace("\n", "|").split("|") if pair.strip()]
    assert {word: stem(word) for word, _ in pairs} == dict(pairs)


# --- terms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The Woman's dogs' THAT’S it＇S", ["woman", "dog"]),  # stop words go after the possessive
        ("IDEA's", ["idea"]),
        ("İSTANBUL ΣΑΣ ÀÉ", ["istanbul", "σασ", "àé"]),
        (" ".join(STOP_WORDS), []),
        ("Aééed a𐍈𐍈ed 𐍈s", ["aé", "a𐍈𐍈", "𐍈"]),  # a double é is halved; the halves of 𐍈 differ
        ("tab\tand\nline  spaces", ["tab", "line", "space"]),
        ("Beyonc\u00e9", ["beyonc\u00e9"]),  # Lucene's analyzer normalizes nothing: composed and decomposed differ
        ("Beyonce\u0301", ["beyonce\u0301"]),
    ],
)
def test_terms(text, terms):
    assert analyze(text) == terms

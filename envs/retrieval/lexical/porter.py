"""Porter's stemmer (1980), with the two departures of its author's own program: ``bli`` and ``logi``.

A word is read as consonants and vowels; its *measure* is how often a vowel is followed by a consonant. Five steps each
cut or change the longest ending of their list, if the measure of what stands before it is large enough.
"""

from __future__ import annotations

# Endings that change where the stem before them has a measure above 0. Longer ones that end alike come first.
_STEP_2 = {
    "ational": "ate",
    "tional": "tion",
    "enci": "ence",
    "anci": "ance",
    "izer": "ize",
    "bli": "ble",
    "alli": "al",
    "entli": "ent",
    "ousli": "ous",
    "eli": "e",
    "ization": "ize",
    "ation": "ate",
    "ator": "ate",
    "alism": "al",
    "iveness": "ive",
    "fulness": "ful",
    "ousness": "ous",
    "aliti": "al",
    "iviti": "ive",
    "biliti": "ble",
    "logi": "log",
}
_STEP_3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
# Endings that go where the measure is above 1; "ion" only after s or t.
_ENDINGS = "al ance ence er ic able ible ant ement ment ent ion ou ism ate iti ous ive ize"
_STEP_4 = tuple(_ENDINGS.split())


def stem(word: str) -> str:
    """The stem of a lower-case word; anything but a to z counts as a consonant.

    >>> [stem(word) for word in "ponies caresses hopping hoping relational possibly archaeology sky".split()]
    ['poni', 'caress', 'hop', 'hope', 'relat', 'possibl', 'archaeolog', 'sky']
    """
    if len(word) < 3:
        return word
    word = _inflection(word)
    if word.endswith("y") and "v" in _form(word[:-1]):
        word = word[:-1] + "i"
    for changes in (_STEP_2, _STEP_3):
        stump, ending = _split(word, tuple(changes))
        if ending and _measure(stump) > 0:
            word = stump + changes[ending]
    stump, ending = _split(word, _STEP_4)
    if ending and _measure(stump) > 1 and (ending != "ion" or stump[-1] in "st"):
        word = stump
    measure = _measure(word)
    if word.endswith("e") and (measure > 1 or (measure == 1 and not _is_short(word[:-1]))):
        word = word[:-1]
    return word[:-1] if word.endswith("ll") and measure > 1 else word


def _inflection(word: str) -> str:
    """Step 1a and 1b: plurals, ``-ed`` and ``-ing``."""
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for ending in ("ed", "ing"):
        if word.endswith(ending):
            stump = word[: -len(ending)]
            form = _form(stump)
            if "v" not in form:
                return word
            if stump.endswith(("at", "bl", "iz")):
                return stump + "e"
            if stump[-2:-1] == stump[-1:] and form[-1] == "c":
                return stump if stump[-1] in "lsz" else stump[:-1]
            return stump + "e" if _measure(stump) == 1 and _is_short(stump) else stump
    return word


def _split(word: str, endings: tuple[str, ...]) -> tuple[str, str]:
    """The word before the first of the endings that fits, and that ending; ``""`` if none fits."""
    if word.endswith(endings):  # one call for all: most words have none
        for ending in endings:
            if word.endswith(ending):
                return word[: -len(ending)], ending
    return word, ""


def _form(word: str) -> str:
    """Consonants and vowels, as ``c`` and ``v``: a ``y`` after a consonant is a vowel."""
    form = ""
    for letter in word:
        is_vowel = letter in "aeiou" or (letter == "y" and form[-1:] == "c")
        form += "v" if is_vowel else "c"
    return form


def _measure(word: str) -> int:
    return _form(word).count("vc")


def _is_short(word: str) -> bool:
    """Whether it ends consonant, vowel, consonant, the last none of w, x and y: such a stem keeps its ``e``."""
    return _form(word)[-3:] == "cvc" and word[-1] not in "wxy"


__all__ = ["stem"]

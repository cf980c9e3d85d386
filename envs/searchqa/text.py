"""Search QA as a reader of its text sees it: passages in an observation, words of a question, forms of an answer.

The environment that judges, the scripted expert that reads and the rules that detect failures stand in different
rooms; this is what they share.
"""

from __future__ import annotations

import re
import string
from typing import NamedTuple

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_DOCUMENT = re.compile(r'^(?:<information>)?Doc \d+\(Title: "(.*?)"\) ?(.*?)(?:</information>)?$', re.MULTILINE)
_COMMAND = re.compile(r"\s*(search|answer)\[(.*)\]\s*", re.DOTALL)
# What questions are made of whatever they are about.
_ASKING = (
    "a after also an and any are as at be been before being both but by came come comes did do does for from had has "
    "have he her his how in into is it its kind made make makes many most much name named of on one or out same she so "
    "some such than that the their them then there these they this those through to was were what when where which "
    "while who whom whose why will with would year you"
)
_IGNORED = frozenset(_ASKING.split())


def normalize(text: str) -> str:
    """The form in which answers are compared: lower case, no ASCII punctuation, no articles, single spaces.

    >>> normalize(" The  Beatles' Story!"), normalize("The")
    ('beatles story', '')
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def contains(text: str, answer: str) -> bool:
    """Whether the words of an answer stand in a text, both in normal form.

    >>> contains("They sang for the Beatles.", "The Beatles"), contains("a catalogue", "cat")
    (True, False)
    """
    return f" {normalize(answer)} " in f" {normalize(text)} "


def subject_words(text: str) -> frozenset[str]:
    """The content words of a text.

    >>> sorted(subject_words("Where was the director of Silver Harbor born?"))
    ['born', 'director', 'harbor', 'silver']
    """
    return frozenset(re.findall(r"\w+", text.lower())) - _IGNORED


def read_command(text: str) -> tuple[str, str]:
    """Verb and argument of ``search[…]`` or ``answer[…]``, spaces folded; ``("", "")`` if it is neither.

    >>> read_command(" search[ Silver  Harbor ]"), read_command("answer[]"), read_command("search")
    (('search', 'Silver Harbor'), ('answer', ''), ('', ''))
    """
    found = _COMMAND.fullmatch(text)
    return (found[1], " ".join(found[2].split())) if found else ("", "")


class Document(NamedTuple):
    """One passage as an observation shows it."""

    title: str
    text: str


def read_information(observation: str) -> tuple[Document, ...]:
    """The passages in an observation, best first.

    >>> read_information('<information>Doc 1(Title: "Oslo") A city.\\nDoc 2(Title: "Ulm") Another.</information>')
    (Document(title='Oslo', text='A city.'), Document(title='Ulm', text='Another.'))
    """
    return tuple(Document(*found.groups()) for found in _DOCUMENT.finditer(observation))


__all__ = ["Document", "normalize", "read_command", "read_information", "subject_words"]

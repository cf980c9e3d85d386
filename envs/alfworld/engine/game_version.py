"""The versions of ALFWorld's rules and wording that the simulator knows, recognized by the hash of their text.

A game file carries its PDDL domain and its text grammar. All official games share one of two pairs, and the
``alfworld`` package ships a third; they differ in the few points that :class:`GameVersion` lists. TextWorld plays the
rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256


class UnknownGameVersion(ValueError):
    """The game has a domain, a grammar or facts that the native simulator does not know; TextWorld can play it."""


@dataclass(frozen=True, slots=True)
class GameVersion:
    """The differences between the known versions.

    Attributes:
        put: verb and preposition of putting something down.
        names_location: whether arriving names the location (``loc 12``) and not the receptacle.
        help: the answer to ``help``; None where there is no such command.
        washers: receptacle types in which things can be cleaned.
    """

    put: tuple[str, str] = ("move", "to")
    names_location: bool = False
    help: str | None = None
    washers: frozenset[str] = frozenset({"sinkbasintype"})


HELP = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""
_SINKS = frozenset({"sinktype", "sinkbasintype"})
PACKAGE = GameVersion(help=HELP)
"""The domain and grammar that alfworld 0.4 ships. Generated games are written out with them."""
OFFICIAL = GameVersion(help=HELP, washers=_SINKS)
"""The published games of format 2.1.3."""
OLDER = GameVersion(put=("put", "in/on"), names_location=True, washers=_SINKS)
"""The published games of format 2.1.1."""
FORMATS = {PACKAGE: "of alfworld 0.4", OFFICIAL: "2.1.3", OLDER: "2.1.1"}
"""How reports call the versions."""

# SHA-256 of (domain, grammar without its task sentence).
_KNOWN = {
    (
        "f1473041ed01da514de1f87adfd7ef0804862361f83ccf63c75e43633b0eb280",
        "7f7ac021f00fad0d5bdcda20a3f2c4d02ecb761d300ef06734778b4a9c5d067f",
    ): PACKAGE,
    (
        "0af55e7f92d12b09d28515aa730e4d03fddd17228ef1fd7b18a3ee8ba49b27b9",
        "f3ed2b374597dbc1be32caaed6384fee0540dce7e730db3498bf709478d37595",
    ): OFFICIAL,
    (
        "34172c333dff7e62eb90e85367fa5519b5f31b3849e56123d96dbc0deda50e27",
        "ae7f32eaedacbe26fef5a77c98154efe68127c55d41cbdce3b56140a560f7287",
    ): OLDER,
}
_TASK = re.compile(r'Your task is to: ([^"]*)\."')
# Characters that mean something to TextWorld's grammar, or to the JSON it is written in, would change the sentence.
_PLAIN = re.compile(r"[^;|\"<>\[\]#{}\\\t\n]*")


def task_sentence(grammar: str) -> str:
    """The task sentence of a grammar, without ``Your task is to: `` and the final full stop; ``""`` if it has none.

    >>> task_sentence('"rhs": "Your task is to: put a mug in desk."')
    'put a mug in desk'
    """
    found = _TASK.search(grammar)
    return found[1] if found else ""


def with_sentence(grammar: str, sentence: str) -> str:
    """The grammar with another task sentence.

    >>> with_sentence('"rhs": "Your task is to: put a mug in desk."', "heat some egg")
    '"rhs": "Your task is to: heat some egg."'
    """
    return _TASK.sub(lambda found: f'Your task is to: {sentence}."', grammar, count=1)


def recognize(domain: str, grammar: str) -> GameVersion:
    """The version of a game's domain and grammar; of two empty texts :data:`PACKAGE`.

    Raises:
        UnknownGameVersion: the simulator does not know these rules.
    """
    if not domain and not grammar:
        return PACKAGE
    if not _PLAIN.fullmatch(task_sentence(grammar)):
        raise UnknownGameVersion("the task sentence has characters that TextWorld's grammar would interpret")
    bare = _TASK.sub('T"', grammar)
    known = _KNOWN.get((sha256(domain.encode()).hexdigest(), sha256(bare.encode()).hexdigest()))
    if known is None:
        raise UnknownGameVersion("unknown PDDL domain or text grammar")
    return known


__all__ = [
    "HELP",
    "OFFICIAL",
    "OLDER",
    "PACKAGE",
    "GameVersion",
    "UnknownGameVersion",
    "recognize",
    "task_sentence",
    "with_sentence",
]

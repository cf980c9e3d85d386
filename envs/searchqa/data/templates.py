"""The texts of the generated world: templates of passages and questions.

A passage contains all relations of one thing, a question asks for the person or town of one relation. The thing is
named, or described by a relation of another thing: "Who taught the director of Silver Harbor?" needs two searches.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Relation:
    """One kind of fact.

    Attributes:
        subject: the kind of thing that the fact is about.
        object: the kind of thing that it names.
        sentences: of the subject's passage. ``{s}`` is its name in the first one and a pronoun in others; ``{o}`` is
            the object.
        asks: questions for the object, about ``{s}``; none where the object is a mere word, which could be guessed.
        describes: ways to speak of the object without its name; none where there is nothing further to ask about it.
    """

    name: str
    subject: str
    object: str
    sentences: tuple[str, ...]
    asks: tuple[str, ...] = ()
    describes: tuple[str, ...] = ()


RELATIONS = (
    Relation(
        "job",
        *("person", "job"),
        ("{s} is a {o}.", "{s} works as a {o}."),
    ),
    Relation(
        "birthplace",
        *("person", "town"),
        ("{s} was born in {o}.", "{s} comes from {o}."),
        ("Where was {s} born?", "Which town does {s} come from?"),
        ("the birthplace of {s}", "the town where {s} was born"),
    ),
    Relation(
        "teacher",
        *("person", "person"),
        ("{s} was taught by {o}.", "{s} learned from {o}."),
        ("Who taught {s}?", "Who was the teacher of {s}?"),
        ("the teacher of {s}", "the person who taught {s}"),
    ),
    Relation(
        "genre",
        *("film", "genre"),
        ("{s} is a {o} film.",),
    ),
    Relation(
        "director",
        *("film", "person"),
        ("{s} was directed by {o}.", "{s} was filmed by {o}."),
        ("Who directed {s}?", "Who was the director of {s}?"),
        ("the director of {s}", "the person who directed {s}"),
    ),
    Relation(
        "setting",
        *("film", "town"),
        ("{s} is set in {o}.", "{s} takes place in {o}."),
        ("Where is {s} set?", "Which town is the setting of {s}?"),
        ("the setting of {s}", "the town where {s} is set"),
    ),
    Relation(
        "product",
        *("company", "product"),
        ("{s} is a company that makes {o}.", "{s} makes {o}."),
    ),
    Relation(
        "founder",
        *("company", "person"),
        ("{s} was founded by {o}.", "{s} was started by {o}."),
        ("Who founded {s}?", "Who was the founder of {s}?"),
        ("the founder of {s}", "the person who founded {s}"),
    ),
    Relation(
        "seat",
        *("company", "town"),
        ("{s} is based in {o}.", "{s} has its seat in {o}."),
        ("Where is {s} based?", "Which town is the seat of {s}?"),
        ("the seat of {s}", "the town where {s} is based"),
    ),
    Relation(
        "river",
        *("town", "river"),
        ("{s} is a town on the {o}.", "{s} lies on the {o}."),
    ),
    Relation(
        "mayor",
        *("town", "person"),
        ("{s} is led by {o}.", "{s} is governed by {o}."),
        ("Who governs {s}?", "Who is the mayor of {s}?"),
        ("the mayor of {s}", "the person who governs {s}"),
    ),
)

# Pronouns by kind: a passage keeps to one of them.
PRONOUNS = {"person": ("He", "She"), "film": ("It",), "company": ("It",), "town": ("It",)}

# Names have two parts; a name belongs to one split, its parts occur in all.
NAMES = {
    "person": (
        "Abra Arlo Bero Brisa Cadel Corin Dova Drava Edda Elra Fenno Galen Gira Hesper Hodel Ilka Isolde Joren Junia "
        "Kesta Lamo Leoni Mirel Morgan Nado Nerys Olva Orla Pesko Quin Relda Rufus Soren Sybil Tibba Ulma Vero Wenda "
        "Xenia Yaro",
        "Abbot Ashby Barrow Brandt Crane Culver Dunmore Eller Fairfax Farrow Garrick Goss Hartley Holt Ingram Jessop "
        "Keane Kettle Lorne Lyall Marlow Mercer Nettle Orwell Osgood Pruitt Quill Radley Rudge Selby Stroud Thorne "
        "Tully Upton Varley Voss Wick Winslow Yates Zeller",
    ),
    "town": (
        "Port North South East West Old New Lake Fort Upper",
        "Adelm Albra Brask Burvel Corven Cresk Dreel Dunvar Elmet Esker Felmar Frome Galt Grint Harth Holve Istra "
        "Ivelle Jorvik Kelm Kirren Lunden Lydd Mallow Morva Nessel Norrel Orrin Ostle Pelk Pravel Quorn Rost Ruvenna "
        "Sarn Selk Skarth Tamber Tolva Torrel Umber Urvin Velm Vinter Warrel Wex Wolden Yarm Yelt Zarn Bexley Cairn "
        "Durrow Eskdale Farnel Gorve",
    ),
    "film": (
        "Silver Broken Silent Golden Crimson Hidden Frozen Distant Empty Burning Hollow Velvet Wild Gentle Bitter "
        "Paper Secret Second Amber Ancient Borrowed Crooked Electric Fallen Forgotten Glass Lonely Midnight Painted "
        "Restless Scarlet Wooden",
        "Harbor Garden Mirror Winter Bridge River Lantern Orchard Tower Engine Mountain Letter Window Summer Island "
        "Shadow Promise Station Carnival Chapel Circus Compass Desert Feather Forest Journey Kingdom Lighthouse Ocean "
        "Parade Stairway Valley",
    ),
    "company": (
        "Acorn Anchor Beacon Cobalt Condor Copper Delta Ember Falcon Granite Harvest Helix Indigo Juniper Kestrel "
        "Lotus Maple Meridian Nimbus Onyx Orchid Pioneer Summit Zenith",
        "Works Brothers Supply Trading Union Mills Partners House Group Studio Limited Sisters Company Craft Depot "
        "Exchange Factory Foundry Goods Holdings Makers Products Ventures Workshop",
    ),
}
WORDS = {
    "job": "baker banker carpenter doctor farmer hunter lawyer miller nurse painter poet sailor singer tailor",
    "genre": "comedy crime family horror love music sports war",
    "product": "bells bicycles boots candles carpets chairs clocks hats kites lamps paint pianos soap toys",
    "river": "Ansel Bure Calder Dove Esk Fal Gade Hull Irwell Jordan Kenn Lune Mole Nidd",
}
KINDS = tuple(NAMES)


def relations_of(kind: str) -> tuple[Relation, ...]:
    """The content of a passage about a thing of this kind.

    >>> [relation.name for relation in relations_of("town")]
    ['river', 'mayor']
    """
    return tuple(relation for relation in RELATIONS if relation.subject == kind)


__all__ = ["KINDS", "NAMES", "PRONOUNS", "RELATIONS", "WORDS", "Relation", "relations_of"]

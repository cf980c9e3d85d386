"""The language of the generated world: what its passages say and how its questions ask.

A passage tells all relations of one thing, a question asks for the object of one relation. The thing is named, or
described by a relation of another thing: "Who taught the director of Silver Harbor?" needs two searches.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Relation:
    """One kind of fact.

    Attributes:
        subject, object: kinds of things.
        tells: sentences of the subject's passage. ``{s}`` is its name, ``{it}`` its pronoun, ``{o}`` the object.
        asks: questions for the object, about ``{s}``.
        describes: ways to speak of the object without its name; none where there is nothing further to ask about it.
    """

    name: str
    subject: str
    object: str
    tells: tuple[str, ...]
    asks: tuple[str, ...]
    describes: tuple[str, ...] = ()


# The first relation of a kind opens its passages.
RELATIONS = (
    Relation(
        "job",
        *("person", "job"),
        ("{s} is a {o}.", "{s} works as a {o}."),
        ("What is the job of {s}?", "What does {s} work as?"),
    ),
    Relation(
        "birthplace",
        *("person", "town"),
        ("{it} was born in {o}.", "{it} comes from {o}."),
        ("Where was {s} born?", "Which town does {s} come from?"),
        ("the birthplace of {s}", "the town where {s} was born"),
    ),
    Relation(
        "teacher",
        *("person", "person"),
        ("{it} was taught by {o}.", "{it} learned from {o}."),
        ("Who taught {s}?", "Who was the teacher of {s}?"),
        ("the teacher of {s}", "the person who taught {s}"),
    ),
    Relation(
        "genre",
        *("film", "genre"),
        ("{s} is a {o} film.",),
        ("What kind of film is {s}?", "What is the genre of {s}?"),
    ),
    Relation(
        "director",
        *("film", "person"),
        ("{it} was directed by {o}.", "{it} was filmed by {o}."),
        ("Who directed {s}?", "Who was the director of {s}?"),
        ("the director of {s}", "the person who directed {s}"),
    ),
    Relation(
        "setting",
        *("film", "town"),
        ("{it} is set in {o}.", "{it} takes place in {o}."),
        ("Where is {s} set?", "Which town is the setting of {s}?"),
        ("the setting of {s}", "the town where {s} is set"),
    ),
    Relation(
        "product",
        *("company", "product"),
        ("{s} is a company that makes {o}.", "{s} makes {o}."),
        ("What does {s} make?", "What is the product of {s}?"),
    ),
    Relation(
        "founder",
        *("company", "person"),
        ("{it} was founded by {o}.", "{it} was started by {o}."),
        ("Who founded {s}?", "Who was the founder of {s}?"),
        ("the founder of {s}", "the person who founded {s}"),
    ),
    Relation(
        "seat",
        *("company", "town"),
        ("{it} is based in {o}.", "{it} has its seat in {o}."),
        ("Where is {s} based?", "Which town is the seat of {s}?"),
        ("the seat of {s}", "the town where {s} is based"),
    ),
    Relation(
        "river",
        *("town", "river"),
        ("{s} is a town on the {o}.", "{s} lies on the {o}."),
        ("Which river does {s} lie on?", "What is the river of {s}?"),
    ),
    Relation(
        "mayor",
        *("town", "person"),
        ("{it} is led by {o}.", "{it} is governed by {o}."),
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
# They follow on "a". Many of each: a word that can be guessed is not read.
WORDS = {
    "job": (
        "baker banker barber beekeeper blacksmith bookseller brewer builder butcher carpenter chemist clerk cook "
        "dancer dentist doctor driver farmer fisherman florist gardener glazier hatter hunter jeweller judge "
        "lawyer librarian locksmith mason mechanic merchant midwife miller miner musician nurse painter pilot "
        "plumber poet porter potter printer saddler sailor sculptor singer surgeon tailor tanner translator "
        "weaver writer"
    ),
    "genre": (
        "comedy costume crime dance detective disaster fairy family fantasy gangster ghost heist historical "
        "horror hospital love martial medical monster music mystery parody pirate prison racing road robot "
        "romance sailing satire school spy sports supernatural survival teenage travel vampire war western "
        "wrestling zombie"
    ),
    "product": (
        "anchors baskets bells belts bicycles blankets boots bottles bricks brooms buttons candles canoes carpets "
        "carts chairs clocks combs cups curtains doors drums fans flutes gloves guitars hammers hats kites knives "
        "ladders lamps locks mattresses mirrors needles ovens paint pans pencils pianos pillows pipes plates "
        "ropes rugs saddles scissors shirts shoes sleds soap socks spoons stoves swings tents tiles toys "
        "umbrellas violins wheels whistles"
    ),
    "river": (
        "Aller Ansel Arrow Avill Bain Bure Calder Camel Cherwell Clyst Colne Dane Derwent Dove Ebble Eden Ellen "
        "Erme Esk Evenlode Fal Fowey Gade Gipping Glaven Hamble Hodder Hull Idle Irwell Isle Itchen Jordan Kenn "
        "Kennet Lark Lea Lune Lugg Medway Mole Nadder Nene Nidd Otter Parrett Petteril Piddle Quoile Ribble "
        "Roding Rother Rye Severn Skell Sow Stour Swale Tamar Teme Thurne Torridge Trent Ure Wansbeck Waveney "
        "Wear Welland Wharfe Windrush Wylye Yare Yeo"
    ),
}
KINDS = tuple(NAMES)


def relations_of(kind: str) -> tuple[Relation, ...]:
    """What a passage about a thing of this kind tells.

    >>> [relation.name for relation in relations_of("town")]
    ['river', 'mayor']
    """
    return tuple(relation for relation in RELATIONS if relation.subject == kind)


__all__ = ["KINDS", "NAMES", "PRONOUNS", "RELATIONS", "WORDS", "Relation", "relations_of"]

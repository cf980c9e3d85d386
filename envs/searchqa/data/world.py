"""A closed world of people, films, companies and towns: its passages, and questions that only they can answer.

Who is who and what is where is drawn at random: the same question has another answer under another seed, so that
it cannot be known without searching. Training, validation and test are three lands that share all words and not one
thing: every fact, and hence every question, belongs to a single split. All passages stand in one collection.

>>> world = generate(seed=0)
>>> world.passages[0].contents
'"Wenda Pruitt"\\nWenda Pruitt comes from Upper Gorve. He works as a carpenter. He learned from Hesper Jessop.'
>>> world.questions["train"][1].text
'Which town does the teacher of Wenda Radley come from?'
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from roleagent.envs.retrieval.passages import Passage
from roleagent.envs.searchqa.data.questions import SPLITS, Question, Questions, split
from roleagent.envs.searchqa.data.templates import KINDS, NAMES, PRONOUNS, WORDS, Relation, relations_of

PEOPLE = 960
"""People in the training land: so many that its facts are not worth remembering."""

HELD_OUT = 45
"""People in each of the other two; an eighth of the training land's in a smaller world."""

_PER_PERSON = {"person": 1.0, "film": 0.75, "company": 0.5, "town": 0.5}


@dataclass(eq=False)
class Thing:
    """An entity with a name and its facts.

    Attributes:
        facts: the object of every relation: a thing, or a word.
        passage: the collection's text about it.
    """

    kind: str
    name: str
    facts: dict[str, Thing | str] = field(default_factory=dict)
    passage: Passage | None = None


class World(NamedTuple):
    """A collection of passages, and the questions of every split.

    Attributes:
        land: the things of the training land, in a fixed order.
    """

    passages: tuple[Passage, ...]
    questions: Questions
    land: tuple[Thing, ...] = ()


@lru_cache(maxsize=4)
def generate(seed: int = 0, people: int = PEOPLE) -> World:
    """Makes a world.

    Args:
        people: in the training land, ≥ 16.

    Raises:
        ValueError: too few people for questions, or more than there are names.
    """
    rng = random.Random(f"searchqa/{seed}/{people}")
    names = {kind: list(map(" ".join, product(*(part.split() for part in NAMES[kind])))) for kind in KINDS}
    most = min(int(len(names[kind]) / _PER_PERSON[kind]) for kind in KINDS) - 2 * HELD_OUT
    if not 16 <= people <= most:
        raise ValueError(f"a generated world has 16 to {most} people, not {people}")
    for kind in KINDS:
        rng.shuffle(names[kind])
    held_out = min(HELD_OUT, people / 8)
    sizes = {
        part: {kind: round(of_land * _PER_PERSON[kind]) for kind in KINDS}
        for part, of_land in {"train": people, "valid": held_out, "test": held_out}.items()
    }
    lands = {
        part: _populate({kind: [names[kind].pop() for _ in range(size)] for kind, size in counts.items()}, rng)
        for part, counts in sizes.items()
    }
    things = [thing for land in lands.values() for thing in land]
    rng.shuffle(things)
    for number, thing in enumerate(things):
        thing.passage = Passage(str(number), thing.name, _tell(thing, rng))
    asked = {part: _ask_about(land, f"{part}_s{seed}", rng) for part, land in lands.items()}
    passages = tuple(thing.passage for thing in things if thing.passage)
    return World(passages, split(**asked), tuple(lands["train"]))


def _populate(names: Mapping[str, Sequence[str]], rng: random.Random) -> list[Thing]:
    """The things of one land, linked at random among themselves."""
    land = {kind: [Thing(kind, name) for name in of_kind] for kind, of_kind in names.items()}
    things = [thing for of_kind in land.values() for thing in of_kind]
    for thing in things:
        for relation in relations_of(thing.kind):
            if relation.object in WORDS:
                thing.facts[relation.name] = rng.choice(WORDS[relation.object].split())
            else:
                thing.facts[relation.name] = rng.choice([o for o in land[relation.object] if o is not thing])
    return things


def _tell(thing: Thing, rng: random.Random) -> str:
    """A thing's passage: all that is true of it, in some order and wording."""
    relations = list(relations_of(thing.kind))
    rng.shuffle(relations)
    pronoun = rng.choice(PRONOUNS[thing.kind])
    sentences = (
        rng.choice(relation.sentences).format(s=pronoun if number else thing.name, o=_name(thing.facts[relation.name]))
        for number, relation in enumerate(relations)
    )
    return " ".join(sentences)


def _name(thing: Thing | str) -> str:
    return thing.name if isinstance(thing, Thing) else thing


class Chain(NamedTuple):
    """What leads from a named thing to an answer: up to three relations."""

    thing: Thing
    relations: tuple[Relation, ...]

    @property
    def is_straight(self) -> bool:
        """Whether every relation leads to something new, so that the question names neither answer nor a detour."""
        passed: list[Thing | str] = [self.thing]
        for relation in self.relations:
            last = passed[-1]
            if not isinstance(last, Thing) or relation.subject != last.kind:
                return False
            passed.append(last.facts[relation.name])
        return len({id(thing) for thing in passed}) == len(passed)


HOPS = ("one_hop", "two_hop", "three_hop")
"""The data set of a question, by its number of relations; only written questions have three."""


def _ask_about(things: Sequence[Thing], prefix: str, rng: random.Random) -> tuple[Question, ...]:
    """All one-hop questions of a land and as many two-hop questions, by turns."""
    short = [Chain(thing, (relation,)) for thing in things for relation in relations_of(thing.kind) if relation.asks]
    long = list(_two_hops(things))
    rng.shuffle(short)
    rng.shuffle(long)
    chains = [chain for pair in zip(short, long, strict=False) for chain in pair]
    return tuple(ask(chain, f"{prefix}_{number // 2:04d}", rng.choice) for number, chain in enumerate(chains))


def _two_hops(things: Sequence[Thing]) -> Iterator[Chain]:
    for thing in things:
        for first in relations_of(thing.kind):
            between = thing.facts[first.name]
            if first.describes and isinstance(between, Thing):
                for second in relations_of(between.kind):
                    if second.asks and between.facts[second.name] is not thing:  # the question would name its answer
                        yield Chain(thing, (first, second))


def ask(chain: Chain, number: str, choose: Callable[[Sequence[str]], str]) -> Question:
    """The question of a chain; ``choose`` draws among the wordings, of the relation next to the named thing first."""
    named, needed, answer = chain.thing.name, [chain.thing], chain.thing.facts[chain.relations[0].name]
    for first, second in zip(chain.relations, chain.relations[1:], strict=False):
        assert isinstance(answer, Thing)
        named = choose(first.describes).format(s=named)
        needed.append(answer)
        answer = answer.facts[second.name]
    text = choose(chain.relations[-1].asks).format(s=named)
    context = tuple(f"{thing.name}\n{thing.passage.text}" for thing in needed if thing.passage)
    return Question(HOPS[len(needed) - 1], number, text, (_name(answer),), context)


def write_world(world: World, folder: Path) -> list[Path]:
    """Writes a world as data sets are published: ``corpus.jsonl``, and the questions of every split.

    Args:
        folder: made if it is missing; files of these names in it are replaced.

    Returns:
        The paths of the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[dict[str, Any]]] = {
        "corpus": [{"id": passage.id, "contents": passage.contents} for passage in world.passages]
    }
    for part in SPLITS:
        lines[part] = [
            {
                "id": question.number,
                "data_source": question.data_set,
                "question": question.text,
                "golden_answers": list(question.answers),
                "golden_context": list(question.context),
            }
            for question in world.questions[part]
        ]
    paths = []
    for name, rows in lines.items():
        paths.append(folder / f"{name}.jsonl")
        paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return paths


__all__ = ["HOPS", "PEOPLE", "Chain", "Thing", "World", "ask", "generate", "write_world"]

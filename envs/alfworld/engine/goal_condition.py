"""The goal of a game as a condition that is cheap to check.

A PDDL goal such as ``(exists (?o - object) (exists (?r - receptacle) (and (inReceptacle ?o ?r) (objectType ?o MugType)
…)))`` mixes facts that never change with facts that do. What never changes is decided once: what is left is a list of
choices, each a list of alternatives, each alternative a set of changeable facts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from roleagent.envs.alfworld.engine.game_version import UnknownGameVersion

Fact = tuple[str, ...]
"""A ground fact: predicate and arguments, in lower case."""


@dataclass(frozen=True)
class Condition:
    """True if every choice has an alternative whose facts all hold."""

    choices: tuple[tuple[frozenset[Any], ...], ...]

    @cached_property
    def facts(self) -> frozenset[Any]:
        """The facts on which the condition depends."""
        return frozenset(fact for choice in self.choices for alternative in choice for fact in alternative)

    def holds(self, facts: Set[Any]) -> bool:
        """Whether the condition is true where exactly ``facts`` hold."""
        return all(any(alternative <= facts for alternative in choice) for choice in self.choices)


def parse_expression(text: str) -> list[Any]:
    """The first parenthesized expression of a text as nested lists.

    >>> parse_expression("(and (on a) (not (= a b))) trailing")
    ['and', ['on', 'a'], ['not', ['=', 'a', 'b']]]
    """
    stack: list[list[Any]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", text):
        if token == "(":
            stack.append([])
        elif token == ")":
            done = stack.pop()
            if not stack:
                break
            stack[-1].append(done)
            if len(stack) == 1:
                return done
        else:
            stack[-1].append(token)
    raise UnknownGameVersion("the goal's parentheses do not match")


def compile_goal(
    expression: list[Any],
    facts: Mapping[str, Collection[Fact]],
    things: Mapping[str, Iterable[str]],
    changing: Collection[str],
) -> Condition:
    """Decides what never changes and leaves a :class:`Condition` over the rest.

    Args:
        expression: the goal.
        facts: initial facts by predicate, each with the predicate in front.
        things: the names of everything, by type.
        changing: predicates whose facts change during a game.

    Raises:
        UnknownGameVersion: the goal has another form, or can never (or always) be reached.
    """
    parts = expression[1:] if expression and expression[0] == "and" else [expression]
    choices = []
    for part in parts:
        literals: list[Fact] = []
        types: dict[str, str] = {}
        _flatten(part, {}, literals, types)
        choices.append(tuple(dict.fromkeys(_alternatives(literals, types, facts, things, changing))))
    if not choices or not all(choices) or all(frozenset() in choice for choice in choices):
        raise UnknownGameVersion("the goal can never be reached, or holds whatever happens")
    return Condition(tuple(choices))


def _flatten(part: Any, renamed: Mapping[str, str], literals: list[Fact], types: dict[str, str]) -> None:
    """Pulls every quantifier of a conjunction outward, with a new name for each variable."""
    match part:
        case ["and", *parts]:
            for inner in parts:
                _flatten(inner, renamed, literals, types)
        case ["exists", [*variables], body]:
            renamed = dict(renamed)
            waiting: list[str] = []
            tokens = iter(variables)
            for token in tokens:
                if token == "-":
                    kind = next(tokens)
                    for variable in waiting:
                        renamed[variable] = f"?{len(types)}"
                        types[renamed[variable]] = kind
                    waiting = []
                else:
                    waiting.append(token)
            if waiting:
                raise UnknownGameVersion("the goal has a variable without a type")
            _flatten(body, renamed, literals, types)
        case ["not", ["=", str(left), str(right)]]:
            literals.append(("!=", renamed.get(left, left), renamed.get(right, right)))
        case [str(predicate), *arguments] if all(isinstance(argument, str) for argument in arguments):
            literals.append((predicate, *(renamed.get(argument, argument) for argument in arguments)))
        case _:
            raise UnknownGameVersion(f"the goal has a part of an unknown form: {part}")


def _alternatives(
    literals: list[Fact],
    types: Mapping[str, str],
    facts: Mapping[str, Collection[Fact]],
    things: Mapping[str, Iterable[str]],
    changing: Collection[str],
) -> Iterator[frozenset[Fact]]:
    """For every way to fill the variables that the unchanging facts allow: the changeable facts that must hold."""
    tables: dict[Fact, list[Fact]] = {}
    for literal in dict.fromkeys(literals):
        if literal[0] not in changing and literal[0] != "!=":
            tables[literal] = [
                fact
                for fact in facts.get(literal[0], ())
                if len(fact) == len(literal) and all(a[0] == "?" or a == b for a, b in zip(literal, fact, strict=True))
            ]
    bound = {word for literal in tables for word in literal}
    for variable, kind in types.items():
        if variable not in bound:
            tables[(variable,)] = [(name,) for name in things.get(kind, ())]
    bindings: list[dict[str, str]] = [{}]
    for words, rows in sorted(tables.items(), key=lambda table: len(table[1])):
        variables = [i for i, word in enumerate(words) if word[0] == "?"]
        bindings = [
            binding | {words[i]: row[i] for i in variables}
            for binding in bindings
            for row in rows
            if all(binding.get(words[i], row[i]) == row[i] for i in variables)
        ]
    members = {kind: frozenset(things.get(kind, ())) for kind in types.values()}
    for binding in bindings:
        ground = [tuple(binding.get(word, word) for word in literal) for literal in literals]
        if all(binding[variable] in members[kind] for variable, kind in types.items()) and all(
            fact[1] != fact[2] for fact in ground if fact[0] == "!="
        ):
            yield frozenset(fact for fact in ground if fact[0] in changing)


__all__ = ["Condition", "Fact", "compile_goal", "parse_expression"]

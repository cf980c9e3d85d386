"""Recipes: the format of their files, and the graph that they make.

A file is a JSON object of Minecraft's recipe format, of type ``crafting_shaped`` or ``crafting_shapeless``; files of
other types count for nothing. What the graph holds depends on the order of the files, so it is that of their names.

>>> oak = {"type": "crafting_shapeless", "ingredients": [{"item": "log"}], "result": {"item": "plank", "count": 4}}
>>> book = RecipeBook.from_files([("plank.json", oak)])
>>> book.by_product["plank"][0].text, book.depths
('craft 4 plank using 1 log', {'plank': 1})
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from roleagent.sharing import Opened

NAMESPACE = "minecraft:"
_KINDS = ("crafting_shaped", "crafting_shapeless")


class RecipeError(ValueError):
    """Recipes cannot be read; the message is one line."""


class Ingredient(NamedTuple):
    """An ingredient of a recipe: ``count`` of an item, or of any items with a tag."""

    name: str
    count: int
    is_tag: bool


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to make ``count`` of ``product``."""

    product: str
    count: int
    ingredients: tuple[Ingredient, ...]

    @property
    def text(self) -> str:
        """The command that a player reads."""
        inputs = ", ".join(f"{count} {plain_name(name)}" for name, count, _ in self.ingredients)
        return f"craft {self.count} {plain_name(self.product)} using {inputs}"


def plain_name(name: str) -> str:
    """A name as players read it.

    >>> plain_name("minecraft:oak_planks")
    'oak planks'
    """
    return name.removeprefix(NAMESPACE).replace("_", " ")


class RecipeBook(Opened):
    """The graph of all recipes.

    Args:
        by_product: product → its recipes.
        by_tag: tag → the recipes of all products that carry it.
        tag_of: product → its tag, of those that have one.
        items: every item that a recipe names.
        tags: every name that stands for several items; disjoint from ``items``.

    Attributes:
        goals: every product, by depth, then in the order of the files.
        depths: product → number of crafting steps on top of each other that it takes, ≥ 1.
    """

    def __init__(
        self,
        by_product: Mapping[str, tuple[Recipe, ...]],
        by_tag: Mapping[str, tuple[Recipe, ...]],
        tag_of: Mapping[str, str],
        items: frozenset[str],
        tags: frozenset[str],
    ):
        self.by_product, self.by_tag, self.tag_of = by_product, by_tag, tag_of
        self.items, self.tags = items, tags
        self.depths = {product: self._depth(product, by_product, {}) for product in by_product}
        self.goals = tuple(sorted(by_product, key=self.depths.__getitem__))

    @classmethod
    def from_files(cls, files: Iterable[tuple[str, Any]]) -> RecipeBook:
        """The graph of files, given by name and content in the order of their names.

        Raises:
            RecipeError: a file is no recipe, or none of them is one that counts.
        """
        return _build(list(read_recipes(files)))

    @cached_property
    def digest(self) -> str:  # type: ignore[override]
        """SHA-256 (hex, first 16 digits) of all recipes in order."""
        lines = (f"{self.tag_of.get(one.product)} {one}" for many in self.by_product.values() for one in many)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    def recipes_for(self, name: str) -> tuple[Recipe, ...]:
        """The recipes of a product, else of a tag; ``()`` for raw materials."""
        return self.by_product.get(name) or self.by_tag.get(name, ())

    def depth(self, name: str) -> int:
        """The depth of a product or tag; 0 for raw materials."""
        if name in self.depths:
            return self.depths[name]
        return min((self.depths[recipe.product] for recipe in self.by_tag.get(name, ())), default=0)

    def can_be_fetched(self, name: str) -> bool:
        """Whether a name is an item without a recipe."""
        return name in self.items and name not in self.by_product and name not in self.by_tag

    def reachable(self, goal: str) -> tuple[Recipe, ...]:
        """Every recipe that may serve a goal, each once, the goal's own first."""
        found: dict[Recipe, None] = {}
        seen: set[str] = set()
        names = [goal]
        while names:
            name = names.pop(0)
            if name not in seen:
                seen.add(name)
                for recipe in self.recipes_for(name):
                    found[recipe] = None
                    names += [ingredient.name for ingredient in recipe.ingredients]
        return tuple(found)

    @cached_property
    def uses(self) -> dict[str, tuple[Recipe, ...]]:
        """By ingredient, the recipes that take it."""
        found: dict[str, list[Recipe]] = {}
        for many in self.by_product.values():
            for recipe in many:
                for ingredient in recipe.ingredients:
                    found.setdefault(ingredient.name, []).append(recipe)
        return {name: tuple(recipes) for name, recipes in found.items()}

    def _depth(self, name: str, recipes: Mapping[str, tuple[Recipe, ...]], known: dict[str, int]) -> int:
        if name not in known:
            known[name] = 0
            depths = [
                1 + max(self._depth(ingredient.name, recipes, known) for ingredient in recipe.ingredients)
                for recipe in self.recipes_for(name)
            ]
            known[name] = min(depths, default=0)
        return known[name]


class _Entry(NamedTuple):
    recipe: Recipe
    group: str


def read_recipes(files: Iterable[tuple[str, Any]]) -> Iterator[_Entry]:
    """The recipes of files that count, with their groups.

    Raises:
        RecipeError: a file is no recipe; names it.
    """
    for name, content in files:
        try:
            if str(content["type"]).removeprefix(NAMESPACE) in _KINDS:
                yield _read(content)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
            raise RecipeError(f"{name} is no recipe: {reason}") from error


def read_folder(folder: Path) -> Iterator[tuple[str, Any]]:
    """Name and content of the recipe files of a folder, in the order of their names.

    Raises:
        RecipeError: there is no such folder, it has no such files, or a file is no JSON.
    """
    if not folder.is_dir():
        raise RecipeError(f"there is no folder {folder}: set TEXTCRAFT_DATA or data_dir= to one with recipe files")
    paths = sorted(folder.glob("*.json"), key=lambda path: path.name)
    if not paths:
        raise RecipeError(f"{folder} has no recipe files (*.json): set TEXTCRAFT_DATA or data_dir= to another")
    for path in paths:
        try:
            yield path.name, json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise RecipeError(f"{path} is no JSON: {' '.join(str(error).split())}") from error


def _read(content: Mapping[str, Any]) -> _Entry:
    counts: Counter[tuple[str, bool]] = Counter()
    if "key" in content:
        drawn = Counter("".join(content["pattern"]))
        for symbol, choices in content["key"].items():
            counts[_named(choices)] += drawn[symbol]
        inputs = [(_named(choices), drawn[symbol]) for symbol, choices in content["key"].items()]
    else:
        counts.update(map(_named, content["ingredients"]))
        inputs = list(counts.items())
    result = content["result"]
    product, count = (result, 1) if isinstance(result, str) else (result["item"], result.get("count", 1))
    if not isinstance(product, str) or type(count) is not int or count < 1:
        raise ValueError(f"its result is {result!r}")
    if not inputs or any(n < 1 for _, n in inputs):
        raise ValueError("an ingredient occurs nowhere in its pattern" if inputs else "it has no ingredients")
    ingredients = tuple(Ingredient(name, n, is_tag) for (name, is_tag), n in inputs)
    return _Entry(Recipe(product, count, ingredients), str(content.get("group") or ""))


def _named(choices: Any) -> tuple[str, bool]:
    """Name of an ingredient, the first of a list, and whether it is a tag."""
    choice = choices[0] if isinstance(choices, list) else choices
    name = choice["item"] if "item" in choice else choice["tag"]
    if not isinstance(name, str):
        raise ValueError(f"an ingredient is {name!r}")
    return name, "item" not in choice


def _build(entries: Sequence[_Entry]) -> RecipeBook:
    """Takes the recipes in order; see the facts in docs/exactness.md for what is dropped and why."""
    by_product: dict[str, list[Recipe]] = {}
    by_tag: dict[str, list[Recipe]] = {}
    tag_of: dict[str, str] = {}
    items: set[str] = set()
    tags: set[str] = set()
    for recipe, group in entries:
        product = recipe.product
        items.add(product)
        for name, _, is_tag in recipe.ingredients:
            (tags if is_tag else items).add(name)
        if len(recipe.ingredients) == 1 and recipe.ingredients[0].name.endswith("_block"):
            continue  # a block taken apart
        if group:
            tags.add(NAMESPACE + group)
            if NAMESPACE + group != product:
                tag_of[product] = NAMESPACE + group
        needs = _needs(recipe, lambda name: [*by_product.get(name, ()), *by_tag.get(name, ())])
        if product in needs or tag_of.get(product) in needs:
            continue  # it would need what it makes
        by_product.setdefault(product, []).append(recipe)
        if product in tag_of:
            by_tag.setdefault(tag_of[product], []).append(recipe)
    if not by_product:
        raise RecipeError("there are no crafting recipes: a folder of recipe files (*.json) is needed")
    items |= {tag for tag in tags if tag not in by_tag}
    return _settled(by_product, by_tag, tag_of, items, tags)


def _needs(recipe: Recipe, recipes: Callable[[str], list[Recipe]]) -> set[str]:
    """Everything that a recipe needs, transitively."""
    found: set[str] = set()
    names = [ingredient.name for ingredient in recipe.ingredients]
    while names:
        if (name := names.pop()) not in found:
            found.add(name)
            names += [ingredient.name for other in recipes(name) for ingredient in other.ingredients]
    return found


def _settled(
    by_product: dict[str, list[Recipe]],
    by_tag: dict[str, list[Recipe]],
    tag_of: dict[str, str],
    items: set[str],
    tags: set[str],
) -> RecipeBook:
    """The book; an ingredient whose tag no product with a recipe carries is an item of that name."""

    def settled(recipes: list[Recipe]) -> tuple[Recipe, ...]:
        return tuple(
            Recipe(
                recipe.product,
                recipe.count,
                tuple(
                    one._replace(is_tag=False) if one.is_tag and one.name not in by_tag else one
                    for one in recipe.ingredients
                ),
            )
            for recipe in recipes
        )

    return RecipeBook(
        {product: settled(recipes) for product, recipes in by_product.items()},
        {tag: settled(recipes) for tag, recipes in by_tag.items()},
        tag_of,
        frozenset(items),
        frozenset(tags - items),
    )


__all__ = [
    "NAMESPACE",
    "Ingredient",
    "Recipe",
    "RecipeBook",
    "RecipeError",
    "plain_name",
    "read_folder",
    "read_recipes",
]

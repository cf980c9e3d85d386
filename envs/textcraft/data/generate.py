"""Generated recipes: a world of its own in the file format of Minecraft's recipes.

Families of things come in many materials ("alder door", "elm door"). Families and ingredients are fixed; the numbers
depend on the seed. Under other seeds than 0, which material is a wood, a stone, a metal and so on does, too. In size,
depths and kinds of recipes the world resembles Minecraft's.

>>> files = dict(generate())
>>> len(files), files["alder_board.json"]["result"], files["alder_board.json"]["group"]
(612, {'item': 'minecraft:alder_board', 'count': 3}, 'board')
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from roleagent.envs.textcraft.data.recipes import NAMESPACE

MATERIALS = {
    "wood": "alder ash aspen beech cedar elm larch maple pine poplar willow yew",
    "stone": "agate chalk chert dolomite gneiss jasper limestone marble onyx pumice schist shale slate soapstone",
    "metal": "brass bronze cobalt lead nickel pewter silver steel tin",
    "color": "amber azure beige coral crimson ivory jade lilac maroon mauve ochre olive rose scarlet teal umber",
    "fiber": "bast cotton flax hemp jute nettle ramie sisal",
}
# Product, material, and the ingredients of each of its recipes: ~x is x of the same material, *x any x, x just x.
FAMILIES = (
    *(("board", "wood", "~log"), ("brick", "stone", "~rock", "~pebble"), ("bar", "metal", "~nugget", "~ore")),
    *(
        ("dye", "color", "~petal", "~berry"),
        ("thread", "fiber", "~stalk", "~seed wool"),
        ("pole", "wood", "~log", "~bark"),
    ),
    *(
        ("slab", "stone", "~rock"),
        ("gravel", "stone", "~pebble sand"),
        ("bead", "metal", "~nugget"),
        ("mat", "fiber", "~stalk"),
    ),
    *(
        ("glass", "", "sand"),
        ("jar", "", "clay"),
        ("candle", "", "wax"),
        ("torch", "", "coal resin"),
        ("glue", "", "bone"),
    ),
    *(("paper", "", "reed"), ("bread", "", "wheat"), ("cheese", "", "milk"), ("pouch", "", "leather")),
    *(
        ("door", "wood", "~board"),
        ("bench", "wood", "~board"),
        ("crate", "wood", "~board"),
        ("shelf", "wood", "~board"),
    ),
    *(("gate", "wood", "~board ~pole"), ("ladder", "wood", "~pole ~board"), ("sign", "wood", "~board ink")),
    *(("wheel", "wood", "~board resin"), ("barrel", "wood", "~board tar"), ("wall", "stone", "~brick")),
    *(("pillar", "stone", "~brick"), ("tile", "stone", "~slab"), ("stairs", "stone", "~brick ~slab")),
    *(
        ("block", "metal", "~bar"),
        ("ring", "metal", "~bar"),
        ("chain", "metal", "~bar"),
        ("bell", "metal", "~bar coal"),
    ),
    *(
        ("bowl", "metal", "~bar"),
        ("cloth", "color", "~dye wool"),
        ("pane", "color", "~dye glass"),
        ("pot", "color", "~dye clay"),
    ),
    *(("rope", "fiber", "~thread"), ("sack", "fiber", "~thread"), ("net", "fiber", "~thread shell")),
    *(
        ("peg", "", "*board"),
        ("lantern", "", "torch glass"),
        ("book", "", "paper leather"),
        ("kite", "", "paper reed feather"),
    ),
    *(("cake", "", "bread milk egg honey"), ("broom", "", "*pole reed"), ("flask", "", "glass wax")),
    *(("paste", "", "glue ember"), ("pie", "", "cheese egg"), ("mosaic", "", "*slab glue")),
    *(("axe", "metal", "~bar peg"), ("hammer", "metal", "~bar peg"), ("spade", "metal", "~bar peg")),
    *(("rake", "metal", "~bar peg"), ("sword", "metal", "~bar ~bead peg"), ("trap", "metal", "~chain peg")),
    *(
        ("banner", "color", "~cloth peg"),
        ("cushion", "color", "~cloth feather"),
        ("tent", "color", "~cloth *board peg"),
    ),
    *(("boat", "wood", "~barrel ~pole"), ("sail", "", "*cloth moss"), ("chart", "", "book ink flask shell horn")),
    *(
        ("press", "", "*wheel book"),
        ("chest", "metal", "~trap *crate"),
        ("raft", "", "sail *pole"),
        ("desk", "", "chart *board"),
    ),
)
PARTS = frozenset(["board", "brick", "bar", "dye", "thread", "pole", "slab", "bead", "glass", "peg", "cloth", "chain"])
LATE_PARTS = frozenset(
    ["wheel", "crate", "barrel", "trap", "book", "chart", "sail"]
)  # they take long, so few are needed
_COUNTS = (1, 1, 2, 3, 4, 4, 5, 6, 8, 8)  # of an ingredient
_FEW = (1, 2, 2, 3, 3, 4)  # of one that is crafted itself
_YIELDS = (*[1] * 11, *[8] * 3, *[3, 4, 6] * 2, 2, 16)
_FEW_YIELDS = (1, 1, 2, 3, 4)


def generate(seed: int = 0) -> Iterator[tuple[str, Any]]:
    """Name and content of every file, in the order of the names."""
    files: dict[str, Any] = {}
    materials = _materials(seed)
    for noun, group, *recipes in FAMILIES:
        rng = random.Random(f"{seed} {noun}")
        many = rng.choice(_FEW_YIELDS if noun in PARTS | LATE_PARTS else _YIELDS)
        for number, words in enumerate(recipes):
            counts = _counts(words.split(), rng)
            for material in materials[group] if group else [""]:
                name = f"{material}_{noun}".lstrip("_")
                source = f"_from_{words.split()[0].lstrip('~*')}" if number else ""
                inputs = [(_ingredient(word, material), count) for word, count in counts]
                files[f"{name}{source}.json"] = _recipe(name, many, inputs, noun if group else "")
    for metal in materials["metal"]:  # a block taken apart is no recipe of the game; the format has such files
        files[f"{metal}_bar_from_block.json"] = _recipe(f"{metal}_bar", 9, [(_ingredient("~block", metal), 1)], "bar")
    yield from sorted(files.items())


def write_recipes(folder: Path, seed: int = 0) -> int:
    """Writes the files into a folder; returns their number."""
    folder.mkdir(parents=True, exist_ok=True)
    files = list(generate(seed))
    for name, content in files:
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return len(files)


def _materials(seed: int) -> dict[str, list[str]]:
    """The materials of each kind."""
    names = [name for many in MATERIALS.values() for name in many.split()]
    if seed:
        random.Random(f"{seed} materials").shuffle(names)
    left = iter(names)
    return {kind: list(islice(left, len(many.split()))) for kind, many in MATERIALS.items()}


def _counts(words: list[str], rng: random.Random) -> list[tuple[str, int]]:
    """Ingredients and their numbers, nine at most together."""
    while True:
        nouns = [word.lstrip("~*") for word in words]
        counts = [rng.choice(_FEW if noun in PARTS else (1, 2) if noun in LATE_PARTS else _COUNTS) for noun in nouns]
        if sum(counts) <= 9:
            return list(zip(words, counts, strict=True))


def _ingredient(word: str, material: str) -> dict[str, str]:
    if word.startswith("~"):
        return {"item": f"{NAMESPACE}{material}_{word[1:]}"}
    return {"tag" if word.startswith("*") else "item": NAMESPACE + word.lstrip("*")}


def _recipe(name: str, many: int, inputs: list[tuple[dict[str, str], int]], group: str) -> dict[str, Any]:
    """The content of a file: shaped, or shapeless where it is at most four things."""
    content: dict[str, Any] = {"type": f"{NAMESPACE}crafting_shapeless"}
    if group:
        content["group"] = group
    if sum(count for _, count in inputs) <= 4:
        content["ingredients"] = [ingredient for ingredient, count in inputs for _ in range(count)]
    else:
        content["type"] = f"{NAMESPACE}crafting_shaped"
        drawn = "".join(symbol * count for symbol, (_, count) in zip("#XYZW", inputs, strict=False))
        content["pattern"] = [drawn[place : place + 3].ljust(3) for place in range(0, len(drawn), 3)]
        content["key"] = {symbol: ingredient for symbol, (ingredient, _) in zip("#XYZW", inputs, strict=False)}
    content["result"] = {"item": NAMESPACE + name} | ({"count": many} if many > 1 else {})
    return content


__all__ = ["FAMILIES", "MATERIALS", "generate", "write_recipes"]

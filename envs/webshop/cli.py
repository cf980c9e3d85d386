"""``roleagent webshop <verb>``: prepares and shows shops."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from roleagent.commands import Parser, choose, complain, natural, out_folder, stage_bars, whole


def build(arguments: Sequence[str]) -> int:
    """Build the store and the search index of a large catalogue, once."""
    from roleagent.envs.webshop.data.build import build_store
    from roleagent.envs.webshop.data.product import CatalogueError

    parser = Parser(
        "roleagent webshop build",
        f"{build.__doc__}\n\nNeeded for the full 1.18 million products, useful from ten thousand on: with a store, "
        "a shop opens in\nseconds. An interrupted build goes on where it was. Afterwards WEBSHOP_DATA=DIR finds it.",
        "roleagent webshop build --data ~/webshop\nroleagent webshop build --data ~/webshop --out /fast/webshop.store",
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the folder with items_shuffle*.json")
    parser.add_argument(
        "--out", type=out_folder, metavar="DIR", help="the store (default: webshop.store beside the data)"
    )
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    try:
        with stage_bars(17) as progress:
            catalogue = build_store(options.data, options.out, progress)
    except (CatalogueError, OSError) as error:
        return complain("roleagent webshop build", error)
    left_out = ", ".join(f"{count} ({reason})" for reason, count in catalogue.skipped.items())
    print(
        f"{len(catalogue)} products in {catalogue.folder} after {time.perf_counter() - began:.0f} s"
        f"{f'; left out: {left_out}' if left_out else ''}"
    )
    return 0


def generate(arguments: Sequence[str]) -> int:
    """Write a generated catalogue as official data files."""
    from rich.progress import track

    from roleagent.envs.webshop.data.generate import SEED, write_catalogue

    parser = Parser(
        "roleagent webshop generate",
        f"{generate.__doc__}\n\nNeeds nothing. The same numbers give the same products on every machine.",
        "roleagent webshop generate --out shop\nroleagent webshop generate --out shop --products 5000 --seed 3",
    )
    parser.add_argument("--out", type=out_folder, required=True, metavar="DIR", help="where the three files go")
    parser.add_argument("--products", type=natural, default=300, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=whole, default=SEED, help="of everything random (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        write_catalogue(
            options.out,
            options.products,
            options.seed,
            lambda entries: track(entries, "writing products", total=options.products),
        )
    except (ValueError, OSError) as error:
        return complain("roleagent webshop generate", error)
    print(f"{options.products} products in {options.out}; shop in them with WEBSHOP_DATA={options.out}")
    return 0


def serve(arguments: Sequence[str]) -> int:
    """Open the shop as web pages on this machine."""
    from roleagent.envs.webshop.site.server import serve as open_site

    return open_site(arguments)


VERBS: dict[str, Callable[[Sequence[str]], int]] = {"build": build, "generate": generate, "serve": serve}


def main(arguments: Sequence[str]) -> int:
    """The group of verbs; returns the exit status."""
    return choose("roleagent webshop", VERBS, arguments, "A shop like WebShop's: prepare its data, or walk into it.")


__all__ = ["VERBS", "main"]

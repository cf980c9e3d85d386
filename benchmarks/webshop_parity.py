"""Replays recorded episodes of the original WebShop and compares every answer.

    python benchmarks/webshop_parity.py --traces traces.jsonl.gz --data DIR
    python benchmarks/webshop_parity.py --rankings lucene_top50.json.gz --data DIR

A recording is a line of JSON: ``goal`` (its index in the fixed order), ``instruction``, ``observation``, ``clickables``
and ``steps``, each with ``action``, ``observation``, ``reward``, ``done``, ``clickables`` and ``has_search_bar``; all
of these are compared. A ranking has a ``query`` and the asins of its ``top50``. DIR holds the official files that they
were recorded with. The reward needs the nouns that the original found: they are read from ``title_nouns.json[.gz]`` in
DIR, one level below, or beside the recordings, unless ``--nouns`` names another.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from pathlib import Path

from parts.webshop_recordings import RecordingError, Stage, read_recordings, replay

from roleagent.envs.webshop.data.catalogue import CatalogueError
from roleagent.envs.webshop.data.official import data_place
from roleagent.envs.webshop.engine.nouns import NounError, find_noun_file
from roleagent.envs.webshop.engine.shop import RESULTS, SEARCHES, Shop
from roleagent.options import user_path

SHOWN = 10  # differences that are printed
RECORDED = ("text", "text_rich")  # pages that are the original's; those in html are not


def play(stage: Stage, path: Path, episodes: int | None) -> tuple[int, int, int]:
    """Returns how many episodes and steps of a file were played, and how many steps differed."""
    recordings = read_recordings(path)[:episodes]
    steps = mismatches = 0
    for recording in recordings:
        for differences in replay(stage, recording):
            steps += 1
            mismatches += bool(differences)
            if differences and mismatches <= SHOWN:
                print(*differences, sep="\n")
    print(f"{path.name}: {len(recordings)} episodes, {steps} steps, {mismatches} mismatches")
    return len(recordings), steps, mismatches


def rank(shop: Shop, path: Path) -> tuple[int, int]:
    """Returns how many recorded rankings there are, and how many are the same here, to the last place."""
    packed = path.read_bytes()
    recorded = json.loads(gzip.decompress(packed) if path.suffix == ".gz" else packed)
    same = 0
    for entry in recorded:
        found = [shop.catalogue.asins[position] for position in shop.index.search(entry["query"], RESULTS)]
        same += found == entry["top50"]
        if found != entry["top50"]:
            print(f"{entry['query']!r}\n  here:     {found}\n  recorded: {entry['top50']}")
    print(f"{path.name}: {same} of {len(recorded)} rankings identical")
    return len(recorded), same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=user_path, nargs="+", default=[], help="recorded episodes, JSON lines")
    parser.add_argument("--rankings", type=user_path, help="recorded rankings, a JSON list")
    parser.add_argument("--data", help="folder with the official files (default: WEBSHOP_DATA)")
    parser.add_argument("--num-products", type=int, help="only the first so many products")
    parser.add_argument("--nouns", type=user_path, help="file with the nouns of the titles")
    parser.add_argument("--search", choices=SEARCHES, default="bm25")
    parser.add_argument("--seed", type=int, default=7, help="of prices and price caps")
    parser.add_argument("--observation", choices=RECORDED, default="text", help="what the recordings hold")
    parser.add_argument("--episodes", type=int, help="only the first so many of every file")
    options = parser.parse_args()
    if not options.traces and not options.rankings:
        parser.error("give --traces, --rankings or both")

    began = time.perf_counter()
    data = Path(data_place(options.data))
    nouns = options.nouns or find_noun_file(data, *(path.parent for path in options.traces))
    result: dict[str, object] = {}
    try:
        stage = Stage(
            data_dir=options.data,
            num_products=options.num_products,
            search=options.search,
            nouns=nouns,
            seed=options.seed,
            observation=options.observation,
        )
        shop = stage.env.shop
        totals = [play(stage, path, options.episodes) for path in options.traces]
        episodes, steps, mismatches = (sum(column) for column in zip((0, 0, 0), *totals, strict=True))
        result = {"steps": steps, "mismatches": mismatches, "episodes": episodes}
        if options.rankings:
            rankings, identical = rank(shop, options.rankings)
            result |= {"rankings": rankings, "identical_rankings": identical}
            mismatches += rankings - identical
    except (CatalogueError, NounError, RecordingError) as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        return 2
    print(f"{shop.catalogue.name}, {options.search}, nouns: {shop.nouns.name}; {time.perf_counter() - began:.1f} s")
    print("RESULT", json.dumps(result | {"noun_source": shop.nouns.name}))
    compared = [result[name] for name, given in (("steps", options.traces), ("rankings", options.rankings)) if given]
    return 1 if mismatches or not all(compared) else 0


if __name__ == "__main__":
    sys.exit(main())

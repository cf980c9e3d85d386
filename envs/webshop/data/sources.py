"""The sources of a catalogue: data files, a store, or generated products. A process reads each catalogue once.

>>> catalogue = load_catalogue("generated", num_products=50)
>>> len(catalogue), catalogue.position(catalogue[7].asin)
(50, 7)
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import lru_cache
from pathlib import Path

from roleagent.envs.webshop.data.catalogue import Catalogue, MemoryShelf, clean_all, digest_of, read_products
from roleagent.envs.webshop.data.generate import SEED, entries
from roleagent.envs.webshop.data.official import data_place, find_files
from roleagent.envs.webshop.data.product import CatalogueError
from roleagent.envs.webshop.data.store import find_store, open_store
from roleagent.options import user_path

GENERATED = "generated"
GENERATED_PRODUCTS = 300
IN_MEMORY = 1 << 29  # bytes of a file of products; a larger one (the full set has 5 GB) is served from a store


def load_catalogue(data_dir: str | os.PathLike[str] | None = None, num_products: int | None = None) -> Catalogue:
    """The catalogue of a data folder, read once per process.

    A store (see :mod:`roleagent.envs.webshop.data.store`) in the folder, or the folder itself if it is one, is opened
    instead of the files.

    Args:
        data_dir: a folder with official files, or one of their files of products, or a store; ``"generated"``: the
            project's own products; ``"official"`` or None: see
            :func:`~roleagent.envs.webshop.data.official.data_place`.
        num_products: only the first so many entries, as the file has them (bad ones are left out afterwards, as the
            original does); the number of generated products, 300 by default.

    Raises:
        CatalogueError: files are missing or broken, hold no product, or are too large to be read without a store.
        ValueError: ``num_products`` is less than 1.
    """
    if num_products is not None and num_products < 1:
        raise ValueError(f"num_products must be at least 1, not {num_products}")
    data = data_place(data_dir)
    if data == GENERATED:
        return _generated(num_products or GENERATED_PRODUCTS)
    return _load(user_path(data).absolute(), num_products)


@lru_cache(maxsize=8)
def _load(data: Path, num_products: int | None) -> Catalogue:
    store = find_store(data, num_products)
    if store is not None:
        return open_store(store, num_products)
    files = find_files(data, num_products)
    if num_products is None and files.items.stat().st_size > IN_MEMORY:
        raise CatalogueError(
            f"{files.items} has {files.items.stat().st_size / 1e9:.1f} GB: build a store of it once with "
            f"`roleagent webshop build --data {data}`, or take only the first products with num_products"
        )
    products, skipped = read_products(files, num_products)
    return Catalogue(MemoryShelf(products), files.items.name, digest_of(files.fingerprints(), num_products), skipped)


@lru_cache(maxsize=4)
def _generated(products: int) -> Catalogue:
    made = list(entries(products, SEED))
    cleaned, skipped = clean_all(
        [item for item, _, _ in made],
        lambda _: {item["asin"]: notes for item, notes, _ in made},
        lambda _: {item["asin"]: human for item, _, human in made},
    )
    digest = hashlib.sha256(json.dumps(made).encode()).hexdigest()[:16]
    return Catalogue(MemoryShelf(cleaned), f"{GENERATED}-{products}", digest, skipped, generated=True)


__all__ = ["GENERATED", "load_catalogue"]

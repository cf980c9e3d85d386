"""The state of WebShop's data: official products if ``WEBSHOP_DATA`` names them, else generated ones."""

from __future__ import annotations

import os
from collections.abc import Iterator

from roleagent.env_card import DataStatus
from roleagent.envs.webshop.data.official import find_files
from roleagent.envs.webshop.data.store import find_store, read_manifest
from roleagent.files import count_in_file
from roleagent.options import user_path


def data_status() -> Iterator[DataStatus]:
    """Official products, and the store of a large catalogue."""
    named = os.environ.get("WEBSHOP_DATA")
    if not named:
        yield DataStatus("WebShop", "good", "generated products (WEBSHOP_DATA is not set)")
        return
    folder = user_path(named)
    try:
        store = find_store(folder)
        if store is not None:
            entries = read_manifest(store)["entries"]
            yield DataStatus("WebShop", "good", f"a store of {entries:,} products in {store}")
            return
        files = find_files(folder)
    except (ValueError, OSError) as error:
        yield DataStatus(
            "WebShop", "problem", " ".join(str(error).split()), "unset WEBSHOP_DATA, or complete the folder"
        )
        return
    products = count_in_file(files.items, b'"product_category"')  # once in each
    summary = f"{products} products in {files.items}" + ("" if files.human else ", without people's requests")
    if products in ("0", "about 0"):
        yield DataStatus("WebShop", "problem", f"{files.items} holds no products", "get the data set's files again")
    elif files.items.stat().st_size > 2**29:
        advice = f"once, before the first run: roleagent webshop build --data {folder}"
        yield DataStatus("WebShop", "note", f"{summary}, without a store", advice)
    else:
        yield DataStatus("WebShop", "good", summary)

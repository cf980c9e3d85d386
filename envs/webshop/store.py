"""The store of a large catalogue."""

from __future__ import annotations

from pathlib import Path

from roleagent.envs.webshop.catalogue import Catalogue


def find_store(data: Path, num_products: int | None = None) -> Path | None:
    return None


def open_store(folder: Path, num_products: int | None = None) -> Catalogue:
    raise NotImplementedError

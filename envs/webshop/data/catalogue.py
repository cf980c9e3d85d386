"""The products that a shop sells: a sequence that never changes, in memory or in a store."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from roleagent.envs.webshop.data.official import Files, read_entries, read_members
from roleagent.envs.webshop.data.product import CatalogueError, NotAProduct, Product, asin_of, clean
from roleagent.sharing import Immutable


class Shelf(Protocol):
    """The products of a catalogue, in memory or in a store."""

    @property
    def asins(self) -> Sequence[str]: ...

    @property
    def columns(self) -> Columns: ...

    @property
    def attribute_counts(self) -> Mapping[str, int] | None: ...

    @property
    def goal_order(self) -> Sequence[int] | None: ...

    def __len__(self) -> int: ...

    def read(self, position: int) -> Product: ...

    def position(self, asin: str) -> int: ...


@dataclass(frozen=True)
class Columns:
    """The columns of all products that goals need, as arrays over the products.

    Attributes:
        prices: float64, shape (n, 2): the two ends of a range, or the price and NaN.
        asked: bool: whether there is a synthetic request, and so a price cap to draw.
        combinations: int64: the number of synthetic goals.
        requests: int64: the number of human goals.
    """

    prices: npt.NDArray[np.float64]
    asked: npt.NDArray[np.bool_]
    combinations: npt.NDArray[np.int64]
    requests: npt.NDArray[np.int64]

    @classmethod
    def of(cls, products: Iterable[Product]) -> Columns:
        """Reads them off the products."""
        rows = np.array([column_row(product) for product in products], dtype=np.float64).reshape(-1, 5)
        return cls(
            rows[:, :2].copy(), rows[:, 2].astype(bool), rows[:, 3].astype(np.int64), rows[:, 4].astype(np.int64)
        )

    def first(self, n: int) -> Columns:
        """Those of the first ``n`` products."""
        return Columns(self.prices[:n], self.asked[:n], self.combinations[:n], self.requests[:n])


def column_row(product: Product) -> tuple[float, float, bool, int, int]:
    """One product's row of the columns."""
    low, high = (*product.prices, float("nan"))[:2]
    return low, high, product.asked, product.combinations, len(product.requests)


def count_attributes(products: Iterable[Product]) -> Counter[str]:
    """The number of synthetic goals with each attribute."""
    counts: Counter[str] = Counter()
    for product in products:
        for attribute in product.instruction_attributes:
            counts[attribute] += product.combinations
    return counts


class MemoryShelf:
    """Products in memory, without precomputed counts and orders."""

    attribute_counts = None
    goal_order = None

    def __init__(self, products: Sequence[Product]):
        self._products = tuple(products)
        self.asins: Sequence[str] = tuple(product.asin for product in products)
        self.columns = Columns.of(self._products)
        self._positions = {asin: position for position, asin in enumerate(self.asins)}

    def __len__(self) -> int:
        return len(self._products)

    def read(self, position: int) -> Product:
        return self._products[position]

    def position(self, asin: str) -> int:
        return self._positions[asin]


class Catalogue(Immutable, Sequence[Product]):
    """All products in their order.

    Attributes:
        name: what to call it in reports.
        digest: 16 hex digits that differ wherever the data differs.
        skipped: how many entries of the data were left out, by reason.
        folder: the store that it is served from, with the search index in ``folder / "bm25"``; None: it is in memory.
        generated: whether the products are the project's own.
    """

    def __init__(
        self,
        shelf: Shelf,
        name: str,
        digest: str,
        skipped: Mapping[str, int] | None = None,
        folder: Path | None = None,
        generated: bool = False,
    ):
        if not len(shelf):
            raise CatalogueError(f"{name} holds no product that can be sold; check the data ({dict(skipped or {})})")
        self._shelf, self.generated = shelf, generated
        self.name, self.digest, self.skipped, self.folder = name, digest, dict(skipped or {}), folder
        self._size = len(shelf)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, position: int) -> Product:  # type: ignore[override] - no slices: a product at a time
        if not -self._size <= position < self._size:
            raise IndexError(f"the catalogue has {self._size} products, no product {position}")
        return self._shelf.read(position % self._size)

    def __repr__(self) -> str:
        return f"<Catalogue {self.name}: {len(self)} products>"

    @property
    def asins(self) -> Sequence[str]:
        """The numbers of all products in order."""
        return self._shelf.asins

    @property
    def columns(self) -> Columns:
        """Prices and numbers of goals of all products."""
        return self._shelf.columns

    @cached_property
    def attribute_counts(self) -> Mapping[str, int]:
        """The number of synthetic goals with each attribute."""
        counted = self._shelf.attribute_counts
        return count_attributes(self) if counted is None else counted

    @property
    def goal_order(self) -> Sequence[int] | None:
        """The original's order of the synthetic goals, where a store holds it."""
        return self._shelf.goal_order

    def position(self, asin: str) -> int:
        """The position of a product.

        Raises:
            KeyError: no product has this number.
        """
        return self._shelf.position(asin)


def read_products(files: Files, num_products: int | None) -> tuple[list[Product], Counter[str]]:
    """The products of official files, and how many entries were left out, by reason."""
    return clean_all(
        read_entries(files, num_products),
        lambda asins: read_members(files.notes, asins),
        lambda asins: read_members(files.human, asins),
    )


def clean_all(entries: Iterable[Any], notes: Any, human: Any) -> tuple[list[Product], Counter[str]]:
    """Cleans entries; ``notes`` and ``human`` return the data of a set of asins."""
    skipped: Counter[str] = Counter()
    kept: dict[str, Any] = {}
    for entry in entries:
        try:
            asin = asin_of(entry)
        except NotAProduct as reason:
            skipped[str(reason)] += 1
            continue
        if asin in kept:
            skipped["asin seen before"] += 1
        else:
            kept[asin] = entry
    notes, human = notes(set(kept)), human(set(kept))
    products = []
    for asin, entry in kept.items():
        try:
            products.append(clean(entry, notes.get(asin), human.get(asin)))
        except NotAProduct as reason:
            skipped[str(reason)] += 1
    return products, skipped


def digest_of(fingerprints: Mapping[str, Any], num_products: int | None) -> str:
    """The digest of a catalogue: of its input, and of how much of it is sold."""
    return hashlib.sha256(json.dumps([fingerprints, num_products], sort_keys=True).encode()).hexdigest()[:16]


__all__ = ["Catalogue", "CatalogueError", "Columns", "Product"]

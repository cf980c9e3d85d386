"""Imports of a user's own modules."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def searched_first(folder: str | None = None) -> Iterator[None]:
    """Modules are searched in a folder first, for as long as the context lasts; None: in the working directory."""
    place = os.getcwd() if folder is None else folder
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.path.remove(place)


__all__ = ["searched_first"]

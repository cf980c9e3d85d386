"""The recipes that all environments of a process share: generated ones, or the files of a folder."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from weakref import WeakValueDictionary

from roleagent.envs.textcraft.data.generate import generate
from roleagent.envs.textcraft.data.recipes import RecipeBook, read_folder
from roleagent.options import user_path

GENERATED, OFFICIAL = "generated", "official"
_generated: WeakValueDictionary[int, RecipeBook] = WeakValueDictionary()  # those that something uses


def recipe_folder(data_dir: str | os.PathLike[str] | None) -> Path | None:
    """The folder to read; None for generated recipes.

    Args:
        data_dir: a folder; ``"generated"``; ``"official"``: what ``TEXTCRAFT_DATA`` names; None: that if it is set.

    Raises:
        ValueError: ``"official"`` without the variable.
    """
    named = os.environ.get("TEXTCRAFT_DATA") or None
    if data_dir == GENERATED or (data_dir is None and named is None):
        return None
    if data_dir == OFFICIAL and named is None:
        raise ValueError("data_dir='official' needs TEXTCRAFT_DATA, a folder of Minecraft's recipe files")
    folder = user_path(named if data_dir in (None, OFFICIAL) else data_dir).resolve()  # type: ignore[arg-type]
    return folder / "recipes" if (folder / "recipes").is_dir() else folder


@lru_cache(maxsize=128)
def open_book(folder: Path | None, seed: int) -> RecipeBook:
    """The recipes of a folder, or generated ones; read once per process.

    Generated recipes that an environment uses are shared, however many worlds it has. Of all others the last 128 are
    kept. The recipes of one world take about 0.6 MB.

    Raises:
        RecipeError: there is no such folder, or no recipes in it.
    """
    book = _generated.get(seed) if folder is None else None
    if book is None:
        book = RecipeBook.from_files(generate(seed) if folder is None else read_folder(folder))
        book.origin = open_book, (folder, seed)
        if folder is None:
            _generated[seed] = book
    return book


__all__ = ["GENERATED", "OFFICIAL", "open_book", "recipe_folder"]

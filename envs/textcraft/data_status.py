"""The state of TextCraft's data: Minecraft's recipes if ``TEXTCRAFT_DATA`` names them, else generated ones."""

from __future__ import annotations

from collections.abc import Iterator

from roleagent.env_card import DataStatus
from roleagent.envs.textcraft.data.dataset import open_book, recipe_folder
from roleagent.envs.textcraft.engine.tasks import task_splits


def data_status() -> Iterator[DataStatus]:
    """Recipes, and whether their splits are the published ones."""
    try:
        folder = recipe_folder(None)
        if folder is None:
            yield DataStatus("TextCraft", "good", "generated recipes (TEXTCRAFT_DATA is not set)")
            return
        book = open_book(folder, 0)
        splits = ", ".join(f"{name} {len(task_split)}" for name, task_split in task_splits(book).items())
    except (ValueError, OSError) as error:
        advice = "unset TEXTCRAFT_DATA, or name a folder of recipe files"
        yield DataStatus("TextCraft", "problem", " ".join(str(error).split()), advice)
        return
    yield DataStatus("TextCraft", "good", f"{len(book.goals)} goals in {folder}: {splits}")

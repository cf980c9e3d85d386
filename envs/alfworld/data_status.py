"""The state of ALFWorld's data: official games if ``ALFWORLD_DATA`` names them, else generated ones."""

from __future__ import annotations

from collections.abc import Iterator

from roleagent.env_card import DataStatus
from roleagent.envs.alfworld.engine.game_version import GameVersion
from roleagent.envs.alfworld.official import games as official


def data_status() -> Iterator[DataStatus]:
    """Official games by split."""
    folder = official.default_data_dir()
    if folder is None:
        yield DataStatus("ALFWorld", "good", "generated games (ALFWORLD_DATA is not set)")
        return
    missing, broken, found, versions = [], "", [], set[GameVersion]()
    for split in official.SPLITS:
        try:
            games = official.split_folder(folder, split)
            found.append(f"{split} {len(official.list_games(games)):,}")
            versions |= official.versions(games)
        except FileNotFoundError:
            missing.append(split)
        except (ValueError, OSError) as error:
            broken = broken or " ".join(str(error).split())
    advice = "unset ALFWORLD_DATA, or fill the folder with alfworld-download"
    if broken:
        yield DataStatus("ALFWorld", "problem", broken, "unpack the games again")
    elif not found:
        yield DataStatus("ALFWorld", "problem", f"no games in {folder}", advice)
    elif len({version.put for version in versions}) > 1:
        summary = f"{', '.join(found)} games in {folder}, of two versions: move … to, and put … in/on"
        yield DataStatus(
            "ALFWorld", "note", summary, "unpack one release into an empty folder: agents of one fail at the other"
        )
    elif set(missing) & {"train", "valid_unseen"}:  # the default splits of training and evaluation
        summary = f"{', '.join(found)} games in {folder}; missing: {', '.join(missing)}"
        yield DataStatus(
            "ALFWorld", "note", summary, "fill the folder with alfworld-download, or say which split is played"
        )
    else:
        yield DataStatus("ALFWorld", "good", f"{', '.join(found)} games in {folder}")

"""``AlfredTWEnv``: the games of a split by ALFWorld's configuration, and the batches that play them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from roleagent.compat.alfworld.batch import BatchEnv
from roleagent.compat.alfworld.info import expand
from roleagent.envs.alfworld.official.games import GAME, list_games

TASK_TYPES = {
    1: "pick_and_place_simple",
    2: "look_at_obj_in_light",
    3: "pick_clean_then_place_in_recep",
    4: "pick_heat_then_place_in_recep",
    5: "pick_cool_then_place_in_recep",
    6: "pick_two_obj_and_place",
}
_SPLITS = {
    "train": ("data_path", "num_train_games"),
    "eval_in_distribution": ("eval_id_data_path", "num_eval_games"),
    "eval_out_of_distribution": ("eval_ood_data_path", "num_eval_games"),
}
"""By split: the keys of ``config["dataset"]`` that hold its folder and its number of games."""
_METHODS = {"dqn": "rl", "dagger": "dagger"}
"""By ``config["general"]["training_method"]``: the section that holds the step limit."""


class AlfredTWEnv:
    """The text games of a split.

    Args:
        config: ALFWorld's configuration (``base_config.yaml``), read.
        train_eval: ``"train"``, ``"eval_in_distribution"`` or ``"eval_out_of_distribution"``.

    Attributes:
        game_files: the paths of the playable games, sorted. A client may assign other ones.
        num_games: how many there are.

    Raises:
        ValueError: the configuration lacks a key or has a value without a meaning, or there is no playable game.
        FileNotFoundError: there is no such data folder.
        NotImplementedError: the configuration asks for a visual environment.
    """

    def __init__(self, config: Mapping[str, Any], train_eval: str = "train"):
        self.config = config
        self.train_eval = train_eval
        self.game_files: list[str] = []
        self.num_games = 0
        self.collect_game_files()

    def collect_game_files(self, verbose: bool = False) -> None:
        """Finds the games: solvable, of the configured types, without movable containers and slices."""
        if self.train_eval not in _SPLITS:
            raise ValueError(f"unknown train_eval {self.train_eval!r}; there are {', '.join(_SPLITS)}")
        path_key, number_key = _SPLITS[self.train_eval]
        path = self._setting("dataset", path_key)
        if not isinstance(path, str):
            raise ValueError(f"dataset.{path_key} of the config must be a folder, not {path!r}")
        root = expand(path)
        if not os.path.isdir(root):
            raise FileNotFoundError(
                f"dataset.{path_key} of the config is {path!r}, but there is no folder {root}: set ALFWORLD_DATA to "
                "the folder that alfworld-download filled"
            )
        wanted = self._setting("env", "task_types")
        types = {TASK_TYPES[number] for number in wanted if number in TASK_TYPES} if isinstance(wanted, list) else set()
        if not types:
            raise ValueError(f"env.task_types of the config must list numbers from 1 to 6, not {wanted!r}")
        limit = self._setting("dataset", number_key)
        found = sorted(game for game, task_type in _games(root) if task_type in types)
        self.game_files = found[:limit] if limit > 0 else found
        self.num_games = len(self.game_files)
        if verbose:
            print(f"{self.num_games} of {len(found)} games in split={self.train_eval}")
        if not found:
            raise ValueError(
                f"no playable {GAME} of the types {sorted(types)} under {root}: unpack the data set again, or set "
                "ALFWORLD_DATA to the folder that alfworld-download filled"
            )

    def get_game_logic(self) -> None:
        """Reads the configuration's PDDL domain and grammar into ``game_logic``; the games bring their own."""
        self.game_logic = {}
        for name, key in (("pddl_domain", "domain"), ("grammar", "grammar")):
            with open(expand(self._setting("logic", key)), encoding="utf-8-sig") as file:
                self.game_logic[name] = file.read()

    def init_env(self, batch_size: int) -> BatchEnv:
        """The environment that plays ``batch_size`` games at a time.

        Raises:
            NotImplementedError: the training method is neither ``dqn`` nor ``dagger``.
        """
        method = self._setting("general", "training_method")
        if method not in _METHODS:
            raise NotImplementedError(f"unknown general.training_method {method!r}; there are {', '.join(_METHODS)}")
        train = self.train_eval == "train"
        return BatchEnv(
            self.game_files,
            batch_size,
            max_episode_steps=self._setting(_METHODS[method], "training", "max_nb_steps_per_episode"),
            expert=method == "dagger" and train,
            shuffle_numbers=bool(self._setting("env", "domain_randomization")) and train,
        )

    def _setting(self, *keys: str) -> Any:
        value: Any = self.config
        for key in keys:
            if not isinstance(value, Mapping) or key not in value:
                raise ValueError(f"the config has no {'.'.join(keys)}; take base_config.yaml of alfworld")
            value = value[key]
        return value


def _games(root: str) -> Iterator[tuple[str, str]]:
    """The playable games at any depth under a folder, with their task types."""
    above = {
        os.path.dirname(os.path.dirname(folder))
        for folder, _, files in os.walk(root)
        if GAME in files and "movable" not in folder and "Sliced" not in folder
    }
    for folder in sorted(above):
        try:
            task_ids = list_games(folder)
        except FileNotFoundError:  # all of them are unsolvable
            continue
        for task_id in task_ids:
            yield os.path.join(folder, *task_id.split("/"), GAME), task_id.partition("-")[0]


__all__ = ["TASK_TYPES", "AlfredTWEnv"]

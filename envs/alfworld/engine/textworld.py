"""The reference engine: the game as TextWorld itself plays it, the way the ``alfworld`` package runs it.

It needs the extra ``roleagent[alfworld]`` and is slow (about a second to load a game, 65 ms per step). It is what the
native simulator is measured against, and it plays games whose rules the simulator does not know.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium

from roleagent.envs.alfworld.engine.game import GameSource


class TextWorldEngine:
    """Plays games through ``textworld``'s PDDL environment, with the names that ``alfworld`` gives to things.

    Every instance keeps a copy of a 34 MB library for the life of the process: make one and :meth:`load` game after
    game. Threads are not safe, processes are. A copy, pickled or not, is another engine with the same game and the
    same commands behind it.

    Attributes:
        won: whether the goal holds now.
        admissible_commands: everything that can be done now, sorted.

    Raises:
        gymnasium.error.DependencyNotInstalled: ``textworld`` or ``alfworld`` is missing.
    """

    def __init__(self) -> None:
        data = os.environ.get("ALFWORLD_DATA")
        try:
            import textworld
            from alfworld.agents.utils.misc import Demangler
            from textworld.envs.pddl.pddl import PddlEnv
        except ImportError as error:
            raise gymnasium.error.DependencyNotInstalled(
                f"the TextWorld engine needs a package that is missing ({error}): pip install 'roleagent[alfworld]'"
            ) from error
        finally:
            if data is None:  # alfworld sets it on import, which would change where games come from
                os.environ.pop("ALFWORLD_DATA", None)
        self._name_things = Demangler
        self._env = PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True))
        self.won = False
        self.admissible_commands: list[str] = []
        self._source: GameSource | None = None
        self._commands: list[str] | None = None  # since the start; None: reset comes first

    def __reduce__(self) -> tuple[Any, ...]:
        return _play, (self._source, self._commands)

    def load(self, source: GameSource) -> TextWorldEngine:
        """Takes a game; :meth:`reset` starts it.

        Raises:
            ValueError: TextWorld cannot read the game.
        """
        if bool(source.domain) != bool(source.grammar):
            raise ValueError(f"{source.task_id}: a game brings both its domain and its grammar, or neither")
        domain, grammar = source.domain, source.grammar
        if not domain:
            domain, grammar = package_texts()
            grammar = grammar.replace("UNKNOWN GOAL", source.goal)
        arguments = sys.argv  # the translator overwrites them
        try:
            self._env.load({"pddl_domain": domain, "grammar": grammar, "pddl_problem": source.problem})
        except (Exception, SystemExit) as error:  # its PDDL parser exits
            raise ValueError(f"{source.task_id}: TextWorld cannot read this game: {error}") from error
        finally:
            sys.argv = arguments
        infos: dict[str, Any] = self._env._entity_infos
        names = self._name_things(game_infos=infos)
        for info in infos.values():
            info.name = names.demangle_alfred_name(info.id)
        self._source, self._commands = source, None
        return self

    def reset(self) -> str:
        """Back to the start; returns the first observation."""
        arguments = sys.argv
        self._commands = []
        try:
            return self._seen(self._env.reset())
        finally:
            sys.argv = arguments

    def step(self, command: str) -> str:
        """Executes a command and returns the observation."""
        assert self._commands is not None
        self._commands.append(command)
        return self._seen(self._env.step(command)[0])

    def _seen(self, state: Any) -> str:
        self.won = bool(state["won"])
        self.admissible_commands = list(state["admissible_commands"])
        return state["feedback"]


def _play(source: GameSource | None, commands: list[str] | None) -> TextWorldEngine:
    """An engine that has come as far as another one."""
    engine = TextWorldEngine()
    if source is not None:
        engine.load(source)
    if commands is not None:
        engine.reset()
        for command in commands:
            engine.step(command)
    return engine


@cache
def package_texts() -> tuple[str, str]:
    """The PDDL domain and the text grammar that the ``alfworld`` package ships.

    Raises:
        gymnasium.error.DependencyNotInstalled: the package is missing.
    """
    spec = find_spec("alfworld")  # found, not imported: importing it makes folders and sets variables
    if spec is None or spec.origin is None:
        raise gymnasium.error.DependencyNotInstalled(
            "the rules of ALFWorld come from the alfworld package: pip install 'roleagent[alfworld]'"
        )
    data = Path(spec.origin).parent / "data"
    return (data / "alfred.pddl").read_text(encoding="utf-8"), (data / "alfred.twl2").read_text(encoding="utf-8")


__all__ = ["TextWorldEngine", "package_texts"]

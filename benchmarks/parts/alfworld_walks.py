"""Two engines side by side: the same commands, every answer compared.

This is how the claim that the simulator is exact is tested: in CI on a few games, and on any number by
``benchmarks/alfworld_parity.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from roleagent.envs.alfworld.engine.game import Engine, Game, GameSource


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first difference in an episode.

    Attributes:
        task_id: the game.
        commands: everything done up to the difference.
        what: ``observation``, ``admissible_commands`` or ``won``.
        native, reference: what the two engines returned.
    """

    task_id: str
    commands: tuple[str, ...]
    what: str
    native: object
    reference: object

    def __str__(self) -> str:
        native, reference = self.native, self.reference
        if isinstance(native, list) and isinstance(reference, list):
            only = [c for c in native if c not in reference], [c for c in reference if c not in native]
            native, reference = (f"only here {rest}" if any(only) else "the same in another order" for rest in only)
        return (
            f"{self.task_id}: {self.what} after {list(self.commands[-8:])} ({len(self.commands)} commands)\n"
            f"  native:    {native!r}\n  reference: {reference!r}"
        )


JUNK = (
    "",
    " ",
    "help",
    "look",
    "inventory",
    "examine",
    "go",
    "go to",
    "take",
    "put",
    "use",
    "xyzzy",
    "look around",
    "inventory ",
    "HELP",
    "help me",
    "go to cabinet 999",
    "open the fridge",
    "examine agent1",
    "take mug 1",
    "take  from ",
    "move to",
    "put mug 1 in/on desk 1",
    "päivää ☀",
    "go to\ncabinet 1",
    "{r}",
    "#look.feedback#",
    "Nothing happens.",
    "go to cabinet 1; open cabinet 1",
    "x" * 3000,
)
"""Commands that are nonsense, or nearly so."""


def compare(
    source: GameSource, native: Engine, reference: Engine, commands: Iterator[str]
) -> tuple[int, Mismatch | None]:
    """Plays one episode on both engines; ``commands`` may look at ``native`` to choose the next one.

    Returns:
        The number of answers compared (the first observation counts as one), and the first difference if any.
    """
    done: list[str] = []
    answers = native.reset(), reference.reset()
    while True:
        for what, ours, theirs in (
            ("observation", *answers),
            ("won", native.won, reference.won),
            ("admissible_commands", native.admissible_commands, reference.admissible_commands),
        ):
            if ours != theirs:
                return len(done) + 1, Mismatch(source.task_id, tuple(done), what, ours, theirs)
        command = next(commands, None)
        if command is None:
            return len(done) + 1, None
        done.append(command)
        answers = native.step(command), reference.step(command)


def walk(source: GameSource, engine: Engine, rng: Random) -> Iterator[str]:
    """The walkthrough, with looks and examinations between its commands."""
    for command in source.walkthrough:
        yield command
        idle = [c for c in engine.admissible_commands if c.startswith(("look", "examine", "inventory"))]
        if rng.random() < 0.4 and idle:
            yield rng.choice(idle)


def wander(game: Game, engine: Engine, rng: Random, steps: int) -> Iterator[str]:
    """Random commands: mostly admissible ones, every verb equally likely, others plausible, misspelled or nonsense."""
    last = ""
    for _ in range(steps):
        admissible = engine.admissible_commands
        verbs = sorted({command.partition(" ")[0] for command in admissible} - {"help", "look", "inventory"})
        draw = rng.random()
        if last.startswith("take ") and draw < 0.5:
            last = f"examine {last[5:].partition(' from ')[0]}"
        elif last.startswith(("move ", "put ")) and draw < 0.5:
            last = "look"
        elif draw < 0.6:
            verb = rng.choice(verbs)
            last = rng.choice([command for command in admissible if command.startswith(verb)])
        elif draw < 0.7:
            last = rng.choice(admissible)
        elif draw < 0.85:
            last = _plausible(game, rng)
        elif draw < 0.94:
            last = _misspelled(rng.choice(admissible), rng)
        else:
            last = rng.choice(JUNK)
        yield last


def _plausible(game: Game, rng: Random) -> str:
    """A well-formed command about things that exist, wherever they are."""
    obj, other, place = (rng.choice(names) for names in (game.objects, game.objects, game.receptacles))
    verb = rng.choice(("go", "open", "close", "take", "move", "put", "treat", "use", "examine", "slice"))
    patterns = {
        "go": f"go to {rng.choice((place, place, obj, rng.choice(game.locations)))}",
        "take": f"take {obj} from {place}",
        "move": f"move {obj} to {place}",
        "put": f"put {obj} in/on {place}",
        "treat": f"{rng.choice(('heat', 'cool', 'clean'))} {obj} with {place}",
        "slice": f"slice {obj} with {other}",
    }
    return patterns.get(verb, f"{verb} {rng.choice((place, obj))}")


def _misspelled(command: str, rng: Random) -> str:
    """An admissible command with something about it that may matter."""
    return rng.choice(
        (
            command.upper(),
            command.capitalize(),
            f"  {command}\t\n",
            f"\u00a0{command}\u2003",
            f"{command}.",
            command.replace(" ", "  "),
            command.replace(" ", "\t", 1),
            command[:-1],
            f"{command} now",
            f"the {command}",
            command.replace("a", "ä"),
        )
    )


__all__ = ["JUNK", "Mismatch", "compare", "walk", "wander"]

"""An episode of TextCraft, read from its text: each command and its use for the goal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from roleagent.envs.failures.detectors import is_malformed
from roleagent.envs.textcraft.data.recipes import Recipe
from roleagent.envs.textcraft.expert import CraftingExpert
from roleagent.envs.textcraft.text import Command, read_command, read_commands, read_crafted, read_goal
from roleagent.types import Trajectory

FAILED_KINDS = ("craftable", "missing", "quantity", "invented")


@dataclass(frozen=True, slots=True)
class Step:
    """One command.

    Attributes:
        number: the turn, 0-based.
        text: the command as given.
        kind: ``"useful"``: it brought the goal nearer; ``"idle"``: it changed nothing for the goal;
            ``"distractor"``: it crafted what the goal does not need; ``"malformed"``: no command; or why it failed:
            ``"craftable"``: it fetched what cannot be fetched; ``"missing"``: ingredients were not carried;
            ``"quantity"``: the numbers are not the recipe's; ``"invented"``: no recipe names these ingredients.
        name: what was fetched or crafted.
    """

    number: int
    text: str
    kind: str
    name: str


@dataclass(frozen=True)
class Trace:
    """A whole episode."""

    goal: str
    steps: tuple[Step, ...]

    def of_kind(self, kind: str) -> list[Step]:
        """The steps of a kind, in order."""
        return [step for step in self.steps if step.kind == kind]

    @property
    def failures(self) -> Counter[str]:
        """By reason, how many commands failed."""
        return Counter(step.kind for step in self.steps if step.kind in FAILED_KINDS)


def read_trace(trajectory: Trajectory) -> Trace:
    """Follows the player through an episode."""
    shown = read_commands(trajectory.initial_observation)
    expert = CraftingExpert()
    expert.reset(trajectory.task.goal, trajectory.initial_observation)
    needed = expert.needed()
    steps = []
    for number, turn in enumerate(trajectory.turns):
        command, plan = read_command(turn.action), expert.plan()
        expert.observe(turn.action, turn.observation)
        if is_malformed(turn) or not command.verb:
            kind = "malformed"
        elif turn.observation.startswith("Could not find"):
            kind = _failed_kind(command, shown)
        elif len(expert.plan()) < len(plan) or (command.verb == "get" and _fetches(plan, command.name)):
            kind = "useful"
        else:
            made = read_crafted(turn.observation)
            kind = "distractor" if made and made[0] not in needed else "idle"
        steps.append(Step(number, turn.action, kind, command.name))
    return Trace(read_goal(trajectory.task.goal), tuple(steps))


def _fetches(plan: Sequence[str], name: str) -> bool:
    """Whether a plan fetches something."""
    return any(read.verb == "get" and read.name == name for read in map(read_command, plan))


def _failed_kind(command: Command, shown: Sequence[Recipe]) -> str:
    """Why a command failed."""
    if command.verb == "get":
        return "craftable"
    named = [recipe for recipe in shown if recipe.product == command.name and _names_fit(command, recipe)]
    if not named:
        return "invented"
    counts = sorted(count for _, count in command.inputs)
    fits = any(sorted(one.count for one in recipe.ingredients) == counts for recipe in named)
    return "missing" if fits else "quantity"


def _names_fit(command: Command, recipe: Recipe) -> bool:
    """Whether the inputs are those of a recipe by name; "ash board" is a "board"."""
    left = [name for name, _ in command.inputs]
    for one in recipe.ingredients:
        fitting = [name for name in left if name == one.name or name.endswith(f" {one.name}")]
        if not fitting:
            return False
        left.remove(fitting[0])
    return not left


__all__ = ["FAILED_KINDS", "Step", "Trace", "read_trace"]

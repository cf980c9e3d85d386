"""Measures how policies recover: from commands that slip, and from the failures of another policy.

    python benchmarks/slips.py START AGENT_R GOOD_ONLY GRPO --tasks 50
    python benchmarks/slips.py START AGENT_R --rates 0 0.1 0.2 --temperatures 0 0.3 1

The arguments are run folders of one world. The first run is the base policy.

- *slips*: at a rate, a random admissible command takes the place of the policy's own. Which steps slip is drawn for
  each task alone, so all policies slip at the same steps.
- *recovery* (Agent-R's revision test): greedy failures of the base policy are cut at a drawn step, and each policy
  continues from there: on its own (*alone*), behind a revision signal of Agent-R (*signal*), or behind a note that says
  nothing (*placebo*). A signal that helps no more than the placebo only disturbs a policy that repeats itself.

Differences to the last run have 95 % intervals over tasks.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
import transformers
from rich.console import Console
from rich.table import Table

from roleagent.agents.builders import EnvSplit, make_base, wrap
from roleagent.agents.evaluation.play import evaluate_policy
from roleagent.agents.evaluation.revision import Failure, revise_failures
from roleagent.agents.evaluation.statistics import difference
from roleagent.agents.policies.hf import HFPolicy
from roleagent.envs.failures.command_noise import random_command
from roleagent.envs.pool import EnvPool
from roleagent.envs.wrappers.notes import REVISION_THOUGHTS
from roleagent.learners.run.checkpoints import Checkpoints
from roleagent.learners.run.folder import CheckpointError, read_config
from roleagent.options import user_path
from roleagent.slow_notice import waiting

NOTES = {"alone": "", "placebo": "The kitchen is a room of the house.", "signal": REVISION_THOUGHTS[0]}


class Slips(gymnasium.Wrapper):
    """Replaces commands by random admissible ones at a rate; the steps are drawn from the task's id."""

    def __init__(self, env: gymnasium.Env, rate: float, seed: int):
        super().__init__(env)
        self.rate, self.seed = rate, seed

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(**arguments)
        self.rng = np.random.default_rng([self.seed, zlib.crc32(info["task_id"].encode())])
        self.admissible = info["admissible_actions"]
        return observation, info

    def step(self, action: Any) -> Any:
        slips, drawn = self.rng.random() < self.rate, random_command(self.admissible, self.rng)
        observation, reward, terminated, truncated, info = super().step(drawn if slips and drawn else action)
        self.admissible = info["admissible_actions"]
        return observation, reward, terminated, truncated, info


class Player:
    """A run's newest policy on its evaluation split."""

    def __init__(self, run: Path, tasks: int, seed: int):
        checkpoint = Checkpoints(run / "checkpoints").latest()
        if checkpoint is None:
            raise ValueError(f"the run {run} has no checkpoint")
        self.name, self.seed = str(run), seed
        config = read_config(run)
        config = replace(config, prompt=replace(config.prompt, revisions="note"))  # for policies without signals, too
        self.policy: HFPolicy = Checkpoints.policy(checkpoint, torch.Generator(), config.policy)
        env: Any = config.env  # one
        self.split = EnvSplit.open(config, env.eval_split, tasks)

    def slipping(self, rate: float, temperature: float) -> list[bool]:
        """Whether each task is won."""
        self.policy.reseed(self.seed)
        split, rollout = self.split, self.split.rollout(self.policy)

        def make() -> gymnasium.Env:
            base = make_base(split.config, split.task_split.split)
            return wrap(Slips(base, rate, self.seed), split.config, split.horizon)

        rollout.pool = EnvPool(make)
        return [record.won for record in evaluate_policy(rollout, split.task_split.task_ids, temperature, 64)]

    def failures(self) -> list[Failure]:
        """The greedy failures, each cut at a step drawn for its task."""
        found: list[Failure] = []
        tasks = self.split.task_split

        def keep(episode: Any) -> None:
            rng = np.random.default_rng([self.seed, 1, tasks.position(episode.task.task_id)])
            if (failure := Failure.of(episode, rng)) is not None:
                found.append(failure)

        self.policy.reseed(self.seed)
        for _ in evaluate_policy(self.split.rollout(self.policy), tasks.task_ids, 0.0, 64, keep=keep):
            pass
        return found

    def recovering(self, failures: Sequence[Failure], note: str, temperature: float) -> list[bool]:
        """Whether each failure is won after all, behind a note if there is one."""
        self.policy.reseed(self.seed)
        played = revise_failures(self.split, self.policy, failures, temperature, note=note)
        return [record.won for record in played]


def measure(
    players: Sequence[Player], conditions: dict[str, Callable[[Player], list[bool]]], console: Console, title: str
) -> dict[str, Any]:
    """Each player under each condition; prints a table with the differences to the last player."""
    table = Table("condition", *(Path(player.name).name for player in players), title=title)
    results: dict[str, Any] = {}
    for condition, play in conditions.items():
        won = []
        for player in players:
            with waiting(f"{player.name}, {condition}"):
                won.append(np.asarray(play(player), float))
        cells, results[condition] = [], {}
        for player, outcomes in zip(players, won, strict=True):
            over = difference(outcomes - won[-1], np.random.default_rng(player.seed))
            results[condition][player.name] = {"n": len(outcomes), "won": float(outcomes.mean()), "over_last": over}
            compared = (
                "" if player is players[-1] else " ({:+.1f}, {:+.1f} to {:+.1f})".format(*(100 * x for x in over))
            )
            cells.append(f"{100 * outcomes.mean():.1f} %{compared}")
        table.add_row(condition, *cells)
    console.print(table)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=user_path, nargs="+", help="run folders; the first is the base policy")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.0, 0.1, 0.2], help="of slips (default 0 0.1 0.2)")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0], help="(default 0)")
    parser.add_argument("--tasks", type=int, default=0, help="of the evaluation split (default: as the run, or all)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()  # type: ignore[attr-defined]
    try:
        players = [Player(run, options.tasks, options.seed) for run in options.runs]
        with waiting("the failures of the base policy"):
            failures = players[0].failures()
        if len(failures) < 2:
            raise ValueError(f"the base policy fails in {len(failures)} tasks only: name more with --tasks")
    except (ValueError, OSError, CheckpointError) as error:
        print(f"slips.py: {error}", file=sys.stderr)
        return 2
    console = Console(width=150)
    slips = {
        f"{rate:.0%} slips, temperature {temperature:g}": partial(Player.slipping, rate=rate, temperature=temperature)
        for temperature in options.temperatures
        for rate in options.rates
    }
    recovery = {
        f"{name}, temperature {temperature:g}": partial(
            Player.recovering, failures=failures, note=note, temperature=temperature
        )
        for temperature in options.temperatures
        for name, note in NOTES.items()
    }
    results = {
        "slips": measure(players, slips, console, "success under slips"),
        "recovery": measure(players, recovery, console, f"recovery from {len(failures)} failures"),
    }
    print("RESULT", json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())

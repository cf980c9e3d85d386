"""Measures the accuracy of an analyst on episodes with exactly one known mistake.

    python benchmarks/analysts.py
    python benchmarks/analysts.py --endpoint http://localhost:8000/v1 --model NAME
    python benchmarks/analysts.py --run runs/role_agent-alfworld-v0-seed0
    python benchmarks/analysts.py --n 50 --out failures.jsonl

Scripted agents fail in the toy kitchen, ALFWorld, WebShop, search QA and TextCraft, ``--n`` episodes per failure mode,
each by one mistake (``roleagent.envs.failures``). The default analyst is the rules; the options name a server, a run or
a policy. The analyst sees only the trajectories. Two baselines answer for the same episodes: the most frequent mode and
a random mode. Intervals are Wilson's 95 % intervals.

*step* is the share of episodes whose critical step is at most one away from the mistake; searches without an end have
no such step and do not count. *read* describes a model's replies: the share that could not be parsed and the share with
a mode outside the taxonomy.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from rich.console import Console
from rich.table import Table

import roleagent  # noqa: F401  (registers the environments)
from roleagent.curricula.rule_analyst import RuleAnalyst
from roleagent.envs.failures import ScriptedFailure, play_failures, scripted_modes
from roleagent.failures.modes import is_known
from roleagent.options import user_path
from roleagent.tasks.split import wilson
from roleagent.types import Analyst, Reflection

CHUNK = 64
"""Episodes that an analyst is asked about at once."""


class Case(NamedTuple):
    """One failed episode, why it failed, and the analyst's answer."""

    world: str
    mistake: ScriptedFailure
    reflection: Reflection

    @property
    def right(self) -> bool:
        return self.reflection.mode == self.mistake.mode

    @property
    def near(self) -> bool | None:
        """Whether the critical step is at most one away; None where there is none."""
        if self.mistake.step is None:
            return None
        step = self.reflection.critical_step
        return step is not None and abs(step - self.mistake.step) <= 1


WORLDS = {
    "toy": "RoleAgent/Toy-v0",
    "alfworld": "RoleAgent/ALFWorld-v0",
    "webshop": "RoleAgent/WebShop-v0",
    "search": "RoleAgent/SearchQA-v0",
    "textcraft": "RoleAgent/TextCraft-v0",
}


def failed_episodes(options: argparse.Namespace) -> Iterator[tuple[str, ScriptedFailure]]:
    """``n`` episodes of every mode of every world that was asked for.

    Raises:
        ValueError: there is no such world, or it lacks data.
    """
    for world in options.worlds.split(","):
        if world not in WORLDS:
            raise ValueError(f"no world {world!r}: there are {', '.join(WORLDS)}")
        arguments = {} if world == "toy" else {"data_dir": getattr(options, world)}
        arguments |= {"size": options.size} if world == "alfworld" else {}
        env = gymnasium.make(WORLDS[world], split=options.split, disable_env_checker=True, **arguments)
        for place, mode in enumerate(scripted_modes(env)):
            rng = np.random.default_rng([options.seed, [*WORLDS].index(world), place])
            made = play_failures(env, mode, options.n, rng)
            if len(made) < options.n:
                print(f"{world}: only {len(made)} of {options.n} episodes of {mode} could be made here")
            for mistake in made:
                yield world, mistake


def analyst_of(options: argparse.Namespace) -> tuple[str, Analyst]:
    """The analyst that the command line names, and a name for it."""
    if options.endpoint:
        from roleagent.agents.analysts.models import EndpointAnalyst
        from roleagent.agents.chat.endpoint import Endpoint

        analyst = EndpointAnalyst(Endpoint(options.endpoint, options.model))
        analyst.check()
        return f"endpoint {options.model}".strip(), analyst
    if options.run or options.policy:
        return model_analyst(options)
    return "rule", RuleAnalyst()


def model_analyst(options: argparse.Namespace) -> tuple[str, Analyst]:
    """The policy of a run's newest checkpoint, or of a folder, in its environment role."""
    import torch
    import transformers

    from roleagent.agents.builders import model_analyst
    from roleagent.agents.policies.hf import HFPolicy, own_device
    from roleagent.config import Config

    transformers.logging.disable_progress_bar()  # type: ignore[attr-defined]
    generator = torch.Generator(own_device()).manual_seed(options.seed)
    if options.policy:
        policy = HFPolicy.from_path(options.policy, generator)
        return f"policy {options.policy.name}", model_analyst(Config(), policy)

    from roleagent.learners.run.checkpoints import Checkpoints
    from roleagent.learners.run.folder import read_config

    checkpoint = Checkpoints(options.run / "checkpoints").latest()
    if checkpoint is None:
        raise ValueError(f"the run {options.run} has no checkpoint")
    config = read_config(options.run)
    policy = Checkpoints.policy(checkpoint, generator, config.policy)
    return f"run {options.run.name}, {checkpoint.name}", model_analyst(config, policy)


def share(values: Sequence[bool | None]) -> dict[str, Any]:
    """A proportion with its interval; what is None does not count."""
    known = [value for value in values if value is not None]
    low, high = wilson(sum(known), len(known))
    rate = round(sum(known) / len(known), 4) if known else None
    return {"n": len(known), "share": rate, "interval": [round(low, 4), round(high, 4)]}


def summarize(cases: Sequence[Case], rng: np.random.Generator) -> dict[str, Any]:
    """The figures of one environment, the two baselines included."""
    modes = sorted({case.mistake.mode for case in cases})
    most_frequent = Counter(case.mistake.mode for case in cases).most_common(1)[0][0]
    any_mode = rng.choice(modes, size=len(cases))
    replies = [case.reflection for case in cases]
    accuracy = share([case.right for case in cases])
    baselines = {
        "majority": share([case.mistake.mode == most_frequent for case in cases]),
        "random": share([case.mistake.mode == mode for case, mode in zip(cases, any_mode, strict=True)]),
    }
    best = max(baseline["share"] for baseline in baselines.values())
    return {
        "accuracy": accuracy,
        "step": share([case.near for case in cases]),
        **baselines,
        "ratio": round(accuracy["share"] / best, 2),
        "fallback": sum(reply.source == "fallback" for reply in replies) / len(replies),
        "outside": sum(
            reply.source != "fallback" and not is_known(reply.mode, case.mistake.trajectory.task.env_id)
            for reply, case in zip(replies, cases, strict=True)
        )
        / len(replies),
        "modes": {mode: of_mode([case for case in cases if case.mistake.mode == mode]) for mode in modes},
    }


def of_mode(cases: Sequence[Case]) -> dict[str, Any]:
    """The figures of one mode."""
    wrong = Counter(case.reflection.mode for case in cases if not case.right)
    return {
        "accuracy": share([case.right for case in cases]),
        "step": share([case.near for case in cases]),
        "most_frequent_wrong": list(wrong.most_common(1)[0]) if wrong else None,
    }


def report(console: Console, name: str, results: dict[str, dict[str, Any]]) -> None:
    """Prints one table per environment."""
    for world, result in results.items():
        table = Table(title=f"{name} on {world}")
        for column in ("mode", "n", "right", "step ±1", "most frequent wrong answer"):
            table.add_column(column, justify="left" if column in ("mode", "most frequent wrong answer") else "right")
        rows = {**result["modes"], "all": {**result, "most_frequent_wrong": None}}
        for mode, row in rows.items():
            wrong = row["most_frequent_wrong"]
            table.add_row(
                mode,
                str(row["accuracy"]["n"]),
                percent(row["accuracy"]),
                percent(row["step"]),
                f"{wrong[0]} ({wrong[1]})" if wrong else "",
                end_section=mode == [*rows][-2],
            )
        console.print(table)
        others = ", ".join(f"{baseline} {percent(result[baseline])}" for baseline in ("majority", "random"))
        console.print(f"beside it: {others}; {result['ratio']} times as often right as the better of them")
        console.print(f"read: {result['fallback']:.1%} fell back, {result['outside']:.1%} outside the taxonomy\n")


def percent(rate: dict[str, Any]) -> str:
    if rate["share"] is None:
        return "–"
    low, high = rate["interval"]
    return f"{rate['share']:.1%} [{low:.1%}, {high:.1%}]"


def as_line(world: str, mistake: ScriptedFailure) -> str:
    """An episode for other people's analysts: what was seen and done, and, under ``label``, what went wrong."""
    trajectory = mistake.trajectory
    task = trajectory.task
    return json.dumps(
        {
            "world": world,
            "env_id": task.env_id,
            "task_id": task.task_id,
            "task_type": task.task_type,
            "goal": task.goal,
            "stop_reason": trajectory.stop_reason,
            "initial_observation": trajectory.initial_observation,
            "turns": [
                {
                    "action": turn.action,
                    "format_error": turn.info.get("format_error"),
                    "valid_action": turn.info.get("valid_action"),
                    "observation": turn.observation,
                }
                for turn in trajectory.turns
            ],
            "label": {"mode": mistake.mode, "step": mistake.step},
        },
        ensure_ascii=False,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", help="base URL of an OpenAI-compatible server")
    parser.add_argument("--model", default="", help="its name on the server (default: the only one)")
    parser.add_argument("--run", type=user_path, help="run folder: its newest checkpoint in the environment role")
    parser.add_argument("--policy", type=user_path, help="folder with a model in Hugging Face's format, likewise")
    parser.add_argument("--n", type=int, default=20, help="episodes per mode (default 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worlds", default="toy,alfworld,webshop,search,textcraft", help="with commas (default: all)")
    parser.add_argument("--split", default="train", help="that tasks are drawn from (default train)")
    parser.add_argument("--size", default="small", help="of ALFWorld's generated rooms (default small)")
    for name in ("alfworld", "webshop", "search", "textcraft"):
        parser.add_argument(
            f"--{name}", default="generated", metavar="DIR", help="folder with official data (default: generated data)"
        )
    parser.add_argument("--out", type=user_path, help="also write the labeled episodes there, as JSON lines")
    options = parser.parse_args(arguments)

    try:
        name, analyst = analyst_of(options)
        began = time.perf_counter()
        made = list(failed_episodes(options))
    except (ValueError, OSError, RuntimeError, gymnasium.error.Error) as error:
        print(f"analysts.py: {error}", file=sys.stderr)
        return 2
    built = time.perf_counter() - began
    if options.out:
        options.out.write_text("".join(as_line(*pair) + "\n" for pair in made), encoding="utf-8")
    began = time.perf_counter()
    replies: list[Reflection] = []
    for start in range(0, len(made), CHUNK):
        replies += analyst.reflect([mistake.trajectory for _, mistake in made[start : start + CHUNK]])
    asked = time.perf_counter() - began
    cases = [Case(*pair, reply) for pair, reply in zip(made, replies, strict=True)]
    rng = np.random.default_rng(options.seed)
    found = dict.fromkeys(case.world for case in cases)
    results = {world: summarize([case for case in cases if case.world == world], rng) for world in found}
    console = Console(width=130)
    report(console, name, results)
    console.print(f"{len(made)} episodes failed in {built:.1f} s, analyzed in {asked:.1f} s")
    costs = {key: round(value, 4) for key, value in analyst.costs().items()}
    print("RESULT", json.dumps({"analyst": name, "seed": options.seed, "worlds": results, "costs": costs}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

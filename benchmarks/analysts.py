"""Measures the accuracy of analysts on episodes with exactly one known mistake.

    python benchmarks/analysts.py
    python benchmarks/analysts.py --policy models/qwen15 --prompts shipped bare examples --failures 60 --answers answers
    python benchmarks/analysts.py --endpoint http://localhost:8000/v1 --model NAME
    python benchmarks/analysts.py --run runs/role_agent-alfworld-v0-seed0

Scripted agents fail in the toy kitchen, ALFWorld, WebShop, search QA and TextCraft, ``--n`` episodes per failure mode
or ``--failures`` per world, each by one mistake (``roleagent.envs.failures``). The first analyst is the rules; the
options name others: a server, a run or policies. The analyst sees only the trajectories. Two baselines answer for the
same episodes: the most frequent mode and a random mode. Intervals are Wilson's 95 % intervals.

A model with a chat template is prompted as in training (``shipped``), without the list of modes (``bare``), or with
the list and an example of each mode (``examples``). Its answers are kept in ``--answers``: the same command goes on
where it was stopped.

*step* is the share of episodes whose critical step is at most one away from the mistake; searches without an end have
no such step and do not count. *malformed* is the share of replies that could not be parsed, *outside* the share with a
mode outside the taxonomy. Seconds and tokens are means per failure.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from parts.analyst_answers import PROMPTS, Answer, collect, outside, prepare_examples, with_prompts
from rich.console import Console
from rich.table import Table

import roleagent  # noqa: F401  (registers the environments)
from roleagent.curricula.rule_analyst import RuleAnalyst
from roleagent.envs.failures import ScriptedFailure, play_failures, scripted_modes
from roleagent.options import user_path
from roleagent.tasks.split import wilson
from roleagent.types import Analyst


class Case(NamedTuple):
    """One failed episode, why it failed, and the analyst's answer."""

    world: str
    mistake: ScriptedFailure
    answer: Answer

    @property
    def right(self) -> bool:
        return self.answer.reflection.mode == self.mistake.mode

    @property
    def near(self) -> bool | None:
        """Whether the critical step is at most one away; None where there is none."""
        if self.mistake.step is None:
            return None
        step = self.answer.reflection.critical_step
        return step is not None and abs(step - self.mistake.step) <= 1


WORLDS = {
    "toy": "RoleAgent/Toy-v0",
    "alfworld": "RoleAgent/ALFWorld-v0",
    "webshop": "RoleAgent/WebShop-v0",
    "search": "RoleAgent/SearchQA-v0",
    "textcraft": "RoleAgent/TextCraft-v0",
}


def failed_episodes(options: argparse.Namespace) -> Iterator[tuple[str, ScriptedFailure]]:
    """Episodes of every mode of every world: ``n`` of each mode, or ``failures`` of each world, equally many of each.

    Raises:
        ValueError: there is no such world, or it lacks data.
    """
    for world in options.worlds.split(","):
        if world not in WORLDS:
            raise ValueError(f"no world {world!r}: there are {', '.join(WORLDS)}")
        arguments = {} if world == "toy" else {"data_dir": getattr(options, world)}
        arguments |= {"size": options.size} if world == "alfworld" else {}
        env = gymnasium.make(WORLDS[world], split=options.split, disable_env_checker=True, **arguments)
        modes = scripted_modes(env)
        prepare_examples(env, options.seed)
        n = -(-options.failures // len(modes)) or options.n
        found: list[list[ScriptedFailure]] = []
        for place, mode in enumerate(modes):
            rng = np.random.default_rng([options.seed, [*WORLDS].index(world), place])
            found.append(play_failures(env, mode, n, rng))
            if len(found[-1]) < n:
                print(f"{world}: only {len(found[-1])} of {n} episodes of {mode} could be made here")
        in_turn = [mistakes[place] for place in range(n) for mistakes in found if place < len(mistakes)]
        for mistake in in_turn[: options.failures or None]:
            yield world, mistake


def analysts_of(options: argparse.Namespace) -> dict[str, Callable[[], Analyst]]:
    """What opens each analyst, by a name for it: the rules, and those that the command line names."""
    found: dict[str, Callable[[], Analyst]] = {"rule": RuleAnalyst}
    models: dict[str, Callable[[], Analyst]] = {}
    if options.endpoint:
        models[f"endpoint {options.model}".strip()] = partial(endpoint_analyst, options)
    for path in options.policy or ():
        models[path.name] = partial(policy_analyst, options, path)
    for name, opened in models.items():
        for prompts in options.prompts:
            found[name if prompts == "shipped" else f"{name}, {prompts}"] = partial(_prompted, opened, prompts)
    if options.run:
        found[options.run.name] = partial(run_analyst, options)
    return found


def _prompted(opened: Callable[[], Analyst], prompts: str) -> Analyst:
    return with_prompts(opened(), prompts)


def endpoint_analyst(options: argparse.Namespace) -> Analyst:
    """The model behind a server."""
    from roleagent.agents.analysts.models import EndpointAnalyst
    from roleagent.agents.chat.endpoint import Endpoint

    analyst = EndpointAnalyst(
        Endpoint(options.endpoint, options.model, timeout=600.0),
        temperature=options.temperature,
        answer_tokens=options.reflection_tokens,
        context=options.context,
    )
    analyst.check()
    return analyst


def policy_analyst(options: argparse.Namespace, path: Path) -> Analyst:
    """The model of a folder."""
    import torch
    import transformers

    from roleagent.agents.analysts.models import ModelAnalyst
    from roleagent.agents.policies.hf import HFPolicy, own_device

    transformers.logging.disable_progress_bar()  # type: ignore[attr-defined]
    torch.set_num_threads(options.threads)
    generator = torch.Generator(own_device()).manual_seed(options.seed)
    policy = HFPolicy.from_path(path, generator, options.dtype, options.context)
    return ModelAnalyst(policy, options.temperature, options.reflection_tokens)


def run_analyst(options: argparse.Namespace) -> Analyst:
    """The policy of a run's newest checkpoint, in its environment role."""
    import torch

    from roleagent.agents.builders import model_analyst
    from roleagent.agents.policies.hf import own_device
    from roleagent.learners.run.checkpoints import Checkpoints
    from roleagent.learners.run.folder import read_config

    checkpoint = Checkpoints(options.run / "checkpoints").latest()
    if checkpoint is None:
        raise ValueError(f"the run {options.run} has no checkpoint")
    config = read_config(options.run)
    generator = torch.Generator(own_device()).manual_seed(options.seed)
    return model_analyst(config, Checkpoints.policy(checkpoint, generator, config.policy))


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
    answers = [case.answer for case in cases]
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
        "malformed": float(np.mean([answer.reflection.source == "fallback" for answer in answers])),
        "outside": float(np.mean([outside(case.answer, case.mistake) for case in cases])),
        **{
            name: round(float(np.mean([getattr(answer, name) for answer in answers])), 3)
            for name in ("seconds", "prompt_tokens", "tokens")
        },
        "modes": {mode: of_mode([case for case in cases if case.mistake.mode == mode]) for mode in modes},
    }


def of_mode(cases: Sequence[Case]) -> dict[str, Any]:
    """The figures of one mode."""
    wrong = Counter(case.answer.reflection.mode for case in cases if not case.right)
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
        console.print(f"beside it: {others}; {result['ratio']} times as often right as the better of them\n")


def overview(console: Console, results: Mapping[str, Mapping[str, dict[str, Any]]]) -> None:
    """Prints a row per analyst and world."""
    table = Table(title="all analysts")
    for column in ("world", "analyst", "right", "step ±1", "malformed", "outside", "s", "tokens read", "written"):
        table.add_column(column, justify="left" if column in ("world", "analyst") else "right")
    for world in next(iter(results.values())):
        for name, of_worlds in results.items():
            row = of_worlds[world]
            shares = (f"{row['malformed']:.0%}", f"{row['outside']:.0%}")
            costs = (f"{row['seconds']:.2f}", f"{row['prompt_tokens']:.0f}", f"{row['tokens']:.0f}")
            table.add_row(world, name, percent(row["accuracy"]), percent(row["step"]), *shares, *costs)
        first = next(iter(results.values()))[world]
        table.add_row(world, "most frequent mode", percent(first["majority"]), *[""] * 6, end_section=True)
    console.print(table)


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
    parser.add_argument("--policy", type=user_path, nargs="+", help="folders with models in Hugging Face's format")
    parser.add_argument(
        "--prompts", nargs="+", choices=PROMPTS, default=["shipped"], help="of servers and policies (default: shipped)"
    )
    parser.add_argument("--n", type=int, default=20, help="episodes per mode (default 20)")
    parser.add_argument("--failures", type=int, default=0, help="episodes per world, in place of --n")
    parser.add_argument("--answers", type=user_path, help="folder that keeps the answers")
    parser.add_argument("--batch", type=int, default=32, help="failures that are asked about at once (default 32)")
    parser.add_argument("--context", type=int, default=3072, help="tokens of question and answer (default 3072)")
    parser.add_argument("--temperature", type=float, default=0.5, help="of servers and policies (default 0.5)")
    parser.add_argument("--reflection-tokens", type=int, default=160, help="of an answer at most (default 160)")
    parser.add_argument("--dtype", default="float32", help="of the policies (default float32)")
    parser.add_argument("--threads", type=int, default=1, help="of the policies (default 1)")
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

    console = Console(width=130)
    results: dict[str, dict[str, dict[str, Any]]] = {}
    try:
        made = list(failed_episodes(options))
        if options.out:
            options.out.write_text("".join(as_line(*pair) + "\n" for pair in made), encoding="utf-8")
        if options.answers:
            options.answers.mkdir(parents=True, exist_ok=True)
        for name, opened in analysts_of(options).items():
            file = options.answers and options.answers / f"{name.replace(', ', '-').replace(' ', '-')}.jsonl"
            cases = [
                Case(*pair, answer)
                for pair, answer in zip(made, collect(opened, made, file, options.batch), strict=True)
            ]
            found = dict.fromkeys(case.world for case in cases)
            rng = np.random.default_rng(options.seed)
            results[name] = {world: summarize([case for case in cases if case.world == world], rng) for world in found}
            report(console, name, results[name])
    except (ValueError, OSError, RuntimeError, gymnasium.error.Error) as error:
        print(f"analysts.py: {error}", file=sys.stderr)
        return 2
    overview(console, results)
    print("RESULT", json.dumps({"seed": options.seed, "analysts": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

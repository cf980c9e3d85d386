"""Measures an agent on a whole panel: success per task type, with 95 % intervals.

Every episode becomes a line of a file under evaluations/; the same command, given again after an interruption, plays
only what is missing. The last line of the output is the result as JSON.

examples:
  the newest checkpoint of a training run, on the panel and with the environment that the run was measured with
      python evaluate.py --agent runs/role_agent-alfworld-v0-seed0
  the same policy on official games
      python evaluate.py --agent runs/role_agent-alfworld-v0-seed0 --split valid_seen --data-dir ~/alfworld
  what is easy and what is possible: random commands, the scripted expert, the games' own solutions
      python evaluate.py --env RoleAgent/ALFWorld-v0 --split valid_seen --agent random
      python evaluate.py --env RoleAgent/ALFWorld-v0 --split valid_seen --agent expert
      python evaluate.py --env RoleAgent/ALFWorld-v0 --split valid_seen --agent oracle --env-arg size=small
  your own agent: a class with reset(observation, info) and act(observation, info) -> command
      python evaluate.py --env RoleAgent/ALFWorld-v0 --split valid_seen --agent my_module:MyAgent
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import yaml

import roleagent
from roleagent.agents.baselines import build_agent
from roleagent.agents.evaluation import (
    Record,
    RecordFile,
    evaluate_agent,
    evaluate_policy,
    result_rows,
    summarise,
)
from roleagent.agents.hf import own_device
from roleagent.agents.session import World
from roleagent.config import Config, ConfigError
from roleagent.learners.checkpoints import CheckpointError, Checkpoints
from roleagent.learners.display import Display
from roleagent.learners.run_folder import read_config

PROTOCOL = 1  # of the record files: raised when records of one version cannot stand beside those of another


def evaluate(options: argparse.Namespace) -> dict[str, Any]:
    """Plays what is missing of the panel, prints the table, returns the result."""
    run = run_folder(options.agent)
    config = configuration(options, run)
    checkpoint = newest_checkpoint(run) if run else None
    world = World.open(config, config.env.eval_split, config.env.eval_tasks)
    header = {
        "protocol": PROTOCOL,
        "roleagent": roleagent.__version__,
        **world.panel.manifest(),
        "kwargs": dict(config.env.kwargs),
        "agent": options.agent,
        "checkpoint": checkpoint.name if checkpoint else None,
        "weights": digest_of(checkpoint) if checkpoint else None,
        "temperature": config.rollout.eval_temperature if run else None,
        "batch": config.rollout.eval_batch if run else None,
        "seed": options.seed,
    }
    file = RecordFile(options.out or default_file(header), header)
    missing = set(file.missing(world.panel))
    with Display(f"{options.agent} on {config.env.id}:{world.panel.split}, records in {file.path}") as display:
        done = len(world.panel) - len(missing)
        display.stage("evaluate", len(world.panel), done)
        if done and missing:
            display.say(f"going on: {done} of {len(world.panel)} episodes are there already")
        if checkpoint:
            records = policy_records(world, checkpoint, missing, options.seed, display)
        else:
            records = agent_records(world, options.agent, missing, options.seed)
        for record in records:
            file.append(record)
            display.advance(len(file.records))
        summary = summarise(file.records)
        if not summary["n"]:
            raise ValueError(f"every episode failed in the environment, the first with {file.records[0].error}")
        report(display, options.agent, world, summary)
    return {**header, "records": str(file.path), **summary}


def run_folder(agent: str) -> Path | None:
    """The run folder that ``--agent`` names; None if it names something else."""
    path = Path(agent).expanduser()
    if path.is_dir():
        return path
    if os.sep in agent:
        raise ConfigError(f"no run folder {agent!r}: there is no such directory")
    return None


def configuration(options: argparse.Namespace, run: Path | None) -> Config:
    """The run's configuration (or the defaults), with what the command line says put over it."""
    config = read_config(run) if run else Config()
    env = config.env if run else replace(config.env, eval_split="valid_seen")
    if options.env and options.env != env.id:
        env = replace(env, id=options.env, kwargs={})
    given = dict(map(env_argument, options.env_arg))
    if options.data_dir is not None:
        given["data_dir"] = str(options.data_dir)
    env = replace(
        env,
        kwargs={**env.kwargs, **given},
        eval_split=options.split or env.eval_split,
        eval_tasks=env.eval_tasks if options.tasks is None else options.tasks,
    )
    rollout = replace(
        config.rollout,
        eval_temperature=config.rollout.eval_temperature if options.temperature is None else options.temperature,
        eval_batch=options.batch or config.rollout.eval_batch,
    )
    return replace(config, env=env, rollout=rollout)


def env_argument(text: str) -> tuple[str, Any]:
    """``key=value`` with a YAML value.

    >>> env_argument("max_steps=30")
    ('max_steps', 30)
    """
    key, separator, value = text.partition("=")
    if not separator or not key.isidentifier():
        raise ConfigError(f"--env-arg {text!r} is not of the form key=value, e.g. max_steps=30")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"the value of --env-arg {text!r} cannot be read as YAML") from error


def newest_checkpoint(run: Path) -> Path:
    """The run's newest whole checkpoint."""
    checkpoint = Checkpoints(run / "checkpoints").latest()
    if checkpoint is None:
        raise CheckpointError(f"the run {run} has no checkpoint yet; train it, or go on with train.py --resume")
    return checkpoint


def digest_of(checkpoint: Path) -> str:
    """A digest of the weights: a later run in the same folder is another agent, whatever its checkpoints are called."""
    digest = hashlib.sha256()
    for path in sorted((checkpoint / "policy").glob("*.safetensors")):
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:16]


def default_file(header: dict[str, Any]) -> Path:
    """A file that the same command finds again, and no other."""
    shown = [Path(header["agent"]).name, header["checkpoint"], header["env_id"].split("/")[-1], header["split"]]
    name = "-".join(re.sub(r"[^\w.]+", "-", part) for part in shown if part)
    key = hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()[:8]
    return Path("evaluations") / f"{name}-{key}.jsonl"


def policy_records(world: World, checkpoint: Path, missing: set[str], seed: int, display: Display) -> Iterator[Record]:
    """Plays a checkpoint, batch by batch. Each batch has random numbers of its own and is played whole, so that an
    evaluation that was interrupted ends with the records of one that was not."""
    config, task_ids = world.config, world.panel.task_ids
    policy = Checkpoints.policy(checkpoint, torch.Generator(own_device()), config.policy)
    rollout = world.rollout(policy)
    for start in range(0, len(task_ids), config.rollout.eval_batch):
        part = task_ids[start : start + config.rollout.eval_batch]
        if missing.isdisjoint(part):
            continue
        policy.reseed(int(np.random.default_rng([seed, start]).integers(2**62)))
        temperature = config.rollout.eval_temperature
        for record in evaluate_policy(
            rollout,
            part,
            temperature,
            len(part),
            lambda done, total: display.inner("episodes of the batch", done, total),
        ):
            if record.task_id in missing:
                yield record


def agent_records(world: World, name: str, missing: set[str], seed: int) -> Iterator[Record]:
    """Plays an agent that gives bare commands; each task has random numbers of its own."""
    rng = np.random.default_rng(seed)
    agent = build_agent(name, world.base, rng)
    for position, task_id in enumerate(world.panel.task_ids):
        if task_id in missing:
            rng.bit_generator.state = np.random.default_rng([seed, position]).bit_generator.state
            yield from evaluate_agent(world.base, agent, [task_id])


def report(display: Display, agent: str, world: World, summary: dict[str, Any]) -> None:
    """What a person reads."""
    panel = world.panel
    title = (
        f"{agent}: success on {panel.env_id}:{panel.split} ({len(panel)} tasks, panel {panel.digest}), 95 % intervals"
    )
    display.table(title, ["task type", "success", "steps"], result_rows({"success": summary}, steps=True))
    if summary["prediction"] is not None:
        display.say(f"predictions: mean similarity {summary['prediction']:.3f}")
    if summary["errors"]:
        display.warn(f"{summary['errors']} episodes failed in the environment; they are in no rate")


def parser() -> argparse.ArgumentParser:
    summary, _, rest = (__doc__ or "").partition("examples:")
    parser = argparse.ArgumentParser(
        description=summary, epilog=f"examples:{rest}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--agent",
        required=True,
        metavar="AGENT",
        help="a run folder (its newest checkpoint plays), random, oracle (the game's own solution), expert (scripted, "
        "sees only what an agent sees), or module:Class",
    )
    parser.add_argument("--env", metavar="ID", help="Gymnasium id (default: the run's, else RoleAgent/ALFWorld-v0)")
    parser.add_argument("--split", help="panel to play (default: the run's evaluation split, else valid_seen)")
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="official data (default: what $ALFWORLD_DATA, $WEBSHOP_DATA or $SEARCHQA_DATA names, else none)",
    )
    parser.add_argument(
        "--env-arg", action="append", default=[], metavar="KEY=VALUE", help="argument of the environment; repeatable"
    )
    parser.add_argument("--tasks", type=natural, metavar="N", help="only the first N tasks of the panel")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: %(default)s)")
    parser.add_argument(
        "--temperature", type=temperature, metavar="T", help="of a policy (default: the run's, mostly 0)"
    )
    parser.add_argument("--batch", type=natural, metavar="N", help="episodes of a policy side by side")
    parser.add_argument("--out", type=Path, metavar="FILE", help="record file (default: a name under evaluations/)")
    return parser


def natural(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def temperature(text: str) -> float:
    """A number from 0 on."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options = parser().parse_args(arguments)
    transformers.logging.disable_progress_bar()  # there is one display, and it is ours
    sys.path.insert(0, os.getcwd())  # where module:Class is looked for first
    try:
        result = evaluate(options)
    except (ConfigError, CheckpointError, ValueError, OSError) as error:
        print(f"evaluate.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("evaluate.py: stopped; the same command goes on", file=sys.stderr)
        return 130
    finally:
        sys.path.remove(os.getcwd())
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

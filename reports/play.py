"""Play an environment yourself, in a terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import gymnasium
import yaml

import roleagent  # noqa: F401  (registers the environments)


def main(arguments: Sequence[str]) -> int:
    """The verb ``play``; returns the exit status."""
    parser = argparse.ArgumentParser(prog="roleagent play", description=__doc__)
    parser.add_argument("env", metavar="ENV", help="a Gymnasium id, e.g. RoleAgent/ALFWorld-v0")
    parser.add_argument("--task-id", metavar="ID", help="the task (default: one at random)")
    parser.add_argument("--seed", type=int, help="of the random choice")
    parser.add_argument(
        "--env-arg",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="argument of the environment, e.g. split=train",
    )
    options = parser.parse_args(arguments)
    given = dict(argument.partition("=")[::2] for argument in options.env_arg)
    task = {"task_id": options.task_id} if options.task_id else None
    try:
        env = gymnasium.make(options.env, **{key: yaml.safe_load(value) for key, value in given.items()})
        observation, info = env.reset(seed=options.seed, options=task)
    except (gymnasium.error.Error, TypeError, ValueError, OSError, yaml.YAMLError) as error:
        print(f"roleagent play: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(
        f"{info['task_id']}: {info['goal']}\n(? lists what can be done now, an empty line or the end of input quits)\n"
    )
    return _play(env, observation, info)


def _play(env: Any, observation: str, info: dict[str, Any]) -> int:
    print(observation)
    steps = 0
    while True:
        try:
            command = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            command = ""
            print()
        if not command:
            print(f"left after {steps} steps")
            return 0
        if command == "?":
            print("\n".join(info.get("admissible_actions") or ["this environment does not list its commands"]))
            continue
        observation, reward, terminated, truncated, info = env.step(command)
        steps += 1
        print(observation)
        if terminated or truncated:
            print(f"{'won' if info['won'] else 'not solved'} after {steps} steps, reward {reward:g}")
            return 0

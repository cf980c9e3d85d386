"""Measures tools: the broker against one call after another, and formats against hostile replies.

    python benchmarks/tools.py
    python benchmarks/tools.py --episodes 256 --milliseconds 100

Every episode makes one call per turn and answers in the last turn, as ``RoleAgent/ToolEnv-v0`` in ``ToolTags``. The
tool waits, as a request to a server does: in a thread, in an event loop, or for a batch of calls at once. Both ways
must give the same episodes. ``RESULT`` has ``broker_ratio``: time one by one over time with the broker, of the tool
that waits in a thread; ``broker_ratio_async`` and ``broker_ratio_batch`` are those of the others.

Then replies that no model should write, random ones and well-formed ones with random changes, are played in every
format against tools that raise, return megabytes and return every marker. ``RESULT`` has ``hostile_replies``,
``raised`` (must be 0), ``false_runs`` (calls reported as run that were not, or the reverse: must be 0),
``injected_markers`` (in results: must be 0) and ``us_per_reply``, the processor time of reading a reply of a thousand
characters in the slowest format. ``injected_tokens`` are special tokens that results full of markers bring into prompts
(must be 0).

Last, one iteration of training in ``RoleAgent/Office-v0``: ``world_loss_share`` is the share of the loss's weight on
tokens of the world (must be 0), ``world_loss_share_unmasked`` the same without the mask, and ``world_share`` the
world's share of tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
from parts.hostile_replies import hostile
from parts.injected_tokens import injected_tokens

from roleagent.envs.pool import EnvPool, Outcome
from roleagent.envs.tools import tool
from roleagent.envs.wrappers import ToolTags

ROOT = Path(__file__).resolve().parents[1]
WAIT = {"seconds": 0.02}


@tool
def look_up(number: int) -> int:
    """Looks a number up."""
    time.sleep(WAIT["seconds"])
    return number**2


@tool
async def ask(number: int) -> int:
    """Asks for a number."""
    await asyncio.sleep(WAIT["seconds"])
    return number**2


class Search:
    """A tool whose calls cost little more together than one."""

    name, description = "search", "Searches for a number."
    parameters: Mapping[str, Any] = look_up.parameters

    def execute(self, arguments: Mapping[str, Any], state: Any) -> int:
        return self.batch_execute([arguments], [state])[0]

    def batch_execute(self, arguments: Sequence[Mapping[str, Any]], states: Sequence[Any]) -> list[int]:
        time.sleep(WAIT["seconds"])
        return [one["number"] ** 2 for one in arguments]


def play(kind: Any, episodes: int, turns: int, together: bool) -> tuple[float, list[list[Outcome]]]:
    """Seconds of all steps, and the outcomes of every turn."""
    tasks = [{"id": number, "prompt": f"What is {number} squared?", "answer": number**2} for number in range(episodes)]
    arguments = {"tools": [kind], "tasks": tasks, "split": "all", "judge": "number", "max_steps": turns}
    pool = EnvPool(lambda: ToolTags(gymnasium.make("RoleAgent/ToolEnv-v0", disable_env_checker=True, **arguments)))
    for number in range(episodes):
        pool.reset(number, str(number))
    found, seconds = [], 0.0
    for turn in range(turns):
        name = kind.name
        replies = {
            number: f"<answer>{number**2}</answer>"
            if turn == turns - 1
            else f'<tool_call>{{"name": "{name}", "arguments": {{"number": {number + turn}}}}}</tool_call>'
            for number in range(episodes)
        }
        start = time.perf_counter()
        if together:
            outcomes = list(pool.step_many(replies).values())
        else:
            outcomes = [pool.step(number, reply) for number, reply in replies.items()]
        seconds += time.perf_counter() - start
        found.append(outcomes)
    pool.close()
    return seconds, found


def without_times(outcomes: Sequence[Sequence[Outcome]]) -> list[Any]:
    """Episodes without the times of their calls."""
    return [
        (
            outcome.observation,
            outcome.reward,
            outcome.terminated,
            outcome.truncated,
            outcome.error,
            [{**call, "seconds": 0} for call in outcome.info["calls"]],
            {key: value for key, value in outcome.info.items() if key != "calls"},
        )
        for turn in outcomes
        for outcome in turn
    ]


def broker(episodes: int, turns: int) -> dict[str, Any]:
    """Both ways with each kind of tool; with the broker the fastest of three, because a busy machine delays threads."""
    result: dict[str, Any] = {}
    for kind, key in ((look_up, ""), (ask, "_async"), (Search(), "_batch")):
        slow, expected = play(kind, episodes, turns, together=False)
        fast, found = min((play(kind, episodes, turns, together=True) for _ in range(3)), key=lambda played: played[0])
        if without_times(found) != without_times(expected) or found[-1][-1].reward != 1.0:
            raise SystemExit(f"{kind.name}: the episodes differ")
        result[f"broker_ratio{key}"] = round(slow / fast, 1)
        print(f"{kind.name:8} one by one {slow:6.2f} s, broker {fast:5.2f} s: {slow / fast:5.1f} times as fast")
    return result


SMALL = (
    *("method=ppo", "aiw=off", "env.kwargs={calls: [1], max_steps: 3}", "env.eval_tasks=4", "policy.vocabulary=800"),
    *("policy.hidden_size=32", "policy.layers=1", "policy.heads=2", "policy.kv_heads=1", "policy.mlp_size=64"),
    *("warmstart.episodes=100", "warmstart.epochs=3", "rollout.num_groups=4", "rollout.group_size=3"),
    *("rollout.eval_sampled=0", "train.iterations=1"),
)


def world_loss_share(mask: bool) -> tuple[float, float]:
    """The world's share of the loss's weight in an iteration of training, and of the tokens behind the first reply."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "train.py", "--config", "configs/office.yaml", *SMALL]
        command += [f"loss.action_mask={'on' if mask else 'off'}", f"run_dir={folder}/run"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text("utf-8").splitlines()
    [row] = [row for row in map(json.loads, lines) if row["stage"] == "train"]
    return row["world_loss_share"], row["world_share"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=64, help="side by side (default 64)")
    parser.add_argument("--turns", type=int, default=5, help="of an episode, the last of which answers (default 5)")
    parser.add_argument("--milliseconds", type=float, default=20.0, help="that a call waits (default 20)")
    parser.add_argument("--random", type=int, default=2000, help="random replies per format (default 2000)")
    parser.add_argument("--mutated", type=int, default=400, help="changed replies per format (default 400)")
    options = parser.parse_args()
    WAIT["seconds"] = options.milliseconds / 1000
    result = broker(options.episodes, options.turns) | hostile(options.random, options.mutated)
    result["injected_tokens"] = injected_tokens()
    print(f"{result['injected_tokens']} special tokens in prompts came from results")
    result["world_loss_share"], share = world_loss_share(mask=True)
    unmasked, _ = world_loss_share(mask=False)
    print(
        f"{share:.0%} of tokens are the world's: {result['world_loss_share']:.1%} of the loss, {unmasked:.0%} unmasked"
    )
    result |= {"world_share": share, "world_loss_share_unmasked": unmasked}
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    main()

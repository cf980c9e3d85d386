"""Evaluates a model in verifiers from 0.4 on. Without --url a random player answers.

python examples/verifiers_taskset.py
python examples/verifiers_taskset.py --url http://127.0.0.1:8001/v1 --model Qwen/Qwen3-0.6B --env RoleAgent/ALFWorld-v0
"""

# The trainer may be missing.
# pyright: reportMissingImports=false
import argparse
import asyncio
import os
from contextlib import nullcontext

import verifiers.v1 as vf
from random_player import arguments, endpoint

from roleagent.envs.adapters.verifiers_v1 import TextEnv, TextEnvConfig


async def evaluate(options: argparse.Namespace, url: str) -> list[vf.Episode]:
    tasks = {"env": options.env, "split": options.split, "limit": options.tasks, "horizon": None}
    env = TextEnv(TextEnvConfig(taskset={"id": "roleagent-verifiers", **tasks}))
    client = vf.EvalClientConfig(base_url=url, api_key_var="OPENAI_API_KEY")
    context = vf.ModelContext(model=options.model, client=client)
    async with env.serving():
        slots = [slot for task in env.taskset for slot in env.slots(task, 2)]
        return await asyncio.gather(*(env.run_slot(slot, context) for slot in slots))


def main() -> None:
    options = arguments(__doc__)
    os.environ.setdefault("OPENAI_API_KEY", "none")
    with nullcontext(options.url) if options.url else endpoint() as url:
        episodes = asyncio.run(evaluate(options, url))
    for trace in (trace for episode in episodes for trace in episode.traces):
        metrics = {name: round(value, 2) for name, value in trace.metrics.items()}
        print(f"{trace.info['task_id']}: reward {trace.reward:g}, {metrics}")
    print(f"{len(episodes)} rollouts, {sum(bool(episode.errors) for episode in episodes)} with errors")


if __name__ == "__main__":
    main()

"""Compares concurrent evaluation against a server with a sequential loop.

    python benchmarks/evaluation.py
    python benchmarks/evaluation.py --concurrency 64 --episodes 256

A server on loopback, in its own process, answers with the delays of a model: a pause and a time per token. The loop
resets, asks and steps for one task after the other. ``evaluate.py``'s evaluation runs the same agent (the standard
prompts) on the toy kitchen with many episodes at once. Both are measured in episodes per second; the episodes are
equally long. ``ideal`` is the concurrency, minus the idle time of the last episodes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import multiprocessing
import random
import sys
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from roleagent.agents.builders import EnvSplit, make_wrapped
from roleagent.agents.chat.endpoint import Endpoint
from roleagent.agents.chat.types import Answer
from roleagent.agents.episode import Episode, Step
from roleagent.agents.evaluation.play import chat_attempts
from roleagent.agents.evaluation.records import Attempt
from roleagent.agents.prompting.standard import ChatAgent
from roleagent.config import load
from roleagent.env_card import instructions_of
from roleagent.envs.pool import EnvPool

TESTS = Path(__file__).resolve().parent.parent / "tests"


def serve(first: float, per_token: float, urls: Any) -> None:
    """A server that prints its address, and answers until it is ended."""
    sys.path.insert(0, str(TESTS))
    fake_openai = importlib.import_module("fake_openai")

    def reply(body: Any, number: int) -> Any:
        tokens = random.Random(number).randint(20, 60)
        time.sleep(first + per_token * tokens)
        return fake_openai.message("<think>Let me see.</think><action>look</action>", usage=(200, tokens))

    with fake_openai.serving(reply) as fake:
        urls.put(fake.url)
        time.sleep(3600)


def agent_of(world: EnvSplit) -> ChatAgent:
    """Plays by the standard prompts."""
    return ChatAgent(world.config.prompt, instructions_of(world.base))


def loop(url: str, world: EnvSplit, task_ids: tuple[str, ...]) -> int:
    """One question after the other; returns the number of answers."""
    config: Any = world.config  # of one environment
    agent = agent_of(world)
    pool, answers = EnvPool(partial(make_wrapped, config, config.env.eval_split, 0)), 0
    for task_id in task_ids:
        coroutine = agent.play(Episode(pool, 0, task_id))
        awaited = coroutine.send(None)
        try:
            while True:
                if isinstance(awaited, Step):
                    awaited = coroutine.send(pool.step(0, awaited.action))
                    continue
                body = {"model": "tiny-chat", "messages": list(awaited.content), "temperature": 0.0, "max_tokens": 512}
                request = urllib.request.Request(
                    f"{url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
                )
                with urllib.request.urlopen(request) as response:
                    text = json.load(response)["choices"][0]["message"]["content"]
                answers += 1
                awaited = coroutine.send(Answer(text, "stop", 0, 0, estimated=False))
        except StopIteration:
            continue
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, default=16, help="episodes at once (default 16)")
    parser.add_argument("--episodes", type=int, default=48, help="played side by side (default 48)")
    parser.add_argument("--alone", type=int, default=2, help="played by the loop (default 2)")
    parser.add_argument("--steps", type=int, default=10, help="of an episode (default 10)")
    parser.add_argument("--first", type=float, default=0.1, help="seconds before an answer begins (default 0.1)")
    parser.add_argument("--per-token", type=float, default=0.005, help="seconds per token of it (default 0.005)")
    options = parser.parse_args()
    config = load(
        overrides=[
            *("env.id=RoleAgent/Toy-v0", "env.eval_split=train", f"env.kwargs={{max_steps: {options.steps}}}"),
            *("wia=off", "prompt.style=window", "prompt.think=optional", "rollout.action_tokens=512"),
        ]
    )
    world = EnvSplit.open(config, "train", options.episodes)
    if len(world.task_split) < options.episodes:
        parser.error(f"the split has {len(world.task_split)} tasks: --episodes can be no more")

    context = multiprocessing.get_context("spawn")
    urls = context.Queue()
    server = context.Process(target=serve, args=(options.first, options.per_token, urls), daemon=True)
    server.start()
    try:
        url = urls.get(timeout=60)
        began = time.perf_counter()
        answers = loop(url, world, world.task_split.task_ids[: options.alone])
        alone = options.alone / (time.perf_counter() - began)
        print(f"the loop: {alone:.2f} episodes per second, {answers} answers")

        speaker = Endpoint(url, concurrency=options.concurrency)
        wanted = {Attempt(0, task_id) for task_id in world.task_split.task_ids}
        make = partial(make_wrapped, config, "train", 0)
        began = time.perf_counter()
        records = list(chat_attempts(world, agent_of(world), speaker, make, wanted, 0))
        together = len(records) / (time.perf_counter() - began)
        print(f"{options.concurrency} at once: {together:.2f} episodes per second, {len(records)} episodes")
    finally:
        server.terminate()
    assert all(record.sound and record.steps == options.steps for record in records)

    rounds = math.ceil(options.episodes / options.concurrency)
    result = {
        "ratio": round(together / alone, 2),
        "ideal": round(options.episodes / rounds, 2),
        "concurrency": options.concurrency,
        "loop_episodes_per_second": round(alone, 3),
        "episodes_per_second": round(together, 3),
    }
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    main()

"""Compares the token throughput of whole episodes with ``transformers.generate``.

    python benchmarks/rollout.py
    python benchmarks/rollout.py --full --threads 2

A policy from scratch plays generated ALFWorld games with predictions, in groups of eight: an action and a prediction
per turn. Predictions are sampled after the episodes, as the rollout asks for them. Both sides use the same random
weights, token limits and stop tokens, and both drop finished episodes from the batch. ``generate`` reads every whole
prompt anew, in a left-padded batch, and returns no log-probabilities; the local policy does.

The sampled tokens are replaced by those of a scripted agent: the expert's commands, one in five of them random, and the
true next state as prediction. Both sides therefore play the same episodes of realistic lengths. Tokens of these replies
are counted. Times include the environment; each side's best of ``--rounds`` alternating rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from roleagent.agents.builders import EnvSplit
from roleagent.agents.policies import branches, sampling
from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.policies.scratch_model import build_policy, train_tokenizer
from roleagent.agents.rendering import STYLES
from roleagent.config import load
from roleagent.envs.failures.command_noise import CommandNoise
from roleagent.learners.sft.demonstrations import Demonstration, demonstrate, texts_of
from roleagent.types import Completion, Request

GROUP = 8
LARGE = ("hidden_size=320", "layers=8", "heads=8", "kv_heads=4", "mlp_size=1024", "vocabulary=4096", "context=2048")
DEFAULT = Path(__file__).parents[1] / "configs" / "default.yaml"

Replies = Mapping[int, Sequence[Sequence[int]]]
"""The reply of each slot, call by call, in tokens."""


def episode(world: EnvSplit, task_id: str, rng: np.random.Generator) -> Demonstration:
    """The demonstration of an episode that a scripted agent wins."""
    while (shown := demonstrate(world.base, task_id, 0.2, CommandNoise((), rng), rng)) is None:
        pass
    return shown


def said(policy: HFPolicy, shown: Demonstration, limits: tuple[int, int]) -> list[list[int]]:
    """The tokens of all actions, then of all predictions, cut at their limits."""
    actions = [f"<action>{step.command}</action>" for step in shown.steps]
    predictions = [f'<prediction h="1">{step.info["state"]}</prediction>' for step in shown.steps]
    texts = zip((actions, predictions), limits, strict=True)
    return [policy.encode(text)[:limit] for kind, limit in texts for text in kind]


class Ours(HFPolicy):
    """The local policy, with replaced samples."""

    def begin(self, replies: Replies) -> None:
        """Starts a new set of episodes."""
        self.replies, self.calls = replies, dict.fromkeys(replies, 0)

    def next_replies(self, requests: Sequence[Request]) -> list[Sequence[int]]:
        """The reply to each request."""
        found = [self.replies[request.slot][self.calls[request.slot]] for request in requests]
        for request in requests:
            self.calls[request.slot] += 1
        return found

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        reply_to = {id(request): reply for request, reply in zip(requests, self.next_replies(requests), strict=True)}
        asked, step, drawn, sample = list(requests), -1, sampling.draw, branches.Branches.sample

        def numbers(n: int, *_: Any) -> Iterator[torch.Tensor]:
            nonlocal step
            step = -1
            while True:
                step += 1
                yield torch.arange(n)

        def forced(logits: torch.Tensor, temperature: float, number: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            replies = [reply_to[id(asked[index])] for index in number.tolist()]
            _, logprobs = drawn(logits, temperature, torch.zeros(len(logits), dtype=torch.float64))
            tokens = [reply[step] if step < len(reply) else 0 for reply in replies]
            return torch.tensor(tokens, device=logits.device), logprobs

        def of_branches(table: branches.Branches, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
            nonlocal asked
            asked = table.requests
            return sample(table, *arguments)

        with ExitStack() as patches:
            for module in (sampling, branches):
                patches.enter_context(patch.object(module, "draw", forced))
                patches.enter_context(patch.object(module, "uniforms", numbers))
            patches.enter_context(patch.object(branches.Branches, "sample", of_branches))
            return super().generate(requests, temperature)


class _Told(LogitsProcessor):
    """Forces one token per row."""

    def __init__(self, replies: torch.Tensor, start: int):
        self.replies, self.start = replies, start

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        step = input_ids.shape[1] - self.start
        return torch.full_like(scores, -torch.inf).scatter_(1, self.replies[:, step : step + 1], 0.0)


class Theirs(Ours):
    """The same model with ``transformers.generate``."""

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        if not requests:
            return []
        size = len(self.replies)
        if size < len(
            requests
        ):  # in batches of the number of episodes: it is faster so than with all predictions at once
            starts = range(0, len(requests), size)
            return [reply for start in starts for reply in self.generate(requests[start : start + size], temperature)]
        pad, width = int(self.tokenizer.pad_token_id), max(len(r.prompt_ids) for r in requests)  # type: ignore[arg-type]
        rows = [[pad] * (width - len(r.prompt_ids)) + list(r.prompt_ids) for r in requests]
        mask = [[0] * (width - len(r.prompt_ids)) + [1] * len(r.prompt_ids) for r in requests]
        limit, stops = requests[0].max_tokens, requests[0].stop_ids
        replies = self.next_replies(requests)
        forced = torch.tensor([[*reply, *[pad] * (limit - len(reply))] for reply in replies], device=self.device)
        self.model.eval()
        out = self.model.generate(  # type: ignore[operator, misc]
            torch.tensor(rows, device=self.device),
            attention_mask=torch.tensor(mask, device=self.device),
            generation_config=GenerationConfig(
                do_sample=True,
                temperature=temperature,
                top_k=0,
                max_new_tokens=limit,
                eos_token_id=sorted(stops),
                pad_token_id=pad,
            ),
            logits_processor=LogitsProcessorList([_Told(forced, width)]),
        )[:, width:].tolist()
        found = []
        for row, reply in zip(out, replies, strict=True):
            assert row[: len(reply)] == list(reply), "transformers.generate said something else"
            found.append(Completion(tuple(reply), (0.0,) * len(reply), "stop"))
        return found


def play(policy: Ours, world: EnvSplit, task_ids: Sequence[str], replies: Replies) -> tuple[float, int, list[Any]]:
    """Seconds, counted tokens, and the played turns."""
    rollout = world.rollout(policy)
    policy.begin(replies)
    start = time.perf_counter()
    groups = rollout.play(task_ids, GROUP, 1.0)
    seconds = time.perf_counter() - start
    story = [[(t.prompt_ids, t.completion.token_ids) for t in e.turns] for g in groups for e in g.trajectories]
    return seconds, rollout.stats.action_tokens + rollout.stats.prediction_tokens, story


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, nargs="+", default=[16, 64], help="side by side (default: 16 64)")
    parser.add_argument("--rounds", type=int, default=2, help="of each side (default: 2)")
    parser.add_argument("--threads", type=int, default=1, help="of the processor (default: 1)")
    parser.add_argument("--full", action="store_true", help="11 million parameters, larger rooms, 30 turns at most")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    torch.set_num_threads(options.threads)

    overrides = [f"policy.{size}" for size in LARGE] if options.full else []
    overrides += ["env.kwargs.size=small", "env.kwargs.max_steps=30"] if options.full else []
    world = EnvSplit.open(load(DEFAULT, overrides), "train")
    config, rng = world.config, np.random.default_rng(options.seed)
    task_ids = [str(task) for task in rng.choice(list(world.task_split.task_ids), max(options.episodes) // GROUP)]
    shown = [episode(world, task, rng) for task in task_ids for _ in range(GROUP)]
    tags = ("<action>", "</action>", "</prediction>", '<prediction h="1">')
    words = train_tokenizer(texts_of(shown, STYLES[config.prompt.style], 0), config.policy.vocabulary, tags)
    built = build_policy(config.policy, words, torch.Generator().manual_seed(options.seed))
    limits = config.rollout.action_tokens, config.rollout.prediction_tokens
    replies = {slot: said(built, one, limits) for slot, one in enumerate(shown)}
    sides = [side(built.model, words, torch.Generator(), config.policy.context) for side in (Ours, Theirs)]
    print(f"{built.model.num_parameters() / 1e6:.2f} million parameters, {options.threads} threads")

    result: dict[str, Any] = {}
    for n in options.episodes:
        best = [float("inf")] * 2
        tokens, longest = 0, 0
        for _ in range(options.rounds):
            stories = []
            for number, policy in enumerate(sides):
                seconds, tokens, story = play(policy, world, task_ids[: n // GROUP], replies)
                best[number] = min(best[number], seconds)
                stories.append(story)
            assert stories[0] == stories[1], "the two sides played different episodes"
            longest = max(len(prompt) for turns in stories[0] for prompt, _ in turns)
        ours, theirs = (round(tokens / seconds) for seconds in best)
        print(f"{n} episodes, {tokens} tokens in replies, longest prompt {longest}: {ours} tokens/s, ", end="")
        print(f"transformers.generate {theirs}, {ours / theirs:.2f} times")
        result |= {f"tokens_{n}": ours, f"generate_tokens_{n}": theirs, f"ratio_{n}": round(ours / theirs, 2)}
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    main()

"""Whole episodes with given replies: what samplers are compared on, so that all write the same tokens."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from roleagent.agents.builders import EnvSplit
from roleagent.agents.policies import branches, own_cache, sampling
from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.policies.model_check import SamplingPath
from roleagent.agents.rollout import Rollout
from roleagent.envs.failures.command_noise import CommandNoise
from roleagent.learners.sft.demonstrations import Demonstration, demonstrate
from roleagent.types import Completion, Group, Request

GROUP = 8

Replies = Mapping[int, Sequence[Sequence[int]]]
"""The reply of each slot, call by call, in tokens."""


def scripted_episode(world: EnvSplit, task_id: str, rng: np.random.Generator) -> Demonstration:
    """The demonstration of an episode that a scripted agent wins."""
    while (shown := demonstrate(world.base, task_id, 0.2, CommandNoise((), rng), rng)) is None:
        pass
    return shown


def replies_of(rollout: Rollout, shown: Demonstration, thoughts: int = 0) -> list[Sequence[int]]:
    """The tokens of all actions, then of all predictions where these are sampled, cut at their limits.

    Args:
        rollout: writes the replies in its policy's tokens.
        shown: the episode.
        thoughts: tokens of a thought before each action.
    """
    reader, config = rollout.reader, rollout.config
    seen = [shown.observation, *(step.observation for step in shown.steps)]
    replies = []
    for step, text in zip(shown.steps, seen, strict=False):
        thought = rollout.policy.decode(rollout.policy.encode(f"{text} " * thoughts)[:thoughts])
        replies.append((f"<think>{thought}</think>" * bool(thoughts)) + reader.write(step.command))
    found: list[Sequence[int]]
    found = [rollout.text_reply(text, rollout.action_stops).token_ids[: config.action_tokens] for text in replies]
    if rollout.horizon:
        predictions = [f'<prediction h="1">{step.info["state"]}</prediction>' for step in shown.steps]
        written = (rollout.text_reply(text, rollout.prediction_stops) for text in predictions)
        found += [reply.token_ids[: config.prediction_tokens] for reply in written]
    return found


class Forced:
    """A policy that writes what it is given."""

    def begin(self, replies: Replies) -> None:
        """Starts a new set of episodes."""
        self.replies, self.calls = replies, dict.fromkeys(replies, 0)

    def next_replies(self, requests: Sequence[Request]) -> list[Sequence[int]]:
        """The reply to each request."""
        found = [self.replies[request.slot][self.calls[request.slot]] for request in requests]
        for request in requests:
            self.calls[request.slot] += 1
        return found


class Ours(Forced, HFPolicy):
    """The local policy, with replaced samples."""

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        reply_to = {id(request): reply for request, reply in zip(requests, self.next_replies(requests), strict=True)}
        asked, step, drawn, sample = list(requests), -1, sampling.draw, branches.Branches.sample

        def numbers(n: int, *_: Any) -> Iterator[torch.Tensor]:
            nonlocal step
            step = -1
            while True:
                step += 1
                yield torch.arange(n)

        def forced(
            logits: torch.Tensor, temperature: float, number: torch.Tensor, known: int | None = None
        ) -> tuple[torch.Tensor, torch.Tensor]:
            replies = [reply_to[id(asked[index])] for index in number.tolist()]
            _, logprobs = drawn(logits, temperature, torch.zeros(len(logits), dtype=torch.float64))
            tokens = [reply[step] if step < len(reply) else 0 for reply in replies]
            return torch.tensor(tokens, device=logits.device), logprobs

        def of_branches(table: branches.Branches, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
            nonlocal asked
            asked = table.requests
            return sample(table, *arguments)

        with ExitStack() as patches:
            for module in (sampling, branches, own_cache):
                patches.enter_context(patch.object(module, "draw", forced))
                patches.enter_context(patch.object(module, "uniforms", numbers))
            patches.enter_context(patch.object(branches.Branches, "sample", of_branches))
            return super().generate(requests, temperature)


class General(Ours):
    """The local policy on the general path, which models take that cannot take the fast one."""

    sampling_path = SamplingPath(own_cache.Means(), reason="asked for")  # pyright: ignore[reportAssignmentType] - not cached


class _Given(LogitsProcessor):
    """Forces one token per row."""

    def __init__(self, replies: torch.Tensor, start: int):
        self.replies, self.start = replies, start

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        step = input_ids.shape[1] - self.start
        return torch.full_like(scores, -torch.inf).scatter_(1, self.replies[:, step : step + 1], 0.0)


class Generate(Forced, HFPolicy):
    """The same model with ``transformers.generate``."""

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        if not requests:
            return []
        size = len(self.replies)
        if size < len(requests):  # in batches of the number of episodes: faster than all predictions at once
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
            logits_processor=LogitsProcessorList([_Given(forced, width)]),
        )[:, width:].tolist()
        found = []
        for row, reply in zip(out, replies, strict=True):
            assert row[: len(reply)] == list(reply), "transformers.generate said something else"
            found.append(Completion(tuple(reply), (0.0,) * len(reply), "stop"))
        return found


def play(
    policy: Any, world: EnvSplit, task_ids: Sequence[str], copies: int, replies: Replies
) -> tuple[float, int, list[Group]]:
    """Seconds, counted tokens, and the played groups.

    Args:
        policy: also :class:`Forced`.
        world: where it plays.
        task_ids: a group each.
        copies: episodes of a group.
        replies: of every episode, numbered group by group.
    """
    rollout = world.rollout(policy)
    policy.begin(replies)
    start = time.perf_counter()
    groups = rollout.play(task_ids, copies, 1.0)
    seconds = time.perf_counter() - start
    return seconds, rollout.stats.action_tokens + rollout.stats.prediction_tokens, groups

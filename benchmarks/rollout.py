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

Then 16 episodes of ``--turns`` turns against a sampler whose replies take drawn times (log-normal, sigma 1, mean
``--reply`` seconds): turn by turn, where each waits for the longest, against at once (``async_ratio``); and at once
followed by an update of as many seconds against ``rollout.async_level=1`` (``ahead_ratio``).
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parts.drawn_lengths import AtOnce, TurnByTurn, iterations, seconds_of
from parts.forced_replies import GROUP, Generate, Ours, play, replies_of, scripted_episode

from roleagent.agents.builders import EnvSplit
from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.policies.scratch_model import build_policy, train_tokenizer
from roleagent.agents.rendering import style_of
from roleagent.config import load
from roleagent.learners.sft.demonstrations import texts_of

LARGE = ("hidden_size=320", "layers=8", "heads=8", "kv_heads=4", "mlp_size=1024", "vocabulary=4096", "context=2048")
DEFAULT = Path(__file__).parents[1] / "configs" / "default.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, nargs="+", default=[16, 64], help="side by side (default: 16 64)")
    parser.add_argument("--rounds", type=int, default=2, help="of each side (default: 2)")
    parser.add_argument("--threads", type=int, default=1, help="of the processor (default: 1)")
    parser.add_argument("--full", action="store_true", help="11 million parameters, larger rooms, 30 turns at most")
    parser.add_argument("--turns", type=int, default=50, help="with drawn times (default: 50)")
    parser.add_argument("--reply", type=float, default=0.02, help="mean seconds of a drawn reply (default: 0.02)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    torch.set_num_threads(options.threads)

    overrides = [f"policy.{size}" for size in LARGE] if options.full else []
    overrides += ["env.kwargs.size=small", "env.kwargs.max_steps=30"] if options.full else []
    world = EnvSplit.open(load(DEFAULT, overrides), "train")
    config, rng = world.config, np.random.default_rng(options.seed)
    task_ids = [str(task) for task in rng.choice(list(world.task_split.task_ids), max(options.episodes) // GROUP)]
    shown = [scripted_episode(world, task, rng) for task in task_ids for _ in range(GROUP)]
    tags = ("<action>", "</action>", "</prediction>", '<prediction h="1">')
    words = train_tokenizer(texts_of(shown, style_of(config.prompt.style), 0), config.policy.vocabulary, tags)
    built = build_policy(config.policy, words, torch.Generator().manual_seed(options.seed))
    rollout = world.rollout(built)
    replies = {slot: replies_of(rollout, one) for slot, one in enumerate(shown)}
    sides = [side(built.model, words, torch.Generator(), config.policy.context) for side in (Ours, Generate)]
    print(f"{built.model.num_parameters() / 1e6:.2f} million parameters, {options.threads} threads")

    result: dict[str, Any] = {}
    for n in options.episodes:
        best = [float("inf")] * 2
        tokens, longest = 0, 0
        for _ in range(options.rounds):
            stories = []
            for number, policy in enumerate(sides):
                seconds, tokens, groups = play(policy, world, task_ids[: n // GROUP], GROUP, replies)
                story = [
                    [(turn.prompt_ids, turn.completion.token_ids) for turn in episode.turns]
                    for group in groups
                    for episode in group.trajectories
                ]
                best[number] = min(best[number], seconds)
                stories.append(story)
            assert stories[0] == stories[1], "the two sides played different episodes"
            longest = max(len(prompt) for turns in stories[0] for prompt, _ in turns)
        ours, theirs = (round(tokens / seconds) for seconds in best)
        print(f"{n} episodes, {tokens} tokens in replies, longest prompt {longest}: {ours} tokens/s, ", end="")
        print(f"transformers.generate {theirs}, {ours / theirs:.2f} times")
        result |= {f"tokens_{n}": ours, f"generate_tokens_{n}": theirs, f"ratio_{n}": round(ours / theirs, 2)}
    print("RESULT", json.dumps(result | drawn(options, built, task_ids[:2])))


def drawn(options: argparse.Namespace, policy: HFPolicy, task_ids: list[str]) -> dict[str, float]:
    """Whole iterations with replies of drawn lengths."""
    overrides = [f"env.kwargs.max_steps={options.turns}", "wia=off"]
    groups = [f"rollout.num_groups={len(task_ids)}", f"rollout.group_size={GROUP}"]
    ahead = ["rollout.async_level=1", *groups, "train.iterations=3"]
    world = EnvSplit.open(load(DEFAULT, [*overrides, *ahead]), "train")
    synchronous = replace(world, config=replace(world.config, rollout=replace(world.config.rollout, async_level=0)))
    waiting, alone = (
        seconds_of(world.rollout(kind(policy, options.reply, options.seed)), task_ids, GROUP)
        for kind in (TurnByTurn, AtOnce)
    )
    one, both = (
        iterations(kind, AtOnce(policy, options.reply, options.seed), task_ids, alone, 3)
        for kind in (synchronous, world)
    )
    print(f"{GROUP * len(task_ids)} episodes of {options.turns} turns: turn by turn {waiting:.1f} s, ", end="")
    print(f"at once {alone:.1f} s; three iterations {one:.1f} s, with rollout.async_level=1 {both:.1f} s")
    return {"async_ratio": round(waiting / alone, 2), "ahead_ratio": round(one / both, 2)}


if __name__ == "__main__":
    main()

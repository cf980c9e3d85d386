"""Compares the speed and memory of a policy update with TRL's ``GRPOTrainer``.

    python benchmarks/learner.py
    python benchmarks/learner.py --full      (all cases, a vocabulary of 32,000, longer episodes: half an hour)

Both sides update the same random Qwen2 model from the same sequences: one prompt per group of eight rollouts, then
turns of a reply and a longer, masked observation. Lengths are skewed, because successful episodes end early. Both
sides get the sampler's log-probabilities and use one thread, float32, AdamW, gradient clipping and the same clipped
loss. Loss and gradient norm of the first update must agree, or the program fails. Each side has its own processes.

TRL runs its own ``train()`` with its default settings in float32: 8 sequences per device, accumulation, recomputed
layers. Only its generation is replaced: it returns the given tensors with TRL's padding. ``keeping`` is TRL without
recomputation, which is faster and takes more memory. Our side has micro-batches of ``--budget`` tokens. Generation does
not count; the reference's pass does. ``general`` is our side on the path for models whose layers cannot share
beginnings: each sequence is computed by itself, and padded.

- ``skewed``: the main case. Our side has no padding, computes logits of replies only, computes shared prompts and first
  turns once, and recomputes only the logits of large vocabularies. Its micro-batches have a number of tokens.
- ``equal``: equal lengths and nothing shared, the least favorable case.
- ``kl`` (with ``--full``): ``skewed`` with a reference model.
- ``apart`` (with ``--full``): skewed lengths, but every rollout has its own prompt.

Speed is in real tokens per second of processor time, the fastest update after the first. Memory is the peak resident
memory during the updates of ``skewed`` above that of the loaded program. The default size shows both ratios for short
episodes and a vocabulary of 4,096.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parts.learner_sides import GROUP, compare, score, side

CASES = ("skewed", "equal", "kl", "apart")


def episodes(case: str, options: argparse.Namespace, rng: np.random.Generator) -> list[dict[str, Any]]:
    """A batch of sequences: token ids, length of the prompt, mask of sampled tokens, and advantage."""
    most, made = options.turns, []
    for _ in range(options.sequences // GROUP):
        prompt = rng.integers(3, options.vocabulary, options.prompt)
        for _ in range(GROUP):
            start = rng.integers(3, options.vocabulary, options.prompt) if case in ("apart", "equal") else prompt
            turns = most // 2 if case == "equal" else most if rng.random() < 0.25 else 1 + int(rng.integers(most // 2))
            ids, sampled = [*start], [0] * len(start)
            for turn in range(turns):
                reply, text = (8, 24) if case == "equal" else (int(rng.integers(5, 12)), int(rng.integers(8, 41)))
                text = 0 if turn == turns - 1 else text
                ids += [*rng.integers(3, options.vocabulary, reply + text)]
                sampled += [1] * reply + [0] * text
            made.append(
                {"ids": [int(i) for i in ids], "prompt": len(start), "sampled": sampled, "advantage": rng.normal()}
            )
    return made


def prepare(folder: Path, options: argparse.Namespace) -> None:
    """Writes the model, its tokenizer and the batches."""
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    from roleagent.agents.policies.scratch_model import train_tokenizer

    disable_progress_bar()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=options.vocabulary,
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // 32,
        num_key_value_heads=options.hidden // 64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    model: Any = Qwen2ForCausalLM(config)
    with torch.no_grad():  # the default initialization is nearly uniform over tokens
        model.get_input_embeddings().weight.mul_(5)
    model.save_pretrained(folder / "model")
    tokenizer = train_tokenizer(["go to desk 1", "take the pen"], 300, [])
    tokenizer.add_tokens([f"<{number}>" for number in range(len(tokenizer), options.vocabulary)])  # as the model has
    tokenizer.save_pretrained(folder / "model")
    for case in CASES:
        batch = episodes("skewed" if case == "kl" else case, options, np.random.default_rng(0))
        score(model.eval(), batch)
        (folder / case).write_bytes(pickle.dumps(batch))


def run(name: str, cases: Sequence[str], folder: Path) -> dict[str, dict[str, Any]]:
    """:func:`side` in a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--side", name, "--folder", str(folder), "--cases", *cases]
    threads = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **threads})
    if done.returncode:
        raise SystemExit(f"{name}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="larger: vocabulary 32,000, hidden size 384, 32 sequences")
    parser.add_argument("--budget", type=int, default=2048, help="tokens per micro-batch of ours (default 2048)")
    for hidden in ("--side", "--folder"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--cases", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    large = dict(vocabulary=32_000, hidden=384, layers=6, sequences=32, prompt=256, turns=30, updates=2)
    small = dict(vocabulary=4096, hidden=128, layers=4, sequences=16, prompt=64, turns=12, updates=2)
    vars(options).update(large if options.full else small)
    if options.side:
        print(json.dumps(side(options.side, Path(options.folder), options.cases, options)))
        return
    if importlib.util.find_spec("trl") is None:
        raise SystemExit("TRL is not installed: pip install trl")
    torch.set_num_threads(1)
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    cases = list(CASES if options.full else CASES[:2])
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, options)
        found, against = run("ours", cases, folder), run("trl", cases, folder)
        general, keeping = run("general", cases[:2], folder), run("trl-keeping", cases[:1], folder)
        for case in cases:
            lengths = [len(one["ids"]) for one in pickle.loads((folder / case).read_bytes())]
            tokens, memory = compare(case, lengths, found[case], against[case])
            if case == "skewed":
                result |= {"tokens_ratio": tokens, "memory_ratio": memory}
                tokens, memory = compare("keeping", lengths, found[case], keeping[case])
                result |= {"tokens_ratio_keeping": tokens, "memory_ratio_keeping": memory}
            else:
                result[f"tokens_ratio_{case}"] = tokens
            if case in general:
                result[f"tokens_ratio_{case}_general"] = compare(
                    f"{case}, general", lengths, general[case], against[case]
                )[0]
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    main()

"""Repeats computations that must always give the same result, while other processes keep the machine busy.

    python benchmarks/repeats.py
    python benchmarks/repeats.py --times 5000 --load 8 --threads 4
    python benchmarks/repeats.py --vllm-url http://127.0.0.1:8000 rollout.backend=vllm

Some differences appear once in thousands of times: raise ``--times``. Three things are tried:

- ``update``: loss and gradient of an imitation batch with the same weights. Each repetition has other free memory, and
  must give the same numbers bit for bit.
- ``local``: the local policy samples replies to prompts in groups that are drawn anew. Each reply's log-probabilities
  must be those of the learner for the same tokens, up to ``--tolerance`` nats.
- ``vllm``: the same with vLLM in this process, or with the server at ``--vllm-url``. Without vLLM it is not run.

``--load`` processes compute beside it. ``RESULT`` has for each the repetitions, how many differed, and the largest
difference; the exit status is 1 if any differed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.policies.protocol import Policy
from roleagent.agents.policies.scratch_model import build_policy, train_tokenizer
from roleagent.config import load
from roleagent.learners.engine.logprobs import TokenScorer, collate
from roleagent.learners.engine.lora import ModuleWeights
from roleagent.slow_notice import waiting
from roleagent.types import ACTION, CONTEXT, Request, Segment

DEFAULT = Path(__file__).parents[1] / "configs" / "default.yaml"
BUSY = "import numpy as np\nx = np.ones((600, 600))\nwhile True: x @ x"
GROUP, REPLY = 16, 24  # prompts of a call, at most, and tokens of a reply


def segment(prompt: Sequence[int], reply: Sequence[int], logprobs: Sequence[float] = ()) -> Segment:
    """A prompt and its reply as a training sequence."""
    kinds = [CONTEXT] * len(prompt) + [ACTION] * len(reply)
    known = [0.0] * len(prompt) + list(logprobs or [0.0] * len(reply))
    return Segment(np.array([*prompt, *reply]), np.array(kinds), np.array(known), np.zeros(len(kinds)))


def texts(policy: HFPolicy, count: int, rng: np.random.Generator) -> list[list[int]]:
    """Prompts of random tokens, of unequal lengths, some with a common beginning."""
    vocabulary = len(policy.tokenizer)
    first = rng.integers(vocabulary, size=40).tolist()
    return [[*first[: rng.integers(40)], *rng.integers(vocabulary, size=rng.integers(4, 200)).tolist()]
            for _ in range(count)]  # fmt: skip


def update(policy: HFPolicy, times: int, rng: np.random.Generator) -> dict[str, Any]:
    """Loss and gradient of one batch again and again."""
    batch = [segment(text, rng.integers(len(policy.tokenizer), size=REPLY).tolist()) for text in texts(policy, 4, rng)]
    scorer = TokenScorer(policy.model.train())
    first: torch.Tensor | None = None
    different, largest = 0, 0.0
    for _ in range(times):
        free = [torch.empty(int(size)) for size in rng.integers(1, 100_000, size=5)]  # other places for what follows
        policy.model.zero_grad()
        loss = -scorer(collate(batch, 0), 1.0)[0].mean()
        loss.backward()
        gradients = [weight.grad.flatten() for weight in policy.model.parameters() if weight.grad is not None]
        found = torch.cat([loss.detach().flatten(), *gradients])
        first = found if first is None else first
        different += not torch.equal(found, first)
        largest = max(largest, float((found - first).abs().max()))
        del free
    policy.model.eval().zero_grad()
    return {"update": times, "update_different": different, "update_largest": largest}


def sampled(name: str, actor: Policy, policy: HFPolicy, options: argparse.Namespace) -> dict[str, Any]:
    """The log-probabilities of sampled replies beside the learner's."""
    rng = np.random.default_rng(options.seed)
    known, scorer = texts(policy, 4 * GROUP, rng), TokenScorer(policy.model.eval())
    replies = different = 0
    largest = 0.0
    actor.reseed(options.seed)
    while replies < options.times:
        chosen = [known[place] for place in rng.permutation(len(known))[: rng.integers(1, GROUP + 1)]]
        slots = rng.permutation(GROUP)
        asked = [
            Request(tuple(text), int(slot), REPLY, actor.end_ids) for text, slot in zip(chosen, slots, strict=False)
        ]
        answers = actor.generate(asked, 1.0)
        rows = [segment(one.prompt_ids, reply.token_ids) for one, reply in zip(asked, answers, strict=True)]
        with torch.no_grad():
            for row, reply in zip(rows, answers, strict=True):  # each alone, as nothing is beside it
                scores = scorer(collate([row], 0), 1.0)[0].double().numpy()
                gap = float(np.abs(scores - np.array(reply.logprobs)).max())
                different += gap > options.tolerance
                largest = max(largest, gap)
        replies += len(rows)
    return {name: replies, f"{name}_different": different, f"{name}_largest": largest}


def with_vllm(policy: HFPolicy, options: argparse.Namespace) -> dict[str, Any]:
    """As :func:`sampled`, by vLLM with the same weights."""
    if importlib.util.find_spec("vllm") is None and not options.vllm_url:
        return {"vllm": "not run: vLLM is not installed, and there is no --vllm-url"}
    from roleagent.agents.policies.vllm.policy import open_vllm

    url = [f"vllm.url={options.vllm_url}"] if options.vllm_url else []
    actor = open_vllm(load(DEFAULT, ["rollout.backend=vllm", *url, *options.overrides]), policy)
    actor.sync(ModuleWeights(policy.model), 0)
    return sampled("vllm", actor, policy, options)


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keeps the machine busy during the block."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    beside = [subprocess.Popen([sys.executable, "-c", BUSY], env=environment) for _ in range(processes)]
    try:
        yield
    finally:
        for process in beside:
            process.kill()
            process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=100, help="repetitions of each (default: %(default)s)")
    parser.add_argument("--load", type=int, default=os.cpu_count(), help="processes beside it (default: cores)")
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch (default: %(default)s)")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="nats of a token (default: %(default)s)")
    parser.add_argument("--vllm-url", help="of a server (docs/vllm.md)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="options of vLLM and of the policy's sizes")
    options = parser.parse_intermixed_args(arguments)
    torch.set_num_threads(options.threads)
    config = load(DEFAULT, options.overrides)
    words = train_tokenizer(["You arrive at the desk."], config.policy.vocabulary, ("<action>", "</action>"))
    policy = build_policy(config.policy, words, torch.Generator().manual_seed(options.seed))
    rng = np.random.default_rng(options.seed)
    result: dict[str, Any] = {"threads": options.threads, "load": options.load}
    began = time.perf_counter()
    with busy(options.load), waiting("repetitions"):
        result |= update(policy, options.times, rng)
        result |= sampled("local", policy, policy, options)
        result |= with_vllm(policy, options)
    print(f"{time.perf_counter() - began:.0f} s")
    print("RESULT", json.dumps(result))
    return 1 if any(found for name, found in result.items() if name.endswith("_different")) else 0


if __name__ == "__main__":
    sys.exit(main())

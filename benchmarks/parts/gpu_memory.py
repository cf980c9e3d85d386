"""What a configuration takes of each GPU, computed from the sizes of its model: docs/scaling.md names the terms.

python benchmarks/parts/gpu_memory.py [--gpus 8] [--card 79] CONFIG …      (--gpus 1: the files for one GPU)
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from roleagent.config import Config, load
from roleagent.learners.engine.engine import deepspeed_settings, policy_computes, zero_stage
from roleagent.learners.engine.logprobs import block_rows
from roleagent.learners.method import method_of

GIB = 2**30
CARD = 79.0
"""GiB that an H100 or A100 of 80 GB has."""
OVERHEAD = 3.0
"""GiB of CUDA, NCCL, vLLM's graphs while it sleeps, and gaps between tensors."""
GRAPHS = 4 * 2**20
"""Bytes that an engine with a cache of given size takes for CUDA graphs and activations, per sequence of
``max_num_seqs``, assumed."""
CONTEXT = GIB // 2
"""Bytes that CUDA takes for an engine in a process of its own, assumed."""
BUCKET = 500_000_000
"""Numbers of a bucket in which DeepSpeed reduces gradients (``reduce_bucket_size``); two are under way."""
LIVE = 1_000_000_000
"""Parameters that ZeRO 3 keeps gathered at most (``stage3_max_live_parameters``)."""
WRITTEN = 64 * 1500
"""Tokens of the replies that a task writer samples side by side, with their prompts."""


@dataclass(frozen=True)
class Size:
    """The sizes of a transformer: hidden width, layers, heads, heads of keys and values, MLP width, vocabulary.

    Attributes:
        head: width of an attention head.
        bias: whether queries, keys and values have one.
        tied: whether the head's matrix is the embedding.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    vocabulary: int
    head: int = 128
    bias: bool = True
    tied: bool = True

    @property
    def parameters(self) -> int:
        """How many there are."""
        queries, values = self.heads * self.head, self.kv_heads * self.head
        attention = self.hidden * (2 * queries + 2 * values) + self.bias * (queries + 2 * values)
        layer = attention + 3 * self.hidden * self.mlp + 2 * self.hidden
        return self.layers * layer + self.hidden + self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def cache(self) -> int:
        """Bytes of keys and values per token, in bfloat16."""
        return 2 * self.layers * self.kv_heads * self.head * 2


SIZES = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": Size(576, 30, 9, 3, 1536, 49_152, head=64, bias=False),
    "Qwen/Qwen2.5-0.5B-Instruct": Size(896, 24, 14, 2, 4864, 151_936, head=64),
    "Qwen/Qwen2.5-1.5B-Instruct": Size(1536, 28, 12, 2, 8960, 151_936),
    "Qwen/Qwen2.5-3B-Instruct": Size(2048, 36, 16, 2, 11_008, 151_936),
    "Qwen/Qwen2.5-7B-Instruct": Size(3584, 28, 28, 4, 18_944, 152_064, tied=False),
    "meta-llama/Llama-3.1-8B-Instruct": Size(4096, 32, 32, 8, 14_336, 128_256, bias=False, tied=False),
}


def peak_memory(config: Config, size: Size, gpus: int, card: float = CARD) -> dict[str, float]:
    """GiB per GPU at the peak of each part of an iteration, in bfloat16 without adapters.

    Args:
        config: of the run.
        size: of ``policy.path``.
        gpus: ranks of the run, one per GPU.
        card: GiB of a GPU.

    Returns:
        ``rollout``, ``update``, and of a task writer with weights of its own ``writing`` and ``writer_update``.
    """
    stage, whole = zero_stage(config), 2 * size.parameters
    zero = deepspeed_settings(config)["zero_optimization"]
    part = 1 if stage < 1 else gpus
    states = 0 if "offload_optimizer" in zero else 12 * size.parameters / part
    parts = 0 if "offload_param" in zero else whole / gpus
    model = parts if stage == 3 else whole
    gradients = 4 * size.parameters / (gpus if stage >= 2 else 1)
    if stage == 1 and "offload_optimizer" not in zero:  # the fp32 sums stay, beside what the backward pass leaves
        states, gradients = states + gradients, 2 * size.parameters
    resident = model + states
    if stage == 3 and policy_computes(config):
        resident += whole
    if method_of(config).stage == "train" and config.loss.kl:
        resident += model
    if method_of(config).critic:
        resident += model + states
    writes = config.genenv and config.simulator_is_model and not config.shares_simulator
    if writes and stage < 3:
        resident += 2 * whole + states  # it, and what it began as
    episodes = config.rollout.num_groups * config.rollout.group_size / gpus
    if config.rollout.backend == "local":
        sampler = episodes * config.policy.context * size.cache
    elif config.vllm.url:
        sampler = 0.0
    elif cache := config.vllm.extra.get("kv_cache_memory_bytes"):
        sequences, engines = config.vllm.extra.get("max_num_seqs", 256), config.vllm.engines
        sampler = max(1, engines) * (whole + cache + GRAPHS * sequences) + engines * CONTEXT
    else:
        sampler = config.vllm.memory * card * GIB
    awake = 0.0 if config.vllm.sleep or config.rollout.backend == "local" else sampler

    tokens = config.optim.micro_batch_tokens
    layer = (2 * (12.5 * size.hidden + 4 * size.mlp) + size.cache / size.layers) * tokens
    kept = 2 * size.hidden * tokens * size.layers
    activations = kept + layer if config.deepspeed.activation_checkpointing else size.layers * layer
    matrix = size.vocabulary * size.hidden
    head = 3 * 4 * block_rows(size.vocabulary, "cuda") * size.vocabulary + (4 + 2) * matrix
    gathered = 2 * (min(LIVE, size.parameters) + matrix) if stage == 3 else 0
    passes = activations + head + gathered + 2 * 2 * zero.get("reduce_bucket_size", BUCKET)
    found = {"rollout": resident + sampler, "update": resident + awake + gradients + passes}
    if writes:
        here = whole if stage == 3 else 0
        found["writing"] = resident + sampler + here + WRITTEN * size.cache
        found["writer_update"] = resident + awake + (0 if stage == 3 else gradients) + passes
    return {name: taken / GIB + OVERHEAD for name, taken in found.items()}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", type=Path, nargs="+", metavar="CONFIG")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--card", type=float, default=CARD, help="GiB of a GPU (default: %(default)s)")
    options = parser.parse_args()
    result = {}
    for path in options.configs:
        config = load(path)
        found = peak_memory(config, SIZES[config.policy.path], options.gpus, options.card)
        result[path.stem] = {name: round(taken, 1) for name, taken in found.items()}
        print(f"{path.stem:36}", *(f"{name} {taken:5.1f} GiB" for name, taken in found.items()))
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    main()

"""What two processes do together for ``test_deepspeed.py``, or one alone: many cases in one start.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=… MASTER_PORT=… python tests/together.py FOLDER

Each rank writes ``rank-N.pt`` there: by the name of a case what came of it.
"""

import contextlib
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_grad
from programs import load as program
from tiny import qwen

from roleagent.config import load
from roleagent.config.settings import LoRAConfig
from roleagent.learners.engine.engine import Learner
from roleagent.learners.engine.lora import Adapter, adapt
from roleagent.learners.run.ranks import Ranks
from roleagent.types import Request, Segment

families = program("benchmarks/parts/tiny_families")
UPDATES = 10
# Every weight is taken apart, however small.
SMALL = "deepspeed.extra.zero_optimization.stage3_param_persistence_threshold=0"
BF16 = "policy.dtype=bfloat16"
OFFLOADED = (
    "deepspeed.extra.zero_optimization.offload_optimizer={device: cpu}",
    "deepspeed.extra.zero_optimization.offload_param={device: cpu}",
)
TRAININGS = {
    **{f"fp32 {stage}": (f"deepspeed.zero_stage={stage}",) for stage in range(4)},
    **{f"bf16 {stage}": (f"deepspeed.zero_stage={stage}", BF16) for stage in range(1, 4)},
    "offload 2": ("deepspeed.zero_stage=2", *OFFLOADED[:1]),
    "offload 3": ("deepspeed.zero_stage=3", *OFFLOADED),
    **{f"again {s}": (f"deepspeed.zero_stage={s}", "deepspeed.activation_checkpointing=on") for s in (0, 2, 3)},
}
CONTINUED = [(name, 0) for name in ("fp32 0", "fp32 3", "bf16 1", "bf16 2", "bf16 3", "offload 3")]
CONTINUED += [(name, 4) for name in ("fp32 0", "bf16 2", "fp32 3")]


def batch(number):
    """Segments of unequal lengths, with what they are worth; always the same."""
    rng = np.random.default_rng(number)
    made = []
    for _ in range(8):
        n = int(rng.integers(6, 40))
        mask = (0, 0, *map(int, rng.integers(0, 2, n - 3)), 1)
        values = tuple(float(value) for value in rng.normal(size=n))
        made.append(Segment(tuple(map(int, rng.integers(5, 300, n))), mask, (0.0,) * n, values))
    return made


def objective(tokens):
    return -(tokens.columns["worth"] * tokens.logprobs).sum()


def update(learner, segments):
    worth = {"worth": [segment.advantages / 100 for segment in segments]}
    return learner.update(segments, worth, objective, temperature=1.0)


def train(learner, ranks, numbers):
    """This rank's part of the updates with some batches."""
    for number in numbers:
        update(learner, ranks.share(batch(number)))


def learner_of(*options, adapter=0, reference=None, words=0, family=""):
    policy = qwen(seed=3)
    if family:
        policy.model = families.build(family, len(policy.tokenizer), policy.eos_id)
    if words:
        torch.manual_seed(0)
        policy.model.resize_token_embeddings(words)
    if BF16 in options:
        policy.model.to(torch.bfloat16)
    if adapter:
        adapt(policy.model, LoRAConfig(rank=adapter), torch.Generator().manual_seed(1))
    # 180 tokens: the eight segments of a batch are two micro-batches for one process, one for each of two.
    config = load(
        overrides=["optim.micro_batch_tokens=180", "optim.lr=1e-3", "optim.max_grad_norm=0.5", SMALL, *options]
    )
    return Learner(policy, config, config.optim.lr, reference(policy) if reference else None)


def weights_of(learner):
    return {name: weight.float().clone() for name, weight in learner.weights()}


@contextlib.contextmanager
def watched_gradients(learner, found):
    """Keeps the gradients of the next update, as they are when the step begins."""
    step = learner.engine.step

    def stepped():
        if learner.engine.is_gradient_accumulation_boundary():
            for name, weight in learner.module.model.named_parameters():
                whole = weight.grad if not learner.stage else safe_get_full_grad(weight)
                found[name] = whole.float().clone()
        step()

    learner.engine.step = stepped
    yield
    learner.engine.step = step


def trainings(ranks):
    """The same updates under all settings: gradients of the first, norms of all, weights after the last."""
    for name, options in TRAININGS.items():
        learner = learner_of(*options)
        gradients, norms = {}, []
        for number in range(UPDATES):
            learner.share = number / UPDATES
            own = ranks.share(batch(number))
            with watched_gradients(learner, gradients) if not number else contextlib.nullcontext():
                norms.append(update(learner, own))
        weights = weights_of(learner)
        plain = {name: weight.float() for name, weight in learner.policy.model.state_dict().items()}
        same = all(torch.equal(weights[name], plain[name]) for name in plain)
        learner.close()
        yield f"train {name}", {"gradients": gradients, "norms": norms, "weights": weights, "policy_has_them": same}


WORDS = 72_000
"""A vocabulary whose logits are cut into blocks of 64 rows."""


def large_vocabulary(ranks):
    """Ranks with several blocks of logits and with one take the steps of one rank that has all tokens."""
    rng = np.random.default_rng(5)
    made = [
        Segment(rng.integers(5, WORDS, n), np.array([0, *[1] * (n - 1)]), np.zeros(n), rng.normal(size=n))
        for n in (50, 60, 70, 80)
    ]
    for stage in (2, 3):
        learner = learner_of(f"deepspeed.zero_stage={stage}", words=WORDS)
        own = made if ranks.size == 1 else made[1:] if ranks.first else made[:1]
        norms = [update(learner, own) for _ in range(2)]
        scores = [float(row.sum()) for row in learner.score(own, 1.0)]
        learner.close()
        yield f"large vocabulary {stage}", {"norms": norms, "scores": scores}


def at_once(ranks):
    """One rank has played at once and has nothing to learn from; the other goes on playing for a while."""
    for stage in range(4):
        learner = learner_of(f"deepspeed.zero_stage={stage}", reference=lambda policy: qwen(seed=4).model)
        prompts = [Request((9, 8, 7 + row), row, 30, frozenset()) for row in range(4)]
        said = 0
        for number in range(3):
            if ranks.first:
                for _ in range(4):
                    said += sum(len(answer.token_ids) for answer in learner.policy.generate(prompts, 1.0))
            played = batch(number) if ranks.first else []
            learner.score(played, 1.0, learner.reference)  # each its own, which waits for nobody
            learner.score(played, 1.0)
            update(learner, played)
            for _ in learner.weights():
                pass
        weights, reference = weights_of(learner), rows(learner.score(batch(99), 1.0, learner.reference))
        spread = any(hasattr(weight, "ds_id") for weight in learner.reference.parameters())
        learner.close()
        found = {"said": said, "weights": weights, "version": learner.policy.version, "spread": spread}
        yield f"at once {stage}", found | {"reference": reference}


def continued(ranks, folder):
    """Saved after three updates and two more; loaded by another learner and the same two."""
    for name, adapter in CONTINUED:
        first = learner_of(*TRAININGS[name], adapter=adapter)
        train(first, ranks, range(3))
        place = folder / f"{name} {adapter} {ranks.size}"
        first.save(place)
        kept = weights_of(first)
        train(first, ranks, (3, 4))
        expected = weights_of(first)
        first.close()
        second = learner_of(*TRAININGS[name], adapter=adapter)
        second.load(place)
        again = weights_of(second)
        train(second, ranks, (3, 4))
        found = weights_of(second)
        second.close()
        yield f"continued {name} {adapter}", {"kept": kept, "again": again, "expected": expected, "found": found}


def experts(ranks):
    """A mixture of experts: a rank's tokens may pass by experts that another rank's need."""
    for name in ("Qwen3-MoE", "gpt-oss"):
        for stage in (0, 3):
            learner = learner_of(f"deepspeed.zero_stage={stage}", family=name)
            with learner.module.routers as routers:
                norms = [update(learner, ranks.share(batch(number))) for number in range(4)]
            found = {"norms": norms, "router_loss": routers.loss(ranks.everywhere), "weights": weights_of(learner)}
            found["parts"] = sum(weight.numel() for weight in learner.module.parameters())
            learner.close()
            yield f"{name} {stage}", found


def rows(scores):
    return [row.tolist() for row in scores]


def with_adapters(ranks):
    """What adapters alone learn, and what the reference says meanwhile."""
    for stage in range(4):
        learner = learner_of(
            f"deepspeed.zero_stage={stage}", adapter=4, reference=lambda policy: Adapter.of(policy.model)
        )
        probe = batch(99)
        before = rows(learner.score(probe, 1.0))
        train(learner, ranks, range(5))
        weights, adapter = weights_of(learner), learner.adapter()
        states = [value for state in learner.optimizer.state.values() for value in state.values() if value.dim()]
        found = {"before": before, "after": rows(learner.score(probe, 1.0)), "weights": weights}
        found |= {"reference": rows(learner.score(probe, 1.0, learner.reference))}
        found |= {"trained": sum(w.numel() for w in adapter.weights.values()), "states": sum(w.numel() for w in states)}
        yield f"adapters {stage}", found
        learner.close()


def main(folder):
    torch.set_num_threads(1)
    with Ranks.join() as ranks:
        found = {}
        cases = large_vocabulary(ranks), trainings(ranks), with_adapters(ranks), experts(ranks)
        for part in (*cases, continued(ranks, folder)):
            for name, what in part:
                print(name, file=sys.stderr, flush=True)
                found[name] = what
        if ranks.size > 1:
            found.update(at_once(ranks))
        torch.save(found, folder / f"rank-{ranks.rank}.pt")
    assert not dist.is_initialized() or ranks.size == 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))

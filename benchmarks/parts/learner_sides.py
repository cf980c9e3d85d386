"""The two sides of ``learner.py`` and ``pretrained.py``: an update by this project's learner, and TRL's ``train()``, on
the same batch."""

from __future__ import annotations

import argparse
import gc
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

GROUP = 8
CLIP, KL, RATE = (0.2, 0.28), 1e-3, 1e-4


def ours(
    folder: Path, case: str, options: argparse.Namespace, general: bool = False
) -> tuple[Callable[[], dict[str, float]], Callable[[], None]]:
    """An update with this project's learner, and a function that closes the learner.

    ``general``: on the path that every causal model can take, in which each row is computed by itself and padded.
    """
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    from roleagent.agents.policies.hf import HFPolicy
    from roleagent.config import Config
    from roleagent.config.settings import LossConfig, OptimConfig
    from roleagent.learners.engine import engine
    from roleagent.learners.engine.logprobs import Scoring
    from roleagent.learners.update import policy_step
    from roleagent.types import Segment

    def load() -> Any:
        return AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)

    kl = KL if case == "kl" else 0.0
    config = Config(
        loss=LossConfig(clip_low=CLIP[0], clip_high=CLIP[1], kl=kl),
        optim=OptimConfig(warmup_steps=1, micro_batch_tokens=options.budget, minibatches=1),
    )
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "model")
    policy = HFPolicy(load(), tokenizer, torch.Generator())
    find = (lambda *_: Scoring(shares=False)) if general else engine.find_scoring
    with patch.object(engine, "find_scoring", find):
        learner = engine.Learner(policy, config, RATE, load().requires_grad_(False) if kl else None)
    batch = pickle.loads((folder / case).read_bytes())
    segments = [
        Segment(
            np.array(one["ids"]),
            sampled := np.array(one["sampled"]),
            np.array(one["logprobs"]) * sampled,
            one["advantage"] * sampled,
            number,
        )
        for number, one in enumerate(batch)
    ]

    def update() -> dict[str, float]:
        columns: dict[str, Any] = {
            "weights": [np.array(one["sampled"]) / sum(one["sampled"]) / len(batch) for one in batch],
            "advantages": [segment.advantages for segment in segments],
            "sampler": [segment.sampler_logprobs for segment in segments],
        }
        if kl:
            columns["reference"] = learner.score(segments, 1.0, learner.reference)
        found = policy_step(learner, segments, columns, 1.0)
        assert found is not None
        return found

    return update, learner.close


def theirs(folder: Path, case: str, recompute: bool, steps: int) -> dict[str, Any]:
    """Repeats TRL's ``train()`` on the batch."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    batch = pickle.loads((folder / case).read_bytes())
    longest = max(len(one["ids"]) - one["prompt"] for one in batch)
    head = max(one["prompt"] for one in batch)

    def left(rows: list[list[int]]) -> torch.Tensor:
        return torch.tensor([[0] * (head - len(row)) + row for row in rows])

    def right(rows: list[list[Any]], fill: float = 0) -> torch.Tensor:
        return torch.tensor([row + [fill] * (longest - len(row)) for row in rows])

    given = {
        "prompt_ids": left([one["ids"][: one["prompt"]] for one in batch]),
        "prompt_mask": left([[1] * one["prompt"] for one in batch]),
        "completion_ids": right([one["ids"][one["prompt"] :] for one in batch]),
        "completion_mask": right([[1] * (len(one["ids"]) - one["prompt"]) for one in batch]),
        "tool_mask": right([one["sampled"][one["prompt"] :] for one in batch], 1),
        "advantages": torch.tensor([one["advantage"] for one in batch], dtype=torch.float32),
        "old_per_token_logps": right([one["logprobs"][one["prompt"] :] for one in batch], 0.0),
        "num_items_in_batch": torch.tensor(float(sum(sum(one["sampled"]) for one in batch))),
    }
    seconds: list[float] = []
    logged: list[dict[str, float]] = []

    class Given(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            seconds.append(-time.process_time())
            made = dict(given)
            if self.beta:
                ids = torch.cat([made["prompt_ids"], made["completion_ids"]], 1)
                mask = torch.cat([made["prompt_mask"], made["completion_mask"]], 1)
                with torch.no_grad():  # as TRL does at this place
                    made["ref_per_token_logps"] = self._get_per_token_logps_and_entropies(
                        self.ref_model, ids, mask, longest, self.args.per_device_train_batch_size
                    )[0]
            return made

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds[-1] += time.process_time()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            logged.append({name: logs[name] for name in ("loss", "grad_norm") if name in logs})

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "model")
    trainer = Given(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": ["go"] * len(batch)}),
        callbacks=[Clock()],
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=recompute,
            gradient_accumulation_steps=len(batch) // 8,
            num_generations=GROUP,
            loss_type="grpo",
            epsilon=CLIP[0],
            epsilon_high=CLIP[1],
            beta=KL if case == "kl" else 0.0,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            adam_beta2=0.95,
            weight_decay=0.01,
            max_steps=steps,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    )
    forget_peak()
    before = resident("VmRSS")
    trainer.train()
    return {"seconds": seconds, "first": logged[0], "megabytes": resident("VmHWM") - before}


@torch.no_grad()
def score(model: Any, batch: list[dict[str, Any]]) -> None:
    """Adds the log-probabilities of the sampled tokens to each sequence, with noise as after some updates."""
    rng = torch.Generator().manual_seed(5)
    for episode in batch:
        ids = torch.tensor(episode["ids"])
        found = model(ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        episode["logprobs"] = [0.0, *(found + 0.05 * torch.randn(found.shape, generator=rng)).tolist()]


def side(name: str, folder: Path, cases: list[str], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Seconds per update, memory, and loss and gradient norm of the first update of one side, by case."""
    if name not in ("ours", "general"):
        return {case: theirs(folder, case, name == "trl", options.updates) for case in cases}
    from roleagent.learners.run.ranks import Ranks

    with Ranks.join():
        return {case: timed(*ours(folder, case, options, name == "general"), options.updates) for case in cases}


def timed(update: Callable[[], dict[str, float]], close: Callable[[], None], updates: int) -> dict[str, Any]:
    """Measures some updates of :func:`ours`."""
    gc.collect()
    forget_peak()
    before = resident("VmRSS")
    seconds, said = [], []
    for _ in range(updates):
        seconds.append(-time.process_time())
        said.append(update())
        seconds[-1] += time.process_time()
    memory = resident("VmHWM") - before
    close()
    return {
        "seconds": seconds,
        "first": {name: said[0][name] for name in ("loss", "grad_norm")},
        "megabytes": memory,
    }


def compare(label: str, lengths: list[int], found: dict[str, Any], against: dict[str, Any]) -> tuple[float, float]:
    """Prints a case and returns the ratios of tokens per second and of memory.

    Raises:
        SystemExit: the two sides computed different losses.
    """
    for key, value in found["first"].items():
        if abs(against["first"][key] - value) > 2e-3 * abs(value) + 2e-4:
            raise SystemExit(f"{label}: {key} is {value} here and {against['first'][key]} in TRL")
    rates = [sum(lengths) / min(each["seconds"][1:]) for each in (found, against)]
    memory = [each["megabytes"] for each in (found, against)]
    # Later cases of a process reuse freed memory, so only the first one counts.
    room = [f", {each:.0f} MB" if label in ("skewed", "keeping") else "" for each in memory]
    print(
        f"{label}: {len(lengths)} sequences of {min(lengths)} to {max(lengths)} tokens, "
        f"{sum(lengths) / max(lengths) / len(lengths):.0%} without padding; "
        f"ours {rates[0]:.0f} tokens/s{room[0]}; TRL {rates[1]:.0f} tokens/s{room[1]}"
    )
    return round(rates[0] / rates[1], 2), round(memory[0] / memory[1], 2)


def resident(what: str) -> float:
    """This process's memory in MB (Linux): ``VmRSS`` now, ``VmHWM`` the peak since :func:`forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1000


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")

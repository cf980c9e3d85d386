"""Plays and trains a tiny model of each family of causal language models, and prints how.

    python benchmarks/families.py --families all
    python benchmarks/families.py --families "Gemma 3" Qwen3.5 --lora

Each model has random weights, two layers, windows of 32 tokens, a real tokenizer and a chat template, and is saved as a
folder. ``evaluate.py`` plays two tasks of the toy kitchen with it. ``train.py`` imitates two demonstrations, plays a
group of episodes, predicts their states, and learns: all weights, or adapters with ``--lora``. The exported policy is
evaluated.

The table has a row for each family: its paths (:mod:`roleagent.agents.policies.model_check`,
:mod:`roleagent.learners.engine.logprobs`), what succeeded, and how far sampler and learner are apart at equal weights:
the largest difference of a sampled token's log-probability, in nats. ``--markdown`` prints it for docs/pretrained.md.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import transformers
from parts.tiny_families import FAMILIES, build
from rich.console import Console
from rich.table import Table

import roleagent
from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.policies.own_cache import Means
from roleagent.agents.policies.scratch_model import train_tokenizer
from roleagent.config import merged
from roleagent.learners.engine.logprobs import find_scoring
from roleagent.learners.run.export import export

SHORT = ("Qwen3", "Qwen3.5", "Gemma 3", "Gemma 4", "gpt-oss", "Granite 3", "Mamba 2")
TEXTS = (
    "You are in a kitchen. There are: basket, cupboard 1, drawer 2, counter, table, tray, stove, fridge, sink.",
    "Your task is to: put a hot egg on the table. You carry nothing. It is closed. You see egg, potato.",
    "go to cupboard 1, open fridge, take egg from cupboard 1, move egg to table, heat egg with stove",
)
TAGS = ("<action>", "</action>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAYED = {
    "env_id": "RoleAgent/Toy-v0",
    "split": "valid",
    "tasks": 2,
    "env": {"kwargs": {"max_steps": 8}},
    "rollout": {"action_tokens": 24},
    "policy": {"context": 4096},
}
TRAINED = {
    "env": {"id": "RoleAgent/Toy-v0", "eval_split": "valid", "eval_tasks": 2, "kwargs": {"max_steps": 8}},
    "rollout": {
        "num_groups": 1,
        "group_size": 2,
        "action_tokens": 24,
        "dynamic_sampling_rounds": 0,
        "prediction_tokens": 24,
    },
    "warmstart": {"episodes": 2, "epochs": 1, "rounds": 0},
    "train": {"iterations": 1, "evaluate_every": 0},
    "aiw": False,
}


VLLM = {
    "rollout": {"backend": "vllm"},
    "vllm": {"memory": 0.1, "extra": {"kv_cache_memory_bytes": 2**26, "enforce_eager": True}},
}
APART = 0.01
"""Nats: what rounding does not explain."""
LIMITS = {
    Means(continues=False): ", prompts read whole",
    Means(continues=False, pads=False): ", prompts read whole, equal lengths together",
    Means(continues=False, joins=False, pads=False): ", prompts read whole, one by one",
    Means(joins=False, pads=False): ", one by one",
    Means(pads=False): ", equal lengths together",
    Means(caches=False, continues=False, pads=False): " without a cache",
}
"""What a model's own cache cannot do."""


def measure(family: str, lora: bool, vllm: bool) -> dict[str, Any]:
    """The row of a family."""
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as name:
        return _measured(family, Path(name), lora, vllm)


def _measured(family: str, folder: Path, lora: bool, vllm: bool) -> dict[str, Any]:
    started, words = time.monotonic(), train_tokenizer(TEXTS, 360, TAGS)
    words.chat_template = TEMPLATE
    model = folder / "model"
    factor = 4 if vllm else 1  # its narrowest attention on a CPU has 32 numbers per head
    build(family, len(words), int(words.eos_token_id), factor).save_pretrained(model)  # type: ignore[arg-type]
    words.save_pretrained(model)
    row: dict[str, Any] = {"family": family}
    sampler = VLLM if vllm else {}

    def tried(name: str, work: Callable[[], Any]) -> bool:
        """Whether a step succeeded; its error stands in the row instead, and ends it."""
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                found = work()
        except Exception as error:  # of any architecture
            row[name] = (str(error).strip() or type(error).__name__).splitlines()[0]
            return False
        row.update(found if isinstance(found, dict) else {name: True})
        return True

    def paths() -> dict[str, str]:
        policy = HFPolicy.from_path(model, torch.Generator(), context_length=4096)
        path, scoring = policy.sampling_path, find_scoring(policy.model, policy.context_length)
        kind = "fast" if path.means is None else f"general{LIMITS.get(path.means, '')}"
        own = {True: ", own head", False: ""}
        learner = "beginnings shared" if scoring.shares else "padded"
        return {"sampler": kind + own[path.own_head], "learner": learner + own[scoring.own_head]}

    def train() -> dict[str, Any]:
        policy = {"path": str(model), "context": 4096}
        adapters = {"lora": {"rank": 4}} if lora else {}
        run = roleagent.train(run_dir=str(folder / "run"), policy=policy, **adapters, **merged(TRAINED, sampler))
        lines = (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        apart = max(json.loads(line).get("mismatch_max", 0.0) for line in lines)
        return {"trained": True, "nats_apart": float(f"{apart:.2g}")}

    def play(agent: Path) -> None:
        roleagent.evaluate(agent, out=agent / "records.jsonl", **merged(PLAYED, sampler))

    def exported() -> None:
        export(folder / "run", folder / "out", checkpoint="", dtype="float32")
        play(folder / "out")

    steps: dict[str, Callable[[], Any]] = {
        "sampler": paths,
        "evaluated": lambda: play(model),
        "trained": train,
        "exported": exported,
    }
    for name, work in steps.items():
        if not tried(name, work):
            break
    return {**row, "seconds": round(time.monotonic() - started, 1)}


def short(row: dict[str, Any], name: str) -> str:
    """A cell: yes, a figure, or why not."""
    value = row.get(name, "")
    return {True: "yes", "": "–"}.get(value, str(value))


def show(rows: list[dict[str, Any]], markdown: bool) -> None:
    """Prints the table."""
    columns = ("family", "sampler", "learner", "evaluated", "trained", "nats_apart", "exported")
    heads = [column.replace("_", " ") for column in columns]
    if markdown:
        print("|", " | ".join(heads), "|")
        print("|", " | ".join("---" for _ in heads), "|")
        for row in rows:
            print("|", " | ".join(short(row, column) for column in columns), "|")
        return
    table = Table(*heads)
    for row in rows:
        table.add_row(*(short(row, column) for column in columns))
    Console().print(table)


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = {"nargs": "+", "choices": ["all", *FAMILIES], "metavar": "NAME", "default": SHORT}
    parser.add_argument("--families", **names, help=f"or all, ten minutes; default: {', '.join(SHORT)}")
    parser.add_argument("--lora", action="store_true", help="trains adapters")
    parser.add_argument("--markdown", action="store_true", help="prints the table for docs/pretrained.md")
    parser.add_argument("--vllm", action="store_true", help="samples with vLLM in the run and in the evaluations")
    options = parser.parse_args()
    rows, context = [], multiprocessing.get_context("spawn")
    # A process for each family: a run's models are freed, and no family depends on what another left behind.
    for family in FAMILIES if "all" in options.families else options.families:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            rows.append(pool.submit(measure, family, options.lora, options.vllm).result())
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    show(rows, options.markdown)
    whole = [row["family"] for row in rows if row.get("exported") is True and row["nats_apart"] < APART]
    failed = {row["family"]: row for row in rows if row["family"] not in whole}
    apart = max((row["nats_apart"] for row in rows if "nats_apart" in row), default=None)
    print("RESULT", json.dumps({"families": len(rows), "whole": len(whole), "nats_apart": apart, "failed": failed}))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())

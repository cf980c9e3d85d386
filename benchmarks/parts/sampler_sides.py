"""The sides of ``pretrained.py`` that sample: the same episodes by four engines, each in a process of its own.

A side reads requests from its standard input, one JSON object per line, and answers each with a line. So the program
that started the sides can let them play in turns.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parts.forced_replies import GROUP, Forced, General, Generate, Ours, Replies, play, replies_of, scripted_episode
from parts.learner_sides import score

from roleagent.agents.builders import EnvSplit
from roleagent.agents.policies.hf import HFPolicy
from roleagent.config import load
from roleagent.similarity import common_prefix
from roleagent.types import Completion, Request

DEFAULT = Path(__file__).parents[2] / "configs" / "default.yaml"
THREADS = int(os.environ.get("OMP_NUM_THREADS", "1"))


class _Engine(Forced):
    """A policy whose model another library runs; it takes the limits and the tokens of the local one."""

    def __init__(self, policy: HFPolicy):
        self.tokenizer, self.context_length, self.version = policy.tokenizer, policy.context_length, 0
        self.end_ids, self.eos_id = policy.end_ids, policy.eos_id
        self.encode, self.decode = policy.encode, policy.decode
        self.literal, self.single_token = policy.literal, policy.single_token

    def clear_cache(self) -> None:
        """Between two sets of episodes."""


class VLLM(_Engine):
    """vLLM within this process, with its own cache of prefixes and its repacked weights."""

    def __init__(self, policy: HFPolicy, options: argparse.Namespace):
        super().__init__(policy)
        from roleagent.agents.policies.vllm.engine import set_environment

        set_environment(own_processes=False)
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "6")
        from vllm import LLM, SamplingParams  # type: ignore[import-not-found]
        from vllm.v1.sample.logits_processor import (  # type: ignore[import-not-found]
            AdapterLogitsProcessor,
        )

        class Given(AdapterLogitsProcessor):
            """Forces the tokens of each request."""

            def is_argmax_invariant(self) -> bool:
                return False

            def new_req_logits_processor(self, params: Any) -> Any:
                reply: Any = (params.extra_args or {}).get("reply")

                def given(written: list[int], logits: torch.Tensor) -> torch.Tensor:
                    token = reply[len(written)]
                    kept = float(logits[token])
                    logits.fill_(-torch.inf)[token] = kept
                    return logits

                return given if reply else None

        self._params = SamplingParams
        self._llm = LLM(
            model=str(options.model),
            skip_tokenizer_init=True,
            dtype=options.dtype,
            max_model_len=context(options),
            max_num_seqs=max(options.episodes),
            enable_prefix_caching=True,
            enforce_eager=True,
            disable_log_stats=True,
            logits_processors=[Given],
        )

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        replies = self.next_replies(requests)
        params = [
            self._params(
                temperature=temperature,
                max_tokens=len(reply),
                ignore_eos=True,
                logprobs=0,
                detokenize=False,
                extra_args={"reply": [int(token) for token in reply]},
            )
            for reply in replies
        ]
        prompts = [{"prompt_token_ids": list(request.prompt_ids)} for request in requests]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        found = [tuple(output.outputs[0].token_ids) for output in outputs]
        assert found == [tuple(reply) for reply in replies], "vLLM wrote something else"
        return [Completion(ids, (0.0,) * len(ids), "stop") for ids in found]

    def clear_cache(self) -> None:
        self._llm.reset_prefix_cache()


class LlamaCpp(_Engine):
    """llama.cpp with weights of 8 bits: a cell of its cache for each episode, which keeps what it has read."""

    BATCH = 512

    def __init__(self, policy: HFPolicy, options: argparse.Namespace):
        super().__init__(policy)
        import llama_cpp  # type: ignore[import-not-found]

        self.lib = lib = llama_cpp
        self._quiet = lib.llama_log_callback(lambda *_: None)
        lib.llama_log_set(self._quiet, ctypes.c_void_p(0))
        lib.llama_backend_init()
        file = options.folder / "q8_0.gguf"
        settings = lib.llama_model_quantize_default_params()
        settings.ftype, settings.allow_requantize, settings.nthread = lib.LLAMA_FTYPE_MOSTLY_Q8_0, True, THREADS
        if lib.llama_model_quantize(str(options.gguf).encode(), str(file).encode(), ctypes.byref(settings)):
            raise SystemExit(f"llama.cpp cannot write {options.gguf} in 8 bits")
        model = lib.llama_model_load_from_file(str(file).encode(), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        params.n_seq_max = max(options.episodes)
        params.n_ctx = context(options) * params.n_seq_max
        params.n_batch = params.n_ubatch = self.BATCH
        params.n_threads = params.n_threads_batch = THREADS
        self._context = lib.llama_init_from_model(model, params)
        self._memory = lib.llama_get_memory(self._context)
        self._batch = lib.llama_batch_init(self.BATCH, 0, 1)
        self._chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for sampler in (lib.llama_sampler_init_temp(1.0), lib.llama_sampler_init_dist(0)):
            lib.llama_sampler_chain_add(self._chain, sampler)
        self._held: dict[int, list[int]] = {}

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        replies = {r.slot: list(reply) for r, reply in zip(requests, self.next_replies(requests), strict=True)}
        waiting: list[tuple[int, int, int, bool]] = []  # sequence, token, position, whether logits follow
        first: dict[tuple[int, ...], int] = {}
        copies: list[tuple[int, int]] = []
        for request in requests:
            held, prompt = self._held.get(request.slot, []), list(request.prompt_ids)
            known = min(common_prefix(held, prompt), len(prompt) - 1)
            self.lib.llama_memory_seq_rm(self._memory, request.slot, known, -1)
            other = first.setdefault(request.prompt_ids, request.slot)
            if not known and other != request.slot:  # an equal prompt, to be read once
                copies.append((other, request.slot))
                known = len(prompt)
            last = len(prompt) - 1
            waiting += [(request.slot, prompt[at], at, at == last) for at in range(known, len(prompt))]
            self._held[request.slot] = [*prompt, *replies[request.slot][:-1]]
        self._decode(waiting)
        for source, target in copies:
            self.lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        ends = {request.slot: len(request.prompt_ids) for request in requests}
        for step in range(max(map(len, replies.values())) - 1):
            live = [slot for slot, reply in replies.items() if step + 1 < len(reply)]
            self._decode([(slot, replies[slot][step], ends[slot] + step, True) for slot in live])
        return [Completion(tuple(ids), (0.0,) * len(ids), "stop") for ids in replies.values()]

    def _decode(self, tokens: Sequence[tuple[int, int, int, bool]]) -> None:
        """Reads tokens, and samples from the logits behind them what is then not used."""
        batch = self._batch
        for start in range(0, len(tokens), self.BATCH):
            part = tokens[start : start + self.BATCH]
            batch.n_tokens = len(part)
            for place, (slot, token, position, wanted) in enumerate(part):
                batch.token[place], batch.pos[place], batch.logits[place] = token, position, wanted
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, slot
            if self.lib.llama_decode(self._context, batch):
                raise SystemExit("llama.cpp cannot decode a batch")
            for place, (*_, wanted) in enumerate(part):
                if wanted:
                    self.lib.llama_sampler_sample(self._chain, self._context, place)

    def clear_cache(self) -> None:
        self.lib.llama_memory_clear(self._memory, True)
        self._held.clear()


def context(options: argparse.Namespace) -> int:
    """Tokens that an episode may have: its first prompt, and what each turn adds."""
    return 1024 + options.turns * (128 + options.thoughts)


def worlds(options: argparse.Namespace) -> tuple[EnvSplit, EnvSplit]:
    """ALFWorld, official where ``ALFWORLD_DATA`` names it, for demonstrations and for short episodes."""
    thoughts = options.thoughts
    prompt = [f"prompt.think={'required' if thoughts else 'none'}", f"rollout.action_tokens={64 + thoughts}"]
    settings = ["wia=off", "env.kwargs.data_dir=null", f"policy.context={context(options)}", *prompt]
    steps = ["env.kwargs.max_steps=50"], [f"env.kwargs.max_steps={options.turns}"]
    shown, played = (EnvSplit.open(load(DEFAULT, [*settings, *limit]), "train") for limit in steps)
    return shown, played


def episodes(policy: Any, shown: EnvSplit, played: EnvSplit, options: argparse.Namespace) -> tuple[list[str], Replies]:
    """The tasks, and the replies of a scripted agent in eight episodes of each; the same in every process."""
    rng = np.random.default_rng(options.seed)
    tasks = [str(task) for task in rng.choice(list(shown.task_split.task_ids), -(-max(options.episodes) // GROUP))]
    scripts = [scripted_episode(shown, task, rng) for task in tasks for _ in range(GROUP)]
    rollout = played.rollout(policy)
    return tasks, {slot: replies_of(rollout, script, options.thoughts) for slot, script in enumerate(scripts)}


class _Script(_Engine):
    """A policy without a model."""

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        return [Completion(tuple(ids), (0.0,) * len(ids), "stop") for ids in self.next_replies(requests)]


def recorded(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Episodes for an update (:mod:`parts.learner_sides`), with the model's log-probabilities and random advantages."""
    policy = HFPolicy.from_path(options.model, torch.Generator(), context_length=context(options))
    shown, played = worlds(options)
    options.episodes = [options.sequences]
    tasks, replies = episodes(policy, shown, played, options)
    _, _, groups = play(_Script(policy), played, tasks, GROUP, replies)
    rng, batch = np.random.default_rng(options.seed), []
    for episode in (episode for group in groups for episode in group.trajectories):
        last = episode.turns[-1]
        ids = [*last.prompt_ids, *last.completion.token_ids]
        sampled = [0] * len(ids)
        for turn in episode.turns:
            start, reply = len(turn.prompt_ids), turn.completion.token_ids
            assert ids[start : start + len(reply)] == list(reply)
            sampled[start : start + len(reply)] = [1] * len(reply)
        prompt = len(episode.turns[0].prompt_ids)
        batch.append({"ids": ids, "prompt": prompt, "sampled": sampled, "advantage": rng.normal()})
    score(policy.model.eval(), batch)
    return batch


def open_side(name: str, options: argparse.Namespace) -> Any:
    """The policy of a side."""
    generator = torch.Generator().manual_seed(options.seed)
    if name in (own := {"ours": Ours, "general": General, "generate": Generate}):
        return own[name].from_path(options.model, generator, options.dtype, context(options))
    policy = HFPolicy.from_path(options.model, generator, context_length=context(options))
    return (VLLM if name == "vllm" else LlamaCpp)(policy, options)


def serve(name: str, options: argparse.Namespace) -> None:
    """Plays what the standard input asks for: a line with the number of episodes, answered by seconds and tokens."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print
    torch.set_num_threads(THREADS)
    policy = open_side(name, options)
    shown, played = worlds(options)
    tasks, replies = episodes(policy, shown, played, options)
    print(json.dumps({"ready": name}), file=answers)
    for line in sys.stdin:
        n = int(line)
        copies = min(n, GROUP)
        chosen = {slot: replies[slot] for slot in range(n)}
        seconds, tokens, groups = play(policy, played, tasks[: n // copies], copies, chosen)
        turns = [turn for group in groups for episode in group.trajectories for turn in episode.turns]
        longest = max(len(turn.prompt_ids) for turn in turns)
        read = sum(len(turn.prompt_ids) for turn in turns)
        answer = {"seconds": seconds, "tokens": tokens, "turns": len(turns), "longest": longest, "read": read}
        print(json.dumps(answer), file=answers)

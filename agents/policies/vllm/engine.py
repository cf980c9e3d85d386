"""vLLM within this process: an engine that samples with the weights that the trainer gives it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roleagent.agents.policies.hf import HFPolicy, PolicyError, reason_of
from roleagent.agents.policies.vllm.options import (
    INSTALL,
    architecture,
    check_model,
    disable_weight_repacking,
    engine_options,
    require_vllm,
    set_environment,
)
from roleagent.agents.policies.vllm.requests import SampleRequest, adapter_request, answer, sampling
from roleagent.config import Config
from roleagent.types import Completion


class LocalEngine:
    """vLLM in this process, on this process's accelerator.

    Args:
        config: the run's configuration (sections ``vllm``, ``policy``, ``lora``).
        policy: its model is what the engine computes.

    Raises:
        PolicyError: vLLM is missing, or cannot compute this model on this machine.
    """

    def __init__(self, config: Config, policy: HFPolicy):
        require_vllm()
        check_model(policy.model.config)
        set_environment(own_processes=False)
        self._level = config.vllm.sleep if torch.cuda.is_available() else 0
        self._asleep: set[str] = set()  # what is away: "weights", "kv_cache"
        self._empty = False
        self._adapter: Any = None
        self._numbers = itertools.count()
        self._asked: dict[str, tuple[int, int]] = {}  # the key and the place of each request under way
        self._answers: dict[int, list[Completion | None]] = {}  # by key
        launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
        with tempfile.TemporaryDirectory(prefix="roleagent-") as folder:
            save_description(policy, Path(folder))
            options = engine_options(config, folder)
            options["distributed_executor_backend"] = "external_launcher" if launched else "uni"
            if self._level:
                options["enable_sleep_mode"] = True
            self._llm = _start_engine(options)
        _refuse_transformers_code(self._llm, type(policy.model).__name__)

    def submit(self, key: int, requests: Sequence[SampleRequest], temperature: float) -> None:
        """Begins to sample one answer per request.

        Raises:
            PolicyError: the weights were dropped (``vllm.sleep=2``), and none came since.
        """
        if self._empty:
            raise PolicyError("vLLM has no weights: those it had were dropped by vllm.sleep=2, and no others came")
        self._wake("weights", "kv_cache")
        self._answers[key] = [None] * len(requests)
        for place, request in enumerate(requests):
            prompt, number = {"prompt_token_ids": list(request.prompt_ids)}, str(next(self._numbers))
            self._asked[number] = key, place
            params = sampling(request, temperature)
            self._llm.llm_engine.add_request(number, prompt, params, lora_request=self._adapter)

    def wait(self) -> list[tuple[int, list[Completion]]]:
        """Computes until requests are answered that were submitted together."""
        complete: list[int] = []
        while not complete:
            for output in self._llm.llm_engine.step():
                if not output.finished:
                    continue
                key, place = self._asked.pop(output.request_id)
                self._answers[key][place] = answer(output.outputs[0])
                if None not in self._answers[key]:
                    complete.append(key)
        return [(key, [one for one in self._answers.pop(key) if one is not None]) for key in complete]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Overwrites the weights and clears caches that the old ones filled."""
        self._wake("weights")
        self._llm.collective_rpc("copy_weights", args=(weights,))
        self._empty = False
        self._forget()

    def load_adapter(self, adapter: Iterable[tuple[str, Tensor]], rank: int, alpha: float) -> None:
        """Overwrites the adapter that is added to the weights; by peft's names."""
        self._wake("weights")
        self._llm.collective_rpc("copy_adapter", args=(adapter, rank, alpha))
        self._adapter = adapter_request()
        self._forget()

    def offload(self) -> None:
        """Gives back the memory of the KV cache, and of the weights, where vLLM can (on CUDA)."""
        self._forget()
        if self._level and not self._asleep:
            self._llm.sleep(level=self._level)
            self._asleep, self._empty = {"weights", "kv_cache"}, self._level == 2

    def _wake(self, *parts: str) -> None:
        for part in parts:
            if part in self._asleep:
                self._llm.wake_up(tags=[part])
                self._asleep.remove(part)

    def _forget(self) -> None:
        if not self._llm.reset_prefix_cache():
            raise PolicyError("vLLM kept what it computed with earlier weights: its prefix cache could not be emptied")


def save_description(policy: HFPolicy, folder: Path) -> None:
    """Writes what vLLM must know of a model before its weights come: some kilobytes."""
    policy.model.config.save_pretrained(str(folder))
    policy.tokenizer.save_pretrained(str(folder))
    path = folder / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["architectures"] = architecture(policy.model.config) or [type(policy.model).__name__]
    path.write_text(json.dumps(settings), encoding="utf-8")


def _start_engine(options: dict[str, Any]) -> Any:
    """vLLM's ``LLM``.

    Raises:
        PolicyError: vLLM reports that it cannot, in one line.
    """
    with _global_state_kept():
        try:
            from vllm import LLM  # pyright: ignore[reportAttributeAccessIssue] - it may be missing
            from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

            if current_platform.is_unspecified():
                raise PolicyError(
                    f"this vLLM was built for GPUs, and this machine has none that it could use: {INSTALL}"
                )
            from vllm.v1.engine import core  # pyright: ignore[reportMissingImports]

            disable_weight_repacking()
            # On exit vLLM would destroy the process group. That is the run's: still in use, or gone by then.
            core.cleanup_dist_env_and_memory = lambda *_, **__: None
            return LLM(**options)
        except PolicyError:
            raise
        except Exception as error:
            raise PolicyError(f"vLLM cannot start: {reason_of(error)}") from error


def _refuse_transformers_code(llm: Any, name: str) -> None:
    """Refuses an engine that computes a model by transformers' code, which it has changed for the learner as well."""
    [kind] = llm.apply_model(lambda model: type(model).__module__)
    if ".transformers" in kind:
        raise PolicyError(
            f"vLLM has no {name} of its own and would change transformers' under the learner: start "
            "`python -m roleagent.agents.policies.vllm.server` and name it by vllm.url"
        )


@contextlib.contextmanager
def _global_state_kept() -> Iterator[None]:
    """What vLLM sets for the whole process while it starts is as before afterwards: generators, and threads."""
    threads, torch_state = torch.set_num_threads, torch.get_rng_state()
    state, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_num_threads = threads
        random.setstate(state)
        np.random.set_state(numbers)  # noqa: NPY002
        torch.set_rng_state(torch_state)

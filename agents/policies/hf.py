"""A policy from transformers: any causal language model by path, or a small one built from a configuration.

Generation is a batched loop of its own rather than ``model.generate``: it keeps the cache of every conversation between
calls, so that a turn costs only its new tokens, and it returns the log-probability of each sampled token under exactly
the distribution that it was drawn from. There are two of them: a fast one with a cache of this project
(:mod:`roleagent.agents.policies.kv_cache`), and a general one with the model's own
(:mod:`roleagent.agents.policies.own_cache`). :mod:`roleagent.agents.policies.model_check` chooses.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.quantizers.auto import AutoQuantizationConfig
from transformers.utils import cached_file

from roleagent.agents.policies.branches import generate_branches
from roleagent.agents.policies.encoding import TextEncoder, named_ends
from roleagent.agents.policies.kv_cache import SlotCache
from roleagent.agents.policies.model_check import SamplingPath, find_sampling_path, known_tokens
from roleagent.agents.policies.own_cache import OwnCacheSampler
from roleagent.agents.policies.protocol import PolicyError, Weights
from roleagent.agents.policies.sampling import Decoder, body_of, generate_replies
from roleagent.options import home_expanded
from roleagent.slow_notice import waiting
from roleagent.types import Completion, Request

_GGUF = (
    "GGUF is a format of llama.cpp: name the folder of the model's original weights (safetensors), or convert the file "
    "with convert_gguf.py of docs/pretrained.md"
)
_ADAPTER = (
    "the folder has an adapter without its model: a run has both as one in the folder policy beside it; for others, "
    "save PeftModel.from_pretrained(model, adapter).merge_and_unload()"
)
_OWN_CODE = (
    "it comes with code of its own, which is not run: choose a model whose model_type and tokenizer transformers has"
)
_NO_TEXT = re.compile(r"For(Sequence|Token)Classification$|ForQuestionAnswering$|Reward")  # of config.architectures
_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")  # in the name of a weight
_ALIGNMENT = 64  # bytes; of the memory that torch allocates


def own_device() -> torch.device:
    """This process's accelerator (that of its ``LOCAL_RANK``, or the only one that it sees), else the CPU.

    Raises:
        PolicyError: there is an NVIDIA GPU, and torch cannot use it. ``DS_ACCELERATOR=cpu`` asks for the CPU.
    """
    if torch.cuda.is_available():
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        return torch.device("cuda", rank if torch.cuda.device_count() > 1 else 0)
    if os.environ.get("DS_ACCELERATOR") != "cpu" and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1"):
        _refuse_unused_gpu()
    return torch.device("cpu")


@cache
def _refuse_unused_gpu() -> None:
    try:
        listed = subprocess.run(("nvidia-smi", "-L"), capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return
    if not (gpu := re.search(r"^GPU 0: ([^(\n]*)", listed, re.MULTILINE)):
        return
    try:
        torch.cuda.init()
        reason = "it gives no reason"
    except (RuntimeError, AssertionError) as error:
        reason = reason_of(error)
    raise PolicyError(
        f"this machine has a GPU ({gpu[1].strip()}), but torch {torch.__version__} cannot use it: {reason}. Install a "
        "torch for its driver, or set DS_ACCELERATOR=cpu to compute on the CPU"
    )


def reason_of(error: Exception) -> str:
    """The first line of an error's message, with the one that it announces; or its type if it has none.

    >>> reason_of(OSError("No space left\\nerrno 28")), reason_of(EOFError()), reason_of(ValueError("wrong:\\n a key"))
    ('No space left', 'EOFError', 'wrong: a key')
    """
    text = str(error).strip()
    if isinstance(error, ValidationError):  # whose first line is a count
        text = "; ".join(one["msg"] for one in error.errors())
    first, *rest = text.splitlines() or [type(error).__name__]
    return f"{first} {rest[0].strip()}" if first.endswith(":") and rest else first


def check_path(path: str | Path) -> None:
    """Refuses a path or hub name where there is no model, before anything has been begun.

    Raises:
        PolicyError: there is none.
    """
    try:
        path = home_expanded(str(path))
        with waiting(f"the model of {path} to be found"):
            _is_here(path)
    except Exception as error:  # as in from_path
        raise _unloadable(path, error) from error


def positions_of(path: str | Path) -> int | None:
    """Most tokens that the model of a path or hub name was made for; None where it has no limit.

    Raises:
        PolicyError: there is none.
    """
    try:
        path = home_expanded(str(path))
        found = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=_is_here(path))
    except Exception as error:  # as in from_path
        raise _unloadable(path, error) from error
    return _positions(found)


def _positions(config: PreTrainedConfig) -> int | None:
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def _unloadable(path: str | Path, error: Exception) -> PolicyError:
    reason = _OWN_CODE if "trust_remote_code" in str(error) else reason_of(error)
    if isinstance(error, KeyError):  # such as an activation
        reason = f"its configuration names {reason}, which transformers does not know"
    return PolicyError(f"cannot load a causal language model from {path}: {reason}")


def _is_here(path: str | Path) -> bool:
    """Whether a model is to be read from this machine alone.

    Raises:
        OSError, ValueError: there is no such model.
    """
    if os.path.isfile(path):
        raise OSError(_GGUF if str(path).endswith(".gguf") else "it is a file: name the model's folder")
    if not os.path.isdir(path):
        return not _hub_answers(str(path))
    if not os.path.exists(os.path.join(path, "config.json")):
        if any(name.endswith(".gguf") for name in os.listdir(path)):
            raise OSError(_GGUF)
        if os.path.exists(os.path.join(path, "adapter_config.json")):
            raise OSError(_ADAPTER)
        raise OSError("the folder has no config.json; a run's models are in its checkpoints/…/policy")
    if not any(name.endswith(".safetensors") for name in os.listdir(path)):
        raise OSError(
            "the folder has no weights (model.safetensors); those in pickled files (.bin) are not loaded: write them "
            "anew with transformers' save_pretrained"
        )
    return True


def _kind(config: PreTrainedConfig) -> dict[str, Any]:
    """Options for loading a model of a configuration: weights that are quantized are loaded as what they stand for.

    Raises:
        ValueError: it is no causal language model, or one whose weights could not be trained.
    """
    loaded = MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    other = next(filter(_NO_TEXT.search, config.architectures or ()), "")
    if config.is_encoder_decoder or other or not any(type(config) in mapping for mapping in loaded):
        raise ValueError(
            f"{other or config.model_type} is no causal language model: choose one that writes text token by token"
        )
    parts = (config, config.get_text_config())
    stored = next((one.quantization_config for one in parts if getattr(one, "quantization_config", None)), None)
    if stored is None:
        return {}
    stored = stored if isinstance(stored, dict) else stored.to_dict()
    try:
        quantization = AutoQuantizationConfig.from_dict(stored)
    except Exception:  # its package may be missing, and each raises what it wants
        quantization = None
    if quantization is None or not hasattr(quantization, "dequantize"):
        method = getattr(stored.get("quant_method"), "value", stored.get("quant_method"))
        raise ValueError(f"its weights are quantized ({method}) and cannot be trained: name its original weights")
    quantization.dequantize = True
    return {"quantization_config": quantization}


def _without_noise(config: PreTrainedConfig) -> PreTrainedConfig:
    """A model computes the same in training as in sampling: no dropout (Seed-OSS, GPT-2, OPT), no noise of routers
    (Phi-3.5-MoE). Otherwise the ratio of learner to sampler would be noise."""
    text = config.get_text_config()
    noisy = (name for name, value in vars(text).items() if isinstance(value, float) and value)
    for name in [name for name in noisy if "drop" in name or name.endswith("jitter_noise")]:
        setattr(text, name, 0.0)
    return config


def _freeze_beside_text(model: PreTrainedModel) -> None:
    """Freezes what a model has beside its text part, such as an encoder of images."""
    if model.config.get_text_config() is model.config:
        return
    parts = (body_of(model), model.get_input_embeddings(), model.get_output_embeddings())
    text = {weight for part in parts for weight in part.parameters()}
    for weight in model.parameters():
        weight.requires_grad_(weight in text)


_PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


def _processors(path: str, config: PreTrainedConfig, here: bool) -> dict[str, bytes]:
    """The files that say how a model reads images, by name: servers of an exported folder need them."""
    if config.get_text_config() is config:
        return {}
    optional = dict.fromkeys(
        ("_raise_exceptions_for_missing_entries", "_raise_exceptions_for_connection_errors"), False
    )
    files = {name: cached_file(path, name, local_files_only=here, **optional) for name in _PROCESSORS}
    return {name: Path(file).read_bytes() for name, file in files.items() if file}


def _hub_answers(name: str) -> bool:
    """Whether the hub can be asked for a model. It is asked once: transformers would go on for a minute.

    Raises:
        OSError: it has no such model, or it cannot be asked and no copy is here.
        ValueError: it is no name of a model.
    """
    try:
        HfApi().model_info(name, timeout=10.0)
    except RepositoryNotFoundError:
        raise OSError("the hub has no such model, or does not show it without the right HF_TOKEN") from None
    except HFValidationError:
        raise ValueError("there is no such folder, and the hub has no models of such a name") from None
    except (HfHubHTTPError, ValueError, TypeError, KeyError):
        return True  # the hub answers: an error that may pass, or a mirror that only serves files
    except Exception as error:  # of the HTTP client, which depends on the hub's version
        if not isinstance(try_to_load_from_cache(name, "config.json"), str):
            raise OSError(
                f"there is no such folder, no copy of a model of that name, and the hub does not answer "
                f"({reason_of(error)})"
            ) from error
        return False
    return True


_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "tiktoken.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
)


def _check_files(folder: Path) -> None:
    """Refuses a folder in which a file is cut off or left out, by the file's name.

    Raises:
        OSError: a file is damaged, or there is no tokenizer.
    """
    if not any((folder / name).exists() for name in _TOKENIZERS):
        raise OSError("the folder has no tokenizer (tokenizer.json)")
    for file in (*folder.glob("*.json"), *folder.glob("model*.safetensors")):
        try:
            if file.suffix == ".json":
                found = json.loads(file.read_bytes())
                if file.name.endswith(".index.json") and "weight_map" not in found:
                    raise ValueError("it names no files")
            else:
                safe_open(file, "pt")
        except (ValueError, SafetensorError) as error:
            if file.open("rb").read(20).startswith(b"version https://git"):
                raise OSError(f"{file.name} only points to the file in Git LFS: get it with git lfs pull") from error
            raise OSError(f"{file.name} is damaged or cut off: download it again") from error


@contextlib.contextmanager
def _without_load_report() -> Iterator[None]:
    """Leaves out the table of transformers: what is wrong with the weights is said in one line."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


def _check_weights(model: PreTrainedModel, report: Mapping[str, Any]) -> None:
    """Refuses weights that are not those of ``config.json``: transformers takes random numbers for missing ones.

    Raises:
        OSError: a weight is missing, of another shape, or of a layer that the model has not.
    """
    if missing := sorted(report["missing_keys"]):
        lacking = ", ".join(missing[:3])
        raise OSError(f"the weights lack {lacking}: they are damaged, or of a model that writes no text")
    if wrong := sorted(report["mismatched_keys"]):
        name, found, wanted = wrong[0]
        raise OSError(f"config.json is not that of the weights: {name} is {list(found)} and not {list(wanted)}")
    own = {_LAYER.sub("*", name) for name in model.state_dict()}
    if others := sorted(name for name in report["unexpected_keys"] if _LAYER.sub("*", name) in own):
        raise OSError(f"config.json is not that of the weights, which have more layers ({others[0]})")


class HFPolicy:
    """A causal language model as a policy (see :class:`~roleagent.agents.policies.protocol.Policy`).

    Args:
        model: a causal language model.
        tokenizer: its tokenizer.
        generator: source of all sampling, seeded by the policy's owner; may be on another device than the model.
        context_length: most tokens of prompt and completion; by default what the model was made for.

    Attributes:
        known: sampled tokens are below it: a padded vocabulary has more tokens than the tokenizer.
        processors: the files of its folder that say how images are read, by name.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        generator: torch.Generator,
        context_length: int | None = None,
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.generator = generator
        self.version = 0
        limit = _positions(model.config)
        self.context_length: int = min(context_length or limit or 4096, limit or context_length or 4096)
        texts = TextEncoder(tokenizer, named_ends(model))
        self.end_ids, self.eos_id = texts.end_ids, texts.eos_id
        self.encode, self.decode = texts.encode, texts.decode
        self.literal, self.single_token = texts.literal, texts.single_token
        # cuDNN, torch's first choice on an H100, plans anew for each new shape, and here nearly every shape is new.
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.known = known_tokens(model, tokenizer)
        self.processors: Mapping[str, bytes] = {}
        self._cache: SlotCache | None = None
        self._own: OwnCacheSampler | None = None

    @classmethod
    def from_path(
        cls,
        path: str | Path,
        generator: torch.Generator,
        dtype: str = "float32",
        context_length: int | None = None,
    ) -> HFPolicy:
        """Loads weights (safetensors) and tokenizer from a folder or hub name, onto the generator's device.

        Raises:
            PolicyError: nothing loadable there.
        """
        options: dict[str, Any] = {"trust_remote_code": False}  # otherwise transformers asks on the terminal
        try:
            path = home_expanded(str(path))
            with waiting(f"the model of {path} to load"):
                options["local_files_only"] = _is_here(path)
                if os.path.isdir(path):
                    _check_files(Path(path))
                config = AutoConfig.from_pretrained(str(path), **options)
                tokenizer = AutoTokenizer.from_pretrained(str(path), **options)
                processors = _processors(str(path), config, options["local_files_only"])
                options |= {"use_safetensors": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
                options |= _kind(config) | {"config": _without_noise(config)}
                causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
                kind = AutoModelForCausalLM if causal else AutoModelForImageTextToText
                with _without_load_report():
                    model, report = kind.from_pretrained(  # type: ignore[misc]
                        str(path), dtype=getattr(torch, dtype), **options
                    )
            _check_weights(model, report)
        except Exception as error:  # transformers, the hub and safetensors raise a wide range; all mean one thing here
            raise _unloadable(path, error) from error
        _freeze_beside_text(model)
        model = model.to(generator.device)
        for weight in model.parameters():  # those of a mapped file lie anywhere, and sums are rounded accordingly
            if weight.data_ptr() % _ALIGNMENT:
                weight.data = weight.data.clone()
        policy = cls(model, tokenizer, generator, context_length)
        policy.processors = processors
        return policy

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.model.device

    @cached_property
    def sampling_path(self) -> SamplingPath:
        """How the model is sampled from; found by comparisons when first asked for.

        Raises:
            PolicyError: the model cannot be sampled from.
        """
        return find_sampling_path(self.model, self.context_length)

    def clear_cache(self) -> None:
        """Drops all cached conversations: after an update of the weights, or to free memory."""
        self._cache = self._own = None

    def reseed(self, seed: int) -> None:
        """Seeds the random stream of all sampling."""
        self.generator.manual_seed(seed)

    def sync(self, weights: Weights, version: int) -> None:
        """The learner brings each weight into this very model before it names it: they need only be asked for."""
        for _ in weights.weights(adapted=False):
            pass
        self.version = version
        self.clear_cache()

    def offload(self) -> None:
        """Drops the caches of all conversations."""
        self.clear_cache()

    @contextlib.contextmanager
    def _inference(self) -> Iterator[None]:
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            self.model.train(training)

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        """Continues every prompt.

        Args:
            requests: prompts. What a slot's last call left in the cache is reused as far as the new prompt begins
                with it. Requests may share a slot (:mod:`roleagent.agents.policies.branches`).
            temperature: > 0 samples from softmax(logits / temperature); 0 takes the most probable token and reports
                its log-probability at temperature 1.

        Raises:
            ValueError: a prompt does not fit the context.
            PolicyError: the model gives no numbers.
        """
        if not requests:
            return []
        for request in requests:
            if not request.prompt_ids or len(request.prompt_ids) >= self.context_length:
                raise ValueError(
                    f"a prompt of {len(request.prompt_ids)} tokens does not fit a context of {self.context_length}"
                )
        limits = [min(r.max_tokens, self.context_length - len(r.prompt_ids)) for r in requests]
        path = self.sampling_path
        try:
            with self._inference():
                if path.means is not None:
                    if self._own is None:
                        self._own = OwnCacheSampler(self.model, path.means, self.known, self.context_length)
                    replies = self._own.generate(requests, limits, temperature, self.generator)
                else:
                    if self._cache is None:
                        self._cache = SlotCache(self.model.config.get_text_config().num_hidden_layers, self.device)
                    distinct = len({request.slot for request in requests}) == len(requests)
                    sample = generate_replies if distinct else generate_branches
                    decoder = Decoder(self.model, self.known, path.own_head)
                    replies = sample(decoder, self._cache, requests, limits, temperature, self.generator)
        except BaseException as error:
            self.clear_cache()  # the cache no longer holds what its records describe
            if isinstance(error, FloatingPointError):
                raise PolicyError(str(error)) from error
            raise
        return [Completion(tuple(ids), tuple(scores), reason, self.version) for ids, scores, reason in replies]

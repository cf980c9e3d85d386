"""Low-rank adapters (LoRA): a few trained weights beside frozen ones.

Policy and reference of the KL penalty share the frozen weights and differ in the adapter, so neither needs a second
model. Outside the trainer an adapted model has plain names with the adapter merged (:func:`plain_weights`), or is the
adapter alone in peft's own format (:class:`Adapter`).
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from roleagent.agents.policies.sampling import body_of
from roleagent.config import ConfigError
from roleagent.config.settings import LoRAConfig
from roleagent.learners.engine.logprobs import TokenScorer
from roleagent.types import Segment

_NAME = "default"  # peft's for the only adapter of a model
_PREFIX = "base_model.model."  # which peft puts before every name in a file


def check_rank(rank: int, path: str | Path) -> None:
    """Refuses a rank above the width of the model in a folder; names on the hub are not checked.

    Raises:
        ConfigError: one line with what to change.
    """
    config = Path(path) / "config.json"
    settings = json.loads(config.read_text(encoding="utf-8")) if config.exists() else {}
    width = settings.get("text_config", settings).get("hidden_size")
    if isinstance(width, int) and rank > width:
        raise ConfigError(f"lora.rank must be at most {width}, the hidden size of {path}, not {rank}")


def adapt(model: PreTrainedModel, options: LoRAConfig, generator: torch.Generator) -> None:
    """Freezes a model and adds an adapter without effect to each linear layer of its text part but the head, in place.

    Fused experts are no linear layers, and stay frozen, as do routers. So does the last projection of a Mamba layer:
    kernels take its weight past an adapter.

    Args:
        model: the model.
        options: rank and scale.
        generator: draws the initial weights.
    """
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,  # type: ignore[arg-type]  # peft multiplies by it
        target_modules=_adaptable(model),
        base_model_name_or_path=str(model.config._name_or_path or "") or None,
        task_type="CAUSAL_LM",
    )
    inject_adapter_in_model(config, model, _NAME)
    with torch.no_grad():
        for layer in _layers(model).values():
            # peft's own rule, but for the generator. The other factor is zero.
            weight = layer.lora_A[_NAME].weight
            torch.nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)


def _adaptable(model: PreTrainedModel) -> list[str]:
    """The names of the layers that get an adapter."""
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    kinds, text = dict(model.named_modules()), set(body_of(model).modules())
    mamba = {f"{name}.out_proj" for name, module in kinds.items() if hasattr(module, "A_log") and hasattr(module, "D")}
    names = [
        name
        for name, module in kinds.items()
        if module in text
        and _is_linear(module)
        and name not in mamba
        and not hasattr(kinds[name.rpartition(".")[0]], "experts")  # it is a router
    ]
    # Some names, such as that of a shared expert's layer, peft takes for those that fused experts once had, and adapts
    # the experts. What remains of the names are others. Of a pair it refuses a single one.
    asked = LoraConfig(target_modules=[*names, "gate_proj", "up_proj", "w1", "w3"])
    convert_peft_config_for_transformers(asked, model, None)
    return [name for name in names if name in (asked.target_modules or ())]


def _is_linear(module: torch.nn.Module) -> bool:
    """Whether an adapter's sum can stand for a layer; routers and grouped layers are made of linear ones, too."""
    if not isinstance(module, torch.nn.Linear):
        return isinstance(module, Conv1D)
    if type(module) is torch.nn.Linear:
        return True
    states = torch.linspace(-1, 1, module.in_features).to(module.weight)[None, None]
    with torch.no_grad():
        try:
            found = module(states)
        except (RuntimeError, ValueError):
            return False
        plain = torch.nn.functional.linear(states, module.weight, module.bias)
    return isinstance(found, Tensor) and found.shape == plain.shape and torch.allclose(found, plain)


def adapted(model: torch.nn.Module) -> bool:
    """Whether a model has adapters."""
    return bool(_layers(model))


def _layers(model: torch.nn.Module) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


@torch.no_grad()
def plain_weights(model: torch.nn.Module, adapted: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Every weight by its name in the model without adapters; one after another, detached.

    Args:
        adapted: whether to merge the adapters.
    """
    layers = _layers(model)
    for name, weight in model.state_dict().items():
        owner, inner, leaf = name.rpartition(".base_layer.")
        if inner and leaf == "weight" and adapted:
            # In fp32 and rounded once: peft's get_delta_weight rounds the product to the adapter's type.
            layer = layers[owner]
            added = layer.lora_B[_NAME].weight.float() @ layer.lora_A[_NAME].weight.float() * layer.scaling[_NAME]
            merged = weight.float() + (added.T if layer.fan_in_fan_out else added)
            yield f"{owner}.{leaf}", merged.to(weight.dtype)
        elif inner:
            yield f"{owner}.{leaf}", weight
        elif ".lora_" not in name:
            yield name, weight


@dataclass(frozen=True)
class Adapter:
    """An adapter without its model, in peft's format.

    Attributes:
        config: the content of ``adapter_config.json``.
        weights: by their names in ``adapter_model.safetensors``.
    """

    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]

    @classmethod
    def of(cls, model: torch.nn.Module) -> Adapter:
        """A copy of a model's adapter, on the CPU."""
        config = json.loads(json.dumps(model.peft_config[_NAME].to_dict(), default=_plain))  # type: ignore[index, union-attr]
        weights = {_outside(name): own.detach().cpu().clone() for name, own in _own_weights(model)}
        return cls({**config, "inference_mode": True}, weights)

    @classmethod
    def load(cls, folder: Path) -> Adapter:
        """The inverse of :meth:`save`."""
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        return cls(config, load_file(folder / "adapter_model.safetensors"))

    def save(self, folder: Path) -> None:
        """Writes a folder that peft and vLLM load."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "adapter_config.json").write_text(json.dumps(self.config, indent=1), encoding="utf-8")
        save_file(dict(self.weights), folder / "adapter_model.safetensors", metadata={"format": "pt"})

    @torch.no_grad()
    def put_into(self, model: torch.nn.Module) -> None:
        """Overwrites a model's adapter of the same shape."""
        for name, own in _own_weights(model):
            own.copy_(self.weights[_outside(name)])

    @contextlib.contextmanager
    def swapped_into(self, model: torch.nn.Module) -> Iterator[None]:
        """Within the context the model computes with this adapter; its own weights are kept."""
        own = dict(_own_weights(model))
        kept = {name: weight.data for name, weight in own.items()}
        for name, weight in own.items():
            weight.data = self.weights[_outside(name)].to(weight)
        try:
            yield
        finally:
            for name, weight in own.items():
                weight.data = kept[name]


@dataclass(frozen=True)
class ModuleWeights:
    """Weights of a model that is whole in this process (see :class:`roleagent.agents.policies.protocol.Weights`)."""

    model: torch.nn.Module

    def weights(self, adapted: bool = True) -> Iterator[tuple[str, Tensor]]:
        """As :func:`plain_weights`."""
        return plain_weights(self.model, adapted)

    def adapter(self) -> Adapter:
        """As :meth:`Adapter.of`."""
        return Adapter.of(self.model)


class AdapterSwap(torch.nn.Module):
    """A scorer that computes with another adapter of its model, which is copied to the model's device once."""

    def __init__(self, scorer: TokenScorer, adapter: Adapter):
        super().__init__()
        own = {_outside(name): weight for name, weight in _own_weights(scorer.model)}
        beside = {name: weight.to(own[name]) for name, weight in adapter.weights.items()}
        self.scorer, self.adapter = scorer, Adapter(adapter.config, beside)

    def plan(self, segments: Sequence[Segment], max_tokens: int) -> list[list[int]]:
        """The scorer's micro-batches."""
        return self.scorer.plan(segments, max_tokens)

    def forward(self, *arguments: Any, **options: Any) -> Any:
        with self.adapter.swapped_into(self.scorer.model):
            return self.scorer(*arguments, **options)


def _own_weights(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, weight) for name, weight in model.named_parameters() if ".lora_" in name]


def _outside(name: str) -> str:
    """A weight's name in a file.

    >>> _outside("model.layers.0.self_attn.q_proj.lora_A.default.weight")
    'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight'
    """
    return _PREFIX + name.replace(f".{_NAME}.", ".")


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, (set, frozenset)) else str(getattr(value, "value", value))

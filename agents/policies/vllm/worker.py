"""The extension of vLLM's workers: it receives weights and adapters.

vLLM loads this module by name (``worker_extension_cls``), before it loads the model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from roleagent.agents.policies.hf import reason_of
from roleagent.agents.policies.vllm.engine import disable_weight_repacking, drop_repacked
from roleagent.agents.policies.vllm.sync import ADAPTER, Channel, device_id, join_store

if "vllm" in sys.modules:  # it is who imports this, before it loads a model; others only read it
    disable_weight_repacking()


class Receiver:
    """Methods of a worker. It has many of its own: the names here must be none of those."""

    model_runner: Any
    channel: Channel | None = None

    def device_name(self) -> str:
        """The device of this worker: a string that is equal in every process that sees the device."""
        return device_id(self.model_runner.device)

    @torch.no_grad()
    def copy_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Overwrites the model's weights (those beside an adapter, where there is one).

        Raises:
            ValueError: some weight of the model was not among them.
        """
        model = self.model_runner.model
        taken = model.load_weights(iter(weights))
        drop_repacked(model)
        plain = {name.replace(".base_layer.", ".") for name, _ in model.named_parameters()}
        missing = sorted(plain - {name.replace(".base_layer.", ".") for name in taken})
        if missing:
            raise ValueError(f"no weights came for {', '.join(missing[:3])}")

    def limit_vocabulary(self, known: int) -> None:
        """Has the model give logits of the tokens below ``known`` alone: what is beyond pads the head's matrix."""
        from vllm.model_executor.layers.logits_processor import (  # pyright: ignore[reportMissingImports]
            LogitsProcessor,
        )

        for layer in self.model_runner.model.modules():
            if isinstance(layer, LogitsProcessor):
                layer.vocab_size = layer.org_vocab_size = known  # with an adapter the first one is read

    def copy_adapter(self, weights: Iterable[tuple[str, Tensor]], rank: int, alpha: float) -> None:
        """Replaces the last adapter; the names are peft's."""
        from vllm.lora.lora_model import LoRAModel  # pyright: ignore[reportMissingImports] - it may be missing
        from vllm.lora.peft_helper import PEFTHelper  # pyright: ignore[reportMissingImports]

        mine = self.model_runner.lora_manager
        model = mine._adapter_manager.model
        renamed = getattr(model, "hf_to_vllm_mapper", None)
        adapter = LoRAModel.from_lora_tensors(
            ADAPTER,
            dict(weights),
            PEFTHelper(r=rank, lora_alpha=alpha, target_modules=[]),
            device="cpu",
            dtype=mine.lora_config.lora_dtype,
            weights_mapper=renamed.get_rename_mapper() if renamed is not None else None,
        )
        strangers = sorted(name for name in adapter.loras if not _adapted(model, name))
        if strangers:
            raise ValueError(f"vLLM cannot adapt {', '.join(strangers[:3])}")
        mine.remove_adapter(ADAPTER)
        mine._adapter_manager.add_adapter(adapter)
        mine._adapter_manager.activate_adapter(ADAPTER)

    def join_trainer(self, place: Mapping[str, Any]) -> str:
        """Opens the way from the trainer; one that was open is left behind. Returns what went wrong, or nothing.

        Args:
            place: ``address`` and ``port`` of the trainer, ``size`` of the group, ``backend``, and ``own_address``.
        """
        from vllm.distributed.parallel_state import get_world_group  # pyright: ignore[reportMissingImports]

        group, device = get_world_group(), self.model_runner.device
        try:
            if place["size"] != group.world_size + 1 or place["backend"] not in ("gloo", "nccl"):
                raise ValueError("the trainer counts other workers than there are, or knows another way to them")
            rank = group.rank + 1  # the trainer is the first
            store = join_store(place["address"], place["port"], rank)
            self.channel = Channel(store, rank, place["size"], place["backend"], device, place["own_address"])
        except Exception as error:  # an exception would end the whole server
            return _one_line(error)
        return ""

    def receive_weights(self) -> str:
        """Receives the trainer's weights; returns an error message, or nothing."""
        return self._received(self.copy_weights)

    def receive_adapter(self, rank: int, alpha: float) -> str:
        """Receives the trainer's adapter; returns an error message, or nothing."""
        return self._received(lambda sent: self.copy_adapter(sent, rank, alpha))

    def _received(self, load: Any) -> str:
        if self.channel is None:
            return "no trainer has joined"
        stream = self.channel.receive()
        try:
            load(stream)
        except Exception as error:
            try:
                for _ in stream:  # otherwise the trainer would hang
                    pass
            except Exception:  # the way itself broke
                self.channel = None
            return _one_line(error)
        return ""


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {reason_of(error)}"


def _adapted(model: torch.nn.Module, name: str) -> bool:
    """Whether vLLM has a place for the adapter of a layer; it may have joined it with its neighbors."""
    owner, _, leaf = name.rpartition(".")
    joined = [whole for whole, parts in getattr(model, "packed_modules_mapping", {}).items() if leaf in parts]
    names = {f"{owner}.{whole}" for whole in (leaf, *joined)}
    return any(hasattr(module, "base_layer") for at, module in model.named_modules() if at in names)

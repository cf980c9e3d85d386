"""Loads the state that ZeRO left of one number of ranks into an engine of another number.

Every rank has written its part of the master weights and of the optimizer's moments. The parts are mapped, not read:
a rank puts one parameter together at a time, and keeps its own part of it.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_mapped = partial(torch.load, map_location="cpu", mmap=True, weights_only=False)  # a run's own files
MASTER = "fp32"


def zero_parts(folder: Path) -> list[Path]:
    """The files of DeepSpeed's ZeRO optimizer, by rank; none at stage 0."""
    files = folder.glob("*zero_pp_rank_*_optim_states.pt")
    return sorted(files, key=lambda path: int(path.name.split("zero_pp_rank_")[1].split("_")[0]))


class SavedStates:
    """The master weights and moments of all ranks.

    Args:
        folder: of DeepSpeed's checkpoint, at stage 1 or higher.

    Raises:
        OSError: the file of a rank is missing.

    Attributes:
        steps: of the optimizer.
        model: what the first rank saved beside them.
    """

    def __init__(self, folder: Path):
        self._fragments: defaultdict[str, dict[str, list[Tensor]]] = defaultdict(dict)  # by parameter and kind
        files, self.model = zero_parts(folder), _mapped(min(folder.glob("*mp_rank_00_model_states.pt")))
        if len(files) != (wrote := self.model["dp_world_size"]):
            raise OSError(
                f"{folder} has the optimizer's state of {len(files)} ranks, and {wrote} wrote theirs: do all see it?"
            )
        for rank, file in enumerate(files):
            part = _mapped(file)["optimizer_state_dict"]
            if "fp32_flat_groups" in part:
                self._read_stage_3(part, rank, len(files))
            else:
                self._read(part)

    def _read(self, part: Mapping[str, Any]) -> None:
        """A part of stage 1 or 2: the parameters lie one after another, and the ranks cut them anywhere."""
        states = part["base_optimizer_state"]["state"]
        masters = part["single_partition_of_fp32_groups"]
        for group, names in enumerate(part["param_slice_mappings"]):
            for name, place in names.items():
                for kind, flat in self._kinds(states[group], masters[group]):
                    self._fragments[name].setdefault(kind, []).append(flat.narrow(0, place.start, place.numel))

    def _read_stage_3(self, part: Mapping[str, Any], rank: int, ranks: int) -> None:
        """A part of stage 3: of each parameter an equal share, the last ones padded."""
        states = part["optimizer_state_dict"]["state"]
        for group, names in enumerate(self.model["param_shapes"]):
            start = 0
            for name, shape in names.items():
                size = math.ceil(shape.numel() / ranks)
                real = max(0, min(size, shape.numel() - rank * size))
                for kind, flat in self._kinds(states[group], part["fp32_flat_groups"][group]):
                    self._fragments[name].setdefault(kind, []).append(flat.narrow(0, start, real))
                start += size

    def _kinds(self, state: Mapping[str, Any], master: Tensor) -> list[tuple[str, Tensor]]:
        self.steps = state["step"]
        moments = [(kind, value) for kind, value in state.items() if kind != "step"]
        return [*moments, (MASTER, master)]

    @property
    def kinds(self) -> list[str]:
        """What is known of every parameter: its moments, and last its master weight."""
        first = next(iter(self._fragments.values()))
        return sorted(first, key=lambda kind: kind == MASTER)

    def of(self, name: str, kind: str) -> Tensor:
        """The whole of it, flat."""
        return torch.cat(self._fragments[name][kind])


def load_repartitioned(engine: Any, folder: Path) -> Mapping[str, Any]:
    """Loads trained weights and optimizer state into a DeepSpeed engine; every rank must call it.

    Args:
        engine: new, at the ZeRO stage of the checkpoint, with any number of ranks.
        folder: of DeepSpeed's checkpoint, at stage 1 or higher.

    Returns:
        what the first rank saved beside the state, with the client state.
    """
    from deepspeed.runtime.zero import GatheredParameters

    saved, optimizer = SavedStates(folder), engine.optimizer.optimizer
    trained = [(name, weight) for name, weight in engine.module.named_parameters() if weight.requires_grad]
    flat = [one for group in optimizer.param_groups for one in group["params"]]
    flat = (
        flat or engine.optimizer.fp32_partitioned_groups_flat
    )  # stage 3 shows them to the optimizer in its step alone
    for kind in saved.kinds:
        # A moment lies as the master weight does: where DeepSpeed puts the one, the other is copied.
        for name, weight in trained:
            _set_master(weight, saved.of(name, kind))
        if kind != MASTER:
            for one in flat:
                optimizer.state[one][kind] = one.detach().clone()
    for one in flat:
        steps = copy.copy(saved.steps)  # fused AdamW needs them beside the weights
        optimizer.state[one]["step"] = steps.to(one.device) if torch.is_tensor(steps) else steps
    for name, weight in trained:
        with GatheredParameters([weight], modifier_rank=0, enabled=hasattr(weight, "ds_id")), torch.no_grad():
            weight.copy_(saved.of(name, MASTER).view(weight.shape))
    return saved.model


def _set_master(weight: Any, value: Tensor) -> None:
    """Sets this rank's part of a master weight to that of a flat value."""
    from deepspeed.utils import safe_set_full_fp32_param
    from deepspeed.utils.tensor_fragment import safe_set_local_fp32_param

    if not hasattr(weight, "ds_id"):
        safe_set_full_fp32_param(weight, value)
        return
    size = weight.ds_tensor.numel()  # at stage 3 an equal share, the last ones padded
    share = value[torch.distributed.get_rank() * size :][:size]
    safe_set_local_fp32_param(weight, torch.nn.functional.pad(share, (0, size - share.numel())))

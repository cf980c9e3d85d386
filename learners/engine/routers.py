"""The routers of a mixture of experts: how evenly they spread the tokens of an update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils.output_capturing import OutputRecorder


class Routers:
    """Counts which experts a model's routers choose, while it is entered.

    Args:
        model: any causal language model.

    Attributes:
        experts: of a layer; 0 where there are none, or the family has no balancing loss.
        chosen: experts for each token.
    """

    def __init__(self, model: PreTrainedModel):
        config: Any = model.config.get_text_config()
        self._routers = list(_routers_of(model)) if hasattr(config, "router_aux_loss_coef") else []
        self.chosen = int(config.num_experts_per_tok) if self._routers else 0
        counts = (getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts"))
        self.experts = next(filter(None, counts), 0) if self._routers else 0
        self._places: Tensor | None = None

    def __str__(self) -> str:
        return (
            f"{self.experts} experts, {self.chosen} for each token; their balancing loss is no part of the objective, "
            "and logged as router_loss"
        )

    def __enter__(self) -> Routers:
        self._sums = torch.zeros(3, self.experts, dtype=torch.float64)
        self._hooks = [router.register_forward_hook(self._counting(index)) for router, index in self._routers]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def read(self, places: Tensor | None) -> None:
        """Names the rows of the next forward pass that are tokens; None: all of them."""
        self._places = places

    def _counting(self, index: int) -> Callable[..., None]:
        def count(module: torch.nn.Module, inputs: Any, output: Any) -> None:
            logits = (output[index] if isinstance(output, tuple) else output).detach().reshape(-1, self.experts)
            logits = logits if self._places is None else logits[self._places]
            likely = logits.float().softmax(-1)
            choices = likely.topk(self.chosen).indices.flatten().bincount(minlength=self.experts)
            tokens = torch.full_like(choices, len(logits))
            sums = torch.stack([choices, likely.double().sum(0), tokens])
            self._sums = self._sums.to(sums.device) + sums

        return count

    def loss(self, everywhere: Callable[[Tensor], list[Tensor]]) -> float:
        """The balancing loss of all tokens since it was entered, as transformers has it (Switch Transformer, arXiv
        2101.03961, Eq. 4): :attr:`chosen` where tokens are spread evenly, up to :attr:`experts` where they are not.

        Args:
            everywhere: a value on each rank.
        """
        choices, likely, tokens = sum(everywhere(self._sums.cpu()))
        return float(self.experts * (choices / tokens * likely / tokens).sum())


def _routers_of(model: PreTrainedModel) -> Any:
    """The routers, each with the place of the logits in what it returns."""
    for part in model.modules():
        recorder = (getattr(part, "_can_record_outputs", None) or {}).get("router_logits")
        if isinstance(recorder, OutputRecorder) and recorder.target_class is not None:
            for module in part.modules():
                if isinstance(module, recorder.target_class):
                    yield module, recorder.index
            return


__all__ = ["Routers"]

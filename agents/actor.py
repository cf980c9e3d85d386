"""What a rollout needs of whoever samples: a policy, and what the trainer does with it between batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from torch import Tensor

from roleagent.types import Policy


class Actor(Policy, Protocol):
    """A policy that can be given new weights. The local model (:class:`~roleagent.agents.hf.HFPolicy`) is one, and
    vLLM (:class:`~roleagent.agents.vllm.VLLMPolicy`) another.

    Attributes:
        tokenizer: a Hugging Face tokenizer.
    """

    tokenizer: Any

    @property
    def eos_id(self) -> int:
        """The token that ends a reply."""
        ...

    def single_token(self, text: str) -> int | None:
        """The id of a text that is one token, else None."""
        ...

    def forget(self) -> None:
        """Drops all cached conversations: after an update of the weights, or to free memory."""
        ...

    def reseed(self, seed: int) -> None:
        """Begins the stream that all sampling draws from anew."""
        ...

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Takes over weights: every one by its name in the model, whole. Does nothing where they are shared."""
        ...

    def rest(self) -> None:
        """Gives back what memory it can until the next call of ``generate`` or ``sync``: the learner works now."""
        ...

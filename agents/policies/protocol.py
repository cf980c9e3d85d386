"""The policy protocol: what the rollout and the trainer need of a language model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from roleagent.types import Completion, Request

if TYPE_CHECKING:
    from torch import Tensor

    from roleagent.agents.episode import Backend


INSIDE = "\n"
"""Stands for any text before another one (:meth:`Policy.encode`): no tokenizer joins it to what follows."""

NO_TEMPLATE = "the tokenizer has no chat template: prompts are plain lines"
"""What a program says of a pretrained model without one."""


class PolicyError(RuntimeError):
    """A model that cannot be loaded or used; the message is one line."""


class Adapter(Protocol):
    """The weights of a low-rank adapter, without its model."""

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """Weights by their names in peft's files."""
        ...


class Weights(Protocol):
    """The source of a policy's weights, such as a learner. Weights are gathered from all ranks, so every rank must
    ask for the same ones and consume the whole iterator."""

    def weights(self, adapted: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Yields every whole weight with its name in the model.

        Args:
            adapted: whether a low-rank adapter, if one is trained, is added in.
        """
        ...

    def adapter(self) -> Adapter:
        """The trained low-rank adapter."""
        ...


class Policy(Protocol):
    """A language model that continues token sequences and takes new weights.

    Implementations: the local model (:class:`~roleagent.agents.policies.hf.HFPolicy`) and vLLM
    (:class:`~roleagent.agents.policies.vllm.policy.VLLMPolicy`).

    Attributes:
        tokenizer: a Hugging Face tokenizer.
    """

    tokenizer: Any

    @property
    def version(self) -> int:
        """Number of weight updates so far."""
        ...

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and completion together."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end a reply: all that the tokenizer, the model or the chat template names."""
        ...

    @property
    def eos_id(self) -> int:
        """The one of them that ends a written reply."""
        ...

    def encode(self, text: str, after: str = "") -> list[int]:
        """Token ids of a text, special tokens in it recognized, none added.

        Args:
            after: what the text follows: an end token, :data:`INSIDE` for another text, or nothing.
        """
        ...

    def literal(self, text: str) -> str:
        """A text from outside, for :meth:`encode`, alone or within another: its special tokens are plain letters."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included, end tokens left out."""
        ...

    def single_token(self, text: str) -> int | None:
        """The id of a text that is one token, else None."""
        ...

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        """One completion per request, in order. Temperature 0 is greedy.

        Requests may share a slot: the rollout asks for all predictions of an episode at once.
        """
        ...

    def clear_cache(self) -> None:
        """Drops all cached conversations: after an update of the weights, or to free memory."""
        ...

    def reseed(self, seed: int) -> None:
        """Restarts the random stream of all sampling."""
        ...

    def sync(self, weights: Weights, version: int) -> None:
        """Loads the learner's weights. A policy that shares them with the learner loads nothing."""
        ...

    def offload(self) -> None:
        """Frees memory for the learner's update until the next call of ``generate`` or ``sync``."""
        ...


@runtime_checkable
class HasBackend(Protocol):
    """A policy that samples for many episodes without one waiting for another."""

    def backend(self, temperature: float) -> Backend:
        """What takes the requests of the episodes of a rollout."""
        ...

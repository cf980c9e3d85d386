"""A policy from transformers: any causal language model by path, or a small one built from a configuration.

Generation is a batched loop of its own rather than ``model.generate``: it keeps the key/value cache of every
conversation between calls (:mod:`roleagent.agents.slot_cache`), so that a turn costs only its new tokens, and it
returns the log-probability of each sampled token under exactly the distribution that it was drawn from.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from roleagent.agents.actor import Weights
from roleagent.agents.slot_cache import SlotCache
from roleagent.types import Completion, Request


class PolicyError(RuntimeError):
    """A model that cannot be loaded or used; the message is one line."""


def own_device() -> torch.device:
    """This process's accelerator (that of its ``LOCAL_RANK``, where a launcher gave one), else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def reason_of(error: Exception) -> str:
    """What an error says in its first line, or its type if it says nothing.

    >>> reason_of(OSError("No space left\\nerrno 28")), reason_of(EOFError())
    ('No space left', 'EOFError')
    """
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


class HFPolicy:
    """A causal language model that plays (see :class:`roleagent.types.Policy`).

    Args:
        model: a decoder-only transformer with full attention.
        tokenizer: its tokenizer.
        generator: source of all sampling; what owns the policy seeds it. On the model's device nothing but the
            sampled tokens ever leaves that device; a generator elsewhere is served with a copy of the probabilities.
        context_length: most tokens of prompt and completion; by default what the model was made for.
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
        limit = int(getattr(model.config, "max_position_embeddings", 4096))
        self.context_length = min(context_length or limit, limit)
        kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise PolicyError(
                f"the local policy needs full attention in every layer, but this model has {', '.join(sorted(kinds))}"
            )
        self._cache: SlotCache | None = None

    @classmethod
    def from_path(
        cls,
        path: str | Path,
        generator: torch.Generator,
        dtype: str = "float32",
        context_length: int | None = None,
        trust_remote_code: bool = False,
    ) -> HFPolicy:
        """Loads weights (safetensors) and tokenizer from a folder or hub name, onto the generator's device.

        Raises:
            PolicyError: nothing loadable there.
        """
        options: dict[str, Any] = {"trust_remote_code": trust_remote_code, "local_files_only": os.path.isdir(path)}
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(path), **options)
            model, report = AutoModelForCausalLM.from_pretrained(  # type: ignore[misc]
                str(path), dtype=getattr(torch, dtype), use_safetensors=True, output_loading_info=True, **options
            )
            if report["missing_keys"]:  # transformers would play on with random numbers in their place
                raise OSError(f"the weights lack {', '.join(sorted(report['missing_keys'])[:3])}")
        except Exception as error:  # transformers, the hub and safetensors raise a wide range; all mean one thing here
            raise PolicyError(f"cannot load a causal language model from {path}: {reason_of(error)}") from error
        return cls(model.to(generator.device), tokenizer, generator, context_length)

    @property
    def device(self) -> torch.device:
        """Where the model is, and all that it computes."""
        return self.model.device

    @property
    def eos_id(self) -> int:
        """The token that ends a reply."""
        return int(self.tokenizer.eos_token_id)  # type: ignore[arg-type]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, special tokens in it recognised, none added."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids. Tags may be special tokens, so special tokens stay, but for the end of the reply."""
        ids = [token for token in token_ids if token != self.eos_id]
        text = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def single_token(self, text: str) -> int | None:
        """The id of a text that is one token, else None."""
        ids = self.encode(text)
        return ids[0] if len(ids) == 1 else None

    def forget(self) -> None:
        """Drops all cached conversations: after an update of the weights, or to free memory."""
        self._cache = None

    def reseed(self, seed: int) -> None:
        """Begins the stream that all sampling draws from anew."""
        self.generator.manual_seed(seed)

    def sync(self, weights: Weights, version: int) -> None:
        """The learner brings each weight into this very model before it names it: they need only be asked for."""
        for _ in weights.weights(adapted=False):
            pass
        self.version = version
        self.forget()

    def rest(self) -> None:
        """Drops what was kept of conversations."""
        self.forget()

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
            requests: prompts with distinct slots. What a slot's last call left in the cache is reused as far as
                the new prompt begins with it.
            temperature: > 0 samples from softmax(logits / temperature); 0 takes the most probable token and reports
                its log-probability at temperature 1.

        Raises:
            ValueError: a prompt does not fit the context, or two requests share a slot.
        """
        if not requests:
            return []
        slots = [request.slot for request in requests]
        if len(set(slots)) != len(slots):
            raise ValueError("two requests of one call share a slot")
        for request in requests:
            if not request.prompt_ids or len(request.prompt_ids) >= self.context_length:
                raise ValueError(
                    f"a prompt of {len(request.prompt_ids)} tokens does not fit a context of {self.context_length}"
                )
        with self._inference():
            return self._generate(requests, slots, temperature)

    def _generate(self, requests: Sequence[Request], slots: list[int], temperature: float) -> list[Completion]:
        limits = [min(r.max_tokens, self.context_length - len(r.prompt_ids)) for r in requests]
        if self._cache is None:
            self._cache = SlotCache(self.model.config.num_hidden_layers, self.device)
        cache = self._cache
        cache.arrange(slots, max(len(r.prompt_ids) + limit for r, limit in zip(requests, limits, strict=True)))
        logits = self._prefill(cache, requests)

        n = len(requests)
        sampled: list[list[int]] = [[] for _ in range(n)]
        logprobs: list[list[float]] = [[] for _ in range(n)]
        reasons = ["length"] * n
        lengths = torch.tensor([len(r.prompt_ids) for r in requests], device=self.device)
        living = {row for row, limit in enumerate(limits) if limit > 0}
        rows = torch.arange(n, device=self.device)  # what is computed; always holds the living ones
        step = 0
        while True:
            tokens, chosen = self._sample(logits, temperature)
            for row, token, logprob in zip(rows.tolist(), tokens.tolist(), chosen.tolist(), strict=True):
                if row not in living:
                    continue
                sampled[row].append(token)
                logprobs[row].append(logprob)
                if token in requests[row].stop_ids:
                    reasons[row] = "stop"
                    living.remove(row)
                elif len(sampled[row]) >= limits[row]:
                    living.remove(row)
            if not living:
                break
            if 2 * len(living) <= len(rows):
                # Leaving rows behind costs a copy of what remains, so it is worth it for many at a time.
                kept = torch.tensor([row in living for row in rows.tolist()], device=self.device)
                rows, tokens = rows[kept], tokens[kept]
            # Rows that have stopped write to their next free slot, which the next prefill overwrites.
            positions = (lengths[rows] + step).clamp(max=cache.capacity - 1)[:, None]
            mask = cache.write_at(positions, rows)
            logits = self._forward(tokens[:, None], positions, mask, cache)[:, -1]
            step += 1
        for row, request in enumerate(requests):
            # The last sampled token was never fed back, so the cache holds everything before it.
            cache.tokens[row] = [*request.prompt_ids, *sampled[row][:-1]]
        return [Completion(tuple(sampled[row]), tuple(logprobs[row]), reasons[row], self.version) for row in range(n)]

    def _sample(self, logits: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """One token per row of ``logits`` (n, vocabulary), and its log-probability; both ``(n,)``."""
        scores = logits.float()
        if temperature > 0:
            scores = torch.log_softmax(scores / temperature, dim=-1)
            # Drawn where the generator is: torch has no generator that serves two devices.
            odds = scores.exp().to(self.generator.device)
            tokens = torch.multinomial(odds, 1, generator=self.generator).to(scores.device)
        else:
            scores = torch.log_softmax(scores, dim=-1)
            tokens = scores.argmax(dim=-1, keepdim=True)
        return tokens[:, 0], scores.gather(1, tokens)[:, 0]

    def _prefill(self, cache: SlotCache, requests: Sequence[Request]) -> torch.Tensor:
        """Computes what the cache lacks of the prompts; returns the logits ``(rows, vocabulary)`` that follow them."""
        fresh: list[tuple[int, ...]] = []
        starts: list[int] = []
        for row, request in enumerate(requests):
            # At least the last prompt token is computed anew, for its logits.
            start = _common_prefix(cache.tokens[row], request.prompt_ids[:-1])
            starts.append(start)
            fresh.append(request.prompt_ids[start:])
        width = max(map(len, fresh))
        tokens = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in fresh], device=self.device)
        # The padding behind a shorter row lands behind its last slot, or on the last slot of all: masked, overwritten.
        positions = torch.tensor(starts, device=self.device)[:, None] + torch.arange(width, device=self.device)
        longest = max(len(request.prompt_ids) for request in requests)
        ends = torch.tensor([len(request.prompt_ids) for request in requests], device=self.device)[:, None]
        positions = positions.masked_fill(positions >= ends, longest)
        mask = cache.write_at(positions)
        hidden_rows = torch.tensor([len(ids) - 1 for ids in fresh], device=self.device)
        return self._forward(tokens, positions, mask, cache, hidden_rows)[:, 0]

    def _forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        cache: SlotCache,
        at: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits ``(rows, 1, vocabulary)`` of the last token, or of token ``at`` of each row."""
        hidden = self.model.base_model(
            input_ids=tokens, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        ).last_hidden_state
        index = tokens.shape[1] - 1 if at is None else at
        picked = hidden[torch.arange(len(tokens), device=self.device), index][:, None]
        return self.model.get_output_embeddings()(picked)  # type: ignore[misc]


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix.

    >>> _common_prefix([1, 2, 3], (1, 2, 4, 5))
    2
    """
    n = min(len(left), len(right))
    if tuple(left[:n]) == tuple(right[:n]):
        return n
    for position in range(n):
        if left[position] != right[position]:
            return position
    return n

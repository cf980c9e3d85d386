"""Requests to vLLM, and its answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from roleagent.agents.policies.vllm.sync import ADAPTER
from roleagent.types import Completion

PROTOCOL = 5
"""The version of what a run and a server say to each other."""

_NO_PART = (
    *("architectures", "bos_token_id", "dtype", "eos_token_id", "pad_token_id", "torch_dtype", "transformers_version"),
    "use_cache",
)
"""Keys of a model's configuration that its computation does not depend on."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One prompt to continue.

    Attributes:
        stop_ids: tokens that end the reply, and belong to it.
        seed: of its sampling: the answer does not depend on what is asked beside it.
        known: sampled tokens are below it: a padded vocabulary has more tokens than the tokenizer.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...]
    seed: int
    known: int

    def body(self) -> dict[str, Any]:
        """What :func:`read_request` reads. (``dataclasses.asdict`` copies token by token.)

        >>> SampleRequest((5, 6), 3, (9,), 1, 10).body()
        {'prompt_ids': (5, 6), 'max_tokens': 3, 'stop_ids': (9,), 'seed': 1, 'known': 10}
        """
        return {field.name: getattr(self, field.name) for field in fields(self)}


def model_shape(config: Any) -> dict[str, Any]:
    """What two models must have in common for the one to take the weights of the other.

    Args:
        config: transformers' configuration of a model.
    """
    whole = json.loads(json.dumps(config.to_dict(), default=str))
    return {name: value for name, value in whole.items() if name not in _NO_PART and not name.startswith("_")}


def read_request(body: Any, vocabulary: int, context: int) -> SampleRequest:
    """A request that came over the network.

    Raises:
        ValueError: it is none, or one that whatever computes it would not survive.

    >>> body = {"prompt_ids": [5, 6], "max_tokens": 3, "stop_ids": [-1, 9], "seed": 1, "known": 10}
    >>> read_request(body, vocabulary=10, context=5)
    SampleRequest(prompt_ids=(5, 6), max_tokens=3, stop_ids=(-1, 9), seed=1, known=10)
    """
    try:
        texts = tuple(body["prompt_ids"]), body["max_tokens"], tuple(body["stop_ids"])
        request = SampleRequest(*texts, body["seed"], body["known"])
    except (KeyError, TypeError) as error:
        raise ValueError("a request has prompt_ids, max_tokens, stop_ids, seed and known") from error
    prompt, stops, room = request.prompt_ids, request.stop_ids, context - len(request.prompt_ids)
    if any(type(number) is not int for number in (*prompt, *stops, request.max_tokens, request.seed, request.known)):
        raise ValueError("a request is made of whole numbers")
    if not prompt or min(prompt) < 0 or max((*prompt, *stops)) >= vocabulary:
        raise ValueError(f"a prompt has tokens, and there are {vocabulary}: 0 and up")
    if not 1 <= request.max_tokens <= room:
        raise ValueError(f"{len(prompt)} tokens and {request.max_tokens} more do not fit a context of {context}")
    if not 0 <= request.seed < 2**63:
        raise ValueError("a seed has 63 bits")
    if not 1 <= request.known <= vocabulary:
        raise ValueError(f"the tokens that may be sampled are 1 to {vocabulary}")
    return request


def sampling(request: SampleRequest, temperature: float) -> Any:
    """vLLM's ``SamplingParams`` for a request; the answer comes whole.

    That no token beyond ``known`` is sampled is up to the worker: a bias of each request would be read anew whenever
    one comes or goes, which took 25 ms with 256 requests and the 271 tokens of Qwen2.5's padding.
    """
    from vllm import SamplingParams  # pyright: ignore[reportAttributeAccessIssue] - it may be missing
    from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports] - it may be missing

    return SamplingParams(
        temperature=temperature,
        max_tokens=request.max_tokens,
        stop_token_ids=sorted(token for token in request.stop_ids if token >= 0),
        ignore_eos=True,  # the stop tokens alone decide
        seed=request.seed,
        logprobs=0,  # of the sampled token
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def answer(output: Any) -> Completion:
    """The completion in vLLM's ``CompletionOutput``.

    Raises:
        RuntimeError: vLLM did not finish it.
    """
    if output.finish_reason not in ("stop", "length"):
        raise RuntimeError(f"vLLM did not finish an answer: {output.finish_reason!r}")
    tokens = tuple(output.token_ids)
    logprobs = tuple(found[token].logprob for token, found in zip(tokens, output.logprobs, strict=True))
    return Completion(tokens, logprobs, output.finish_reason)


def adapter_request() -> Any:
    """The request field that selects the weights with the adapter."""
    from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]

    return LoRARequest("policy", ADAPTER, "none: it is in memory")

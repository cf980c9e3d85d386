"""A client of :mod:`roleagent.agents.policies.vllm.server`: all ranks ask it, the first one sends it weights."""

from __future__ import annotations

import ipaddress
import shlex
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

import httpx2
import torch.distributed as dist
from torch import Tensor

from roleagent.agents.policies.hf import HFPolicy, PolicyError, reason_of
from roleagent.agents.policies.vllm.requests import SampleRequest
from roleagent.agents.policies.vllm.sync import Channel, device_id, open_store, wait_for_members
from roleagent.config import Config
from roleagent.slow_notice import waiting
from roleagent.types import Completion

_LONGEST = httpx2.Timeout(1800.0, connect=10.0)  # seconds of a call
_CONNECTIONS = 512  # episodes that ask at the same time; more wait
_HEALTH = httpx2.Timeout(60.0, connect=10.0)  # it only reports its state


_Answers = SimpleQueue[tuple[int, list[Any], Exception | None]]


class RemoteEngine:
    """An engine of :class:`~roleagent.agents.policies.vllm.policy.VLLMPolicy` on a server.

    Args:
        config: the run's configuration (sections ``vllm``, ``lora``).
        policy: its model is what the server must have been started with.

    Raises:
        PolicyError: there is no such server, or it serves something else.
    """

    def __init__(self, config: Config, policy: HFPolicy):
        self.url = config.vllm.url.rstrip("/")
        self._client = httpx2.Client(trust_env=False, limits=httpx2.Limits(max_connections=_CONNECTIONS))
        self._answers: _Answers = SimpleQueue()
        self._device = policy.device
        self._channel: Channel | None = None
        self._rank, self._size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        with waiting(f"the vLLM server at {self.url}", every=True):
            self._server = self._ask("GET", "/health", _HEALTH)
        _check_server(self._server, self.url, config, policy)

    def submit(self, key: int, requests: Sequence[SampleRequest], temperature: float) -> None:
        """Begins to sample one answer per request."""
        body = {"requests": [asdict(request) for request in requests], "temperature": temperature}
        # Daemons: a run that ends in an error does not wait for what it asked.
        threading.Thread(target=self._sample, args=(key, body, self._answers), name=f"vllm-{key}", daemon=True).start()

    def _sample(self, key: int, body: Mapping[str, Any], answers: _Answers) -> None:
        try:
            answers.put((key, self._ask("POST", "/generate", **body)["answers"], None))
        except Exception as error:
            answers.put((key, [], error))

    def wait(self) -> list[tuple[int, list[Completion]]]:
        """Waits until requests are answered that were submitted together.

        Raises:
            PolicyError: the server does not answer.
        """
        key, answers, error = self._answers.get()
        if error is not None:
            raise error
        return [(key, [Completion(tuple(ids), tuple(logprobs), reason) for ids, logprobs, reason in answers])]

    def cancel(self) -> None:
        """Forgets what was submitted."""
        self._answers = SimpleQueue()

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Sends the weights; every rank must call it, and gathers what only the first one sends."""
        self._send(weights, {})

    def load_adapter(self, adapter: Iterable[tuple[str, Tensor]], rank: int, alpha: float) -> None:
        """Sends the adapter, likewise."""
        self._send(adapter, {"adapter": {"rank": rank, "alpha": alpha}})

    def offload(self) -> None:
        """Nothing: the server has its accelerators to itself."""

    def _send(self, weights: Iterable[tuple[str, Tensor]], fields: dict[str, Any]) -> None:
        if self._size > 1:
            dist.barrier()  # sampling has ended
        stream = iter(weights)

        def send() -> None:
            try:
                channel = self._channel = self._channel or self._open()
                self._alongside("/weights", fields, lambda poll: channel.send(stream, poll))
            except PolicyError:
                self._channel = None  # its remaining content is discarded
                for _ in stream:  # the other ranks go on gathering
                    pass
                raise

        self._on_first_rank(send, lambda: sum(1 for _ in stream))

    def _on_first_rank(self, first: Callable[[], Any], others: Callable[[], Any]) -> None:
        """Something for the first rank and something for the others; what the first raises is raised by all."""
        error: list[Any] = [None]
        if self._rank == 0:
            try:
                first()
            except PolicyError as found:
                error = [str(found)]
        else:
            others()
        if self._size > 1:
            dist.broadcast_object_list(error, src=0)
        if error[0] is not None:
            raise PolicyError(error[0])

    def _open(self) -> Channel:
        """The way to the workers: all processes meet at the address that this one gives."""
        try:
            address, there = _addresses(self.url)
            store = open_store(address)
        except (RuntimeError, OSError) as error:
            raise PolicyError(f"no way to the vLLM server at {self.url} can be opened: {reason_of(error)}") from error
        shared = device_id(self._device) in self._server["devices"]
        backend = "nccl" if self._device.type == "cuda" and not shared else "gloo"
        size = 1 + len(self._server["devices"])
        place = {"address": address, "port": store.port, "size": size, "backend": backend, "own_address": there}

        def join(poll: Callable[[], None]) -> Channel:
            wait_for_members(store, size, poll)  # or their complaints would come when the group gives up, minutes later
            with waiting(f"the workers of the vLLM server at {self.url} to open the way for weights ({backend})"):
                return Channel(store, 0, size, backend, self._device, address)

        return self._alongside("/join", {"place": place}, join)

    def _alongside(self, path: str, fields: dict[str, Any], act: Callable[[Callable[[], None]], Any]) -> Any:
        """What ``act`` gives while the server does its part.

        Args:
            act: is given what it must call while it waits: it raises what the server reports.

        Raises:
            PolicyError: of the two, the server's error comes first.
        """
        with ThreadPoolExecutor(1) as beside:
            theirs = beside.submit(self._ask, "POST", path, **fields)
            try:
                mine = act(lambda: theirs.result() if theirs.done() else None)
            except (RuntimeError, OSError) as error:
                theirs.result()
                raise PolicyError(f"the way to the vLLM server broke: {reason_of(error)}") from error
            theirs.result()
        return mine

    def _ask(self, method: str, path: str, patience: httpx2.Timeout = _LONGEST, **body: Any) -> Any:
        content = body if method == "POST" else None
        try:
            answer = self._client.request(method, self.url + path, json=content, timeout=patience)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise PolicyError(
                f"no vLLM server answers at {self.url} ({reason_of(error)}): start one with "
                "`python -m roleagent.agents.policies.vllm.server` (docs/vllm.md), and go on with --resume"
            ) from error
        if answer.status_code != 200:
            text = " ".join(answer.text.split())[:300]
            raise PolicyError(f"the vLLM server at {self.url} answered {answer.status_code}: {text}")
        try:
            return answer.json()
        except ValueError as error:
            raise PolicyError(f"what answers at {self.url} is no vLLM server of RoleAgent's") from error


def _check_server(server: Any, url: str, config: Config, policy: HFPolicy) -> None:
    """Refuses a server that was started for something else.

    Raises:
        PolicyError: it names the options that the server must be started with.
    """
    try:
        differences = {
            "policy.context": (server["context"] >= policy.context_length, policy.context_length),
            "lora.rank": (server["lora_rank"] == config.lora.rank, config.lora.rank),
        }
        vocabulary, _ = server["vocabulary"], server["devices"]
    except (KeyError, TypeError) as error:
        raise PolicyError(f"what answers at {url} is no vLLM server of RoleAgent's") from error
    wrong = [f"{name}={value}" for name, (fits, value) in differences.items() if not fits]
    if wrong:
        raise PolicyError(f"the vLLM server at {url} was started for another run: start it with {shlex.join(wrong)}")
    if vocabulary != policy.model.config.vocab_size:
        raise PolicyError(
            f"the vLLM server at {url} has a model of {vocabulary} tokens, and the policy has "
            f"{policy.model.config.vocab_size}: start it with the run's own model"
        )


def _addresses(url: str) -> tuple[str, str]:
    """Of this machine as the server's sees it, and of that one: where the two meet."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    with socket.create_connection((host, port), timeout=10) as connection:
        here, there = connection.getsockname()[0], connection.getpeername()[0]
    return ("127.0.0.1", "127.0.0.1") if ipaddress.ip_address(there).is_loopback else (here, there)

"""Clients of :mod:`roleagent.agents.policies.vllm.server`: all ranks ask, and the first one sends the weights."""

from __future__ import annotations

import ipaddress
import shlex
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

import httpx2
import torch
import torch.distributed as dist
from torch import Tensor

from roleagent.agents.policies.hf import HFPolicy, PolicyError, reason_of
from roleagent.agents.policies.vllm.requests import PROTOCOL, SampleRequest, model_shape
from roleagent.agents.policies.vllm.sync import (
    PATIENCE,
    TIMEOUT,
    Channel,
    device_id,
    open_store,
    send_weights,
    wait_for_members,
)
from roleagent.config import Config
from roleagent.slow_notice import waiting
from roleagent.types import Completion

_LONGEST = httpx2.Timeout(1800.0, connect=10.0)  # seconds of a call
_CONNECTIONS = 512  # episodes that ask a server at the same time; more wait
_GRACE = 5.0  # seconds for the own error of a server whose way broke
_HEALTH = httpx2.Timeout(60.0, connect=10.0)  # it only reports its state
# A machine that is switched off closes no connection: after a minute without a sign of life it counts as lost.
_KEEPALIVE = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
]


class LostError(PolicyError):
    """A server does not answer, or has no weights: another one may."""


class Server:
    """One server, and the way on which weights go to its workers.

    Args:
        url: its address.
        device: of the learner.

    Attributes:
        load: requests that are under way.
        lost: why it is left out; None: it takes requests.
        channel: the way for weights, once it is open.
        bare: whether it lacks the weights beside the adapter.
    """

    def __init__(self, url: str, device: torch.device):
        self.url, self._device = url.rstrip("/"), device
        limits = httpx2.Limits(max_connections=_CONNECTIONS)
        transport = httpx2.HTTPTransport(trust_env=False, limits=limits, socket_options=_KEEPALIVE)
        self._client = httpx2.Client(trust_env=False, transport=transport)
        self._description: dict[str, Any] = {}
        self.load, self.bare = 0, True
        self.lost: PolicyError | None = None
        self.channel: Channel | None = None

    @property
    def instance(self) -> Any:
        """What no other server has."""
        return self._description["instance"]

    @property
    def size(self) -> int:
        """Its accelerators."""
        return len(self._description["devices"])

    def connect(self, config: Config, policy: HFPolicy) -> None:
        """Asks the server what it is.

        Raises:
            PolicyError: nothing answers, or it was started for something else.
        """
        with waiting(f"the vLLM server at {self.url}", every=True):
            self._description = self.ask("GET", "/health", _HEALTH)
        _check(self._description, self.url, config, policy)

    def open(self) -> Channel:
        """The way to its workers: all processes meet at the address that this one gives.

        Raises:
            PolicyError: there is none.
        """
        try:
            address, there = _addresses(self.url)
            store = open_store(address)
        except (RuntimeError, OSError) as error:
            raise PolicyError(f"no way to the vLLM server at {self.url} can be opened: {reason_of(error)}") from error
        shared = device_id(self._device) in self._description["devices"]
        backend = "nccl" if self._device.type == "cuda" and not shared else "gloo"
        size = 1 + self.size
        place = {"address": address, "port": store.port, "size": size, "backend": backend, "own_address": there}
        theirs = self.begin("/join", place=place)
        try:
            # Or their complaints would come when the group gives up, minutes later.
            wait_for_members(store, size, lambda: _answered(theirs, 0.0))
            with waiting(f"the workers of the vLLM server at {self.url} to open the way for weights ({backend})"):
                channel = Channel(store, 0, size, backend, self._device, address)
        except (RuntimeError, OSError) as error:
            _answered(theirs, _GRACE)  # the server's own error comes first
            raise PolicyError(f"the way to the vLLM server at {self.url} broke: {reason_of(error)}") from error
        if not _answered(theirs, PATIENCE):
            raise LostError(f"the vLLM server at {self.url} does not say whether its workers have joined")
        return channel

    def begin(self, path: str, **body: Any) -> Future[Any]:
        """The answer to come of a call. Nothing waits for a server that never answers: its thread is a daemon."""
        found: Future[Any] = Future()

        def call() -> None:
            try:
                found.set_result(self.ask("POST", path, **body))
            except BaseException as error:
                found.set_exception(error)

        threading.Thread(target=call, name=f"vllm{path}", daemon=True).start()
        return found

    def ask(self, method: str, path: str, patience: httpx2.Timeout = _LONGEST, **body: Any) -> Any:
        """The answer to a call.

        Raises:
            PolicyError: the server refuses it.
            LostError: it does not answer, or cannot do what it should.
        """
        content = body if method == "POST" else None
        try:
            answer = self._client.request(method, self.url + path, json=content, timeout=patience)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise LostError(
                f"no vLLM server answers at {self.url} ({reason_of(error)}): start one with "
                "`python -m roleagent.agents.policies.vllm.server` (docs/vllm.md), and go on with --resume"
            ) from error
        if answer.status_code != 200:
            text = " ".join(answer.text.split())[:300]
            kind = LostError if answer.status_code in (409, 500, 502, 503, 504) else PolicyError
            raise kind(f"the vLLM server at {self.url} answered {answer.status_code}: {text}")
        try:
            return answer.json()
        except ValueError as error:
            raise PolicyError(f"what answers at {self.url} is no vLLM server of RoleAgent's") from error


@dataclass(slots=True)
class _Asked:
    """What was submitted together, and its answers so far."""

    requests: Sequence[SampleRequest]
    temperature: float
    answers: dict[int, Completion]


_Answers = SimpleQueue[tuple[int, list[int], Server, list[Any], PolicyError | None]]


class ServerPool:
    """An engine of :class:`~roleagent.agents.policies.vllm.policy.VLLMPolicy` on one or more servers.

    A request goes to the server with the fewest requests per accelerator, and the next one of the same episode to the
    same server, which remembers the episode so far. A server that fails is left out, and what it was asked goes to
    another one: the reply is the same, since a request holds the whole prompt and its seed. It takes part again from
    the next transfer of weights at which it answers.

    Args:
        config: the run's configuration (sections ``vllm``, ``lora``).
        policy: its model is what the servers must have been started with.

    Raises:
        PolicyError: a server does not answer, or serves something else.
    """

    def __init__(self, config: Config, policy: HFPolicy):
        self._config, self._policy = config, policy
        self._servers = [Server(url, policy.device) for url in config.vllm.url]
        known: dict[Any, str] = {}
        for server in self._servers:
            server.connect(config, policy)
            if (same := known.setdefault(server.instance, server.url)) != server.url:
                raise PolicyError(f"vllm.url names one server twice: {same} and {server.url}")
        self._rank, self._ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self._first = self._rank % len(self._servers)
        self._reset()

    def _reset(self) -> None:
        self._answers: _Answers = SimpleQueue()
        self._asked: dict[int, _Asked] = {}
        self._home: dict[tuple[int, int], Server] = {}  # of the requests of a key, by their place
        for server in self._servers:
            server.load = 0

    # --- sampling ---------------------------------------------------------------------------------------------------

    def submit(self, key: int, requests: Sequence[SampleRequest], temperature: float) -> None:
        """Begins to sample one answer per request.

        Raises:
            PolicyError: all servers are left out.
        """
        self._asked[key] = _Asked(requests, temperature, {})
        self._deal(key, range(len(requests)))

    def _deal(self, key: int, places: Iterable[int]) -> None:
        parts: dict[str, tuple[Server, list[int]]] = {}
        for place in places:
            server = self._home.get((key, place))
            if server is None or server.lost:
                self._raise_if_none_is_left()
                # Each rank knows its own requests alone: ranks begin with different servers.
                turned = self._servers[self._first :] + self._servers[: self._first]
                there = [one for one in turned if not one.lost]
                server = self._home[key, place] = min(there, key=lambda one: one.load / one.size)
            server.load += 1
            parts.setdefault(server.url, (server, []))[1].append(place)
        asked = self._asked[key]
        for server, part in parts.values():
            body = {"requests": [asked.requests[place].body() for place in part], "temperature": asked.temperature}
            arguments = key, part, server, body, self._answers
            # Daemons: a run that ends in an error does not wait for what it asked.
            threading.Thread(target=self._sample, args=arguments, name=f"vllm-{key}", daemon=True).start()

    def _sample(self, key: int, part: list[int], server: Server, body: Mapping[str, Any], answers: _Answers) -> None:
        try:
            answers.put((key, part, server, server.ask("POST", "/generate", **body)["answers"], None))
        except Exception as error:
            found = error if isinstance(error, PolicyError) else PolicyError(f"{server.url}: {reason_of(error)}")
            answers.put((key, part, server, [], found))

    def wait(self) -> list[tuple[int, list[Completion]]]:
        """Waits until requests are answered that were submitted together.

        Raises:
            PolicyError: all servers are left out, or one refuses a request.
        """
        while True:
            key, part, server, answers, error = self._answers.get()
            server.load -= len(part)
            if isinstance(error, LostError):
                self._leave_out(server, error)
                self._deal(key, part)
                continue
            if error is not None:
                raise error
            asked = self._asked[key]
            for place, (ids, logprobs, reason) in zip(part, answers, strict=True):
                asked.answers[place] = Completion(tuple(ids), tuple(logprobs), reason)
            if len(asked.answers) == len(asked.requests):
                del self._asked[key]
                return [(key, [asked.answers[place] for place in range(len(asked.requests))])]

    def cancel(self) -> None:
        """Forgets what was submitted."""
        self._reset()

    def _leave_out(self, server: Server, error: PolicyError) -> None:
        if server.lost is None and len(self._servers) > 1:
            print(f"a vLLM server is left out until it answers at a transfer of weights: {error}", file=sys.stderr)
        if server.channel is not None:
            server.channel.abort()
        server.lost, server.channel = error, None

    # --- weights ----------------------------------------------------------------------------------------------------

    def prepare(self) -> bool:
        """Looks which servers there are; returns whether one lacks the weights beside the adapter."""
        if self._ranks > 1:  # sampling has ended; what one rank has lost may have restarted without weights
            lost: list[Any] = [None] * self._ranks
            dist.all_gather_object(lost, [str(server.lost or "") for server in self._servers])
            for server, *reasons in zip(self._servers, *lost, strict=True):
                if self._rank == 0 and server.lost is None and any(reasons):
                    self._leave_out(server, PolicyError(max(reasons)))
        self._reset()

        def look() -> None:
            for server in self._servers:
                if server.lost:
                    try:
                        server.connect(self._config, self._policy)
                    except PolicyError as error:
                        self._leave_out(server, error)
                    else:
                        server.lost, server.bare = None, True
                        print(f"the vLLM server at {server.url} takes part again", file=sys.stderr)

        self._on_first_rank(look, lambda: None)
        return any(server.bare for server in self._servers if not server.lost)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Sends the weights; every rank must call it, and gathers what only the first one sends.

        Raises:
            PolicyError: they reached no server.
        """
        self._send(weights, {})
        for server in self._servers:
            server.bare = False

    def load_adapter(self, adapter: Iterable[tuple[str, Tensor]], rank: int, alpha: float) -> None:
        """Sends the adapter, likewise."""
        self._send(adapter, {"adapter": {"rank": rank, "alpha": alpha}})

    def offload(self) -> None:
        """Nothing: the servers have their accelerators to themselves."""

    def _send(self, weights: Iterable[tuple[str, Tensor]], fields: dict[str, Any]) -> None:
        stream = iter(weights)

        def drain() -> None:  # the other ranks go on gathering
            for _ in stream:
                pass

        def send() -> None:
            for server in self._servers:
                if not server.lost and server.channel is None:
                    try:
                        server.channel = server.open()
                    except PolicyError as error:
                        self._leave_out(server, error)
            there = [server for server in self._servers if not server.lost]
            theirs = {server: server.begin("/weights", **fields) for server in there}
            polls = {server: partial(_answered, ours, 0.0) for server, ours in theirs.items()}
            channels = {server: (server.channel, polls[server]) for server in there if server.channel}
            broken = send_weights(channels, stream)
            for server, ours in theirs.items():
                try:
                    # The server's own error comes first.
                    answered = _answered(ours, _GRACE if server in broken else TIMEOUT.total_seconds())
                    if server in broken:
                        reason = reason_of(broken[server])
                        raise PolicyError(f"the way to the vLLM server at {server.url} broke: {reason}")
                    if not answered:
                        raise LostError(f"the vLLM server at {server.url} has the weights and does not go on")
                except PolicyError as error:
                    self._leave_out(server, error)
            drain()
            if any(server.lost for server in self._servers) and len(self._servers) > 1:
                missing = ", ".join(server.url for server in self._servers if server.lost)
                print(f"the weights reached all vLLM servers but {missing}", file=sys.stderr)

        self._on_first_rank(send, drain)

    def _on_first_rank(self, first: Callable[[], Any], others: Callable[[], Any]) -> None:
        """Something for the first rank and something for the others. All then leave out the same servers.

        Raises:
            PolicyError: no server is left.
        """
        if self._rank == 0:
            first()
        else:
            others()
        state = [[(str(server.lost or ""), server.bare) for server in self._servers]]
        if self._ranks > 1:
            dist.broadcast_object_list(state, src=0)
        for server, (reason, bare) in zip(self._servers, state[0], strict=True):
            server.lost, server.bare = PolicyError(reason) if reason else None, bare
        self._raise_if_none_is_left()

    def _raise_if_none_is_left(self) -> None:
        if all(server.lost for server in self._servers):
            raise PolicyError(str(self._servers[-1].lost))


def _answered(call: Future[Any], seconds: float) -> bool:
    """Whether a call is answered after so many seconds at most; raises the error that it ended with."""
    wait([call], seconds)
    if call.done():
        call.result()
    return call.done()


def _check(server: Any, url: str, config: Config, policy: HFPolicy) -> None:
    """Refuses a server that was started for something else.

    Raises:
        PolicyError: it names the options that the server must be started with.
    """
    try:
        protocol = server["protocol"]
    except (KeyError, TypeError) as error:
        raise PolicyError(f"what answers at {url} is no vLLM server of this version of RoleAgent") from error
    if protocol != PROTOCOL:
        raise PolicyError(
            f"the vLLM server at {url} speaks version {protocol!r} of the protocol, and this run {PROTOCOL}: start it "
            "with the run's version of RoleAgent"
        )
    differences = {
        "policy.context": (server["context"] >= policy.context_length, policy.context_length),
        "lora.rank": (server["lora_rank"] == config.lora.rank, config.lora.rank),
    }
    wrong = [f"{name}={value}" for name, (fits, value) in differences.items() if not fits]
    if wrong:
        raise PolicyError(f"the vLLM server at {url} was started for another run: start it with {shlex.join(wrong)}")
    mine, theirs = model_shape(policy.model.config), server["model"]
    # Versions of transformers differ in the names that they give defaults.
    different = [
        f"{name} {theirs[name]} instead of {value}"
        for name, value in mine.items()
        if name in theirs and theirs[name] != value
    ]
    if different:
        raise PolicyError(
            f"the vLLM server at {url} has another model ({', '.join(different)}): start it with the run's own model"
        )


def _addresses(url: str) -> tuple[str, str]:
    """Of this machine as the server's sees it, and of that one: where the two meet."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    with socket.create_connection((host, port), timeout=10) as connection:
        here, there = connection.getsockname()[0], connection.getpeername()[0]
    return ("127.0.0.1", "127.0.0.1") if ipaddress.ip_address(there).is_loopback else (here, there)

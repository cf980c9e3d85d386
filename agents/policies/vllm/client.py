"""Clients of :mod:`roleagent.agents.policies.vllm.server`: all ranks ask, and the first one sends the weights."""

from __future__ import annotations

import ipaddress
import shlex
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx2
import torch
import torch.distributed as dist
from torch import Tensor

from roleagent.agents.policies.hf import HFPolicy, PolicyError, reason_of
from roleagent.agents.policies.vllm.pool import Answers, LostError, Part, Pool
from roleagent.agents.policies.vllm.requests import PROTOCOL, model_shape
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


class Server:
    """One server, and the way on which weights go to its workers; a member of the pool.

    Args:
        url: its address.
        device: of the learner.

    Attributes:
        channel: the way for weights, once it is open.
        bare: whether it lacks the weights beside the adapter.
    """

    kind = "server"

    def __init__(self, url: str, device: torch.device):
        self.url, self._device = url.rstrip("/"), device
        self.name = self.url
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

    def sample(self, part: Part, answers: Answers) -> None:
        """Asks from a thread. Threads are daemons: a run that ends in an error does not wait for what it asked."""

        def call() -> None:
            replies, failure = [], None
            body = {"requests": [one.body() for one in part.requests], "temperature": part.temperature}
            try:
                found = self.ask("POST", "/generate", **body)["answers"]
                replies = [Completion(tuple(ids), tuple(logprobs), reason) for ids, logprobs, reason in found]
            except PolicyError as error:
                failure = error
            except Exception as error:
                failure = PolicyError(f"{self.url}: {reason_of(error)}")
            answers.put((part, self, replies, failure))

        threading.Thread(target=call, name=f"vllm-{part.key}", daemon=True).start()

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


class ServerPool(Pool[Server]):
    """An engine of :class:`~roleagent.agents.policies.vllm.policy.VLLMPolicy` on one or more servers.

    A server that fails is left out. It takes part again from the next transfer of weights at which it answers.

    Args:
        config: the run's configuration (sections ``vllm``, ``lora``).
        policy: its model is what the servers must have been started with.

    Raises:
        PolicyError: a server does not answer, or serves something else.
    """

    def __init__(self, config: Config, policy: HFPolicy):
        self._config, self._policy = config, policy
        servers = [Server(url, policy.device) for url in config.vllm.url]
        known: dict[Any, str] = {}
        for server in servers:
            server.connect(config, policy)
            if (same := known.setdefault(server.instance, server.url)) != server.url:
                raise PolicyError(f"vllm.url names one server twice: {same} and {server.url}")
        self._rank, self._ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        # Each rank knows its own requests alone: ranks begin with different servers.
        super().__init__(servers, first=self._rank)

    def _leave_out(self, member: Server, error: PolicyError) -> None:
        super()._leave_out(member, error)
        if member.channel is not None:
            member.channel.abort()
        member.channel = None

    # --- weights ----------------------------------------------------------------------------------------------------

    def prepare(self) -> bool:
        """Looks which servers there are; returns whether one lacks the weights beside the adapter."""
        if self._ranks > 1:  # sampling has ended; what one rank has lost may have restarted without weights
            lost: list[Any] = [None] * self._ranks
            dist.all_gather_object(lost, [str(server.lost or "") for server in self._members])
            for server, *reasons in zip(self._members, *lost, strict=True):
                if self._rank == 0 and server.lost is None and any(reasons):
                    self._leave_out(server, PolicyError(max(reasons)))
        self._reset()

        def look() -> None:
            for server in self._members:
                if server.lost:
                    try:
                        server.connect(self._config, self._policy)
                    except PolicyError as error:
                        self._leave_out(server, error)
                    else:
                        server.lost, server.bare = None, True
                        print(f"the vLLM server at {server.url} takes part again", file=sys.stderr)

        self._on_first_rank(look, lambda: None)
        return any(server.bare for server in self._members if not server.lost)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Sends the weights; every rank must call it, and gathers what only the first one sends.

        Raises:
            PolicyError: they reached no server.
        """
        self._send(weights, {})
        for server in self._members:
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
            for server in self._members:
                if not server.lost and server.channel is None:
                    try:
                        server.channel = server.open()
                    except PolicyError as error:
                        self._leave_out(server, error)
            there = [server for server in self._members if not server.lost]
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
            if any(server.lost for server in self._members) and len(self._members) > 1:
                missing = ", ".join(server.url for server in self._members if server.lost)
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
        state = [[(str(server.lost or ""), server.bare) for server in self._members]]
        if self._ranks > 1:
            dist.broadcast_object_list(state, src=0)
        for server, (reason, bare) in zip(self._members, state[0], strict=True):
            server.lost, server.bare = PolicyError(reason) if reason else None, bare
        self._raise_if_none_is_left()


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
        "policy.dtype": (server["dtype"] == config.policy.dtype, config.policy.dtype),
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

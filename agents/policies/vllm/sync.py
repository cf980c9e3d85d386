"""Weight transfer from the trainer to the workers of a vLLM server, by broadcast and without the disk.

The trainer is member 0 of a process group per server, beside those of DeepSpeed and of vLLM; the server's workers are
the others. On GPUs weights go by NCCL, from memory to memory. Where trainer and worker share a GPU, which NCCL refuses,
or have none, they go by gloo. Several weights travel together, each group behind a header that lists them, so
that neither side has to know the model beforehand.
"""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - it is public, and documented

from roleagent.slow_notice import waiting

K = TypeVar("K")
_BUCKET_BYTES = 64 * 2**20  # bytes that travel together, at least; a larger weight travels alone
_ALIGNED = 16  # bytes: what every number type can begin at
_POLL_SECONDS = 2e-4  # seconds between two looks at what goes on
_NCCL_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_END, _BROKEN = 0, -1  # in place of a header's length
ADAPTER = 1  # its number in vLLM: there is one
TIMEOUT = timedelta(minutes=5)  # that a receiver waits for one bucket
PATIENCE = 60.0  # seconds that the sender waits for receivers: less, so that one that hangs does not cost the others
CONNECT_TIMEOUT = 10.0  # seconds for a connection: a way that takes longer is none


class BrokenChannelError(RuntimeError):
    """The sender failed during a transfer: only some weights arrived."""


class Channel:
    """One end of the way.

    Args:
        store: where the members find each other: :func:`open_store` or, elsewhere, :func:`join_store`.
        rank: 0 for the sender.
        size: of the group.
        backend: ``"nccl"`` or ``"gloo"``.
        device: where received weights go to, and, with NCCL, where sent ones are.
        address: this machine's, for gloo; empty: whatever the machine's name stands for.
    """

    def __init__(self, store: Any, rank: int, size: int, backend: str, device: torch.device, address: str = ""):
        self.device = device if backend == "nccl" else torch.device("cpu")
        if backend == "nccl":
            nccl = dist.ProcessGroupNCCL.Options()
            nccl._timeout = TIMEOUT
            # NCCL's own watchdog would end the whole process if a server is lost.
            handling = os.environ.get(_NCCL_HANDLING)
            os.environ[_NCCL_HANDLING] = "0"
            try:
                self._group: Any = dist.ProcessGroupNCCL(store, rank, size, nccl)
            finally:
                os.environ.pop(_NCCL_HANDLING) if handling is None else os.environ.update({_NCCL_HANDLING: handling})
        else:
            gloo: Any = dist.ProcessGroupGloo
            options = gloo._Options()
            place = {"hostname": address} if address else {"interface": ""}
            options._devices = [gloo.create_device(**place)]
            options._timeout = TIMEOUT
            self._group = gloo(store, rank, size, options)

    def receive(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the weights that :meth:`send` sends; every receiver must consume all of them.

        Raises:
            BrokenChannelError: the sender failed.
        """
        while True:
            [length] = self._receive(1, torch.int64).tolist()
            if length == _END:
                return
            if length == _BROKEN:
                raise BrokenChannelError("the trainer failed while it sent weights")
            header = json.loads(bytes(self._receive(length, torch.uint8).tolist()))
            size = sum(_padded(getattr(torch, dtype).itemsize * math.prod(shape)) for _, dtype, shape in header)
            yield from unpack(header, self._receive(size, torch.uint8))

    def begin(self, tensor: Tensor) -> Any:
        """Begins to send a tensor to all receivers; returns torch's ``Work``."""
        return self._group.broadcast(tensor.to(self.device), 0)

    def abort(self) -> None:
        """Gives the way up: what waits for lost receivers, also on the accelerator, ends; the way is of no use then."""
        group = [self.__dict__.pop("_group")]
        group[0].abort()
        # Gloo knows no abort, and waits for what is under way, up to TIMEOUT, when it is freed: in a thread of its own.
        threading.Thread(target=group.clear, name="abort", daemon=True).start()

    def _receive(self, count: int, dtype: torch.dtype) -> Tensor:
        tensor = torch.empty(count, dtype=dtype, device=self.device)
        self._group.broadcast(tensor, 0).wait()
        return tensor


def send_weights(
    receivers: Mapping[K, tuple[Channel, Callable[[], Any]]], weights: Iterable[tuple[str, Tensor]]
) -> dict[K, Exception]:
    """Sends weights by name on several ways at once, as they come.

    What the iterable raises is raised here, and the receivers are informed.

    A way whose receivers do not take a bucket within :data:`PATIENCE` counts as broken.

    Args:
        receivers: each way, and what is called again and again while its receivers are waited for: what that raises
            ends the waiting.

    Returns:
        the errors of the ways that broke; on the others all weights arrived.
    """
    broken: dict[K, Exception] = {}

    def broadcast(make: Callable[[torch.device], Tensor]) -> None:
        made: dict[torch.device, Tensor] = {}
        works: dict[K, Any] = {}
        for name, (channel, _) in receivers.items():
            if name not in broken:
                if channel.device not in made:
                    made[channel.device] = make(channel.device)
                try:
                    works[name] = channel.begin(made[channel.device])
                except RuntimeError as error:
                    broken[name] = error
        began = time.monotonic()
        while works:
            for name, work in list(works.items()):
                try:
                    if work.is_completed():
                        work.wait()
                    elif time.monotonic() - began < PATIENCE:
                        receivers[name][1]()
                        continue
                    else:
                        raise TimeoutError(f"its workers took no weights for {PATIENCE:.0f} seconds")
                except Exception as error:  # of the way, or what its receivers report
                    broken[name] = error
                del works[name]
            time.sleep(_POLL_SECONDS if works else 0)

    def number(value: int) -> None:
        broadcast(lambda device: torch.tensor([value]))

    try:
        for bucket in buckets(weights):
            text = json.dumps(describe(bucket)).encode()
            number(len(text))
            broadcast(lambda device, text=text: torch.frombuffer(bytearray(text), dtype=torch.uint8))
            broadcast(lambda device, bucket=bucket: pack([weight.detach().to(device) for _, weight in bucket]))
    except BaseException:
        number(_BROKEN)
        raise
    number(_END)
    return broken


def device_id(device: torch.device) -> str:
    """The name of a device, equal in every process that sees it; all CPUs have the same name."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else device.type


def open_store(address: str) -> TCPStore:
    """A store that listens on ``address`` only, at a free port."""
    listener = socket.create_server((address, 0))
    host, port = listener.getsockname()[:2]
    # The store takes the socket over and closes it in the end.
    return TCPStore(
        host, port, is_master=True, wait_for_workers=False, timeout=TIMEOUT, master_listen_fd=listener.detach()
    )


def join_store(address: str, port: int, rank: int) -> TCPStore:
    """The store that another process opened; member ``rank`` registers there.

    Raises:
        ConnectionError: there is no way to it from here.
    """
    try:
        # The store itself would go on trying for minutes, while all others wait.
        socket.create_connection((address, port), timeout=CONNECT_TIMEOUT).close()
    except OSError as error:
        raise ConnectionError(
            f"the trainer at {address}:{port} cannot be reached from here, {socket.gethostname()} ({error}): the port "
            "is chosen anew each time, so let nothing (a firewall, a container's network) stand between the two"
        ) from error
    store = TCPStore(address, port, is_master=False, timeout=TIMEOUT)
    store.set(f"member {rank}", "there")
    return store


def wait_for_members(store: Any, size: int, poll: Callable[[], Any] = lambda: None) -> None:
    """Until the other members of a group of ``size`` have come to the store of this process.

    Args:
        poll: called again and again meanwhile; what it raises ends the waiting.

    Raises:
        TimeoutError: a process did not come within :data:`PATIENCE`.
    """
    missing, began = list(range(1, size)), time.monotonic()
    with waiting(lambda: f"workers {missing} of the vLLM server to come to this process's port {store.port}"):
        while missing:
            poll()
            missing[:] = [rank for rank in missing if not store.check([f"member {rank}"])]
            if time.monotonic() - began > PATIENCE:
                raise TimeoutError(f"its workers {missing} did not come to port {store.port} in {PATIENCE:.0f} seconds")
            time.sleep(0.01 if missing else 0)


def buckets(weights: Iterable[tuple[str, Tensor]], least: int = _BUCKET_BYTES) -> Iterator[list[tuple[str, Tensor]]]:
    """Neighbors in groups of at least so many bytes, but for the last.

    >>> [[name for name, _ in some] for some in buckets(((n, torch.zeros(2)) for n in "abc"), least=16)]
    [['a', 'b'], ['c']]
    """
    bucket: list[tuple[str, Tensor]] = []
    size = 0
    for name, weight in weights:
        bucket.append((name, weight))
        size += weight.numel() * weight.element_size()
        if size >= least:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket


def pack(weights: Iterable[Tensor]) -> Tensor:
    """The bytes of weights of any types, one after another, each from an aligned place on; ``(bytes,)``."""
    rows = []
    for weight in weights:
        row = weight.contiguous().reshape(-1).view(torch.uint8)
        rows += [row, row.new_zeros(_padded(len(row)) - len(row))]
    return torch.cat(rows)


def describe(bucket: Iterable[tuple[str, Tensor]]) -> list[tuple[str, str, list[int]]]:
    """The header of packed weights: name, type and shape of each.

    >>> describe([("a", torch.zeros(2, 3))])
    [('a', 'float32', [2, 3])]
    """
    return [(name, str(weight.dtype).removeprefix("torch."), list(weight.shape)) for name, weight in bucket]


def unpack(header: Iterable[tuple[str, str, Sequence[int]]], content: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The weights in what :func:`pack` made, as views of it.

    >>> weights = [("a", torch.arange(3)), ("b", torch.ones(2, 1))]
    >>> [weight.tolist() for _, weight in unpack(describe(weights), pack(weight for _, weight in weights))]
    [[0, 1, 2], [[1.0], [1.0]]]
    """
    start = 0
    for name, kind, shape in header:
        dtype = getattr(torch, kind)
        size = dtype.itemsize * math.prod(shape)
        yield name, content[start : start + size].view(dtype).view(torch.Size(shape))
        start += _padded(size)


def _padded(size: int) -> int:
    """A number of bytes, rounded up to the alignment.

    >>> _padded(1), _padded(16)
    (16, 16)
    """
    return -(-size // _ALIGNED) * _ALIGNED


__all__ = [
    "ADAPTER",
    "TIMEOUT",
    "BrokenChannelError",
    "Channel",
    "buckets",
    "describe",
    "device_id",
    "join_store",
    "open_store",
    "pack",
    "send_weights",
    "unpack",
    "wait_for_members",
]

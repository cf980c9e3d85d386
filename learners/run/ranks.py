"""The ranks of a run: how they meet, work on the first rank only, collective operations, and shared work.

The first rank owns the run folder, the display, the curriculum and the tokenizer. Tasks, demonstrations and the
evaluation split are dealt out in turn; what comes of them is collected in the order in which they were dealt, so that
nothing that is written down depends on the number of ranks.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import socket
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain, zip_longest
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage] - public, documented

from roleagent.agents.policies.hf import own_device
from roleagent.config import ConfigError
from roleagent.slow_notice import duration, waiting

TO_MEET = timedelta(minutes=15)
"""How long the ranks wait for the last one: hosts of a cluster start one after another, but not by hours."""
_GLANCE = 0.1  # seconds between two looks at who has come
_WORD = "word"  # the key of the result: all processes are there, or the reason why not
_COMPLETE = "all have come: "


def announced() -> tuple[int, int, str, int] | None:
    """Rank, number of ranks, address and port from a launcher's environment variables; None without a launcher.

    Raises:
        ConfigError: some variables are missing or not numbers.
    """
    if "WORLD_SIZE" not in os.environ or "MASTER_ADDR" not in os.environ:
        return None
    try:
        rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"WORLD_SIZE and MASTER_ADDR say that this is one process of several, but {error} is missing or wrong: "
            "start it with torchrun or deepspeed, or unset them"
        ) from error
    return rank, size, os.environ["MASTER_ADDR"], port


def meet(rank: int, size: int, address: str, port: int) -> Any:
    """The store that all ranks share, once all have come to it.

    The first rank opens it, unless torchrun did; it waits for the others and reports on stderr who is missing.

    Raises:
        ConfigError: a rank did not come within :data:`TO_MEET`, or there are two of the same rank; every rank that
            came receives the reason. Or another run meets there.
    """
    place = f"{address}:{port}"
    opens = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        with waiting(f"rank 0 at {place}, where the {size} ranks of this run meet", every=True):
            whole = TCPStore(*(address, port, size, opens), timeout=TO_MEET, wait_for_workers=False, multi_tenant=True)
    except RuntimeError as error:  # torch's network errors, in many lines
        what = "rank 0 cannot listen" if opens else f"rank {rank} of {size} found no rank 0"
        raise ConfigError(
            f"{what} at {place} ({str(error).splitlines()[0][:200]}): give every host the same --master_addr and "
            "--master_port, and look at the firewall"
        ) from error
    # A launcher that starts the processes again may keep its store.
    store = PrefixStore(f"roleagent/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", whole)
    try:
        if store.add(f"count {rank}", 1) > 1:
            second = (
                f"there are two processes of rank {rank} at {place}: give every host its own --node_rank, and every "
                "run its own --master_port"
            )
            store.compare_set(_WORD, "", second)  # a run whose ranks have met already goes on
            raise ConfigError(second)
        store.set(f"host {rank}", socket.gethostname())
        if rank == 0:
            _gather(store, size, place)
        else:
            with waiting(f"the other ranks to come to {place}; rank 0 lists the missing ones", every=True):
                # A little longer than the first rank, whose word it is.
                store.wait([_WORD], TO_MEET + timedelta(seconds=10))
        word = store.get(_WORD).decode()
    except RuntimeError as error:
        raise ConfigError(f"rank 0 left while the ranks gathered at {place}: its own output has the reason") from error
    if not word.startswith(_COMPLETE):
        raise ConfigError(word)
    if word != f"{_COMPLETE}{size}":
        raise ConfigError(
            f"this is rank {rank} of {size}, but at {place} meet {word.removeprefix(_COMPLETE)} ranks: give every host "
            "the same --nnodes, and every run its own --master_port"
        )
    return store


def _gather(store: Any, size: int, place: str) -> None:
    """Waits for all ranks, and gives the word that all of them wait for."""
    missing = list(range(1, size))
    hosts = [socket.gethostname()]

    def state() -> str:
        return f"{numbers(missing)} of {size} to come to {place}; there are processes of {', '.join(hosts)}"

    began = time.monotonic()
    with waiting(state):
        while not store.check([_WORD]):
            for rank in [rank for rank in missing if store.check([f"host {rank}"])]:
                missing.remove(rank)
                if (host := store.get(f"host {rank}").decode()) not in hosts:
                    hosts.append(host)
            if not missing:
                store.compare_set(_WORD, "", f"{_COMPLETE}{size}")
            elif time.monotonic() - began > TO_MEET.total_seconds():
                store.set(
                    _WORD,
                    f"{numbers(missing)} of {size} did not come to {place} within {duration(TO_MEET.total_seconds())} "
                    f"(processes of {', '.join(hosts)} did): start the launcher on every host, with the same --nnodes, "
                    "--master_addr and --master_port",
                )
            else:
                time.sleep(_GLANCE)


def numbers(ranks: Sequence[int]) -> str:
    """Ascending ranks in words, neighbors together.

    >>> numbers([3]), numbers([1, 2, 3, 7])
    ('rank 3', 'ranks 1-3, 7')
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {words}"


def _leave() -> None:
    """Ends a group of one when Python ends; otherwise NCCL warns of a leak."""
    if dist.is_initialized():
        dist.destroy_process_group()


T = TypeVar("T")

PATIENCE = timedelta(hours=4)
"""How long a rank waits for the others. One may play a long episode, or ask a slow analyst, while all others are done;
when one dies, the launcher ends the rest at once."""

_at_exit: list[Callable[[], None]] = []  # of this process, before it leaves the group


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run.

    Attributes:
        rank: its number, in [0, size).
        size: how many there are.
    """

    rank: int
    size: int

    @classmethod
    def join(cls) -> Ranks:
        """Joins the process group that a launcher announced, or founds one of a single process.

        A single process opens no port.

        Raises:
            ConfigError: the ranks do not find each other (see :func:`roleagent.learners.run.ranks.meet`).
            PolicyError: see :func:`~roleagent.agents.policies.hf.own_device`.
        """
        os.environ.setdefault("DS_ACCELERATOR", own_device().type)
        with waiting("DeepSpeed to load"):
            import deepspeed

        # The run has a display of its own, and these are addressed to DeepSpeed's authors.
        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        warnings.filterwarnings("ignore", r".*Please use `torch\.distributed", FutureWarning)
        if not torch.cuda.is_available():
            # Without this, the first start compiles a shared-memory kernel for a minute, for a group of one as well.
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        if not dist.is_initialized():
            if torch.cuda.is_available():  # or every rank would set up its share of things on the first device
                torch.cuda.set_device(own_device())
                # DeepSpeed and vLLM read the device's number here: 0 for each task of srun that sees one GPU.
                os.environ["LOCAL_RANK"] = str(own_device().index)
            # Tensors go by the accelerator's own way, what is no tensor by gloo.
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            launched = announced()
            if launched is not None:
                rank, size = launched[:2]
                dist.init_process_group(backend, timeout=PATIENCE, store=meet(*launched), rank=rank, world_size=size)
            else:
                store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
                dist.init_process_group(backend, store=store, rank=0, world_size=1)
                atexit.register(_leave)
        # Another program's group, such as that of an evaluation with vLLM in this process, is new to DeepSpeed.
        os.environ.setdefault("LOCAL_RANK", "0")
        deepspeed.init_distributed(
            "nccl" if torch.cuda.is_available() else "gloo", dist_init_required=False, verbose=False
        )
        return cls(dist.get_rank(), dist.get_world_size())

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Ends a group of several processes.

        A process that merely ended would cut off the last message to the others, hence the wait; and it could die of
        gloo's threads when the interpreter goes away under them, hence the rest.
        """
        for act in [*_at_exit]:
            act()
        if self.size > 1:
            if kind is None:  # after an error the others may never come
                self.wait()
            dist.destroy_process_group()

    def at_exit(self, act: Callable[[], None]) -> None:
        """Calls ``act()`` before this process leaves the group."""
        _at_exit.append(act)

    def cancel_at_exit(self, act: Callable[[], None]) -> None:
        """Cancels :meth:`at_exit`."""
        _at_exit.remove(act)

    @property
    def first(self) -> bool:
        """Whether this rank prints and writes."""
        return self.rank == 0

    def once(self, act: Callable[[], T]) -> T:
        """The result of ``act()`` on the first rank, for every rank; its error is raised on every rank."""
        if self.size == 1:
            return act()
        outcome: list[Any] = [None]
        own: Exception | None = None
        if self.first:
            try:
                outcome = [(act(), None)]
            except Exception as error:
                own, outcome = error, [(None, portable(error))]
        dist.broadcast_object_list(outcome, src=0)
        value, error = outcome[0]
        if error is not None:
            self.wait()  # all processes stay until all have read this
            raise own or error
        return value

    def share(self, items: Sequence[T]) -> list[T]:
        """This rank's share of a list that every rank has; some ranks may have one item more.

        >>> Ranks(1, 2).share("abcde")
        ['b', 'd']
        """
        return list(items[self.rank :: self.size])

    def collect(self, own: Sequence[T]) -> list[T]:
        """The inverse of :meth:`share`: on the first rank the items of all ranks in order, elsewhere none."""
        return dealt_back(self.gather(list(own)))

    def gather(self, value: T) -> list[T]:
        """On the first rank the values of all ranks, by rank; elsewhere an empty list."""
        if self.size == 1:
            return [value]
        values: list[Any] | None = [None] * self.size if self.first else None
        dist.gather_object(value, values, dst=0)
        return values or []

    def everywhere(self, value: T) -> list[T]:
        """The values of all ranks, by rank, on every rank."""
        return self.exchange([value] * self.size)

    def exchange(self, parcels: Sequence[T]) -> list[T]:
        """Sends ``parcels[n]`` to rank n; returns the parcels for this rank, by sender. Every rank must call it."""
        if self.size == 1:
            return list(parcels)
        sent = [torch.frombuffer(bytearray(pickle.dumps(parcel)), dtype=torch.uint8) for parcel in parcels]
        sizes = torch.tensor([len(one) for one in sent])
        coming = torch.empty_like(sizes)
        dist.all_to_all_single(coming, sizes)
        came = torch.empty(int(coming.sum()), dtype=torch.uint8)
        dist.all_to_all_single(came, torch.cat(sent), coming.tolist(), sizes.tolist())
        return [pickle.loads(part.numpy().tobytes()) for part in came.split(coming.tolist())]

    def sum(self, value: float) -> float:
        """The sum of a number over all ranks; every rank must call it."""
        return self._reduce(value, dist.ReduceOp.SUM)

    def max(self, value: int) -> int:
        """The maximum of a number over all ranks; every rank must call it."""
        return round(self.largest(float(value)))

    def largest(self, value: float) -> float:
        """The largest value of all ranks, as a float."""
        return self._reduce(value, dist.ReduceOp.MAX)

    def _reduce(self, value: float, operation: Any) -> float:
        if self.size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(tensor, operation)
        return float(tensor)

    def wait(self) -> None:
        """Waits for all ranks (a barrier)."""
        if self.size > 1:
            dist.barrier()


def dealt_back(shares: Sequence[Sequence[T]]) -> list[T]:
    """The items of shares that were dealt in turn, in their order.

    >>> dealt_back(["ace", "bd"])
    ['a', 'b', 'c', 'd', 'e']
    """
    missing: Any = object()
    return [item for item in chain(*zip_longest(*shares, fillvalue=missing)) if item is not missing]


def portable(error: Exception) -> Exception:
    """The error if it can be sent to another process, else one with the same message.

    >>> portable(OSError("no space")), portable(OSError(lambda: "a thing that stays here")).args[0][:8]
    (OSError('no space'), 'OSError:')
    """
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever its parts raise
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error

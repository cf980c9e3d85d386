"""The rendezvous of a run's processes; missing processes are named."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage] - public, documented

from roleagent.config import ConfigError
from roleagent.slow_notice import duration, waiting

PATIENCE = timedelta(minutes=15)
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
        ConfigError: a rank did not come within :data:`PATIENCE`, or there are two of the same rank; every rank that
            came receives the reason. Or another run meets there.
    """
    place = f"{address}:{port}"
    opens = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        with waiting(f"rank 0 at {place}, where the {size} ranks of this run meet", every=True):
            whole = TCPStore(*(address, port, size, opens), timeout=PATIENCE, wait_for_workers=False, multi_tenant=True)
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
                store.wait([_WORD], PATIENCE + timedelta(seconds=10))
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
            elif time.monotonic() - began > PATIENCE.total_seconds():
                store.set(
                    _WORD,
                    f"{numbers(missing)} of {size} did not come to {place} within {duration(PATIENCE.total_seconds())} "
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


__all__ = ["PATIENCE", "announced", "meet", "numbers"]

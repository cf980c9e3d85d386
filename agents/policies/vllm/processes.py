"""vLLM's engines in processes of their own, on the accelerator of the process that starts them.

An engine's own Python takes about as long per token as a GPU does, and in one process with it stands the run's Python.
With several engines on one GPU they overlap. Each process runs one
:class:`~roleagent.agents.policies.vllm.engine.LocalEngine`. What goes through its socket are pickled objects, between a
process and its own child. Weights go by CUDA's memory handles, from memory to memory; on the CPU through the socket.

A child ends when its socket closes: also if its parent was killed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roleagent.agents.policies.hf import HFPolicy, PolicyError, reason_of
from roleagent.agents.policies.vllm.engine import LocalEngine, check_model, engine_options, keep_description
from roleagent.agents.policies.vllm.pool import Answers, LostError, Part, Pool
from roleagent.agents.policies.vllm.sync import buckets, describe, pack, unpack
from roleagent.config import Config, NoOptions
from roleagent.slow_notice import waiting

COMMAND = [sys.executable, "-m", "roleagent.agents.policies.vllm.processes"]
_LAUNCHER = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")  # an engine has none
_ATTEMPTS = 2  # to start an engine that has ended
_DEVICE = 6  # place of the device's number in what torch sends of a tensor on CUDA


class EngineProcess:
    """One engine in a process of its own; a member of the pool.

    Args:
        name: what messages call it.
        config: the run's configuration.
        description: of the model (:func:`~roleagent.agents.policies.vllm.engine.keep_description`).
        vocabulary: tokens of the model.
        device: of the learner, and of the engine.

    Attributes:
        process: it.
        bare: whether it lacks the weights beside the adapter.
    """

    kind, size = "engine", 1

    def __init__(self, name: str, config: Config, description: Path, vocabulary: int, device: torch.device):
        self.name, self.load, self.bare = name, 0, True
        self.lost: PolicyError | None = None
        self._parts: dict[int, tuple[Part, Answers]] = {}  # what is under way
        self._numbers = itertools.count()
        self._replies: SimpleQueue[PolicyError | None] = SimpleQueue()
        self._ended: LostError | None = None
        self._posting = threading.Lock()  # ahead, the rollout's thread submits while this one posts
        ours, theirs = socket.socketpair()
        with theirs:
            # Its stdout is not the run's, which a program may read.
            self.process = subprocess.Popen(
                [*COMMAND, str(theirs.fileno())],
                env=_environment(device),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._connection = Connection(ours.detach())
        self.post("start", config, description, vocabulary)
        threading.Thread(target=self._read, name=name, daemon=True).start()

    def ready(self) -> None:
        """Waits until it can take weights.

        Raises:
            PolicyError: vLLM cannot start.
        """
        with waiting(f"{self.name} to start"):
            self.reply()

    def post(self, name: str, *arguments: Any) -> None:
        """Sends a call. If the process has ended, :meth:`reply` says so."""
        with self._posting, contextlib.suppress(OSError):
            self._connection.send((name, arguments))

    def reply(self) -> None:
        """Waits for the end of a call that is not ``submit`` or ``cancel``.

        Raises:
            PolicyError: what it ended with.
            LostError: the process has ended.
        """
        error = self._ended if self._ended is not None and self._replies.empty() else self._replies.get()
        if error is not None:
            raise error

    def sample(self, part: Part, answers: Answers) -> None:
        """Begins to sample."""
        number = next(self._numbers)
        self._parts[number] = part, answers
        self.post("submit", number, part.requests, part.temperature)
        if self._ended is not None:  # the reader may have looked before
            self._give_back(self._ended)

    def cancel(self) -> None:
        """Forgets what is under way."""
        self._parts.clear()
        self.post("cancel")

    def stop(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait()

    def _read(self) -> None:
        """Hands on what comes, until the process has ended."""
        reason = ""
        with contextlib.suppress(EOFError, OSError):
            while True:
                name, content = self._connection.recv()
                if name == "answers":
                    for number, completions in content:
                        if found := self._parts.pop(number, None):  # or it was cancelled
                            found[1].put((found[0], self, completions, None))
                elif name == "failed":
                    reason = f": {content}"
                else:
                    self._replies.put(PolicyError(f"{self.name}: {content}") if content else None)
        self._ended = LostError(f"{self.name} has ended{reason}")
        self._replies.put(self._ended)
        self._give_back(self._ended)
        with self._posting:
            self._connection.close()

    def _give_back(self, error: LostError) -> None:
        for number in list(self._parts):
            if found := self._parts.pop(number, None):
                found[1].put((found[0], self, [], error))


class ProcessPool(Pool[EngineProcess]):
    """``vllm.engines`` engines for one process of a run.

    One that ends is left out, and started anew at the next transfer of weights, unless it failed to start twice. The
    engines end with this object.

    Args:
        config: the run's configuration (sections ``vllm``, ``policy``, ``lora``).
        policy: its model is what the engines compute.

    Raises:
        PolicyError: vLLM cannot start, or cannot compute this model on this machine.
    """

    def __init__(self, config: Config, policy: HFPolicy):
        check_model(policy.model.config)
        vocabulary = policy.model.config.get_text_config().vocab_size
        plain = replace(config, method=Config.method, options=NoOptions())  # a child has no class of the user's
        self._arguments = plain, keep_description(policy), vocabulary, policy.device
        # While it starts, vLLM looks how much memory is free, unless the size of its cache is given.
        together = "kv_cache_memory_bytes" in engine_options(config, "")
        members: list[EngineProcess] = []
        weakref.finalize(self, _stop, members)
        for number in range(config.vllm.engines):
            members.append(self._new(number))
            if not together:
                members[-1].ready()
        for member in members if together else ():
            member.ready()
        super().__init__(members)
        self._members = members  # the list that the finalizer has
        self._failed = [0] * len(members)  # starts in a row

    def _new(self, number: int) -> EngineProcess:
        return EngineProcess(f"vLLM engine {number + 1}", *self._arguments)

    def cancel(self) -> None:
        """Forgets what was submitted."""
        for member in self._members:
            member.cancel()
        super().cancel()

    def prepare(self) -> bool:
        """Starts what has ended; returns whether an engine lacks the weights beside the adapter."""
        self.cancel()
        if torch.cuda.is_available():  # what an update has freed, the engines' caches take, in processes of their own
            torch.cuda.empty_cache()
        for number, member in enumerate(self._members):
            if member.lost and self._failed[number] < _ATTEMPTS:
                member.stop()
                self._members[number] = new = self._new(number)
                self._each([new], EngineProcess.ready)
                self._failed[number] = self._failed[number] + 1 if new.lost else 0
        return any(member.bare for member in self._members if not member.lost)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Overwrites the weights of all engines.

        Raises:
            PolicyError: they reached no engine.
        """
        self._send("load_weights", weights)
        for member in self._members:
            member.bare = False

    def load_adapter(self, adapter: Iterable[tuple[str, Tensor]], rank: int, alpha: float) -> None:
        """Overwrites the adapter, likewise."""
        self._send("load_adapter", adapter, rank, alpha)

    def offload(self) -> None:
        """Has all engines give back the memory of the KV cache, and of the weights, where vLLM can (on CUDA)."""
        self._each(self._members, lambda member: member.post("offload"))
        self._each(self._members, EngineProcess.reply)

    def _send(self, name: str, weights: Iterable[tuple[str, Tensor]], *arguments: Any) -> None:
        """Sends weights to all engines; each answers when it has copied a bucket, whose memory is this process's."""
        there = self._members
        self._each(there, lambda member: member.post(name, *arguments))
        end = "broken"
        try:
            for bucket in buckets(weights):
                content = pack(weight.detach() for _, weight in bucket)  # it must live until the answers have come
                header = describe(bucket)
                # Each by a handle of its own, which one may read.
                self._each(there, lambda one, sent=content, header=header: one.post("bucket", header, _lend(sent)))
                self._each(there, EngineProcess.reply)
            end = "end"
        finally:
            self._each(there, lambda member: member.post(end))
            self._each(there, EngineProcess.reply)
        self._raise_if_none_is_left()

    def _each(self, members: Iterable[EngineProcess], act: Callable[[EngineProcess], None]) -> None:
        for member in members:
            if not member.lost:
                try:
                    act(member)
                except PolicyError as error:
                    self._leave_out(member, error)


def _stop(members: list[EngineProcess]) -> None:
    for member in members:
        member.stop()


def _environment(device: torch.device) -> dict[str, str]:
    """Of an engine's process: it sees one accelerator, and belongs to no group of processes."""
    found = {name: value for name, value in os.environ.items() if name not in _LAUNCHER}
    if device.type == "cuda":
        number = torch.cuda.current_device() if device.index is None else device.index
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        found["CUDA_VISIBLE_DEVICES"] = visible[number] if visible != [""] else str(number)
    return found


def _lend(content: Tensor) -> Any:
    """What another process of this machine can read a tensor from."""
    if content.device.type == "cuda":
        from torch.multiprocessing.reductions import reduce_tensor

        torch.cuda.synchronize(content.device)
        return reduce_tensor(content)[1]
    return content.numpy()


# --- in the child -----------------------------------------------------------------------------------------------------


class _Incoming(Iterator[tuple[str, Tensor]]):
    """The weights of one transfer; no generator, which whatever reads it could close before its end."""

    def __init__(self, child: Child):
        self._child, self._bucket, self._over = child, iter(()), False

    def __next__(self) -> tuple[str, Tensor]:
        while (weight := next(self._bucket, None)) is None:
            if self._over:
                raise StopIteration
            name, arguments = self._child.inbox.get()
            self._over = name != "bucket"
            if name == "broken":
                raise RuntimeError("the learner failed while it sent weights")
            if name == "bucket":
                header, content = arguments
                try:
                    self._bucket = unpack(header, _borrow(content))
                finally:
                    self._child.send("reply", "")
        return weight

    def skip(self) -> None:
        """Takes the rest without opening it."""
        while not self._over:
            name, _ = self._child.inbox.get()
            self._over = name != "bucket"
            if not self._over:
                self._child.send("reply", "")


def _borrow(content: Any) -> Tensor:
    """A copy of what :func:`_lend` made."""
    if isinstance(content, np.ndarray):
        return torch.from_numpy(content)
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    arguments = list(content)
    arguments[_DEVICE] = torch.cuda.current_device()  # this process has another number for it
    copy = rebuild_cuda_tensor(*arguments).clone()
    torch.cuda.synchronize()
    return copy


class Child:
    """The process of one engine: it does what its parent calls, in order, and samples in between.

    Attributes:
        inbox: calls: a name and arguments.
    """

    def __init__(self, connection: Connection):
        self._connection, self._sending = connection, threading.Lock()
        self.inbox: SimpleQueue[tuple[str, tuple[Any, ...]]] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                self.inbox.put(self._connection.recv())
        except (EOFError, OSError):  # the parent has ended
            os._exit(0)
        except Exception as error:  # it cannot be read here
            self.send("failed", f"{type(error).__name__}: {reason_of(error)}")
            os._exit(1)

    def send(self, name: str, content: Any) -> None:
        """Sends what :meth:`EngineProcess._read` reads."""
        with self._sending:
            self._connection.send((name, content))

    def run(self) -> None:
        """Starts the engine, and serves until the parent ends."""
        try:
            _, arguments = self.inbox.get()
            self._engine = LocalEngine(*arguments)
        except PolicyError as error:
            self.send("reply", str(error))
            return
        self.send("reply", "")
        while True:
            while self._engine.idle or not self.inbox.empty():
                name, arguments = self.inbox.get()
                getattr(self, f"_{name}")(*arguments)
            if complete := self._engine.step():
                self.send("answers", complete)

    def _submit(self, *arguments: Any) -> None:
        self._engine.submit(*arguments)

    def _cancel(self) -> None:
        self._engine.cancel()

    def _offload(self) -> None:
        self._engine.offload()
        self.send("reply", "")

    def _load_weights(self) -> None:
        self._load(self._engine.load_weights)

    def _load_adapter(self, *arguments: Any) -> None:
        self._load(self._engine.load_adapter, *arguments)

    def _load(self, load: Callable[..., None], *arguments: Any) -> None:
        weights, failure = _Incoming(self), ""
        try:
            load(weights, *arguments)
        except Exception as error:  # the parent waits for an answer to each bucket
            failure = f"{type(error).__name__}: {reason_of(error)}"
        weights.skip()
        self.send("reply", failure)


def main(number: int) -> None:
    """Serves the parent at the other end of a socket.

    Args:
        number: its file descriptor.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when this process ends
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # SLURM sends it to the whole job
    child = Child(Connection(number))
    try:
        child.run()
    except Exception as error:
        child.send("failed", f"{type(error).__name__}: {reason_of(error)}")
        raise


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""Starts the servers of the retrieval benchmark and sends their queries."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]


class Contestant:
    """A server in a process of its own, and what was measured of it."""

    def __init__(
        self,
        name: str,
        folder: Path,
        serve: str,
        *,
        kind: str,
        dtype: str,
        effort: int | None,
        cache: int = 0,
        threads: int | None = None,
    ) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "MKL_"))}
        environment["TRANSFORMERS_VERBOSITY"] = "error"
        environment["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
        if threads:
            environment["OMP_NUM_THREADS"] = str(threads)
        command = [sys.executable, "-m", "parts.retrieval_servers", "--serve", serve, "--kind", kind]
        command += ["--folder", str(folder.resolve())]
        command += ["--dtype", dtype, "--cache", str(cache), *(["--effort", str(effort)] if effort else [])]
        self.name = name
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=BENCHMARKS)
        self._counts: Counter[int] = Counter()
        self._seconds: dict[int, float] = {}
        self._cpu: dict[int, float] = {}
        self._latencies: list[float] = []

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.terminate()
        self._process.wait()

    @property
    def url(self) -> str:
        """Where it answers, once it does."""
        if not hasattr(self, "_port"):
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
            if not line:
                raise SystemExit(f"the server {self.name!r} did not start")
            self._port = int(line)
        return f"http://127.0.0.1:{self._port}"

    @property
    def resident_mb(self) -> float:
        """Megabytes of memory that are its own (mapped files are shared and can be dropped)."""
        status = Path(f"/proc/{self._process.pid}/status")
        if not status.exists():
            return float("nan")
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["RssAnon"].split()[0]) / 1e3

    def cpu_seconds(self) -> float:
        path = Path(f"/proc/{self._process.pid}/stat")
        if not path.exists():
            return float("nan")
        fields = path.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def measure(self, shares: Sequence[Iterator[str]], seconds: float) -> None:
        """One client per share asks, one query a request, until the time is over."""
        from roleagent.envs.retrieval.serving.client import HTTPRetriever

        asker = HTTPRetriever(self.url, timeout=120.0, patience=120.0)
        began = time.perf_counter()
        latencies: list[float] = []

        def client(share: Iterator[str]) -> None:
            while (start := time.perf_counter()) < began + seconds:
                (hits,) = asker.retrieve([next(share)])
                assert len(hits) == 3
                latencies.append(time.perf_counter() - start)

        cpu = self.cpu_seconds()
        threads = [threading.Thread(target=client, args=(share,)) for share in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        clients = len(shares)
        self._counts[clients] += len(latencies)
        self._seconds[clients] = self._seconds.get(clients, 0.0) + time.perf_counter() - began
        self._cpu[clients] = self._cpu.get(clients, 0.0) + self.cpu_seconds() - cpu
        self._latencies = latencies
        asker.close()

    def rate(self, clients: int) -> float:
        """Queries a second, of all measurements."""
        return self._counts[clients] / self._seconds[clients]

    def cpu_per_query(self, clients: int) -> float:
        """CPU seconds of the server a query, of all measurements."""
        return self._cpu[clients] / self._counts[clients]

    def line(self, clients: int) -> str:
        """Of the table; the latency is the last measurement's."""
        p50 = 1e3 * sorted(self._latencies)[len(self._latencies) // 2]
        cpu = 1e3 * self.cpu_per_query(clients)
        return f"{self.name:>8}{clients:>9}{self.rate(clients):>11.1f}{p50:>8.0f}{cpu:>14.1f}{self.resident_mb:>8.0f}"


class Questions:
    """Who asks what: every client something new, or the clients of a group the same."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts, self._lock = itertools.cycle(texts), threading.Lock()

    def _one(self) -> str:
        with self._lock:
            return next(self._texts)

    def new(self, clients: int) -> list[Iterator[str]]:
        """A share per client."""
        return [iter(self._one, None) for _ in range(clients)]

    def grouped(self, clients: int, size: int) -> list[Iterator[str]]:
        """The clients of a group walk along the same questions, each at its own pace."""
        shares: list[Iterator[str]] = []
        while len(shares) < clients:
            shares += _shared(iter(self._one, None), min(size, clients - len(shares)))
        return shares


def _shared(source: Iterator[str], readers: int) -> list[Iterator[str]]:
    known: list[str] = []
    lock = threading.Lock()

    def walk() -> Iterator[str]:
        for place in itertools.count():
            with lock:
                if place == len(known):
                    known.append(next(source))
            yield known[place]

    return [walk() for _ in range(readers)]

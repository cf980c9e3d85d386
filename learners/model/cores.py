"""PyTorch's threads beside other programs.

All threads meet after every operation. One that has to wait for another program's turn on its core delays all others,
so two threads on one free core are many times slower than one.
"""

from __future__ import annotations

import os
import time

import psutil
import torch

TOLERATED = 0.4
"""Share of a core that other programs may use before PyTorch leaves it."""
_APART = 2.0  # seconds between two looks, at least
_UNUSED = ("idle", "iowait", "steal")  # times of the machine that no program has used


class Cores:
    """Keeps PyTorch to the cores that are free; OMP_NUM_THREADS of the environment wins.

    Args:
        fixed: whether to keep the number of threads in any case.
    """

    def __init__(self, fixed: bool = False):
        self._most = torch.get_num_threads()
        self._fixed = fixed or self._most == 1 or "OMP_NUM_THREADS" in os.environ
        self._seen = self._look()

    def adapt(self) -> None:
        """Sets the number of threads by what other programs have used since the last call; cheap to call often."""
        if self._fixed or time.monotonic() - self._seen[0] < _APART:
            return
        seen, self._seen = self._seen, self._look()
        torch.set_num_threads(threads(self._most, self._seen[0] - seen[0], self._seen[1] - seen[1]))

    def _look(self) -> tuple[float, float]:
        """The time, and the CPU seconds that other programs have left unused."""
        own, machine = psutil.Process().cpu_times(), psutil.cpu_times()
        return time.monotonic(), own.user + own.system + sum(getattr(machine, name, 0.0) for name in _UNUSED)


def threads(most: int, seconds: float, available: float) -> int:
    """The number of threads for a process that had so many CPU seconds ``available`` in ``seconds``.

    >>> threads(2, 10.0, 19.0), threads(2, 10.0, 12.0), threads(2, 10.0, 0.0)
    (2, 1, 1)
    """
    return max(1, min(most, int(available / seconds + TOLERATED)))


__all__ = ["TOLERATED", "Cores", "threads"]

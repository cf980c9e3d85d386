"""Findings of the checks, and helpers that run programs with a time limit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Grade = Literal["good", "absent", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: of the checked part, in a word or two.
        grade: ``"problem"``: it would not work; ``"note"``: it works, with a remark; ``"absent"``: an optional part
            is not installed; ``"good"``.
        text: the finding, in a line.
        advice: how to fix it, in a line.
    """

    name: str
    grade: Grade
    text: str
    advice: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


SLOW = "a busy machine or a slow disk; roleagent doctor --full waits longer"
"""Advice for an import without an answer."""
Check = Callable[[], "Finding | Iterable[Finding]"]


def found_by(name: str, check: Check) -> Iterator[Finding]:
    """The findings of a check; an exception becomes a finding.

    >>> [finding] = found_by("gears", lambda: 1 // 0)
    >>> finding.grade, finding.text
    ('note', 'check failed: ZeroDivisionError: integer division or modulo by zero')
    """
    try:
        answer = check()
        yield from [answer] if isinstance(answer, Finding) else answer
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        yield Finding(name, "note", f"check failed: {reason}")


def asked(program: str, seconds: float, *arguments: str) -> dict[str, Any]:
    """Runs a Python program in a separate process; returns the last line of its output, as JSON.

    A package may hang or crash there without harm.

    Raises:
        TimeoutError: it takes longer.
        RuntimeError: it fails; the message is the last line of its errors.
    """
    status, output, complained = answered([sys.executable, "-W", "ignore", "-c", program, *arguments], seconds)
    if status:
        lines = complained.strip().splitlines() or [f"it ended with exit status {status}"]
        raise RuntimeError(lines[-1].strip())
    return json.loads(output.strip().splitlines()[-1])


def answered(words: Sequence[str], seconds: float) -> tuple[int, str, str]:
    """Exit status, output and errors of a command.

    Raises:
        OSError: it cannot be started.
        TimeoutError: it takes longer.
    """
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(words, text=True, errors="replace", **pipes)
    try:
        output, complained = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        # No wait for its end (as subprocess.run would): a process that hangs in a driver cannot be killed.
        process.kill()
        raise TimeoutError(f"no answer in {round(seconds, 1):g} s") from error
    return process.returncode, output, complained


def amount(size: float) -> str:
    """A number of bytes in MB, GB or TB.

    >>> amount(3 * 2**30), amount(300 * 2**20), amount(1.5 * 2**40)
    ('3.0 GB', '300 MB', '1.5 TB')
    """
    for unit, bytes_ in (("TB", 2**40), ("GB", 2**30)):
        if size >= bytes_:
            return f"{size / bytes_:.1f} {unit}"
    return f"{size / 2**20:.0f} MB"


__all__ = ["SLOW", "Check", "Finding", "Grade", "amount", "answered", "asked", "found_by"]

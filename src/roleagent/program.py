"""The process of a program: its name, its standard streams, and the packages that it needs."""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import io
import os
import re
import sys
from collections.abc import Iterable
from importlib import metadata
from types import TracebackType
from typing import Any

TRAIN = ("torch", "transformers", "deepspeed", "safetensors")
"""Packages of the extra ``train``: training, and evaluation of a local model."""
EVAL = ("openai", "scipy")
"""Packages of the extra ``eval``: evaluation of any other agent."""
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # options of mallopt, from <malloc.h>


def begin(program: str) -> None:
    """Prepares the process of a program, before anything else.

    Ctrl-C is one line and no traceback; the process still ends by the signal. Every text can be printed, whatever the
    encoding of the output. Output that a closed pipe does not take is dropped without a word (``| head``). If output is
    lost in another way (a full disk), the program does its work to the end, reports it, and ends with status 1.
    """
    _read_srun()
    _stop_quietly(program)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        _complete(number, name)
    if not isinstance(_raw("stdout"), _Stream) and sys.stdout is sys.__stdout__:
        atexit.register(_report_loss, program)
        for name, errors in (("stdout", "replace"), ("stderr", "backslashreplace")):
            _keep_going(name, errors)
    if isinstance(sys.stdin, io.TextIOWrapper) and sys.stdin is sys.__stdin__:
        marked = sys.stdin.encoding.lower() == "utf-8" and not sys.stdin.isatty()  # a file may begin with a BOM
        sys.stdin.reconfigure(encoding="utf-8-sig" if marked else None, errors="replace")


def _read_srun() -> None:
    """Takes the place of this task of ``srun`` as a launcher would announce it, where no launcher did."""
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")  # a batch script itself is no step
    if tasks == "1" or "RANK" in os.environ:
        return
    os.environ |= {"RANK": os.environ["SLURM_PROCID"], "WORLD_SIZE": tasks, "LOCAL_RANK": os.environ["SLURM_LOCALID"]}
    os.environ.setdefault("MASTER_ADDR", os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"))
    os.environ.setdefault("MASTER_PORT", "29500")


def _complete(number: int, name: str) -> None:
    """Points a stream that was closed (``>&-``) at the null device: the next file opened must not take its place."""
    if getattr(sys, name) is None:
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        stream = os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


class _Stream(io.FileIO):
    """An output stream that drops what cannot be written, from the first error on."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            self.error = error
            nobody = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nobody, self.fileno())
            os.close(nobody)
            return len(data)


def _raw(name: str) -> Any:
    buffer = getattr(getattr(sys, name), "buffer", None)
    return getattr(buffer, "raw", buffer)


def _keep_going(name: str, errors: str) -> None:
    old: Any = getattr(sys, name)
    raw = _Stream(old.fileno(), "w", closefd=False)
    unbuffered = old.write_through and not old.line_buffering  # python -u
    stream = io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),  # type: ignore[arg-type] - as Python itself does
        encoding=old.encoding,
        errors=errors,
        line_buffering=old.line_buffering,
        write_through=old.write_through,
    )
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def _report_loss(program: str) -> None:
    sys.stdout.flush()
    error = getattr(_raw("stdout"), "error", None)
    if error is not None and not isinstance(error, BrokenPipeError):
        print(f"{program}: the output could not be written: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(1)  # nothing else changes the status here


def _stop_quietly(program: str) -> None:
    show = sys.excepthook

    def stopped(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            print(f"{program}: stopped", file=sys.stderr)
        else:
            show(kind, error, trace)

    sys.excepthook = stopped


def called(program: str) -> str:
    """The command by which ``train`` or ``evaluate`` was called: a file, a module, or a verb of ``roleagent``.

    >>> called("train")
    'train.py'
    """
    if sys.argv[0] == f"roleagent {program}":
        return sys.argv[0]
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    module = f"roleagent.programs.{program}"
    return f"python -m {module}" if spec is not None and spec.name == module else f"{program}.py"


def as_called(text: str, program: str) -> str:
    """A help text with the names by which programs are called, as ``program`` was.

    >>> as_called("python train.py seed=3, or evaluate.py", "roleagent evaluate")
    'roleagent train seed=3, or roleagent evaluate'
    """
    if program.endswith(".py"):
        return text
    command = re.sub(r"train|evaluate", "{}", program)
    return re.sub(r"(?:python )?\b(train|evaluate)\.py", lambda found: command.format(found[1]), text)


class MissingPackage(ModuleNotFoundError):
    """A package of one of RoleAgent's extras is not installed; the message has the pip command."""


def check_packages(program: str, extra: str, packages: Iterable[str]) -> None:
    """Refuses to go on without packages of one of RoleAgent's extras.

    Raises:
        MissingPackage: one of them is not installed.
    """
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise MissingPackage(f"{program} needs {', '.join(missing)}: pip install 'roleagent[{extra}]'")


def require(program: str, extra: str, packages: Iterable[str]) -> None:
    """As :func:`check_packages`, but ends the program with status 2."""
    try:
        check_packages(program, extra, packages)
    except MissingPackage as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


def extra_of(package: str) -> str | None:
    """The first of RoleAgent's extras that brings a package; None: none does.

    >>> extra_of("torch"), extra_of("gymnasium")
    ('train', None)
    """
    from packaging.requirements import Requirement

    requirements = [Requirement(line) for line in metadata.requires("roleagent") or ()]
    for extra in metadata.metadata("roleagent").get_all("Provides-Extra") or ():
        for one in requirements:
            if one.marker and one.marker.evaluate({"extra": extra}) and one.name.replace("-", "_") == package:
                return extra
    return None


def tune_cpu() -> None:
    """Sets what makes training on CPUs faster. Call it before torch is imported.

    OpenMP's waiting threads sleep after about 10 µs, so that training beside other work stays fast: they spin for
    milliseconds otherwise, and take the cores from the threads they wait for. OMP_WAIT_POLICY or GOMP_SPINCOUNT of the
    environment win.

    glibc keeps the memory of freed tensors for the next ones. It gives large blocks back to the system at once
    otherwise, which clears each page of a new one. MALLOC_TRIM_THRESHOLD_ or MALLOC_MMAP_MAX_ of the environment win.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    if sys.platform == "linux" and os.environ.keys().isdisjoint(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_")):
        set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # None: another C library
        if set_option is not None:
            set_option(_TRIM_THRESHOLD, 2**31 - 1)
            set_option(_MMAP_MAX, 0)


__all__ = [
    "EVAL",
    "TRAIN",
    "MissingPackage",
    "as_called",
    "begin",
    "called",
    "check_packages",
    "extra_of",
    "require",
    "tune_cpu",
]

"""Brings files and Python packages to a machine without a network, in pieces of a given size.

    python benchmarks/offline_bundle.py pack --size 50M --requirements needed.txt pieces models/smollm2 games
    python benchmarks/offline_bundle.py unpack pieces there        # on the machine, with this Python

`pack` writes one compressed archive as piece-000, piece-001, … and a list of their checksums. It packs what links lead
to, so a snapshot in Hugging Face's cache arrives as files. The folder of the pieces appears when all are there; after a
kill, the same command starts over. Bring the pieces in any order and any number of times: `unpack` names those that are
missing or damaged, and unpacks when all are right.
Packages are the lines of a requirements file, without what these need themselves (pip freeze writes such a file). They
are built for the Python that runs this, and `unpack` installs them into its own. Nothing is downloaded there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
LIST = "list.json"
WHEELS, REQUIREMENTS = "wheels", "requirements.txt"
BLOCK = 2**20


class Refused(Exception):
    """The message says what is wrong, in one line."""


class Pieces:
    """A file for writing that is cut into pieces.

    Args:
        folder: of the pieces.
        size: of each but the last, in bytes.

    Attributes:
        sums: the SHA-256 of each piece by name.
    """

    def __init__(self, folder: Path, size: int):
        self.folder, self.size, self.sums = folder, size, {}
        self._stream: IO[bytes] | None = None
        self._left = 0

    def write(self, data: bytes) -> int:
        """Appends ``data``."""
        view = memoryview(data)
        while view:
            if not self._left:
                self.close()
                name, self._left, self._sum = f"piece-{len(self.sums):03d}", self.size, hashlib.sha256()
                self._name, self._stream = name, (self.folder / name).open("wb")
            part, view = view[: self._left], view[self._left :]
            assert self._stream is not None
            self._stream.write(part)
            self._sum.update(part)
            self._left -= len(part)
        return len(data)

    def close(self) -> None:
        """Ends the last piece."""
        if self._stream is not None:
            self._stream.close()
            self.sums[self._name], self._stream = self._sum.hexdigest(), None


def check(folder: Path, paths: list[Path], requirements: Path | None) -> None:
    """Refuses what cannot be packed, or could not be unpacked, before anything is written."""
    if folder.exists():
        raise Refused(f"{folder} exists already: name a new folder")
    if not paths and requirements is None:
        raise Refused("nothing to pack: name files, folders or --requirements")
    names = Counter([name_of(path) for path in paths] + ([WHEELS, REQUIREMENTS] if requirements else []))
    if twice := next((name for name, count in names.items() if count > 1), None):
        raise Refused(f"two things would be unpacked as {twice}: rename one, or pack the folder above")
    for path in (*paths, *([requirements] if requirements else [])):
        if not path.exists():
            raise Refused(f"{path} {'is a link that leads nowhere' if path.is_symlink() else 'does not exist'}")
        if folder.resolve().is_relative_to(path.resolve()):
            raise Refused(f"{folder} would be packed into itself: name a folder outside of {path}")
        for inner in files_of(path):
            if not (inner.is_dir() or inner.is_file()):
                what = "is a link that leads nowhere" if inner.is_symlink() else "is neither a file nor a folder"
                raise Refused(f"{inner} {what}: remove it, or repair it")
            if not os.access(inner, os.R_OK):
                raise Refused(f"{inner} cannot be read")


def name_of(path: Path) -> str:
    """The name under which a path is packed.

    >>> name_of(Path("models/..")) == Path.cwd().name
    True
    """
    return Path(os.path.abspath(path)).name


def files_of(path: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """A path and everything in it, also what links lead to; refuses a link to one of the folders ``above``."""
    yield path
    if path.is_dir():
        if (real := path.resolve()) in above:
            raise Refused(f"{path} is a link to a folder that it lies in: remove it")
        for inner in path.iterdir():
            yield from files_of(inner, (*above, real))


def pack(folder: Path, size: int, paths: list[Path], requirements: Path | None) -> None:
    """Writes the pieces and their list, beside the folder's name until they are whole."""
    check(folder, paths, requirements)
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    pieces: Any = Pieces(partial, size)
    with tempfile.TemporaryDirectory() as scratch:
        if requirements is not None:
            build(requirements, Path(scratch))
        with tarfile.open(fileobj=pieces, mode="w|xz", dereference=True) as archive:
            if requirements is not None:
                archive.add(scratch, WHEELS)
                archive.add(requirements, REQUIREMENTS)
            for path in paths:
                archive.add(path, name_of(path))
    pieces.close()
    python = f"{sys.version_info.major}.{sys.version_info.minor}" if requirements else ""
    (partial / LIST).write_text(json.dumps({"python": python, "pieces": pieces.sums}, indent=1))
    partial.rename(folder)
    whole = sum((folder / name).stat().st_size for name in pieces.sums)
    print("RESULT", json.dumps({"pieces": len(pieces.sums), "bytes": whole}))


def build(requirements: Path, wheels: Path) -> None:
    """Builds the packages of a requirements file."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels)]
    if subprocess.run([*command, "-r", str(requirements)]).returncode:
        raise Refused(f"pip could not build the packages of {requirements}: its messages stand above")
    if not any(wheels.iterdir()):
        raise Refused(f"{requirements} names no package")


def damaged(folder: Path, sums: dict[str, str]) -> list[str]:
    """The pieces that are missing or not as they were packed."""
    wrong = []
    for name, expected in sums.items():
        found = hashlib.sha256()
        if (path := folder / name).exists():
            with path.open("rb") as stream:
                while block := stream.read(BLOCK):
                    found.update(block)
        if found.hexdigest() != expected:
            wrong.append(name)
    return wrong


class Joined:
    """The pieces as one file for reading."""

    def __init__(self, paths: list[Path]):
        self._paths = iter(paths)
        self._stream: IO[bytes] | None = None

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; none at the end."""
        while True:
            if self._stream is not None and (data := self._stream.read(size)):
                return data
            if self._stream is not None:
                self._stream.close()
            path = next(self._paths, None)
            if path is None:
                return b""
            self._stream = path.open("rb")


def unpack(folder: Path, target: Path) -> int:
    """Unpacks whole bundles and installs their packages; returns the exit status."""
    listed = folder / LIST
    if not listed.exists():
        raise Refused(f"{listed} is missing: bring it first")
    try:
        known = json.loads(listed.read_bytes())
        packed_for, sums = known["python"], dict(known["pieces"])
        if not sums:
            raise ValueError("no pieces")
    except (ValueError, TypeError, KeyError) as error:
        raise Refused(f"{listed} is damaged: bring it again") from error
    if wrong := damaged(folder, sums):
        print(
            f"offline_bundle: {len(wrong)} of {len(sums)} pieces are missing or damaged; bring these again: "
            f"{' '.join(wrong)}",
            file=sys.stderr,
        )
        return 1
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if packed_for not in ("", here):
        raise Refused(f"packed for Python {packed_for}, and this is {here}")
    target.mkdir(parents=True, exist_ok=True)
    joined: Any = Joined([folder / name for name in sums])
    with tarfile.open(fileobj=joined, mode="r|xz") as archive:
        archive.extractall(target, filter="data")
    if packed_for:
        wheels = sorted(map(str, (target / WHEELS).glob("*.whl")))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", *wheels]
        if subprocess.run(command).returncode:
            raise Refused(f"pip could not install what was unpacked into {target / WHEELS}: its messages stand above")
    print("RESULT", json.dumps({"pieces": len(sums), "unpacked": str(target)}))
    return 0


def number_of_bytes(text: str) -> int:
    """The bytes of a size such as 50M.

    >>> number_of_bytes("50M"), number_of_bytes("800"), number_of_bytes("1.5mb")
    (50000000, 800, 1500000)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)B?", text.upper(), re.ASCII)
    size = int(float(found[1]) * UNITS[found[2]]) if found else 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"must be a size such as 800, 10K, 50M or 1.5G, not {text!r}")
    return size


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    packs = verbs.add_parser("pack", help="write the pieces")
    packs.add_argument("folder", type=Path, help="of the pieces, which must not exist")
    packs.add_argument("paths", type=Path, nargs="*", help="files and folders to bring")
    packs.add_argument("--size", type=number_of_bytes, default="50M", help="of a piece (default: %(default)s)")
    packs.add_argument("--requirements", type=Path, metavar="FILE", help="packages to bring")
    unpacks = verbs.add_parser("unpack", help="check the pieces, unpack them and install their packages")
    unpacks.add_argument("folder", type=Path, help="of the pieces")
    unpacks.add_argument("target", type=Path, help="folder to unpack into")
    options = parser.parse_args()
    try:
        if options.verb == "unpack":
            return unpack(options.folder, options.target)
        pack(options.folder, options.size, options.paths, options.requirements)
    except (Refused, OSError, tarfile.TarError) as error:  # also a full disk
        print(f"offline_bundle: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Brings files and Python packages to a machine without a network, in pieces of a given size.

    python benchmarks/offline_bundle.py pack --size 50M --requirements needed.txt pieces models/smollm2 games
    python benchmarks/offline_bundle.py unpack pieces there        # on the machine, with this Python

`pack` writes one compressed archive as piece-000, piece-001, … and a list of their checksums. Bring the pieces in any
order and any number of times: `unpack` names those that are missing or damaged, and unpacks when all are right.
Packages are the lines of a requirements file, without what these need themselves (pip freeze writes such a file). They
are built for the Python that runs this, and `unpack` installs them into its own. Nothing is downloaded there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import IO, Any

UNITS = {"K": 10**3, "M": 10**6, "G": 10**9}
LIST = "list.json"
WHEELS, REQUIREMENTS = "wheels", "requirements.txt"
BLOCK = 2**20


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


def pack(folder: Path, size: int, paths: list[Path], requirements: Path | None) -> None:
    """Writes the pieces and their list."""
    folder.mkdir(parents=True)  # never beside the pieces of another bundle
    pieces: Any = Pieces(folder, size)
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(fileobj=pieces, mode="w|xz") as archive:
        if requirements is not None:
            command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", scratch]
            subprocess.run([*command, "-r", str(requirements)], check=True)
            archive.add(scratch, WHEELS)
            archive.add(requirements, REQUIREMENTS)
        for path in paths:
            archive.add(path, path.name)
    pieces.close()
    python = f"{sys.version_info.major}.{sys.version_info.minor}" if requirements else ""
    (folder / LIST).write_text(json.dumps({"python": python, "pieces": pieces.sums}, indent=1))
    whole = sum((folder / name).stat().st_size for name in pieces.sums)
    print("RESULT", json.dumps({"pieces": len(pieces.sums), "bytes": whole}))


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
    if not (folder / LIST).exists():
        print(f"offline_bundle: {folder / LIST} is missing: bring it first", file=sys.stderr)
        return 2
    known = json.loads((folder / LIST).read_text())
    if wrong := damaged(folder, known["pieces"]):
        print(
            f"offline_bundle: {len(wrong)} of {len(known['pieces'])} pieces are missing or damaged; bring these again: "
            f"{' '.join(wrong)}",
            file=sys.stderr,
        )
        return 1
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if known["python"] not in ("", here):
        print(f"offline_bundle: packed for Python {known['python']}, and this is {here}", file=sys.stderr)
        return 2
    target.mkdir(parents=True, exist_ok=True)
    joined: Any = Joined([folder / name for name in known["pieces"]])
    with tarfile.open(fileobj=joined, mode="r|xz") as archive:
        archive.extractall(target, filter="data")
    if known["python"]:
        wheels = sorted(map(str, (target / WHEELS).glob("*.whl")))
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", *wheels], check=True
        )
    print("RESULT", json.dumps({"pieces": len(known["pieces"]), "unpacked": str(target)}))
    return 0


def number_of_bytes(text: str) -> int:
    """The bytes of a size such as 50M.

    >>> number_of_bytes("50M"), number_of_bytes("800")
    (50000000, 800)
    """
    unit = UNITS.get(text[-1:].upper())
    size = int(text[:-1]) * unit if unit else int(text)
    if size < 1:
        raise ValueError("a piece has at least one byte")
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
    if options.verb == "unpack":
        return unpack(options.folder, options.target)
    missing = [path for path in (*options.paths, options.requirements) if path is not None and not path.exists()]
    if missing or options.folder.exists():
        wrong = f"{missing[0]} does not exist" if missing else f"{options.folder} exists already: name a new folder"
        print(f"offline_bundle: {wrong}", file=sys.stderr)
        return 2
    pack(options.folder, options.size, options.paths, options.requirements)
    return 0


if __name__ == "__main__":
    sys.exit(main())

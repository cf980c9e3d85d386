"""Files that appear under their name whole or not at all, whenever the writer is killed."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Writes a file. Processes that write the same one at once do not mix."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    os.replace(part, path)


def write_array(path: Path, values: np.ndarray) -> None:
    """Writes an ``.npy`` file; a full disk is then an ``OSError`` that says so (numpy's own does not)."""
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=False)
    write_bytes(path, buffer.getbuffer())


__all__ = ["write_array", "write_bytes"]

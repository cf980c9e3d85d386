"""Data that is not in the repository."""

import os
from pathlib import Path

import pytest


def shared_data(name, what):
    """A file or folder of the shared data; the test skips where it is missing."""
    shared = Path(os.environ.get("ROLEAGENT_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    path = shared / "data" / name
    if not path.exists():
        pytest.skip(f"no {what}: {path} is missing (set ROLEAGENT_SHARED)")
    return path

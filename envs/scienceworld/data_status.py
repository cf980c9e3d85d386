"""The state of ScienceWorld: its package, and a Java to run it."""

from __future__ import annotations

from collections.abc import Iterator

from roleagent.env_card import DataStatus
from roleagent.envs.java import package_status
from roleagent.envs.scienceworld.java import require_scienceworld


def data_status() -> Iterator[DataStatus]:
    """Whether ScienceWorld can be played here."""
    return package_status("ScienceWorld", "scienceworld", require_scienceworld)

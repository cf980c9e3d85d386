"""The state of ScienceWorld: its package, and a Java to run it."""

from __future__ import annotations

from collections.abc import Iterator

from gymnasium.error import DependencyNotInstalled

from roleagent.env_card import DataStatus
from roleagent.envs.java import find_java
from roleagent.envs.scienceworld.java import require_scienceworld


def data_status() -> Iterator[DataStatus]:
    """Whether ScienceWorld can be played here."""
    try:
        require_scienceworld()
    except DependencyNotInstalled as error:
        reason, _, advice = str(error).partition(": ")
        yield DataStatus("ScienceWorld", "note", reason, advice)
        return
    yield DataStatus("ScienceWorld", "good", f"the package scienceworld, with {find_java()}")

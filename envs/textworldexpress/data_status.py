"""The state of TextWorldExpress: its package, and a Java to run it."""

from __future__ import annotations

from collections.abc import Iterator

from gymnasium.error import DependencyNotInstalled

from roleagent.env_card import DataStatus
from roleagent.envs.java import find_java
from roleagent.envs.textworldexpress.simulator import require_textworldexpress


def data_status() -> Iterator[DataStatus]:
    """Whether TextWorldExpress can be played here."""
    try:
        require_textworldexpress()
    except DependencyNotInstalled as error:
        reason, _, advice = str(error).partition(": ")
        yield DataStatus("TextWorldExpress", "note", reason, advice)
        return
    yield DataStatus("TextWorldExpress", "good", f"the package textworld-express, with {find_java()}")

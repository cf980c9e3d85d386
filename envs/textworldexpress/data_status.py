"""The state of TextWorldExpress: its package, and a Java to run it."""

from __future__ import annotations

from collections.abc import Iterator

from roleagent.env_card import DataStatus
from roleagent.envs.java import package_status
from roleagent.envs.textworldexpress.simulator import require_textworldexpress


def data_status() -> Iterator[DataStatus]:
    """Whether TextWorldExpress can be played here."""
    return package_status("TextWorldExpress", "textworld-express", require_textworldexpress)

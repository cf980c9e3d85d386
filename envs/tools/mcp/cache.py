"""Results of read-only tools in a file: equal calls are answered alike in later runs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roleagent.options import user_path


class ResultCache:
    """A SQLite file of (server, tool, arguments) → result. Several processes may use it at once.

    Args:
        path: of the file; it is created, unless ``only`` reads what is there.
        only: nothing is added.

    Raises:
        OSError: the file cannot be opened, or is no such cache.

    >>> cache = ResultCache(":memory:")
    >>> cache.put("server", "add", {"b": 2, "a": 1}, {"text": "3"})
    {'text': '3'}
    >>> cache.get("server", "add", {"a": 1, "b": 2})
    {'text': '3'}
    """

    def __init__(self, path: str | Path, only: bool = False):
        self.path = str(user_path(path))
        if only and not Path(self.path).is_file():
            raise FileNotFoundError(f"there is no cache {path}")
        try:
            self._file = sqlite3.connect(self.path, timeout=30.0, check_same_thread=False, isolation_level=None)
            if not only:
                self._file.execute("PRAGMA journal_mode=WAL")
                self._file.execute(
                    "CREATE TABLE IF NOT EXISTS results (server TEXT, tool TEXT, arguments TEXT, result TEXT, "
                    "PRIMARY KEY (server, tool, arguments))"
                )
            self._file.execute("SELECT count(*) FROM results").fetchone()
        except sqlite3.Error as error:
            raise OSError(f"the cache {path} cannot be used: {error}") from error

    def get(self, server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """The result of a call; None: it has none."""
        query = "SELECT result FROM results WHERE server = ? AND tool = ? AND arguments = ?"
        row = self._file.execute(query, (server, tool, _key(arguments))).fetchone()
        return None if row is None else json.loads(row[0])

    def put(
        self, server: str, tool: str, arguments: Mapping[str, Any], result: Mapping[str, Any], replace: bool = False
    ) -> dict[str, Any]:
        """Adds a result; returns the one that the cache has, which is the first, or with ``replace`` the last."""
        values = (server, tool, _key(arguments), json.dumps(result, ensure_ascii=False))
        self._file.execute(f"INSERT OR {'REPLACE' if replace else 'IGNORE'} INTO results VALUES (?, ?, ?, ?)", values)
        found = self.get(server, tool, arguments)
        assert found is not None
        return found

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _key(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, sort_keys=True, ensure_ascii=False)

"""An episode with an MCP server: its session, restarts and cached results, in one background event loop."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from roleagent.envs.tools.calls.workers import EventLoop
from roleagent.envs.tools.mcp.cache import ResultCache
from roleagent.envs.tools.mcp.session import CLOSING, Server, Session, SessionLost
from roleagent.tools import CallTimeout, EpisodeError, Result, ToolError

FAILURES = 3  # in a row: the episode is an error
AT_ONCE = 8  # servers that start at the same time
LONGEST = 100_000  # characters of a result; the environment cuts it further


class Episode:
    """One episode with a server.

    Args:
        name: of the server, for errors.
        connection: to the server.
        own: whether no other episode uses the connection.
        timeout: seconds of a call.
        cache: of results; None: none.
        cache_only: whether no call reaches the server.
    """

    def __init__(
        self,
        name: str,
        connection: Connection,
        own: bool,
        timeout: float,
        cache: ResultCache | None,
        cache_only: bool,
    ):
        self.connection = connection
        self._name, self._own, self.timeout = name, own, timeout
        self._cache, self._cache_only = cache, cache_only
        self._failures, self._changed = 0, False

    async def call(self, tool: str, arguments: Mapping[str, Any], read_only: bool) -> Result:
        """Calls a tool, in the background loop.

        A result is cached as long as the episode has called no tool that may change something.

        Raises:
            ToolError: the server gave no answer; if it was late, a :class:`~roleagent.tools.CallTimeout`.
            EpisodeError: that happened three times in a row, or a server died that the episode had changed.
        """
        cache = self._cache if read_only and not self._changed else None
        found = cache.get(self.connection.server.address, tool, arguments) if cache else None
        if found is None and self._cache_only:
            asked = json.dumps(arguments, ensure_ascii=False)[:200]
            raise EpisodeError(f"{self._name}: the cache has no result of {tool} {asked}")
        if found is None:
            found = plain_result(await self._ask(tool, arguments, read_only))
            if cache and found["success"]:  # a failure may be of the moment
                found = cache.put(self.connection.server.address, tool, arguments, found)
        return Result(found["text"], found["success"], images=tuple(found["images"]))

    async def _ask(self, tool: str, arguments: Mapping[str, Any], read_only: bool) -> dict[str, Any]:
        """The server's answer; a read-only call gets a second try at a restarted server."""
        changed, self._changed = self._changed, self._changed or not read_only
        for _ in range(2):
            try:
                answer = await self.connection.call(tool, arguments, self.timeout)
            except SessionLost as error:
                self._failures += 1
                if self._own or error.dead:
                    await self.connection.restart()
                if self._failures >= FAILURES or changed:
                    raise EpisodeError(f"{self._name}: {error}") from error
                if self._failures > 1 or not read_only:
                    raise (ToolError if error.dead else CallTimeout)(str(error)) from error
            else:
                self._failures = 0
                return answer
        raise AssertionError("the second failure raises")

    def leave(self) -> bool:
        """Whether another episode can use the session: the last call was answered, and changes can be undone."""
        if self._failures or (self._changed and self.connection.reset is None):
            return False
        self.connection.changed = self._changed
        return True

    def close(self) -> None:
        """Ends the episode's own session; a command ends in the background."""
        if self._own:
            background_loop(os.getpid()).submit(self.connection.restart())


class Connection:
    """A session that starts when it is needed, again after each restart. Its methods run in the background loop.

    Attributes:
        reset: the tool that undoes the changes of an episode; None: there is none.
        changed: whether it must be called before the next call.
    """

    def __init__(self, server: Server, start_timeout: float, reset: str | None = None):
        self.server, self.reset, self._start_timeout = server, reset, start_timeout
        self.changed = False
        self._session: Session | None = None
        self._pid = os.getpid()

    async def call(self, name: str, arguments: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Calls a tool; raises as :meth:`Session.call`."""
        if self.changed:
            await self._undo(timeout)
        if self._session is None or self._pid != os.getpid():  # a fork has the parent's session, but not its thread
            self._pid = os.getpid()
            self._session = Session(self.server, self._start_timeout, _starting(self._pid))
            _open.add(self._session)
        return await self._session.call(name, arguments, timeout)

    async def _undo(self, timeout: float) -> None:
        """Calls the tool ``reset``; the session is restarted where that fails."""
        self.changed = False
        assert self.reset is not None
        if self._session is not None and self._pid == os.getpid():
            with suppress(SessionLost):
                if not (await self._session.call(self.reset, {}, timeout)).get("isError"):
                    return
        await self.restart()

    async def restart(self) -> None:
        """Ends the session; the next call starts another."""
        session, self._session = self._session, None
        if session is not None and self._pid == os.getpid():
            await session.close()
            _open.discard(session)


_open: set[Session] = set()


@lru_cache(maxsize=1)
def background_loop(pid: int) -> EventLoop:
    """The event loop of this process; a fork does not have its parent's thread."""
    _open.clear()
    return EventLoop("roleagent-mcp")


@lru_cache(maxsize=1)
def _starting(pid: int) -> asyncio.Semaphore:
    return asyncio.Semaphore(AT_ONCE)


@atexit.register
def _close_all() -> None:
    """Ends the commands that still run."""

    async def close() -> None:
        await asyncio.gather(*(session.close() for session in _open))

    if _open:
        with suppress(Exception):
            background_loop(os.getpid()).submit(close()).result(CLOSING)


def list_tools(server: Server, start_timeout: float) -> dict[str, Any]:
    """``name`` and ``tools`` of a server.

    Raises:
        SessionLost: it does not start, or does not answer.
    """

    async def ask() -> dict[str, Any]:
        session = Session(server, start_timeout, _starting(os.getpid()))
        try:
            tools = await session.tools()
            return {"name": session.name, "tools": tools}
        finally:
            await session.close()

    return background_loop(os.getpid()).submit(ask()).result()


def plain_result(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer's text, success and images, as JSON.

    >>> plain_result({"content": [{"type": "text", "text": "7"}]})
    {'text': '7', 'success': True, 'images': []}
    """
    texts, images = [], []
    for block in answer.get("content", ()):
        resource = block.get("resource") or {}
        if block["type"] == "image":
            images.append({"mime_type": block.get("mimeType"), "data": block.get("data")})
            continue
        kind = f"[{block['type']}: {block.get('uri') or resource.get('uri') or block.get('mimeType')}]"
        texts.append(str(block.get("text") or resource.get("text") or ("" if block["type"] == "text" else kind)))
    if not texts and answer.get("structuredContent") is not None:
        texts = [json.dumps(answer["structuredContent"], ensure_ascii=False)]
    text = "\n".join(texts)
    if len(text) > LONGEST:
        half = LONGEST // 2
        text = f"{text[:half]} [… {len(text) - 2 * half:,} characters left out …] {text[-half:]}"
    return {"text": text, "success": not answer.get("isError", False), "images": images}

"""A session with an MCP server, in the background event loop (Model Context Protocol, https://modelcontextprotocol.io).

Works with the ``mcp`` SDK 1.x and 2.x: what differs between them is their HTTP client and the case of their fields.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import shlex
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gymnasium.error import DependencyNotInstalled
from pydantic import ValidationError

from roleagent.options import home_expanded
from roleagent.proxy import open_http_client

try:
    import mcp
    from mcp.client import streamable_http
    from mcp.client.stdio import StdioServerParameters, stdio_client
except ImportError as error:
    raise DependencyNotInstalled(f"MCP servers need the mcp package ({error}): pip install 'roleagent[mcp]'") from error

logging.getLogger("mcp").addHandler(logging.NullHandler())  # its warnings repeat what the errors here say
CLOSED = -32000  # JSON-RPC code of the SDK for a request whose connection has closed
LARGEST = 64 * 2**20  # bytes of an answer over HTTP; a larger one ends the session
PAGES = 100  # of a list of tools
CLOSING = 10.0  # seconds that a server gets to end; the SDK ends a command after four

Transport = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens a connection: an async context manager of a read and a write stream, as the SDK's clients return it."""


class SessionLost(Exception):
    """The server did not start, has died or gave no answer in time; the message is one line.

    Args:
        dead: whether no other request of the session can be answered.
    """

    def __init__(self, message: str, dead: bool = True):
        super().__init__(message)
        self.dead = dead


@dataclass(frozen=True)
class Server:
    """The address of a server, or the command that starts it.

    Attributes:
        address: a URL, or a command with its arguments.
        environment: names of environment variables that a command receives, besides ``PATH``, ``HOME`` and the like.
        token: name of the environment variable whose value a URL receives as bearer token.
        transport: opens the connection in place of ``address``.
    """

    address: str
    environment: tuple[str, ...] = ()
    token: str | None = None
    transport: Transport | None = field(default=None, compare=False)

    @property
    def is_url(self) -> bool:
        """Whether the server is reached over HTTP."""
        return self.address.startswith(("http://", "https://"))

    def connect(self, errors: Any) -> AbstractAsyncContextManager[Any]:
        """The SDK's connection.

        Args:
            errors: an open file for what a command writes to its standard error.
        """
        if self.transport is not None:
            return self.transport()
        if not self.is_url:
            command, *arguments = map(home_expanded, shlex.split(self.address))
            passed = {name: os.environ[name] for name in self.environment}
            return stdio_client(StdioServerParameters(command=command, args=arguments, env=passed or None), errors)
        headers = {"Authorization": f"Bearer {os.environ[self.token]}"} if self.token else {}
        return _over_http(self.address, headers)


@asynccontextmanager
async def _over_http(url: str, headers: Mapping[str, str]) -> AsyncIterator[Any]:
    """The SDK's connection to a URL, by an HTTP client with the environment's proxy for it."""
    connect, options = streamable_http.streamable_http_client, {}
    if "max_sse_event_size" in inspect.signature(connect).parameters:
        options["max_sse_event_size"] = LARGEST
    httpx: Any = getattr(streamable_http, "httpx2", None) or streamable_http.httpx  # pyright: ignore  # SDK 2 or 1
    timeout = httpx.Timeout(30.0, read=300.0)  # as the SDK's own client: it may wait for long for a tool's result
    client = open_http_client(httpx.AsyncClient, url, headers=headers, timeout=timeout, follow_redirects=True)
    async with client, connect(url, http_client=client, **options) as streams:
        yield streams


class Session:
    """One session: it starts with the first request. All methods run in one event loop.

    Args:
        server: how to reach it.
        start_timeout: seconds that the server gets to start.
        starting: limits how many servers start at once.

    Attributes:
        name: the server's name for itself; known after the start.
    """

    def __init__(self, server: Server, start_timeout: float, starting: asyncio.Semaphore):
        self.server, self.start_timeout = server, start_timeout
        self.name = ""
        self._starting = starting
        self._lock = asyncio.Lock()
        self._client: Any = None
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._errors: Any = None

    async def tools(self) -> list[dict[str, Any]]:
        """The server's tools, as the protocol writes them.

        Raises:
            SessionLost: see there; or the list does not follow the protocol.
        """
        found: list[dict[str, Any]] = []
        more: dict[str, Any] = {}
        known: set[str] = set()
        for _ in range(PAGES):
            try:
                page = _plain(await self._request(self.start_timeout, "list_tools", **more))
            except SessionLost:
                raise
            except Exception as error:  # of the server, or of the SDK, which checks what it sends
                raise SessionLost(f"its list of tools cannot be read: {_line(error)}", dead=False) from error
            listed = page.get("tools", [])
            names = {tool["name"] for tool in listed}
            if known and names and names <= known:
                break  # a server whose cursor does not advance begins anew
            found, known = found + listed, known | names
            if not page.get("nextCursor"):
                break
            more = {"params": mcp.types.PaginatedRequestParams(cursor=page["nextCursor"])}
        return found

    async def call(self, name: str, arguments: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Calls a tool; an answer that the server, or the SDK's check of it, refuses is a result with ``isError``.

        Raises:
            SessionLost: see there.
        """
        try:
            return _plain(await self._request(timeout, "call_tool", name, dict(arguments)))
        except (SessionLost, asyncio.CancelledError):
            raise
        except Exception as error:
            return {"content": [{"type": "text", "text": _line(error)}], "isError": True}

    async def close(self) -> None:
        """Ends the session, and a command with it."""
        self._stop.set()
        if self._task is not None:
            _, late = await asyncio.wait([self._task], timeout=CLOSING)
            [task.cancel() for task in late]
            if self._task.done() and not self._task.cancelled():
                self._task.exception()  # asyncio reports an error that was never looked at
        if self._errors is not None:
            self._errors.close()

    async def _request(self, timeout: float, method: str, *arguments: Any, **named: Any) -> Any:
        await self._start()
        request = asyncio.ensure_future(getattr(self._client, method)(*arguments, **named))
        assert self._task is not None
        await asyncio.wait([request, self._task], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if not request.done():
            request.cancel()
            reason = "the server has died" if self._task.done() else f"the server gave no answer in {timeout:g} s"
            raise SessionLost(f"{reason}{self._last_words()}", self._task.done())
        error = request.exception()
        if getattr(getattr(error, "error", None), "code", None) == CLOSED or "ClosedResource" in type(error).__name__:
            raise SessionLost(f"the server has died{self._last_words()}")
        if error is not None:
            raise error
        return request.result()

    async def _start(self) -> None:
        async with self._lock:
            if self._client is not None:
                return
            async with self._starting:
                ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                self._task = asyncio.ensure_future(self._serve(ready))
                await asyncio.wait([ready, self._task], timeout=self.start_timeout, return_when="FIRST_COMPLETED")
            if ready.done():
                self._client = ready.result()
                return
            failed = self._task.exception() if self._task.done() else None
            self._task.cancel()
            reason = _line(failed) if failed else f"no answer in {self.start_timeout:g} s"
            raise SessionLost(f"the server does not start: {reason}{self._last_words()}")

    async def _serve(self, ready: asyncio.Future[Any]) -> None:
        """Holds the connection: the SDK wants its contexts entered and left in one task."""
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - read after the session's end
        async with AsyncExitStack() as stack:
            read, write, *_ = await stack.enter_async_context(self.server.connect(self._errors))
            client = await stack.enter_async_context(mcp.ClientSession(_ToolLists(read), write))
            about = _plain(await client.initialize())
            self.name = str(about.get("serverInfo", {}).get("name", ""))
            ready.set_result(client)
            await self._stop.wait()

    def _last_words(self) -> str:
        """The last line that a command wrote to its standard error."""
        if self._errors is None or self._errors.closed:
            return ""
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read()[-4000:].splitlines() if line.strip()]
        return f" ({lines[-1][:200]})" if lines else ""


class _ToolLists:
    """A read stream in which every tool has a schema of an object, and none has one of its results.

    The SDK 2 refuses all of a server's tools if one lacks the schema, or its ``type``; servers leave both out. And it
    refuses every result without structured content of a tool that declares ``outputSchema``; servers send text alone.
    """

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> _ToolLists:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)

    def __aiter__(self) -> _ToolLists:
        return self

    async def __anext__(self) -> Any:
        item = await self._stream.__anext__()
        message = getattr(item, "message", None)
        result = getattr(getattr(message, "root", message), "result", None)  # SDK 1 has a root
        listed = result.get("tools") if isinstance(result, dict) else None
        for tool in listed if isinstance(listed, list) else ():
            if isinstance(tool, dict):
                tool.pop("outputSchema", None)
            if isinstance(tool, dict) and isinstance(schema := tool.get("inputSchema") or {}, dict):
                tool["inputSchema"] = {"type": "object", **schema}
        return item


def _plain(answer: Any) -> dict[str, Any]:
    """An answer of the SDK as the protocol's JSON, which is the same in all its versions."""
    return answer.model_dump(mode="json", by_alias=True, exclude_none=True)


def _line(error: BaseException) -> str:
    """The first error of a group, in one line."""
    while inner := getattr(error, "exceptions", ()):  # Python 3.10 has no class for these groups
        error = inner[0]
    if isinstance(error, ValidationError):  # its own text has several lines
        found = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, found['loc']))}: {found['msg']}"[:300]
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]

"""An MCP server's tools, chosen and checked before anything is played."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from roleagent.envs.tools.definition.function_tool import as_tool
from roleagent.envs.tools.definition.schema import SchemaRefused
from roleagent.envs.tools.mcp.cache import ResultCache
from roleagent.envs.tools.mcp.episode import Connection, Episode, background_loop, list_tools
from roleagent.envs.tools.mcp.session import CLOSING, Server, SessionLost, Transport
from roleagent.tools import Result

ISOLATION = ("episode", "session", "process", "shared")
OUTSIDE = -1  # the episode of calls outside an environment
LISTING = "tools/list"  # the list of tools in a cache


class MCPError(ValueError):
    """A server that cannot be used; the message is one line."""


class MCPClient:
    """The tools of one MCP server.

    Args:
        address: a command, or a URL of a streamable HTTP server.
        allow: names of tools that may be called although they do not declare themselves read-only.
        only: names of the tools that are offered; None: all that are read-only or allowed.
        timeout: seconds of a call, > 0; None: the environment's, and 10 outside of one.
        start_timeout: seconds that a server gets to start, > 0.
        cache: a file of results of read-only tools; calls that it has do not reach the server.
        cache_only: no server is started; a call that the cache lacks ends the episode as an error.
        environment: names of environment variables that a command receives. One text is a list of one, also in
            ``allow`` and ``only``.
        token: name of the environment variable with the bearer token of a URL.
        reset: name of the tool, without arguments, that undoes whatever an episode has done. The session then serves
            the next episode. The tool is not offered.
        transport: opens the connection in place of ``address``.

    Attributes:
        name: the server's name.
        tools: what is offered.
        refused: names of tools that are not offered because they may change something.
        unusable: why tools are not offered whose description cannot be used, by name.
        start_seconds: that the server took to start and to list its tools.

    Raises:
        MCPError: the server does not start or has no usable tools, or an argument does not fit.
    """

    def __init__(
        self,
        address: str,
        *,
        allow: Sequence[str] = (),
        only: Sequence[str] | None = None,
        timeout: float | None = None,
        start_timeout: float = 30.0,
        cache: str | None = None,
        cache_only: bool = False,
        environment: Sequence[str] = (),
        token: str | None = None,
        reset: str | None = None,
        transport: Transport | None = None,
    ):
        allow, environment, only = _listed(allow), _listed(environment), None if only is None else _listed(only)
        self.server = Server(address, environment, token, transport)
        self.own_timeout, self.timeout = timeout is not None, 10.0 if timeout is None else timeout
        self.start_timeout, self.cache_only, self.reset = start_timeout, cache_only, reset
        for option, names in (("allow", allow), ("only", only or ()), ("environment", environment)):
            if not all(isinstance(name, str) for name in names):
                raise self._error(f"{option} is a list of names")
        if problem := self._problem(cache):
            raise self._error(problem)
        began = time.monotonic()
        try:
            self.cache = ResultCache(cache, cache_only) if cache else None
            self.name, described = self._describe()
        except (OSError, SessionLost) as error:
            raise self._error(str(error)) from error
        self.start_seconds = time.monotonic() - began
        self.unusable: dict[str, str] = {}
        self.tools, self.refused = self._offered(described, allow, only)
        self._shared: Connection | None = None
        self._episodes: dict[int, tuple[Episode, str]] = {}
        self._unchanged: list[Connection] = []

    def begin(self, number: int, isolation: str) -> Episode:
        """The episode with a number; all tools of the server share it.

        Args:
            isolation: ``episode``: a session that no other episode uses, and in which earlier ones have only called
                read-only tools, or whose changes the tool ``reset`` has undone. ``session``: a new session; a command
                then runs once per episode. ``process``: the same, and refuses a URL, whose server may keep a state that
                all sessions share. ``shared``: one session for all episodes; an episode can then see what another one
                did.

        Raises:
            MCPError: the isolation does not fit.
        """
        self.check_isolation(isolation)
        if number not in self._episodes:
            connection = self._connection(isolation)
            name, own = self.name or self.server.address, connection is not self._shared
            episode = Episode(name, connection, own, self.timeout, self.cache, self.cache_only)
            self._episodes[number] = episode, isolation
        return self._episodes[number][0]

    def _connection(self, isolation: str) -> Connection:
        if isolation == "episode" and self._unchanged:
            return self._unchanged.pop()
        connection = Connection(self.server, self.start_timeout, self.reset)
        if isolation == "shared":
            connection = self._shared = self._shared or connection
        return connection

    def check_isolation(self, isolation: str) -> None:
        """Raises :class:`MCPError` where :meth:`begin` would."""
        if isolation not in ISOLATION:
            raise self._error(f"isolation must be one of {', '.join(ISOLATION)}, not {isolation!r}")
        if isolation == "process" and self.server.is_url:
            raise self._error("isolation=process needs a command: the server behind a URL is one process")

    def end(self, number: int) -> None:
        """Ends an episode and its own session, unless another episode can use it; a command ends in the background."""
        if number in self._episodes:
            episode, isolation = self._episodes.pop(number)
            if isolation == "episode" and episode.leave():
                self._unchanged.append(episode.connection)
            else:
                episode.close()

    def _error(self, problem: str) -> MCPError:
        return MCPError(f"MCP server {self.server.address!r}: {problem}")

    def _problem(self, cache: str | None) -> str:
        """What does not fit in the arguments; empty: nothing."""
        server = self.server
        seconds = self.timeout, self.start_timeout
        if not all(isinstance(one, int | float) and one > 0 for one in seconds):
            return "timeout and start_timeout are seconds, above 0"
        if not all(isinstance(one, str | None) for one in (cache, server.token, self.reset)):
            return "cache is the name of a file, token that of an environment variable, and reset that of a tool"
        if self.cache_only and not cache:
            return "cache_only needs cache=FILE"
        names = (*server.environment, *([server.token] if server.token else ()))
        if missing := [name for name in names if name not in os.environ]:
            return f"the environment variable {missing[0]} is not set"
        if server.is_url:
            secret = urlsplit(server.address).password
            return "a URL has no password: token=NAME names an environment variable with a token" if secret else ""
        try:
            return "" if shlex.split(server.address) else "there is no command"
        except ValueError as error:
            return f"the command cannot be read: {error}"

    def _describe(self) -> tuple[str, list[dict[str, Any]]]:
        """The server's name and its tools."""
        address = self.server.address
        if self.cache is not None and self.cache_only:
            known = self.cache.get(address, LISTING, {})
            if known is None:
                raise self._error(f"the cache {self.cache.path} has no list of its tools")
            return known["name"], known["tools"]
        found = list_tools(self.server, self.start_timeout)
        if self.cache is not None:
            self.cache.put(address, LISTING, {}, found, replace=True)
        return found["name"], found["tools"]

    def _offered(
        self, described: Sequence[Mapping[str, Any]], allow: Sequence[str], only: Sequence[str] | None
    ) -> tuple[tuple[MCPTool, ...], tuple[str, ...]]:
        """The tools that an agent may call, and the names of those that it may not."""
        tools: list[MCPTool] = []
        for one in described:
            try:
                as_tool(tool := MCPTool(self, one))
                tools.append(tool)
            except SchemaRefused as error:
                self.unusable[str(one["name"])] = str(error)
        names = [tool.name for tool in tools]
        for name in (*allow, *(only or ()), *([self.reset] if self.reset else ())):
            if name in self.unusable:
                raise self._error(self.unusable[name])
            if name not in names:
                raise self._error(f"there is no tool {name!r}; there are {', '.join(names) or 'none'}")
        wanted = [tool for tool in tools if (only is None or tool.name in only) and tool.name != self.reset]
        offered = tuple(tool for tool in wanted if tool.read_only or tool.name in allow)
        refused = tuple(tool.name for tool in wanted if tool not in offered)
        if refused and (only is not None or not offered):
            listed = ", ".join(refused)
            raise self._error(f"without readOnlyHint, {listed} may change something: allow=[{listed}] permits it")
        if not offered:
            raise self._error(next(iter(self.unusable.values()), "it has no tools"))
        return offered, refused


class MCPTool:
    """A tool of an MCP server.

    Attributes:
        name, description, parameters: see :class:`~roleagent.tools.Tool`.
        remote_name: the tool's name at the server.
        read_only, network: the server's hints. An open world is assumed unless ``openWorldHint`` denies it.
        timeout: seconds that a call takes at most, with a restart of the server.
    """

    is_async = True
    random = False
    takes_state = False

    def __init__(self, client: MCPClient, described: Mapping[str, Any], episode: Episode | None = None, name: str = ""):
        hints = described.get("annotations") or {}
        self.client, self._described, self._episode = client, described, episode
        self.remote_name = str(described["name"])
        self.name = name or self.remote_name
        self.description = str(described.get("description") or described.get("title") or self.name)
        self.parameters: Mapping[str, Any] = described.get("inputSchema") or {"type": "object"}
        self.read_only = hints.get("readOnlyHint") is True
        self.network = hints.get("openWorldHint") is not False
        self.timeout = self._most(client.timeout)

    def _most(self, seconds: float) -> float:
        return 2 * (seconds + self.client.start_timeout + CLOSING)

    def set_timeout(self, seconds: float) -> None:
        """The environment's timeout of a call, for an episode's tool whose server has none of its own."""
        if self._episode is not None and not self.client.own_timeout:
            self._episode.timeout, self.timeout = seconds, self._most(seconds)

    def begin(self, episode: int, isolation: str) -> MCPTool:
        """The tool in an episode; see :meth:`MCPClient.begin`."""
        return MCPTool(self.client, self._described, self.client.begin(episode, isolation), self.name)

    def check_isolation(self, isolation: str) -> None:
        """Raises :class:`MCPError` for an isolation that the server does not have."""
        self.client.check_isolation(isolation)

    def end(self, episode: int) -> None:
        """Ends an episode, for all tools of the server."""
        self.client.end(episode)

    def prefixed(self) -> MCPTool:
        """The tool with the server's name in front of its own."""
        server = re.sub(r"[^A-Za-z0-9_-]+", "_", self.client.name) or "mcp"
        return MCPTool(self.client, self._described, self._episode, f"{server}_{self.remote_name}")

    async def start(self, arguments: Mapping[str, Any], state: Any) -> Result:
        """Calls the tool, outside an episode in one of its own; see :meth:`execute`."""
        episode = self._episode or self.client.begin(OUTSIDE, "episode")
        call = episode.call(self.remote_name, arguments, self.read_only)
        return await asyncio.wrap_future(background_loop(os.getpid()).submit(call))

    def execute(self, arguments: Mapping[str, Any], state: Any = None) -> Result:
        """Calls the tool and waits.

        Raises:
            ToolError: the server gave no answer; if it was late, a :class:`~roleagent.tools.CallTimeout`.
            EpisodeError: that happened three times in a row, or a server died that the episode had changed.
        """
        return asyncio.run(self.start(arguments, state))

    def __deepcopy__(self, memo: Any) -> MCPTool:
        return self

    def __repr__(self) -> str:
        return f"<tool {self.name} of {self.client.name or self.client.server.address}>"


def _listed(names: Any) -> tuple[Any, ...]:
    """A list of names; one text is a list of one."""
    return tuple(names) if isinstance(names, list | tuple | set | frozenset) else (names,)


def load_tools(address: str, **options: Any) -> tuple[MCPTool, ...]:
    """The tools of a server; options are those of :class:`MCPClient`.

    A process has one client for each server and options: environments of a pool offer the same tools. What it does not
    offer is named once, on standard error.

    Raises:
        MCPError: see there.
    """
    try:
        return _client(os.getpid(), address, json.dumps(options, sort_keys=True)).tools
    except TypeError as error:  # an unknown option
        raise MCPError(f"MCP server {address!r}: {str(error).partition('() ')[2] or error}") from error


@lru_cache
def _client(pid: int, address: str, options: str) -> MCPClient:
    client = MCPClient(address, **json.loads(options))
    if client.refused:
        names = ", ".join(client.refused)
        print(f"not offered, since they may change something: {names} (allow=[{names}])", file=sys.stderr)
    if not (client.server.is_url or client.reset or client.cache_only) and any(
        not tool.read_only for tool in client.tools
    ):
        print(
            f"{client.name or address} starts in {client.start_seconds:.1f} s, again for each episode that changes "
            "something; reset=TOOL names a tool that undoes the changes instead",
            file=sys.stderr,
        )
    for problem in client.unusable.values():
        print(f"not offered: {problem}", file=sys.stderr)
    return client

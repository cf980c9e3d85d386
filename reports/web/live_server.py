"""Serves the report of running runs over HTTP: the page, its data, and the episodes of an iteration.

The addresses are ``/``, ``/data.json`` and ``/episodes/<iteration>.json``. No part of an address becomes a path.
Unchanged data are answered with 304, after a check of a few modification times. Other sites cannot read the page:
unknown host names (DNS rebinding) and frames are refused.
"""

from __future__ import annotations

import gzip
import html
import ipaddress
import re
import socket
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from roleagent.reports.data.load_trajectories import RunDataError
from roleagent.reports.data.run_watcher import RunWatcher
from roleagent.reports.web.page import as_json, render, report_data

TRIES = 20
"""Ports that are tried after the requested one, if it is in use."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}  # besides the page's own policy, which names its scripts
_EPISODES = re.compile(r"/episodes/(\d{1,9})\.json")
_WORTH_PACKING = 10_000  # bytes
_WAITING = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>RoleAgent: waiting</title>
<link rel="icon" href="data:,"><meta http-equiv="refresh" content="1"><meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width, initial-scale=1"></head>
<body style="font: 16px/1.5 system-ui, sans-serif; max-width: 40em; margin: 4em auto; padding: 0 1em">
<h1>Waiting for a run</h1><p role="status">{what}</p><p>The report will appear here.</p></body></html>
"""


class LiveServer(ThreadingHTTPServer):
    """Serves watched runs until :meth:`shutdown`.

    Args:
        watcher: the runs.
        host: address to listen on.
        port: 0 takes a free one.
        tries: how many later ports may be used instead.

    Raises:
        OSError: the address cannot be used.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, watcher: RunWatcher, host: str = "127.0.0.1", port: int = 0, tries: int = 0):
        self.watcher, self.host = watcher, host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        for candidate in range(port, port + tries + 1 if port else 1):
            try:
                super().__init__((host, candidate), _Handler)
                return
            except OSError:
                if candidate == port + tries or not port:
                    raise

    @property
    def url(self) -> str:
        """The address for a browser on this machine."""
        name = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)
        return f"http://{f'[{name}]' if ':' in name else name}:{self.server_port}/"

    def knows(self, host: str | None) -> bool:
        """Whether a request's ``Host`` is a name of this server.

        Another site's name may resolve to this machine, and its page would then count as same-origin. A numeric
        address cannot be redirected in this way.
        """
        name = re.sub(r":\d*$", "", host or "").strip("[]").casefold()
        try:
            ipaddress.ip_address(name)
            return True
        except ValueError:
            own = {"localhost", self.host.casefold(), socket.gethostname().casefold()}
            return name in own or name.endswith(".localhost")


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds that a connection may be idle
    server_version, sys_version = "RoleAgent", ""

    def do_GET(self) -> None:
        try:
            self._answer()
        except (BrokenPipeError, ConnectionResetError):  # the client has left
            self.close_connection = True

    do_HEAD = do_GET

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        if not self.server.knows(self.headers.get("Host")):
            self._message(HTTPStatus.FORBIDDEN, "unknown host name: use the server's address")
        elif path in ("/", "/data.json"):
            self._report(path)
        elif found := _EPISODES.fullmatch(path):
            self._episodes(int(found[1]))
        else:
            self._message(HTTPStatus.NOT_FOUND, "no such page: the report is at /")

    def _report(self, path: str) -> None:
        """Answers with the page, or with its data."""
        watcher = self.server.watcher
        try:
            stamp, runs = watcher.load()
        except RunDataError as error:
            stamp, runs, what = "", [], str(error)
        else:
            what = f"There is no run yet in {', '.join(map(str, watcher.missing()))}."
        if path == "/" and not runs:
            self._send(_WAITING.format(what=html.escape(what)), "text/html; charset=utf-8")
        elif not runs:
            self._message(HTTPStatus.SERVICE_UNAVAILABLE, what)
        elif not self._unchanged(stamp):
            if path == "/":
                self._send(render(runs, live="data.json"), "text/html; charset=utf-8", stamp)
            else:
                self._send(as_json(report_data(runs)), "application/json", stamp)

    def _episodes(self, iteration: int) -> None:
        try:
            self._send(as_json(self.server.watcher.episodes(iteration)), "application/json")
        except RunDataError as error:
            self._message(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))

    def _unchanged(self, stamp: str) -> bool:
        """Answers with 304 if the client has this version; returns whether it did."""
        if f'"{stamp}"' not in re.split(r"\s*,\s*", self.headers.get("If-None-Match", "")):
            return False
        self.send_response(HTTPStatus.NOT_MODIFIED)
        self.send_header("ETag", f'"{stamp}"')
        self.end_headers()
        return True

    def _message(self, status: HTTPStatus, text: str) -> None:
        self._send(text + "\n", "text/plain; charset=utf-8", status=status)

    def _send(self, text: str, kind: str, stamp: str = "", status: HTTPStatus = HTTPStatus.OK) -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if stamp:
            self.send_header("ETag", f'"{stamp}"')
        if len(body) > _WORTH_PACKING and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, 1)  # five times as fast through an SSH tunnel
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def end_headers(self) -> None:
        """Adds the protective headers to every answer, including http.server's own errors."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Logs nothing."""


__all__ = ["TRIES", "LiveServer"]

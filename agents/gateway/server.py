"""The gateway's server, on the loopback interface, and the programs that it serves.

A program has a key, in the address (``/KEY/v1/chat/completions``) or as the bearer token of OpenAI's clients:

=============================  ========================================================================================
``POST v1/chat/completions``   OpenAI's protocol, with tools and streams
``GET v1/models``              the one model; ``GET v1/models/policy``, too
``GET episode``                the task and the newest observation
``POST step``                  ``{"action": …}``, a command for the environment; answers as Gymnasium's ``step``
``POST reward``                ``{"reward": 0.5, "won": false}``, of a program with a world of its own; ends the episode
=============================  ========================================================================================
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import MSG_DONTWAIT, MSG_PEEK, socket
from typing import Any

from roleagent.agents.gateway.protocol import MODEL, BadRequest, chunks_of, error_of
from roleagent.options import shown

LOOPBACK = "127.0.0.1"
FAREWELL = 5.0
"""Seconds that a program may still run after the end of its episode."""
_LARGEST = 64 * 2**20  # bytes of a request's body
_LONGEST_LINE = 4096  # bytes, between chunks
_KINDS = {
    *(("GET", "models"), ("GET", f"models/{MODEL}"), ("GET", "episode")),
    *(("POST", "chat/completions"), ("POST", "step"), ("POST", "reward")),
}
_SERVED = {"id": MODEL, "object": "model", "created": 0, "owned_by": "roleagent"}
_ADDRESS = re.compile(r"/(?:([\w-]{20,})/)?(?:v1/)?([a-z/]+)")
_BEARER = re.compile(r"bearer\s", re.IGNORECASE)
GONE = (410, error_of("the episode is over"))


@dataclass(frozen=True, slots=True)
class Call:
    """What a program asks for.

    Attributes:
        kind: the last part of the address: ``chat/completions``, ``episode``, ``step`` or ``reward``.
        body: the request, an object of JSON.
        client: the connection that it came by.
        answer: receives the status and the body of the answer.
    """

    kind: str
    body: Mapping[str, Any]
    client: socket
    answer: Future[tuple[int, dict[str, Any]]] = field(default_factory=Future)

    def is_awaited(self) -> bool:
        """Whether the client has not closed the connection."""
        try:
            return self.client.recv(1, MSG_PEEK | MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False


class Program:
    """A process that plays one episode.

    Its time is its own: while it waits for an answer, its clock stands still. So its limit does not depend on how busy
    the policy is.

    Args:
        command: the words of the command that starts it.
        gateway: serves it.
        seconds: of its own that it may take.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str], gateway: Gateway, seconds: float):
        self._gateway, self._changed = gateway, gateway.changed
        self._left, self._since = seconds, time.monotonic()
        self._calls: list[Call] = []  # not taken yet
        self._open: list[Call] = []  # without an answer
        self._closed = False
        self.key = secrets.token_urlsafe(18)
        gateway.programs[self.key] = self
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                start_new_session=True,  # its children end with it
            )
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._watch, name="agent program", daemon=True).start()

    def ask(self, call: Call) -> tuple[int, dict[str, Any]]:
        """The answer to a call; in a thread of the server."""
        with self._changed:
            if self._closed:
                return GONE
            if not self._open:
                self._left -= time.monotonic() - self._since
            self._calls.append(call)
            self._open.append(call)
            self._changed.notify()
        return call.answer.result()

    def reply(self, call: Call, status: int, body: dict[str, Any]) -> None:
        """Answers a call."""
        with self._changed:
            self._open.remove(call)
            if not self._open:
                self._since = time.monotonic()
        call.answer.set_result((status, body))

    def take(self) -> list[Call]:
        """The new calls; none if it has ended."""
        taken, self._calls = self._calls, []
        return taken

    @property
    def asks_policy(self) -> bool:
        """Whether it asks for a reply that nobody has taken up."""
        return any(call.kind == "chat/completions" for call in self._calls)

    @property
    def seconds_left(self) -> float:
        """Until its limit."""
        return self._left if self._open else self._left - (time.monotonic() - self._since)

    @property
    def has_news(self) -> bool:
        """Whether it asks for something, or has ended."""
        return bool(self._calls) or self._process.returncode is not None or self.seconds_left <= 0

    @property
    def end(self) -> str:
        """How it ended: ``"gave_up"`` (by itself), ``"crashed"`` or ``"timeout"``."""
        status = self._process.returncode
        return "timeout" if status is None else "crashed" if status else "gave_up"

    def finish(self) -> None:
        """The episode is over: the program has a few seconds to end."""
        with self._changed:
            self._left, self._since = min(self._left, FAREWELL), time.monotonic()

    def output(self, size: int = 4000) -> str:
        """The last characters that it wrote."""
        length = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, length - size))
        return self._output.read().decode(errors="replace")

    def close(self) -> None:
        """Ends it, and whatever it has started."""
        with self._changed:
            self._closed = True
            self._gateway.programs.pop(self.key, None)
            waiting, self._open = self._open, []
        for call in waiting:
            call.answer.set_result(GONE)
        if hasattr(self, "_process"):
            with suppress(ProcessLookupError, PermissionError):  # it has ended
                os.killpg(self._process.pid, signal.SIGKILL)
        self._output.close()

    def _watch(self) -> None:
        self._process.wait()
        with self._changed:
            self._changed.notify()

    def _environment(self) -> dict[str, str]:
        url = f"http://{LOOPBACK}:{self._gateway.server_port}/{self.key}"
        unproxied = ",".join(filter(None, (os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), LOOPBACK)))
        own = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": self.key, "ROLEAGENT_URL": url}
        return {**os.environ, **own, "NO_PROXY": unproxied, "no_proxy": unproxied}


class Gateway(ThreadingHTTPServer):
    """Serves programs until it is closed.

    Attributes:
        programs: by key.
        changed: guards the programs' calls, and is notified of new ones.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__((LOOPBACK, 0), _Handler)
        self.programs: dict[str, Program] = {}
        self.changed = threading.Condition()
        threading.Thread(target=self.serve_forever, args=(0.05,), name="gateway", daemon=True).start()

    def server_close(self) -> None:
        self.shutdown()
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # the program has left
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Gateway
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "RoleAgent", ""

    def do_POST(self) -> None:
        try:
            self._answer(self._body())
        except BadRequest as error:  # where the next request begins is not known
            self.close_connection = True
            self._send(error.status, error_of(str(error)))

    do_GET = do_POST

    def _body(self) -> bytes:
        """The body of a request, of an announced size or in chunks.

        Raises:
            BadRequest: it is malformed, or too large.
        """
        coding = self.headers.get("Transfer-Encoding")
        if coding is None:
            return self._read(self.headers.get("Content-Length", "0"), 10, _LARGEST)
        if coding.strip().lower() != "chunked":
            raise BadRequest(f"Transfer-Encoding must be chunked, not {shown(coding)}", status=501)
        body = bytearray()
        while chunk := self._read(self._line().partition(";")[0], 16, _LARGEST - len(body)):
            body += chunk
            if self._line():
                raise BadRequest("a chunk of the body is longer than it says")
        while self._line():  # trailers
            pass
        return bytes(body)

    def _line(self) -> str:
        line = self.rfile.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise BadRequest("the chunks of the body are malformed, or end early")
        return line.decode("latin-1").strip()

    def _read(self, size: str, base: int, most: int) -> bytes:
        """So many bytes of the request."""
        try:
            count = int(size, base)
        except ValueError:
            count = -1
        if count < 0:
            raise BadRequest(f"the size of the body, or of a chunk, must be a number of bytes, not {shown(size)}")
        if count > most:
            raise BadRequest(f"the body has more than {_LARGEST} bytes", status=413)
        found = self.rfile.read(count)
        if len(found) < count:
            raise BadRequest("the body ends early")
        return found

    def _answer(self, body: bytes) -> None:
        place = _ADDRESS.fullmatch(self.path.partition("?")[0])
        if place is None or (self.command, place[2]) not in _KINDS:
            return self._send(404, error_of(f"there is no {self.command} {place[2] if place else self.path}"))
        key = place[1] or _BEARER.sub("", self.headers.get("Authorization", "")).strip()
        program = self.server.programs.get(key)
        if program is None:
            return self._send(401, error_of("the key belongs to no running episode", "invalid_api_key"))
        if place[2].startswith("models"):
            return self._send(200, {"object": "list", "data": [_SERVED]} if place[2] == "models" else _SERVED)
        try:
            asked = json.loads(body or b"{}")
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict):
            return self._send(400, error_of("the body must be an object of JSON"))
        status, answer = program.ask(Call(place[2], asked, self.connection))
        if status == 200 and place[2] == "chat/completions" and asked.get("stream"):
            usage = bool((asked.get("stream_options") or {}).get("include_usage"))
            lines = [*(json.dumps(chunk) for chunk in chunks_of(answer, usage)), "[DONE]"]
            return self._send(200, "".join(f"data: {line}\n\n" for line in lines), "text/event-stream")
        return self._send(status, answer)

    def _send(self, status: int, answer: Any, kind: str = "application/json") -> None:
        content = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Logs nothing: addresses hold keys."""


__all__ = ["FAREWELL", "GONE", "LOOPBACK", "Call", "Gateway", "Program"]

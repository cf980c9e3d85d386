"""A retriever that queries one or several retrieval services.

Every failure ends within a time limit in a :class:`RetrievalError`, one line that names the server. It never ends in an
empty result or in a run that hangs.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from roleagent.envs.retrieval.passages import passage_of
from roleagent.envs.retrieval.retriever import Hit, RetrievalError
from roleagent.slow_notice import waiting

LARGEST = 1 << 28  # bytes of an answer
BUSY = (429, 500, 502, 503, 504)  # what another server, or another time, may answer


class _Busy(Exception):
    """The server is up but does not answer now."""


class HTTPRetriever:
    """The client of a service that answers ``POST /retrieve``, this project's or another.

    Servers are asked in turn. One that fails rests for a while and is then tried again; only where all of them rest
    does the client wait, twice as long after every attempt and by chance a little less, so that a thousand clients do
    not come back in step. Threads may share a client; it pickles as its arguments.

    Args:
        urls: servers, as a list or with commas between them, e.g. ``http://127.0.0.1:8000``.
        timeout: seconds for one call's request of up to ``batch`` queries, all attempts and pauses included.
        patience: seconds for one attempt.
        retries: attempts after the first.
        pause: seconds before the second attempt at a server that failed.
        rest: seconds for which a server that failed is passed over.
        batch: queries per request.
        rng: of the pauses' jitter.

    Raises:
        ValueError: a URL is none.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        timeout: float = 30.0,
        patience: float = 10.0,
        retries: int = 10,
        pause: float = 0.1,
        rest: float = 5.0,
        batch: int = 64,
        rng: random.Random | None = None,
    ) -> None:
        listed = urls.split(",") if isinstance(urls, str) else urls
        self._servers = [_Server(url.strip()) for url in listed]
        if not self._servers:
            raise ValueError("a retrieval client needs the URL of a server")
        self._given = {"timeout": timeout, "patience": patience, "retries": retries, "pause": pause, "rest": rest}
        self._timeout, self._patience, self._retries, self._pause, self._rest = self._given.values()
        self._batch, self._rng = batch, rng or random.Random()
        self._turn = itertools.count()
        self._trouble = ""  # what went wrong last, for people who wait

    @property
    def name(self) -> str:
        """The servers' URLs, with commas between them."""
        return ",".join(server.url for server in self._servers)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.name, {**self._given, "batch": self._batch})

    def retrieve(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """The best ``k`` passages of each query; none for a blank one, of which no server is asked.

        Raises:
            RetrievalError: no server answered in time, or one refused the queries or answered with something else.
        """
        asked = [query for query in queries if query.strip()]
        found: list[list[Hit]] = []
        with waiting(lambda: f"the retrieval service at {self.name}{self._trouble}", every=True):
            for start in range(0, len(asked), self._batch):
                found += self._ask(asked[start : start + self._batch], k)
        answers = iter(found)
        return [next(answers) if query.strip() else [] for query in queries]

    def check(self) -> None:
        """Asks for one passage, with few attempts, so that a missing service is noticed at once.

        Raises:
            RetrievalError: no server answered.
        """
        self._ask(["ready"], 1, retries=len(self._servers))

    def close(self) -> None:
        """Closes the connections; the next call opens new ones."""
        for server in self._servers:
            server.hang_up()

    def _ask(self, queries: Sequence[str], k: int, retries: int | None = None) -> list[list[Hit]]:
        body = json.dumps({"queries": list(queries), "topk": k, "return_scores": True}).encode()
        began = time.monotonic()
        deadline, attempts, why = began + self._timeout, 0, ""
        for attempt in range((self._retries if retries is None else retries) + 1):
            server, now = self._next(), time.monotonic()
            if attempt and server.rests_until > now:  # all requests rest
                nap = min(self._pause * 2 ** (attempt - 1), 2.0) * self._rng.uniform(0.5, 1.0)
                if now + nap >= deadline:
                    break
                time.sleep(nap)
            seconds = min(self._patience, deadline - time.monotonic())
            if seconds < min(self._patience, self._timeout) / 10:  # no time for an answer
                break
            attempts += 1
            try:
                answer = server.post(body, seconds)
                hits = _hits(answer, len(queries), k)
            except _Busy as busy:
                why = f"{server.url}: {busy}"
                server.rests_until = time.monotonic() + self._pause
            except (OSError, HTTPException, ValueError, RecursionError) as error:
                why = f"{server.url}: {_reason(error, seconds)}"
                server.rests_until = time.monotonic() + self._rest
            else:
                server.rests_until, self._trouble = 0.0, ""
                return hits
            self._trouble = f" ({why})"
        raise RetrievalError(
            f"{why or self.name} (gave up after {attempts} attempts in {time.monotonic() - began:.1f} s); "
            "is the retrieval service running?"
        )

    def _next(self) -> _Server:
        """The server whose turn it is; where all rest, the one that has rested the longest."""
        turn = next(self._turn) % len(self._servers)
        inline = self._servers[turn:] + self._servers[:turn]
        now = time.monotonic()
        return min(inline, key=lambda server: max(server.rests_until - now, 0.0))


class _Server:
    """One server and the idle connections to it."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{url!r} is no URL of a server: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no URL of a server; an example is http://127.0.0.1:8000")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("the URL of a server has no user, password, query or fragment")  # and is not shown
        self.url = url
        self.rests_until = 0.0  # on the monotonic clock
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port = parts.hostname, port
        path = parts.path.rstrip("/")
        self._path = path if path.endswith("/retrieve") else f"{path}/retrieve"
        self._idle: deque[HTTPConnection] = deque()  # its append and pop are safe among threads
        self._pid = os.getpid()

    def post(self, body: bytes, seconds: float) -> Any:
        """The answer, as JSON.

        Raises:
            OSError, HTTPException, ValueError: there is none.
            RetrievalError: the server refused the request.
            _Busy: it did not have the time.
        """
        deadline = time.monotonic() + seconds
        if self._pid != os.getpid():  # a fork would share its parent's connections, and read the parent's answers
            self._idle, self._pid = deque(), os.getpid()
        while True:
            try:
                connection, used = self._idle.pop(), True
            except IndexError:
                connection, used = self._kind(self._host, self._port), False
            try:
                status, answer = self._exchange(connection, body, deadline)
                break
            except (ConnectionError, HTTPException):
                connection.close()
                if not used:
                    raise
                self.hang_up()  # the server closed it while it lay idle, and likely the others: now with a new one
            except BaseException:
                connection.close()
                raise
        if status in BUSY:
            raise _Busy(f"HTTP {status}{_error(answer)}")
        if status != 200:
            raise RetrievalError(f"{self.url} refused the request: HTTP {status}{_error(answer)}")
        return json.loads(answer)

    def hang_up(self) -> None:
        """Closes the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _exchange(self, connection: HTTPConnection, body: bytes, deadline: float) -> tuple[int, bytes]:
        def hurry() -> None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            connection.timeout = left
            if connection.sock is not None:
                connection.sock.settimeout(left)

        hurry()
        connection.request("POST", self._path, body, {"Content-Type": "application/json"})
        hurry()
        response = connection.getresponse()
        parts: list[bytes] = []
        size = 0
        while part := response.read1(1 << 16):  # piece by piece: a server that dribbles must not outlast the deadline
            parts.append(part)
            size += len(part)
            if size > LARGEST:
                raise ValueError(f"the answer has more than {LARGEST} bytes")
            hurry()
        response.close()  # the last read1 does not, and the connection would take no further request
        if response.will_close:
            connection.close()
        else:
            self._idle.append(connection)
        return response.status, b"".join(parts)


def _hits(answer: Any, queries: int, k: int) -> list[list[Hit]]:
    try:
        hits = [[_hit(item) for item in items[:k]] for items in answer["result"]]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError("the answer holds no passages") from None
    if len(hits) != queries:
        raise ValueError(f"{queries} queries were answered with {len(hits)} lists of passages")
    return hits


def _hit(item: Any) -> Hit:
    """One found passage: ``{"document": …, "score": …}``, or the document alone.

    Servers that ask the web give neither scores nor ids: passages keep their order, and are named by their text.
    """
    document = item.get("document", item)
    if document.get("id") is None:
        written = json.dumps(document, sort_keys=True).encode()
        document = {**document, "id": blake2b(written, digest_size=8).hexdigest()}
    score = item.get("score")
    return Hit(passage_of(document), 0.0 if score is None else float(score))


def _reason(error: Exception, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:.1f} s"
    if isinstance(error, json.JSONDecodeError | RecursionError):
        return "the answer is not JSON"
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return " ".join(text.split())[:200]


def _error(answer: bytes) -> str:
    """The server's reason, in a line."""
    try:
        said = json.loads(answer)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return f" ({' '.join(str(said).split())[:200]})"


def _again(urls: str, options: dict[str, Any]) -> HTTPRetriever:
    return HTTPRetriever(urls, **options)


__all__ = ["HTTPRetriever"]

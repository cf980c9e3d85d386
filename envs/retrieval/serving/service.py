"""A retriever as a web service, with the request formats of the trainers of search agents.

``POST /retrieve`` with ``{"queries": […], "topk": 3, "return_scores": true}`` (Search-R1, verl) or ``{"query": "…"}``
(verl-agent, Role-Agent); both are answered with ``{"result": [[{"document": {"id", "contents"}, "score"}, …], …]}``, a
list per query. Without ``return_scores`` the batch is answered with bare documents, as Search-R1 does. ``POST /search``
with ``{"queries": […], "top_k": 5}`` (Agent-R1) is answered with ``{"query_results": [{"query", "results": […]}, …]}``.
A blank query has no hits. Whatever cannot be answered is ``{"error": "one line"}`` with a status of its own: 422 not
understood or over a limit, 413 too large, 429 the queue is full, 503 too late or the search failed.

``GET /health`` describes what is served; ``GET /metrics`` is for Prometheus. Nothing logs or repeats what was asked.

The application is Starlette's, its metrics are prometheus_client's; uvicorn with httptools serves it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from roleagent.envs.retrieval.retriever import Hit, RetrievalError
from roleagent.envs.retrieval.serving.batching import Batcher, Late, Overloaded

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds, of the histogram
DRAIN = 16  # so many times the largest body is read, so that its sender hears the answer, before hanging up


@dataclass(frozen=True)
class Limits:
    """The limits of one request.

    Attributes:
        body: bytes.
        queries: of a batch.
        length: characters of a query; encoders read about a thousand.
        topk: hits per query.
        seconds: until the answer.
    """

    body: int = 1 << 22
    queries: int = 1024
    length: int = 8192
    topk: int = 100
    seconds: float = 60.0


class Service:
    """The paths of the service.

    Args:
        batcher: answers the queries; started and stopped by who serves.
        limits: of one request.
        about: further content of ``/health``, e.g. the number of passages.

    Attributes:
        application: for an ASGI server.
    """

    def __init__(self, batcher: Batcher, limits: Limits | None = None, about: Mapping[str, Any] | None = None) -> None:
        self._batcher, self._limits, self._about = batcher, limits or Limits(), dict(about or {})
        self._registry = CollectorRegistry()
        self._requests = Counter("retrieval_requests", "Answers by status", ["status"], registry=self._registry)
        self._seconds = Histogram(
            "retrieval_request_seconds", "Time to answer", buckets=BOUNDS, registry=self._registry
        )
        self._registry.register(_Tally(batcher))
        posts = {"/retrieve": self._retrieve, "/search": self._search}
        gets = {"/health": self._health, "/metrics": self._metrics}
        self._methods = dict.fromkeys(posts, "POST") | dict.fromkeys(gets, "GET")
        self.application = Starlette(
            routes=[
                *(Route(path, self._timed(function), methods=["POST"]) for path, function in posts.items()),
                *(Route(path, function, methods=["GET"]) for path, function in gets.items()),
            ],
            exception_handlers={HTTPException: self._refuse},
        )
        self.application.router.redirect_slashes = False

    def _timed(self, function: Callable[[dict[str, Any]], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
        """A handler of requests with a JSON object, from the function that answers it."""

        async def respond(request: Request) -> Response:
            began = time.perf_counter()
            try:
                return self._json(await function(_object(await self._read(request))))
            except ClientDisconnect:
                return Response(status_code=400)  # the client is gone
            finally:
                self._seconds.observe(time.perf_counter() - began)

        return respond

    def _json(self, answer: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        self._requests.labels(status).inc()
        return Response(json.dumps(answer), status, headers, "application/json")

    async def _refuse(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        status, path = error.status_code, request.url.path
        why = {
            404: f"there is nothing here; the paths are {', '.join(self._methods)}",
            405: f"{path} takes {self._methods.get(path)} only",
        }.get(status, error.detail)
        headers = {"retry-after": "1"} if status in (429, 503) else {}
        if status == 413:
            headers["connection"] = "close"  # the rest of the body is not read
        return self._json({"error": why}, status, headers)

    async def _read(self, request: Request) -> bytes:
        body, size = bytearray(), 0
        async for part in request.stream():
            size += len(part)
            if size <= self._limits.body:
                body += part
            if size > DRAIN * self._limits.body:
                break
        if size > self._limits.body:
            why = f"the body has more than {self._limits.body} bytes; ask for fewer queries at a time"
            raise HTTPException(413, why)
        return bytes(body)

    # --- the protocols ------------------------------------------------------------------------------------------------

    async def _retrieve(self, request: dict[str, Any]) -> dict[str, Any]:
        single = "query" in request
        if single == ("queries" in request):
            raise HTTPException(422, 'give either "queries", a list of texts, or "query", a text')
        queries = self._queries([request["query"]] if single else request["queries"])
        scores = request.get("return_scores")
        found = await self._ask(queries, self._count(request, "topk", 3))
        if single if scores is None else scores:
            result = [[{"document": _document(hit), "score": hit.score} for hit in hits] for hits in found]
        else:
            result = [[_document(hit) for hit in hits] for hits in found]
        return {"result": result}

    async def _search(self, request: dict[str, Any]) -> dict[str, Any]:
        queries = self._queries(request.get("queries"))
        found = await self._ask(queries, self._count(request, "top_k", 5))
        results = [
            {"query": query, "results": [{"document": _document(hit), "score": hit.score} for hit in hits]}
            for query, hits in zip(queries, found, strict=True)
        ]
        return {"query_results": results}

    def _queries(self, queries: Any) -> list[str]:
        if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
            raise HTTPException(422, "queries are a list of texts")
        if len(queries) > self._limits.queries:
            raise HTTPException(422, f"{len(queries)} queries are more than {self._limits.queries}, the most at a time")
        for number, query in enumerate(queries, 1):
            if len(query) > self._limits.length:
                raise HTTPException(
                    422, f"query {number} has {len(query)} characters; {self._limits.length} are the most"
                )
        # Half of a character (JSON can name one) is nothing that a tokenizer takes.
        return [query.encode("utf-8", "replace").decode() for query in queries]

    def _count(self, request: Mapping[str, Any], name: str, default: int) -> int:
        count = request.get(name)
        if count is None:
            return default
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= self._limits.topk:
            raise HTTPException(422, f"{name} is a whole number from 1 to {self._limits.topk}")
        return count

    async def _ask(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        try:
            found = iter(await self._batcher.ask([q for q in queries if q.strip()], k, self._limits.seconds))
        except Overloaded:
            raise HTTPException(429, "too many queries are waiting; try again") from None
        except Late:
            raise HTTPException(503, f"no answer within {self._limits.seconds:g} s; try again") from None
        except RetrievalError as error:
            raise HTTPException(503, " ".join(str(error).split())) from None
        return [next(found) if query.strip() else [] for query in queries]

    # --- for those who watch ------------------------------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        state = {"status": "ok", "retriever": self._batcher.retriever.name, "waiting": self._batcher.waiting}
        return self._json(state | self._about)

    async def _metrics(self, request: Request) -> Response:
        text = generate_latest(self._registry)
        self._requests.labels(200).inc()
        return Response(text, media_type=CONTENT_TYPE_LATEST)


class _Tally(Collector):
    """The batcher's counts, read when they are asked for."""

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher

    def collect(self) -> Iterator[Metric]:
        tally = self._batcher.tally
        for name, value in {
            "queries": tally.queries,
            "queries_cached": tally.cached,
            "queries_joined": tally.joined,
            "queries_searched": tally.searched,
            "queries_failed": tally.failed,
            "batches": tally.batches,
            "busy_seconds": tally.busy_seconds,
        }.items():
            yield CounterMetricFamily(f"retrieval_{name}", "Since the start", value)
        yield GaugeMetricFamily("retrieval_queries_waiting", "In the queue", self._batcher.waiting)
        yield GaugeMetricFamily("retrieval_answers_cached", "In memory", self._batcher.kept)


def _object(body: bytes) -> dict[str, Any]:
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(422, "the body is not JSON") from None
    if not isinstance(request, dict):
        raise HTTPException(422, "the body is not a JSON object")
    return request


def _document(hit: Hit) -> dict[str, str]:
    return {"id": hit.passage.id, "contents": hit.passage.contents}


__all__ = ["Limits", "Service"]

"""Runs a retrieval service: port, uvicorn and clean shutdown."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from gymnasium.error import DependencyNotInstalled

from roleagent.commands import cannot_listen
from roleagent.envs.retrieval.serving.batching import Batcher

try:
    import uvicorn

    from roleagent.envs.retrieval.serving.service import Limits, Service
except ImportError as error:
    raise DependencyNotInstalled(f"serving needs {error.name}: pip install 'roleagent[serve]'") from error

LAST_WORDS = 10  # seconds that requests have to end after the signal


class Server:
    """A port that is taken at once and answers once :meth:`run` is ready; until then, connections are refused.

    Raises:
        OSError: the port is taken, or the address is none of this machine's.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # With the protocol named, asyncio sends small answers at once; else each waits 40 ms for an acknowledgement.
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # a restart need not wait for old connections
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            raise cannot_listen(host, port, error) from error
        self._host, self.port = host, int(self._socket.getsockname()[1])
        self._uvicorn: uvicorn.Server | None = None

    @property
    def url(self) -> str:
        """The URL of the service."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self.port}"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    def run(
        self,
        batcher: Batcher,
        *,
        limits: Limits | None = None,
        about: Mapping[str, Any] | None = None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Serves until SIGINT, SIGTERM, or :meth:`stop` from another thread; then finishes the open requests.

        Raises:
            RetrievalError: the retriever does not work.
        """
        config = uvicorn.Config(
            Service(batcher, limits, about).application,
            lifespan="off",
            access_log=False,
            log_level="warning",
            server_header=False,
            ws="none",
            timeout_keep_alive=75,
            timeout_graceful_shutdown=LAST_WORDS,
        )
        self._uvicorn = _Announced(config, ready)
        main_thread = threading.current_thread() is threading.main_thread()
        # uvicorn shuts down and then calls the previous signal handler.
        before = signal.signal(signal.SIGTERM, _interrupt) if main_thread else None
        try:
            asyncio.run(self._serve(batcher))
        except KeyboardInterrupt:
            pass
        finally:
            if main_thread:
                signal.signal(signal.SIGTERM, before)

    def stop(self) -> None:
        """Ends :meth:`run`; for other threads."""
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True

    async def _serve(self, batcher: Batcher) -> None:
        assert self._uvicorn is not None
        try:
            await batcher.start()
            await self._uvicorn.serve(sockets=[self._socket])
        finally:
            await batcher.stop()


class _Announced(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


__all__ = ["Server"]

"""An ASGI application under an address of this machine, in a thread of this process."""

import socket
import threading
import time

import uvicorn


class Served:
    """Serves an application under ``url`` until the block ends."""

    def __init__(self, app, port=0):
        self.listening = socket.socket()
        self.listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listening.bind(("127.0.0.1", port))
        self.port = self.listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self.listening]}, daemon=True)

    def __enter__(self):
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        self._server.should_exit = True
        self._thread.join(timeout=20)
        self.listening.close()
        assert not self._thread.is_alive()

"""The retrieval service in a thread of the tests' process."""

import threading
from contextlib import contextmanager

from roleagent.envs.retrieval.serving.batching import Batcher
from roleagent.envs.retrieval.serving.server import Server


@contextmanager
def serving(retriever, limits=None, port=0, **options):
    """A server of a retriever, which has started; ``options`` are those of the batcher."""
    with Server(port=port) as server:
        ready = threading.Event()
        batcher = Batcher(retriever, **options)
        arguments = {"limits": limits, "about": {"passages": 7}, "ready": ready.set}
        thread = threading.Thread(target=server.run, args=(batcher,), kwargs=arguments)
        thread.start()
        try:
            assert ready.wait(20)
            yield server
        finally:
            server.stop()
            thread.join(20)
            assert not thread.is_alive()

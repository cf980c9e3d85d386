"""A server of the retrieval benchmark in its own process: the usual one or ours, over the same vectors.

``retrieval_clients`` starts it with a folder from ``retrieval_material.prepare``. It prints its port and serves until
killed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from parts.retrieval_material import Vectors

from roleagent.options import user_path


class Planned:
    """An encoder that costs what a model costs, and answers with the vector that was planned for the question.

    What the model computes differently from itself in float32, one question at a time, is added to that vector: the
    loss by a coarser precision or by batching is not thrown away with the rest.
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        from roleagent.envs.retrieval.dense.encoders import open_encoder

        self._model = open_encoder(f"e5:{folder / 'model'}", dtype=dtype, device="cpu")
        self._row = {text: row for row, text in enumerate(json.loads((folder / "questions.json").read_text("utf-8")))}
        self._vectors = np.load(folder / "questions.npy")
        self._reference = np.load(folder / "reference.npy")  # of the first questions, those that recall is of
        self.name, self.dimension = "planned", self._vectors.shape[1]
        self.digest, self.settings = "planned", {}

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        computed = self._model.encode_queries(texts)
        rows = np.array([self._row.get(text, 0) for text in texts], dtype=np.int64)
        vectors, known = self._vectors[rows], np.flatnonzero(rows < len(self._reference))
        error = computed[known] - self._reference[rows[known]]
        copies = -(-self.dimension // error.shape[1])
        vectors[known] += np.tile(error, copies)[:, : self.dimension] / np.sqrt(copies)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    encode_passages = encode_queries  # there are none to encode


class OneByOne:
    """The usual server: a thread per request, and in it one query through the model and one through a flat index."""

    def __init__(self, folder: Path, dtype: str) -> None:
        import faiss

        from roleagent.envs.retrieval.passages import Passages

        self._encoder, self._passages = Planned(folder, dtype), Passages.open(folder / "corpus.jsonl")
        self._index = faiss.IndexFlatIP(self._encoder.dimension)
        self._index.add(np.load(folder / "passages.npy"))
        self._threads = ThreadPoolExecutor(40)  # as many as the usual framework gives

    def answer(self, query: str, k: int) -> list[dict[str, Any]]:
        scores, rows = self._index.search(self._encoder.encode_queries([query]), k)
        found = []
        for score, row in zip(scores[0].tolist(), rows[0].tolist(), strict=True):
            passage = self._passages[row]
            found.append({"document": {"id": passage.id, "contents": passage.contents}, "score": score})
        return found

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        import asyncio

        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        request = json.loads(body)
        loop = asyncio.get_running_loop()
        asked = [
            loop.run_in_executor(self._threads, self.answer, query, request["topk"]) for query in request["queries"]
        ]
        answer = json.dumps({"result": [await one for one in asked]}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def serve(options: argparse.Namespace) -> None:
    """Serves until killed; prints its port on standard output."""
    import socket

    import uvicorn

    from roleagent.envs.retrieval.serving.batching import Batcher, sleep_between_searches
    from roleagent.envs.retrieval.serving.server import Server

    folder: Path = options.folder
    if options.serve == "ours":
        sleep_between_searches()
        from roleagent.envs.retrieval.dense.index import DenseIndex
        from roleagent.envs.retrieval.passages import Passages
        from roleagent.envs.retrieval.retriever import DenseRetriever

        index = DenseIndex.open(folder / "index.faiss", options.kind, options.effort)
        retriever = DenseRetriever(Planned(folder, options.dtype), index, Passages.open(folder / "corpus.jsonl"))
        with Server() as server:
            server.run(Batcher(retriever, cache=options.cache), ready=lambda: print(server.port, flush=True))
        return
    app = OneByOne(folder, options.dtype)
    app.answer("warm up", 3)
    with socket.socket(proto=socket.IPPROTO_TCP) as listener:  # asyncio then sends without delay, as it does by itself
        listener.bind(("127.0.0.1", 0))
        listener.listen(2048)
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(app, lifespan="off", access_log=False, log_level="error")
        uvicorn.Server(config).run(sockets=[listener])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", choices=("shipped", "ours"), required=True, help="the usual server, or ours")
    parser.add_argument("--folder", type=user_path, required=True, help="what it opens")
    parser.add_argument("--dtype", default="float32", help="of the encoder (default: %(default)s)")
    parser.add_argument("--kind", default="ivf-sq8", help="of our index (default: %(default)s)")
    parser.add_argument("--effort", type=int, help="of our searches")
    parser.add_argument("--cache", type=int, default=0, help="answers that ours keeps (default: %(default)s)")
    serve(parser.parse_args())


if __name__ == "__main__":
    main()

"""``roleagent index <verb>``: builds, queries and serves an index of passages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from roleagent.commands import Parser, choose, complain, from_zero, natural, port_number, whole

LOOPBACK = "127.0.0.1"


def build(arguments: Sequence[str]) -> int:
    """Build an index over a corpus of passages, once."""
    from roleagent.envs.retrieval.build import main

    return main(arguments)


def import_(arguments: Sequence[str]) -> int:
    """Open an index that was published, such as Search-R1's, without building it again."""
    from roleagent.envs.retrieval.published import main

    return main(arguments)


def serve(arguments: Sequence[str]) -> int:
    """Serve an index to the rollouts of this machine, or of others."""
    parser = Parser(
        "roleagent index serve",
        f"{serve.__doc__}\n\nNeeds a built index and pip install 'roleagent[serve]'. Speaks the protocols of "
        "Search-R1, verl-agent and Agent-R1\n(docs/retrieval.md); a run uses it with env.kwargs.retriever=http://HOST:PORT.",
        "roleagent index serve --index wiki.index\nroleagent index serve --index wiki.index --host 0.0.0.0 --port 8100",
    )
    parser.add_argument("--index", type=Path, required=True, metavar="DIR", help="what roleagent index build made")
    parser.add_argument("--encoder", metavar="NAME:PATH", help="where the encoder is now, if it has moved")
    parser.add_argument("--effort", type=natural, metavar="N", help="of a search: lists read, or candidates kept")
    parser.add_argument("--host", default=LOOPBACK, help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=port_number, default=8000, help="0 takes a free one (default: %(default)s)")
    parser.add_argument("--threads", type=natural, metavar="N", help="of the worker (default: one per core)")
    parser.add_argument("--cache", type=whole, default=20_000, metavar="N", help="answers kept (default: %(default)s)")
    parser.add_argument(
        "--batch", type=natural, default=64, metavar="N", help="most queries a search (default: %(default)s)"
    )
    parser.add_argument(
        "--window",
        type=from_zero,
        default=2.0,
        metavar="MS",
        help="milliseconds to wait for further queries (default: %(default)s)",
    )
    options = parser.parse_args(arguments)

    from gymnasium.error import DependencyNotInstalled

    from roleagent.envs.retrieval.registry import open_index
    from roleagent.envs.retrieval.retriever import RetrievalError
    from roleagent.envs.retrieval.serving.batching import Batcher, sleep_between_searches
    from roleagent.envs.retrieval.serving.server import Server

    sleep_between_searches()

    began = time.perf_counter()

    def say(what: str) -> None:
        print(f"{time.perf_counter() - began:6.1f} s  {what}", flush=True)

    try:
        # Before anything that takes long: a port that is taken is a mistake to hear about at once.
        with Server(options.host, options.port) as server:
            say(f"opening {options.index}")
            retriever = open_index(options.index, encoder=options.encoder, effort=options.effort)
            corpus = getattr(retriever, "corpus", None)  # a service has passages of its own
            say(f"{retriever.name}: first search")
            server.run(
                Batcher(
                    retriever,
                    batch=options.batch,
                    window=options.window / 1000,
                    cache=options.cache,
                    threads=options.threads,
                ),
                about=None if corpus is None else {"passages": len(corpus)},
                ready=lambda: say(f"serving on {server.url} (Ctrl-C ends)"),
            )
    except (RetrievalError, DependencyNotInstalled, OSError, OverflowError, ValueError) as error:
        return complain("roleagent index serve", error)
    say("ended")
    return 0


VERBS: dict[str, Callable[[Sequence[str]], int]] = {"build": build, "import": import_, "serve": serve}


def main(arguments: Sequence[str]) -> int:
    """The group of verbs; returns the exit status."""
    return choose("roleagent index", VERBS, arguments, "Search engines over passages, for search questions.")


__all__ = ["VERBS", "main"]

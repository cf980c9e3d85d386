"""Serve an environment over HTTP, in the protocol of OpenEnv or of AgentGym.

Every client has its own environment. For OpenEnv, ``pip install 'roleagent[openenv]'``; in Python,
``RemoteEnv("http://127.0.0.1:8000")`` of ``roleagent.envs.adapters.remote`` is a client. For AgentGym,
``pip install 'roleagent[serve]'``; its clients (``AlfWorldEnvClient`` and so on) take the address as
``env_server_base``.

examples:
  roleagent serve RoleAgent/ALFWorld-v0
  roleagent serve RoleAgent/WebShop-v0 --port 8001 --sessions 64 --env-arg num_products=1000
  roleagent serve RoleAgent/WebShop-v0 --port 36001 --protocol agentgym --sessions 512
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from roleagent.commands import Parser, cannot_listen, complain, natural, pairs, port_number, positive
from roleagent.slow_notice import waiting

LOOPBACK = "127.0.0.1"


def main(arguments: Sequence[str]) -> int:
    """The verb ``serve``; returns the exit status."""
    parser = Parser("roleagent serve", __doc__)
    parser.add_argument("env", metavar="ENV", help="a Gymnasium id, e.g. RoleAgent/ALFWorld-v0")
    parser.add_argument(
        "--protocol", choices=("openenv", "agentgym"), default="openenv", help="what clients speak (default: openenv)"
    )
    parser.add_argument("--host", default=LOOPBACK, help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=port_number, default=8000, help="0 takes a free one (default: %(default)s)")
    parser.add_argument(
        "--sessions", type=natural, default=16, metavar="N", help="clients at once (default: %(default)s)"
    )
    parser.add_argument(
        "--timeout",
        type=positive,
        default=3600,
        metavar="S",
        help="a client silent so long is forgotten (default: 3600)",
    )
    parser.add_argument(
        "--env-arg", action="append", default=[], metavar="KEY=VALUE", help="argument of the environment"
    )
    parser.add_argument(
        "--task-ids",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="AgentGym: task ids in the order of their numbers, a JSON list, e.g. its mappings_train.json",
    )
    options = parser.parse_args(arguments)

    began = time.perf_counter()
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:  # before anything that takes long: a port that is taken is a mistake to hear about at once
            listening.bind((options.host, options.port))
            listening.listen()
        except (OSError, OverflowError) as error:
            return complain("roleagent serve", cannot_listen(options.host, options.port, error))
        try:
            with waiting("the server's packages to load"):
                application = _application(options.protocol, options.task_ids)
            import uvicorn

            print(f"opening {options.env}", flush=True)
            app = application(options.env, options.sessions, options.timeout, **pairs(options.env_arg))
        except (gymnasium.error.Error, TypeError, ValueError, OSError, OverflowError) as error:
            return complain("roleagent serve", error)
        host, port = listening.getsockname()[:2]
        if not host.startswith("127."):
            print("there is no password: any client that reaches this address can play")
        announcement = (
            f"{options.env} at http://{host}:{port} for {options.sessions} clients, after "
            f"{time.perf_counter() - began:.1f} s; Ctrl-C ends it"
        )

        class Announced(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                if self.started:
                    print(announcement, flush=True)

        server = Announced(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5))
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listening])
    return 0


def _application(protocol: str, task_ids: Sequence[Path]) -> Any:
    """The function that makes the application of a protocol."""
    if protocol == "openenv":
        if task_ids:
            raise ValueError("--task-ids is for --protocol agentgym: OpenEnv's clients name tasks by id")
        from roleagent.envs.adapters.openenv import application

        return application
    from roleagent.envs.adapters import agentgym

    ids = [task_id for path in task_ids for task_id in _read_ids(path)]
    return partial(agentgym.application, task_ids=ids or None)


def _read_ids(path: Path) -> list[str]:
    """The task ids of a file: texts, or AgentGym's objects with ``task_type`` and ``task_id``.

    Raises:
        ValueError: the file is something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
        return [each if isinstance(each, str) else f"{each['task_type']}/{each['task_id']}" for each in found]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} has no task ids ({error}): it must be a JSON list of texts") from error

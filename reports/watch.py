"""Watch runs during training: the report as a page that follows them.

RUN is a run folder, or a folder of runs, of which the newest is shown. If there is no run yet, watch waits for it.
The page follows the files of the run; watch takes no lock and writes nothing.

examples:
  a page in the browser, of one run or of two side by side
      roleagent watch runs/role_agent-alfworld-v0-seed0
      roleagent watch runs/a runs/b --port 9000
  on another machine: forward the port, then open http://127.0.0.1:8900 here
      ssh -L 8900:127.0.0.1:8900 cluster roleagent watch runs/a
"""

from __future__ import annotations

import ipaddress
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from roleagent.commands import Parser, cannot_listen, port_number, printable
from roleagent.reports.data.load_trajectories import RunDataError
from roleagent.reports.data.run_watcher import RunWatcher
from roleagent.reports.web.live_server import TRIES, LiveServer

PORT = 8900
LOOPBACK = "127.0.0.1"
EVERY = 1.0
"""Seconds between two checks for a new run."""


def main(arguments: Sequence[str]) -> int:
    """The verb ``watch``; returns the exit status."""
    parser = Parser("roleagent watch", __doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder, or a folder of runs")
    parser.add_argument(
        "--port", type=port_number, help=f"port of the page (default: {PORT}, or the next free one; 0: any)"
    )
    parser.add_argument("--host", default=LOOPBACK, help="address to listen on (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        return serve(RunWatcher(options.runs), options.host, options.port)
    except (RunDataError, OSError, OverflowError) as error:
        print(printable(f"roleagent watch: {error}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped")
        return 0


def serve(watcher: RunWatcher, host: str, port: int | None) -> int:
    """Serves the page until Ctrl-C; returns the exit status.

    Args:
        port: None takes the default port, or the next free one.

    Raises:
        OSError: the address cannot be used.
    """
    try:
        server = LiveServer(watcher, host, PORT if port is None else port, TRIES if port is None else 0)
    except OSError as error:
        raise cannot_listen(host, PORT if port is None else port, error) from error
    with server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        print(f"the report is at {server.url} (Ctrl-C stops)", flush=True)
        if not _is_loopback(host):
            print(
                f"warning: everyone who can reach {host} can read these runs without a password; on a shared network, "
                "leave --host out and forward the port with ssh -L",
                file=sys.stderr,
            )
        try:
            _announce(watcher)
            serving.join()
        finally:
            server.shutdown()
    return 0


def _announce(watcher: RunWatcher) -> None:
    """Prints which runs are shown, and before that which places have no run yet."""
    if missing := watcher.missing():
        print(f"no run yet in {', '.join(map(str, missing))}: waiting for the training to begin", flush=True)
    while watcher.missing():
        time.sleep(EVERY)
    for place, run in zip(watcher.places, watcher.runs(), strict=True):
        print(f"watching {run}" + (f", the newest run in {place}" if run != place else ""), flush=True)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

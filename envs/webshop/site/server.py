"""The shop as web pages for a person: the same engine, seen in a browser.

``roleagent webshop serve`` opens it on this machine only. Every visitor (a cookie) has a session of their own, and
every button gives the command that an agent would give, so a purchase scores what it scores in the environment.
"""

from __future__ import annotations

import random
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import SplitResult, parse_qs, urlsplit

from roleagent.commands import Parser, cannot_listen, complain, natural, port_number, whole
from roleagent.envs.webshop.engine.goals import SPLITS, task_splits
from roleagent.envs.webshop.engine.session import Session
from roleagent.envs.webshop.engine.shop import Shop, open_shop
from roleagent.envs.webshop.site.pages import STYLE, document, message

PORT = 8017
MOST_VISITORS = 256
MOST_BYTES = 1 << 16  # of a form
AGENT_STEPS = 15
COOKIE = "webshop"
_POLICY = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"


@dataclass
class Visit:
    """One person's task.

    Attributes:
        steps: commands given so far, those without effect included, as in the environment.
        note: what is to be said about the last one.
    """

    session: Session
    steps: int = 0
    note: str = ""


class Site:
    """The visitors of a shop; the least recent ones are dropped first.

    Args:
        shop: what is visited.
        task_ids: what visitors are asked to buy, drawn at random.
        rng: draws the tasks.
        most: visitors remembered, ≥ 1.
    """

    def __init__(self, shop: Shop, task_ids: Sequence[str], rng: random.Random, most: int = MOST_VISITORS):
        self.shop, self._task_ids, self._rng, self._most = shop, task_ids, rng, most
        self._visits: OrderedDict[str, Visit] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._visits)

    def enter(self, token: str | None) -> tuple[str, str]:
        """The visitor's token (a new one for a stranger) and the page that they see."""
        with self._lock:
            token, visit = self._find(token)
            return token, document(visit.session, visit.steps, AGENT_STEPS, visit.note)

    def act(self, token: str | None, command: str) -> str:
        """Gives a command, as the environment's ``step`` would; returns the token."""
        with self._lock:
            token, visit = self._find(token)
            if not visit.session.done:
                visit.steps += 1
                understood = visit.session.act(command)
                visit.note = "" if understood else "That cannot be done on this page; nothing has changed."
            return token

    def begin(self, token: str | None, task_id: str | None = None) -> str:
        """Starts another task, or the one named; returns the token.

        Raises:
            ValueError: there is no such task.
        """
        with self._lock:
            session = self._session(task_id)
            token, _ = self._find(token)
            self._visits[token] = Visit(session)
            return token

    def _session(self, task_id: str | None) -> Session:
        return Session(self.shop, self.shop.goals.find(task_id or self._rng.choice(self._task_ids)))

    def _find(self, token: str | None) -> tuple[str, Visit]:
        if token is None or token not in self._visits:
            token = secrets.token_urlsafe(16)
            self._visits[token] = Visit(self._session(None))
            while len(self._visits) > self._most:
                self._visits.popitem(last=False)
        self._visits.move_to_end(token)
        return token, self._visits[token]


def command_of(form: dict[str, list[str]]) -> str | None:
    """The command of a submitted form; None for an unknown form.

    Brackets in what is searched for would end the command early; they are left out.

    >>> command_of({"query": ["mug [2 pack]"]}), command_of({"command": ["click[buy now]"]}), command_of({})
    ('search[mug 2 pack]', 'click[buy now]', None)
    """
    if "query" in form:
        return f"search[{' '.join(re.sub(r'[][]', ' ', form['query'][0]).split()) or ' '}]"
    return form["command"][0] if "command" in form else None


class Handler(BaseHTTPRequestHandler):
    """One request. A form is answered with a redirection, so that a page can be loaded again without harm."""

    site: Site
    server_version, sys_version = "WebShop", ""
    timeout = 30  # seconds for a request to arrive

    def handle(self) -> None:
        with suppress(ConnectionError):  # who hangs up does not wait for the answer
            super().handle()

    def do_GET(self) -> None:
        where = self._where()
        if where.path == "/style.css":
            self._send(HTTPStatus.OK, STYLE, "text/css")
        elif where.path != "/":
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such page.")
        elif task := parse_qs(where.query).get("task"):
            self._begin(task[0])
        else:
            token, page = self.site.enter(self._token())
            self._send(HTTPStatus.OK, page, token=token)

    def do_POST(self) -> None:
        path = self._where().path
        form = self._form()
        if form is None:
            return
        if path == "/new":
            self._begin(None)
        elif path != "/":
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such page.")
        elif (command := command_of(form)) is None:
            self._refuse(HTTPStatus.BAD_REQUEST, "The form has neither a search nor a click.")
        else:
            self._redirect(self.site.act(self._token(), command))

    def _where(self) -> SplitResult:
        try:
            return urlsplit(self.path)
        except ValueError:  # half of a pair of brackets: there is no such page
            return urlsplit("")

    def _begin(self, task_id: str | None) -> None:
        try:
            self._redirect(self.site.begin(self._token(), task_id))
        except ValueError as error:
            self._refuse(HTTPStatus.NOT_FOUND, str(error))

    def _form(self) -> dict[str, list[str]] | None:
        """The fields of a posted form; None (and an answer) if it cannot be read."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > 9 or int(length) > MOST_BYTES:
            self.close_connection = True
            self._refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"A form may have {MOST_BYTES} bytes, and must state how many."
            )
            return None
        try:
            text = self.rfile.read(int(length)).decode("utf-8", "replace")
            return parse_qs(text, keep_blank_values=True, max_num_fields=16)
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "This form has too many fields.")
            return None

    def _token(self) -> str | None:
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", ""))
        except CookieError:
            return None
        return cookie[COOKIE].value if COOKIE in cookie else None

    def _send(self, status: HTTPStatus, body: str, kind: str = "text/html", token: str = "", to: str = "") -> None:
        data = body.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        if token:
            self.send_header("Set-Cookie", f"{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/")
        if to:
            self.send_header("Location", to)
        self.end_headers()
        self.wfile.write(data)

    def _redirect(self, token: str) -> None:
        self._send(HTTPStatus.SEE_OTHER, "", token=token, to="/")

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self._send(status, message(status.phrase, text))

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


def make_server(site: Site, host: str = "127.0.0.1", port: int = PORT) -> ThreadingHTTPServer:
    """A server of the site, not yet serving; port 0 takes any that is free.

    Raises:
        OSError: the address cannot be used.
    """
    try:
        server = ThreadingHTTPServer((host, port), type("SiteHandler", (Handler,), {"site": site}))
    except (OSError, OverflowError) as error:
        raise cannot_listen(host, port, error) from error
    server.daemon_threads = True
    return server


def serve(arguments: Sequence[str]) -> int:
    """Open the shop as web pages on this machine."""
    parser = Parser(
        "roleagent webshop serve",
        f"{serve.__doc__}\n\nWithout data the shop sells generated products. Every visitor gets a task; a purchase "
        "scores what an agent's would.",
        "roleagent webshop serve\nroleagent webshop serve --data ~/webshop --goals human --port 9000",
    )
    parser.add_argument("--data", metavar="DIR", help="official files, a store, or generated (default: WEBSHOP_DATA)")
    parser.add_argument("--products", type=natural, metavar="N", help="only the first so many")
    parser.add_argument("--goals", choices=("synthetic", "human"), default="synthetic", help="(default: %(default)s)")
    parser.add_argument("--split", choices=SPLITS, default="test", help="which tasks are drawn (default: %(default)s)")
    parser.add_argument("--seed", type=whole, help="of the draws")
    parser.add_argument("--host", default="127.0.0.1", help="(default: %(default)s, which only this machine can reach)")
    parser.add_argument("--port", type=port_number, default=PORT, help="0: any that is free (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        shop = open_shop(options.data, options.products, options.goals)
        task_split = task_splits(shop.catalogue, options.goals)[options.split]
        server = make_server(Site(shop, task_split.task_ids, random.Random(options.seed)), options.host, options.port)
    except (ValueError, OverflowError, OSError) as error:
        return complain("roleagent webshop serve", error)
    host, port = server.server_address[:2]
    print(f"{shop.catalogue.name}: http://{host}:{port}/  (Ctrl-C closes the shop)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()
    finally:
        server.server_close()
    return 0


__all__ = ["Site", "Visit", "command_of", "make_server", "serve"]

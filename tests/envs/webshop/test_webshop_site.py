"""The shop as web pages: what a browser and what a hostile client get."""

import html
import http.client
import json
import random
import re
import signal
import subprocess
import sys
import threading
from contextlib import closing
from urllib.parse import urlencode

import gymnasium
import pytest
from programs import default_signals, status

import roleagent  # noqa: F401  (registers the environments)
from roleagent.envs.webshop.engine.goals import task_splits
from roleagent.envs.webshop.engine.session import Session
from roleagent.envs.webshop.engine.shop import open_shop
from roleagent.envs.webshop.expert import ShoppingExpert
from roleagent.envs.webshop.site.pages import document
from roleagent.envs.webshop.site.server import Site, make_server, serve

SPLIT = "valid"


@pytest.fixture(scope="module")
def shop():
    return open_shop("generated", 90)


@pytest.fixture(scope="module")
def task_ids(shop):
    return task_splits(shop.catalogue)[SPLIT].task_ids


@pytest.fixture
def site(shop, task_ids):
    return Site(shop, task_ids, random.Random(0), most=8)


@pytest.fixture
def address(site):
    """A running server's (host, port)."""
    server = make_server(site, port=0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server.server_address[:2]
    server.shutdown()
    server.server_close()
    thread.join()


class Browser:
    """A client that keeps its cookie and follows redirections."""

    def __init__(self, address):
        self.address, self.cookie = address, ""

    def ask(self, method, path, body=None, **headers):
        with closing(http.client.HTTPConnection(*self.address, timeout=10)) as connection:
            connection.request(method, path, body, {"Cookie": self.cookie} | headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        self.cookie = (answer.getheader("Set-Cookie") or self.cookie).partition(";")[0]
        return answer, text

    def open(self, path="/", **form):
        headers = {"Content-Type": "application/x-www-form-urlencoded"} if form else {}
        answer, text = self.ask("POST" if form else "GET", path, urlencode(form) or None, **headers)
        while answer.status == 303:
            answer, text = self.ask("GET", answer.getheader("Location"))
        return answer, text

    def give(self, command):
        """A command as the page's forms give it."""
        verb, _, argument = command.partition("[")
        return self.open(query=argument[:-1]) if verb == "search" else self.open(command=command)


def bought(task_id, expert=None):
    """The commands of somebody who shops in the environment, and the score there."""
    env = gymnasium.make("RoleAgent/WebShop-v0", data_dir="generated", num_products=90, split=SPLIT)
    text, info = env.reset(options={"task_id": task_id})
    expert, commands, done = expert or ShoppingExpert(), [], False
    expert.reset(info["goal"], text)
    while not done:
        commands.append(expert.act())
        text, _, terminated, truncated, info = env.step(commands[-1])
        expert.observe(commands[-1], text)
        done = terminated or truncated
    return commands, info["score"]


def score_on(text):
    return float(re.search(r'id="score"[^>]*>([^<]*)<', text)[1])


def test_a_purchase_scores_what_it_scores_in_the_environment(address, task_ids):
    scores = set()
    for task_id in task_ids[:12]:
        commands, score = bought(task_id)
        browser = Browser(address)
        browser.open(f"/?task={task_id}")
        for command in commands:
            answer, text = browser.give(command)
            assert answer.status == 200
        assert score_on(text) == pytest.approx(score, abs=1e-3)
        assert f"Step {len(commands)}" in text
        scores.add(score)
    assert 1.0 in scores


def test_a_hostile_product_is_harmless(tmp_path):
    """Markup in every field of the catalogue, through every page."""
    evil = '"><script>alert(1)</script>'
    item = {
        "asin": "B000000000",
        "name": f"mug {evil}",
        "full_description": evil,
        "small_description": [evil, evil],
        "pricing": "$3.00",
        "customization_options": {f"color{evil}": [{"value": evil}, {"value": "red"}]},
        "category": "garden",
        "product_category": evil,
        "query": "mug",
    }
    notes = {"attributes": ["red"], "instruction": f"Find me a {evil} mug", "instruction_attributes": ["red"]}
    items = [item | {"asin": f"B00000000{n}"} for n in range(3)]
    (tmp_path / "items_shuffle.json").write_text(json.dumps(items))
    (tmp_path / "items_ins_v2.json").write_text(json.dumps({item["asin"]: notes for item in items}))
    (tmp_path / "items_human_ins.json").write_text("{}")
    shop = open_shop(tmp_path)
    session = Session(shop, shop.goals[0])
    pages = []
    search = f"search[mug {evil} & shoes]"
    for command in ("", search, "click[b000000000]", "click[features]", "click[< prev]", "click[description]"):
        session.act(command)
        pages.append(document(session, 1, 15, "<b>note</b>"))
        assert "<b>" not in pages[-1] and (command != search or "&amp; shoes" in pages[-1])
    session.act("click[< prev]")
    session.act(f"click[{evil.lower()}]")
    session.act("click[buy now]")
    pages.append(document(session, 1, 15, ""))
    assert "Thank you" in pages[-1]
    for page in pages:
        assert "<script" not in page and "&lt;script&gt;" in page
        assert evil not in html.unescape(re.sub(r">[^<]*<|=\"[^\"]*\"", "", page))  # only as text and in attributes


def test_visitors_have_sessions_of_their_own_and_are_bounded(site, address):
    first, second = Browser(address), Browser(address)
    first.open(), second.open()
    first.open(query="shoes")
    assert "Step 1" in first.open()[1] and "Step 0" in second.open()[1]
    assert first.cookie != second.cookie and len(site) == 2
    answer, _ = Browser(address).open()
    assert "default-src 'none'" in answer.getheader("Content-Security-Policy")
    assert {"HttpOnly", "SameSite=Strict"} <= set(answer.getheader("Set-Cookie").split("; "))
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    for _ in range(20):
        Browser(address).open()
    assert len(site) == 8
    assert "Step 0" in first.open()[1]  # forgotten: a stranger again


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/etc/passwd", None, {}, 404),
        ("GET", "/?task=%3Cscript%3E", None, {}, 404),
        ("POST", "/nowhere", "command=x", {}, 404),
        ("POST", "/", "nothing=1", {}, 400),
        ("POST", "/", "&".join(f"f{n}=1" for n in range(40)), {}, 400),
        ("POST", "/", "command=" + "x" * 70_000, {}, 413),
        ("POST", "/", None, {"Content-Length": "minus one"}, 413),
        ("GET", "/", None, {"Cookie": "webshop=\x01;;;=,"}, 200),
        ("GET", "/", None, {"Cookie": "webshop=" + "x" * 1000}, 200),
        ("POST", "/", "command=%FF%FE%00", {}, 303),
        ("DELETE", "/", None, {}, 501),
        ("POST", "/", None, {"Content-Length": "9" * 5000}, 413),
    ],
)
def test_odd_requests_get_an_answer(address, method, path, body, headers, status):
    answer, text = Browser(address).ask(method, path, body, **headers)
    assert answer.status == status
    assert "<script>" not in text and "Traceback" not in text
    assert Browser(address).open()[0].status == 200


def test_the_command_opens_the_shop_on_this_machine_only():
    """As it is typed; the line that it prints says where."""
    command = [sys.executable, "-m", "roleagent.cli", "webshop", "serve", "--data", "generated", "--products", "60"]
    options = {"stdout": subprocess.PIPE, "text": True, "preexec_fn": default_signals}
    with subprocess.Popen([*command, "--port", "0"], **options) as server:
        try:
            line = server.stdout.readline()
            host, port = re.search(r"generated-60: http://([\d.]+):(\d+)/", line).groups()
            assert host == "127.0.0.1"
            assert Browser((host, int(port))).open()[0].status == 200
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(timeout=30) == 0


@pytest.mark.parametrize(
    "arguments", [["--data", "/no/such/folder"], ["--port", "99999"], ["--products", "0"], ["--host", "no.such.host"]]
)
def test_a_shop_that_cannot_open_is_one_line(arguments, capsys):
    assert status(serve, ["--data", "generated", "--products", "60", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("roleagent webshop serve: ") and error.count("\n") == 1

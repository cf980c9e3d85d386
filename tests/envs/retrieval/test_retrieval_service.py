"""The retrieval service under real clients: many at once, odd ones, and some that outlive it."""

import http.client
import json
import pickle
import re
import signal
import socketserver
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

pytest.importorskip("uvicorn", reason="the extra roleagent[serve] is not installed")
pytest.importorskip("prometheus_client", reason="the extra roleagent[serve] is not installed")

from programs import default_signals
from prometheus_client.parser import text_string_to_metric_families
from retrieval_serving import serving

from roleagent.cli import main
from roleagent.envs.retrieval.build import build_index
from roleagent.envs.retrieval.passages import Passage, Passages
from roleagent.envs.retrieval.registry import open_index, open_retriever
from roleagent.envs.retrieval.retriever import Hit, RetrievalError
from roleagent.envs.retrieval.serving.client import HTTPRetriever
from roleagent.envs.retrieval.serving.server import Server
from roleagent.envs.retrieval.serving.service import Limits


class Echo:
    """Finds passages that say what was asked, and notes every call. Some queries are special."""

    name = "echo"

    def __init__(self, seconds=0.0):
        self.seconds, self.calls, self.threads = seconds, [], set()
        self.gate = threading.Event()
        self.gate.set()

    def retrieve(self, queries, k=3):
        self.calls.append(list(queries))
        self.threads.add(threading.get_ident())
        time.sleep(self.seconds)
        self.gate.wait(20)
        if "poison" in queries:
            raise KeyError("poison")
        if "refused" in queries:
            raise RetrievalError("the index is gone;\nbuild it again")
        return [[Hit(Passage(f"{q}-{i}", f"On {q}", f"text {i}"), 1.0 - i / 8) for i in range(k)] for q in queries]


def post(server, path, body, method="POST"):
    """Status and decoded answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(method, path, data)
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    if answer and response.getheader("content-type") == "application/json":
        answer = json.loads(answer)
    return response.status, answer


def metrics(server):
    """The samples by name and labels, read by Prometheus's own parser."""
    status, text = post(server, "/metrics", None, "GET")
    assert status == 200
    samples = (sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples)
    return {sample.name + "".join(f"{{{k}={v}}}" for k, v in sample.labels.items()): sample.value for sample in samples}


def ask_all(urls, questions, clients=32, **options):
    """Every client asks its share, one query a time, over a connection of its own."""

    def one(share):
        client = HTTPRetriever(urls, **options)
        found = [client.retrieve([query], 2)[0] for query in share]
        client.close()
        return dict(zip(share, found, strict=True))

    with ThreadPoolExecutor(clients) as pool:
        answers = {}
        for part in pool.map(one, [questions[i::clients] for i in range(clients)]):
            answers |= part
        return answers


# --- the protocols ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def echo():
    with serving(Echo(), Limits(queries=8, length=1000, topk=20, body=50_000)) as server:
        yield server


def document(query, number):
    return {"id": f"{query}-{number}", "contents": f'"On {query}"\ntext {number}'}


def test_search_r1_asks_in_batches(echo):
    body = {"queries": ["a", "b"], "topk": 2, "return_scores": True}
    scored = [[{"document": document(q, i), "score": 1.0 - i / 8} for i in range(2)] for q in "ab"]
    assert post(echo, "/retrieve", body) == (200, {"result": scored})
    bare = [[document(q, i) for i in range(2)] for q in "ab"]
    assert post(echo, "/retrieve", {**body, "return_scores": False}) == (200, {"result": bare})
    assert post(echo, "/retrieve", {"queries": ["a", "b"], "topk": 2}) == (200, {"result": bare})


def test_role_agent_asks_one_by_one(echo):
    status, answer = post(echo, "/retrieve", {"query": "a"})
    assert status == 200
    assert answer == {"result": [[{"document": document("a", i), "score": 1.0 - i / 8} for i in range(3)]]}
    body = {"query": "a", "topk": 1, "return_scores": True}
    assert post(echo, "/retrieve", body)[1] == {"result": [answer["result"][0][:1]]}


def test_agent_r1_has_a_path_of_its_own(echo):
    status, answer = post(echo, "/search", {"queries": ["a", "b"], "top_k": 1})
    assert status == 200
    assert answer["query_results"] == [
        {"query": q, "results": [{"document": document(q, 0), "score": 1.0}]} for q in "ab"
    ]
    assert len(post(echo, "/search", {"queries": ["a"]})[1]["query_results"][0]["results"]) == 5


def test_a_blank_query_has_no_hits_and_spoils_no_batch(echo):
    assert post(echo, "/retrieve", {"query": ""}) == (200, {"result": [[]]})
    body = {"queries": ["", "a", " \n"], "topk": 1}
    assert post(echo, "/retrieve", body) == (200, {"result": [[], [document("a", 0)], []]})
    assert post(echo, "/retrieve", {"queries": []}) == (200, {"result": []})


@pytest.mark.parametrize(
    ("path", "body", "status", "why"),
    [
        ("/retrieve", b'{"queries": ["a"', 422, "the body is not JSON"),
        ("/retrieve", b"[" * 40_000, 422, "the body is not JSON"),
        ("/retrieve", ["a"], 422, "the body is not a JSON object"),
        ("/retrieve", {}, 422, 'give either "queries", a list of texts, or "query", a text'),
        ("/retrieve", {"query": "a", "queries": ["a"]}, 422, 'give either "queries"'),
        ("/retrieve", {"queries": "a"}, 422, "queries are a list of texts"),
        ("/retrieve", {"queries": ["a", None]}, 422, "queries are a list of texts"),
        ("/retrieve", {"queries": ["a"] * 9}, 422, "9 queries are more than 8, the most at a time"),
        ("/retrieve", {"queries": ["a", "b" * 1001]}, 422, "query 2 has 1001 characters; 1000 are the most"),
        ("/retrieve", {"query": "a", "topk": 21}, 422, "topk is a whole number from 1 to 20"),
        ("/retrieve", {"query": "a", "topk": True}, 422, "topk is a whole number from 1 to 20"),
        ("/retrieve", {"query": "a", "topk": 2.5}, 422, "topk is a whole number from 1 to 20"),
        ("/retrieve", {"query": "a" * 100_000}, 413, "the body has more than 50000 bytes"),
        ("/retrieve", {"query": "a" * 2_000_000}, 413, "the body has more than 50000 bytes"),
        ("/search", {"query": "a"}, 422, "queries are a list of texts"),
        ("/search", {"queries": ["a"], "top_k": "3"}, 422, "top_k is a whole number from 1 to 20"),
        ("/secret", {"query": "a"}, 404, "the paths are /retrieve, /search, /health, /metrics"),
    ],
)
def test_what_cannot_be_answered_says_why_in_a_line(echo, path, body, status, why):
    got, answer = post(echo, path, body)
    assert got == status
    assert list(answer) == ["error"]
    assert why in answer["error"]
    assert "\n" not in answer["error"]


def test_health_and_metrics(echo):
    assert post(echo, "/health", None, "GET") == (
        200,
        {"status": "ok", "retriever": "echo", "waiting": 0, "passages": 7},
    )
    before = metrics(echo)
    post(echo, "/retrieve", {"query": "counted once"})
    post(echo, "/retrieve", {"query": "counted once"})
    post(echo, "/retrieve", {"query": 1})
    after = metrics(echo)
    rise = {name: after[name] - before.get(name, 0.0) for name in after}
    assert rise["retrieval_requests_total{status=200}"] == 3  # two answers and the metrics before
    assert rise["retrieval_requests_total{status=422}"] == 1
    assert rise["retrieval_queries_total"] == 2
    assert rise["retrieval_queries_cached_total"] == 1
    assert rise["retrieval_queries_searched_total"] == 1
    assert rise["retrieval_request_seconds_count"] == 3
    assert rise["retrieval_request_seconds_bucket{le=+Inf}"] == 3


# --- many at once -----------------------------------------------------------------------------------------------------


def test_a_group_that_asks_the_same_is_searched_once():
    retriever = Echo(seconds=0.1)
    with serving(retriever) as server, ThreadPoolExecutor(32) as pool:
        ask = lambda _: HTTPRetriever(server.url).retrieve(["the same"])  # noqa: E731
        answers = list(pool.map(ask, range(32)))
        assert all(answer == answers[0] for answer in answers)
        assert retriever.calls[1:] == [["the same"]]
        reported = metrics(server)
        assert reported["retrieval_queries_joined_total"] + reported["retrieval_queries_cached_total"] == 31
        ask(0)
        assert retriever.calls[1:] == [["the same"]]


# --- failures ---------------------------------------------------------------------------------------------------------


def test_one_clients_poison_is_not_anothers_failure():
    retriever = Echo()
    with serving(retriever, window=0.2) as server:
        with ThreadPoolExecutor(3) as pool:
            good, bad, refused = pool.map(
                lambda query: post(server, "/retrieve", {"query": query}), ["good", "poison", "refused"]
            )
        assert good[0] == 200
        assert bad == (503, {"error": "echo failed with KeyError"})
        assert refused == (503, {"error": "the index is gone; build it again"})
        assert metrics(server)["retrieval_queries_failed_total"] == 2
        assert post(server, "/retrieve", {"query": "poison"})[0] == 503  # no failure is kept


def test_a_full_queue_and_a_late_answer():
    retriever = Echo()
    with serving(retriever, Limits(seconds=0.3), queue=2, batch=1, window=0.0) as server:
        retriever.gate.clear()
        with ThreadPoolExecutor(3) as pool:
            waiting = [pool.submit(post, server, "/retrieve", {"query": "being searched"})]
            time.sleep(0.1)
            waiting += [pool.submit(post, server, "/retrieve", {"query": query}) for query in ("next", "last")]
            time.sleep(0.1)
            assert post(server, "/retrieve", {"query": "one too many"}) == (
                429,
                {"error": "too many queries are waiting; try again"},
            )
            assert post(server, "/health", None, "GET")[1]["waiting"] == 2  # it blocks nobody who does not ask
            assert [future.result() for future in waiting] == [
                (503, {"error": "no answer within 0.3 s; try again"})
            ] * 3
        retriever.gate.set()
        assert HTTPRetriever(server.url).retrieve(["next"])[0]


# --- the client -------------------------------------------------------------------------------------------------------


@contextmanager
def answering(reply, seconds=0.0):
    """A server that sends the same bytes to everybody, some seconds late; yields its URL."""

    class Rude(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(65536)
            for part in reply if isinstance(reply, list) else [reply]:
                time.sleep(seconds)
                try:
                    self.request.sendall(part)
                except OSError:
                    return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Rude) as server:
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def reply(body, status="200 OK"):
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body.encode())}\r\n\r\n{body}".encode()


def test_the_client_is_a_retriever(echo):
    local, client = Echo(), HTTPRetriever(echo.url, batch=3)
    queries = ["a", "", "ä \u2028", '"quoted"', "e", "f"]
    found = client.retrieve(queries, 2)
    assert found == [hits if query else [] for query, hits in zip(queries, local.retrieve(queries, 2), strict=True)]
    assert client.name == echo.url
    assert pickle.loads(pickle.dumps(client)).retrieve(["a"]) == client.retrieve(["a"])
    assert HTTPRetriever(f"{echo.url}/retrieve").retrieve(["a"]) == client.retrieve(["a"])
    assert HTTPRetriever(echo.url, timeout=0.9).retrieve(["a"]) == client.retrieve(
        ["a"]
    )  # less than a tenth of patience


@pytest.mark.parametrize(
    "found",
    [
        [{"document": {"contents": '"Lokma"\nFried dough.'}}, {"document": {"contents": "Tea."}}],  # of the web
        [{"document": {"title": "Lokma", "text": "Fried dough."}, "score": None}, {"document": {"contents": "Tea."}}],
        [{"contents": '"Lokma"\nFried dough.'}, {"contents": "Tea."}],  # return_scores is not known to every server
        [{"id": 7, "contents": '"Lokma"\nFried dough.'}, {"id": "8", "contents": "Tea."}],
    ],
)
def test_passages_without_scores_and_ids_are_passages(found):
    with answering(reply(json.dumps({"result": [found, found]}))) as url:
        first, again = HTTPRetriever(url, retries=0).retrieve(["a", "b"])
    assert [(hit.passage.title, hit.passage.text) for hit in first] == [("Lokma", "Fried dough."), ("", "Tea.")]
    assert first == again and len({hit.passage.id for hit in first}) == 2


def test_a_refused_query_is_not_tried_again(echo):
    before = metrics(echo)["retrieval_requests_total{status=422}"]
    with pytest.raises(RetrievalError, match=r"refused the request: HTTP 422 \(query 1 has 1001 characters"):
        HTTPRetriever(echo.url).retrieve(["b" * 1001])
    assert metrics(echo)["retrieval_requests_total{status=422}"] == before + 1


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (reply("Internal error: out of memory"), "the answer is not JSON"),
        (reply("[" * 100_000), "the answer is not JSON"),
        (reply('{"error": "out of memory"}'), "the answer holds no passages"),
        (reply('{"result": "out of memory"}'), "the answer holds no passages"),
        (reply('{"result": [["out of memory"]]}'), "the answer holds no passages"),
        (reply('{"result": [[{"document": {"id": "1"}, "score": 1}]]}'), "the answer holds no passages"),
        (reply('{"result": []}'), "1 queries were answered with 0 lists of passages"),
        (reply('{"error": "out\\nof memory"}', "500 Internal Server Error"), r"HTTP 500 \(out of memory\)"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH-2.0"),
        (b"", "without response"),
        (reply("{" * 50)[:-20], "IncompleteRead|not JSON"),
    ],
)
def test_what_is_no_answer_is_an_error_never_a_passage(sent, why):
    with answering(sent) as url:
        client = HTTPRetriever(url, retries=1, pause=0.01)
        with pytest.raises(RetrievalError, match=why) as caught:
            client.retrieve(["a"])
    assert url in str(caught.value)
    assert "2 attempts" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "sent", [reply('{"result": []}'), [b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", *[b" "] * 99]]
)
def test_a_slow_server_costs_the_time_out_and_no_more(sent):
    with answering(sent, seconds=2.0) as url:  # the pieces of the second answer take more than three minutes
        began = time.monotonic()
        with pytest.raises(RetrievalError, match=f"{url}: no answer within 0.[012] s") as caught:
            HTTPRetriever(url, timeout=1.0, patience=0.2, pause=0.01, retries=1000).retrieve(["a"])
        assert 0.2 <= time.monotonic() - began < 60
        attempts = int(re.search(r"gave up after (\d+) attempts", str(caught.value))[1])
        assert attempts <= 6  # as many as fit into the time; fewer on a busy machine


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://x", "http://", "http://x:port", "http://me:hush@x:1"])
def test_what_is_no_url(url):
    with pytest.raises(ValueError, match="URL of a server") as caught:
        HTTPRetriever(url)
    assert "hush" not in str(caught.value)


def test_a_server_that_is_busy_is_asked_again():
    retriever = Echo()
    with serving(retriever, Limits(seconds=0.2)) as server:
        retriever.gate.clear()
        threading.Timer(0.5, retriever.gate.set).start()
        assert HTTPRetriever(server.url).retrieve(["a"])[0][0].passage.id == "a-0"
        assert metrics(server)["retrieval_requests_total{status=503}"] >= 1


# --- killed -----------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys, time
from roleagent.envs.retrieval.serving.batching import Batcher
from roleagent.envs.retrieval.passages import Passage
from roleagent.envs.retrieval.retriever import Hit
from roleagent.envs.retrieval.serving.server import Server

class Slow:
    name = "slow"
    left = float(sys.argv[2])
    def retrieve(self, queries, k=3):
        self.left -= 1
        if self.left < 0:
            print("holds", flush=True)
            time.sleep(3600)
        time.sleep(0.02)
        return [[Hit(Passage(query, "On " + query, "text"), 1.0)] for query in queries]

with Server(port=int(sys.argv[1])) as server:
    server.run(Batcher(Slow(), cache=0), ready=lambda: print("ready", server.port, flush=True))
print("ended", flush=True)
"""


PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "preexec_fn": default_signals}


class Process:
    """A server in a process of its own, which holds its answers after some searches."""

    def __init__(self, port=0, searches=float("inf")):
        command = [sys.executable, "-c", PROGRAM, str(port), str(searches)]
        self.process = subprocess.Popen(command, **PIPES)
        word, number = self.process.stdout.readline().split()
        assert word == "ready"
        self.port = int(number)
        self.url = f"http://127.0.0.1:{self.port}"

    def end(self, number):
        self.process.send_signal(number)
        return self.process.communicate(timeout=120)


@pytest.fixture
def process():
    running = []

    def start(*given):
        running.append(Process(*given))
        return running[-1]

    yield start
    for server in running:
        if server.process.poll() is None:
            server.end(signal.SIGKILL)


def test_killed_in_the_middle_and_started_again(process):
    first = process(0, 10)
    questions = [f"question {i}" for i in range(960)]
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask_all, first.url, questions, timeout=300.0, patience=60.0, retries=1000)
        assert first.process.stdout.readline() == "holds\n"
        first.end(signal.SIGKILL)
        assert not asking.done()
        process(first.port)
        answers = asking.result(timeout=600)
    assert {query: hits[0].passage.id for query, hits in answers.items()} == {query: query for query in questions}


def test_a_dead_server_is_passed_over_then_asked_again(process):
    server, retriever = process(), Echo()
    with serving(retriever) as alive:
        client = HTTPRetriever([server.url, alive.url], rest=0.5, retries=2)
        for number in range(10):
            client.retrieve([f"a {number}"])
        assert len(retriever.calls) == 1 + 5  # in turn
        server.end(signal.SIGKILL)
        for number in range(10):
            client.retrieve([f"b {number}"])
        assert len(retriever.calls) == 1 + 15
        process(server.port)
        time.sleep(0.5)
        for number in range(10):
            client.retrieve([f"c {number}"])
        assert len(retriever.calls) == 1 + 20


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_orderly_end_finishes_what_was_asked(process, number):
    server = process()
    client = HTTPRetriever(server.url, retries=0, batch=1024)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.retrieve, [str(i) for i in range(1000)])  # 16 searches
        time.sleep(0.15)
        said, complaints = server.end(number)
        assert len(asking.result(timeout=20)) == 1000
    assert said.endswith("ended\n")
    assert complaints == ""
    assert server.process.returncode == 0


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index")
    topics = ("lokma dough", "sherbet drink", "golf tour", "comic books", "whale oil", "iron bridge")
    corpus = Passages.of(Passage(str(i), topic.title(), f"All about {topic}.") for i, topic in enumerate(topics))
    corpus.write(folder / "corpus.jsonl")
    build_index(Passages.open(folder / "corpus.jsonl"), "tfidf", folder / "index")
    return folder / "index"


def test_index_serve_answers_like_the_index(built):
    command = [sys.executable, "-m", "roleagent.cli", "index", "serve", "--index", str(built), "--port", "0"]
    process = subprocess.Popen(command, **PIPES)
    try:
        reported = []
        while not (reported and "serving on" in reported[-1]):
            reported.append(process.stdout.readline())
            assert reported[-1], process.stderr.read()
        url = re.search(r"http://127\.0\.0\.1:\d+", reported[-1])[0]
        assert any(str(built) in line for line in reported)
        queries = ["who invented golf", "a sweet dough", "what is whale oil"]
        ours, theirs = (found.retrieve(queries, 3) for found in (open_index(built), open_retriever(url, None)))
        assert [[hit.passage for hit in hits] for hits in theirs] == [[hit.passage for hit in hits] for hits in ours]
        # Another batch size sums in another order: scores of unit vectors differ by some 1e-8.
        expected = [hit.score for hits in ours for hit in hits]
        assert [hit.score for hits in theirs for hit in hits] == pytest.approx(expected, abs=1e-6)
        assert theirs[0][0].passage.title == "Golf Tour"
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        connection.request("GET", "/health")
        assert json.loads(connection.getresponse().read())["passages"] == 6
    finally:
        process.send_signal(signal.SIGTERM)
        said, complaints = process.communicate(timeout=20)
    assert process.returncode == 0
    assert said.endswith("ended\n")
    assert complaints == ""


def test_index_serve_complains_in_a_line(built, tmp_path, capsys):
    assert main(["index", "serve", "--index", str(tmp_path), "--port", "0"]) == 2
    assert re.fullmatch(rf"roleagent index serve: .*{tmp_path}.*\n", capsys.readouterr().err)
    with Server() as taken:
        taken._socket.listen()
        assert main(["index", "serve", "--index", str(built), "--port", str(taken.port)]) == 2
    assert "give another --port or --host" in capsys.readouterr().err

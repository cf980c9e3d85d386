"""A server on loopback that speaks OpenAI's chat protocol, and misbehaves as it is told to.

Of the protocol it knows what is asked without streaming: ``/v1/models`` and ``/v1/chat/completions``. What a real
server refuses (another method, streaming where it is switched off, messages without role or content) it refuses too.
"""

import json
import re
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL, KEY = "tiny-chat", "sk-only-for-tests"


def message(text, finish="stop", usage=(7, 3), **more):
    """An answer's JSON; ``usage`` None leaves the counts out."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **more}, "finish_reason": finish}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice]}
    if usage:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return body


def error(status, text="no", headers=None, **fields):
    """A refusal as the protocol words it."""
    return status, headers or {}, {"error": {"message": text, "type": "error", "param": None, "code": None, **fields}}


def fault_of(body):
    """What is wrong with a request, as the protocol words it; None if nothing is."""
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(messages, list) or not messages:
        return error(400, "Missing required parameter: 'messages'.", param="messages")
    open_calls = []
    for place, message in enumerate(messages):
        sound = isinstance(message, dict) and message.get("role") in ("system", "user", "assistant", "tool")
        if not sound or not isinstance(message.get("content"), str):
            return error(400, f"Invalid value: 'messages[{place}]'.", param="messages")
        if message["role"] == "tool" and message.get("tool_call_id") in open_calls:
            open_calls.remove(message["tool_call_id"])
        elif message["role"] == "tool" or open_calls:
            return error(400, f"'messages[{place}]' does not answer the tool_calls before it.", param="messages")
        calls = message.get("tool_calls") or ()
        if not all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in calls):
            return error(400, f"Invalid arguments in 'messages[{place}]'.", param="messages")
        if not all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call["function"]["name"]) for call in calls):
            return error(400, f"Invalid 'messages[{place}].tool_calls[0].function.name'.", param="messages")
        open_calls += [call["id"] for call in calls]
    named = all(tool.get("type") == "function" and tool["function"]["name"] for tool in body.get("tools", ()))
    if open_calls or not named:
        return error(400, "Invalid tools, or tool_calls without an answer.", param="messages")
    if body.get("stream"):
        return error(400, "Streaming is switched off on this server.", param="stream")
    if not isinstance(body.get("max_tokens", 1), int) or body.get("max_tokens", 1) < 1:
        return error(400, "Invalid value: 'max_tokens'.", param="max_tokens")
    return None


class Fake:
    """What the server says and what it was asked.

    Attributes:
        reply: from a request's body and its number to an answer: a text, a body (dict), a triple (status, headers,
            body), raw bytes, or one of the words "drop" (half an answer, then the line is cut), "hang", "dribble" and
            "dribble headers" (blanks, one after the other, for ever).
        key: that it wants, or None.
        context: most words that it reads, or None.
        asked: bodies of the requests, in order.
        headers: of the requests.
        most: requests that it worked on at the same time, at most.
    """

    def __init__(self, reply="yes", key=None, models=(MODEL,), context=None):
        self.reply = reply if callable(reply) else lambda body, number: reply
        self.key, self.models, self.context = key, models, context
        self.asked, self.headers = [], []
        self.now = self.most = 0
        self.lock = threading.Lock()
        self.released = threading.Event()
        self.url = ""

    def answer(self, body):
        with self.lock:
            number = len(self.asked)
            self.asked.append(body)
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            if fault := fault_of(body):
                return fault
            if body["model"] not in self.models:
                return error(404, f"The model `{body['model']}` does not exist", code="model_not_found")
            read = sum(len(message["content"].split()) for message in body["messages"])
            if self.context is not None and read > self.context:
                why = f"This model's maximum context length is {self.context} tokens. Your messages have {read}."
                return error(400, why, code="context_length_exceeded", param="messages")
            return self.reply(body, number)
        finally:
            with self.lock:
                self.now -= 1


def _handler(fake):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or each answer waits 40 ms for the client's word that it has the headers

        def log_message(self, *_):
            pass

        def setup(self):
            super().setup()
            self.connection.settimeout(10)

        def send(self, status, headers, body):
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", "Content-Length": len(data), **headers}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(data)

        def refused(self):
            given = self.headers.get("Authorization")
            if fake.key is None or given == f"Bearer {fake.key}":
                return False
            self.send(*error(401, f"Incorrect API key provided: {given}", code="invalid_api_key"))
            return True

        def do_GET(self):
            if self.refused():
                return
            if self.path != "/v1/models":
                return self.send(404, {}, {"detail": "Not Found"})
            listed = [{"id": name, "object": "model", "created": 1, "owned_by": "tests"} for name in fake.models]
            self.send(200, {}, {"object": "list", "data": listed})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.refused():
                return
            if self.path != "/v1/chat/completions":
                return self.send(404, {}, {"detail": "Not Found"})
            fake.headers.append(self.headers)
            said = fake.answer(body)
            if said == "hang":
                fake.released.wait(10)
                self.close_connection = True
            elif said == "drop":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b'{"choices": [')
                self.close_connection = True
            elif said in ("dribble", "dribble headers"):
                length = "1000\r\n\r\n" if said == "dribble" else "1"
                self.wfile.write(f"HTTP/1.1 200 OK\r\nContent-Length: {length}".encode())
                while not fake.released.wait(0.02):
                    self.wfile.write(b" ")
                self.close_connection = True
            elif isinstance(said, tuple):
                self.send(*said)
            else:
                self.send(200, {}, message(said) if isinstance(said, str) else said)

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        pass  # a client that has hung up is what some tests are about


@contextmanager
def serving(reply="yes", **options):
    """A :class:`Fake` that answers under ``fake.url`` until the block ends."""
    fake = Fake(reply, **options)
    server = _Server(("127.0.0.1", 0), _handler(fake))
    fake.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        fake.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


def in_turn(*answers):
    """A reply that gives these answers one after the other, the last one for ever."""
    return lambda body, number: answers[min(number, len(answers) - 1)]


def slowly(seconds, text="yes"):
    """A reply that takes its time."""

    def reply(body, number):
        time.sleep(seconds)
        return text

    return reply


def disturbed(reply, *troubles):
    """The same reply, but that every question is first met with one of the troubles, one after the other."""
    met, lock = {}, threading.Lock()

    def disturbing(body, number):
        with lock:
            question = json.dumps(body["messages"])
            first = question not in met
            trouble = met.setdefault(question, troubles[len(met) % len(troubles)])
        return trouble if first else reply(body, number)

    return disturbing

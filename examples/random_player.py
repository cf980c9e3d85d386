"""A player that stands in for a model in the examples: it chooses one of the listed commands at random."""

import argparse
import json
import random
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def arguments(text):
    """What a program evaluates, from its command line."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="RoleAgent/Toy-v0", help="a Gymnasium id (default: %(default)s)")
    parser.add_argument("--split", default="valid")
    parser.add_argument("--url", help="of an OpenAI-compatible server; its key is in OPENAI_API_KEY")
    parser.add_argument("--model", default="random")
    parser.add_argument("--tasks", type=int, default=4)
    return parser.parse_args()


def reply(observation: str, dice: random.Random) -> str:
    """A reply to an observation: a listed command, and the prediction that nothing happens."""
    listed = re.search(r"^Possible now: (.*)$", observation, re.MULTILINE)
    command = dice.choice(listed[1].split(", ")) if listed else "look"
    return f'<action>{command}</action><prediction h="1">Nothing happens.</prediction>'


@contextmanager
def endpoint(seed: int = 0):
    """A server on this machine that has the player behind OpenAI's chat protocol; gives its address."""
    dice = random.Random(seed)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = reply(body["messages"][-1]["content"], dice)
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            answer = {"id": "0", "object": "chat.completion", "created": 0, "model": body["model"]}
            data = json.dumps({**answer, "choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

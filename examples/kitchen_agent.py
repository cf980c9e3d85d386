"""An agent program for the toy kitchen. It knows nothing of RoleAgent but two addresses, and uses no library.

roleagent train --config configs/toy.yaml aiw=off --agent "python examples/kitchen_agent.py"
"""

import json
import os
from urllib.request import Request, urlopen

POLICY, WORLD = os.environ["OPENAI_BASE_URL"], os.environ["ROLEAGENT_URL"]


def post(url: str, body: dict | None = None) -> dict:
    """Sends JSON, or asks for it."""
    request = Request(url, json.dumps(body).encode() if body else None, {"Content-Type": "application/json"})
    return json.load(urlopen(request))


situation = post(f"{WORLD}/episode")
messages = [{"role": "user", "content": situation["observation"]}]
while not situation["over"]:
    answer = post(f"{POLICY}/chat/completions", {"model": "policy", "messages": messages, "stop": ["</action>"]})
    reply = answer["choices"][0]["message"]
    command = reply["content"].partition("<action>")[2]
    situation = post(f"{WORLD}/step", {"action": command})
    messages += [reply, {"role": "user", "content": situation["observation"]}]

"""Plays a served environment with the calls of AgentGym's clients, at random.

roleagent serve RoleAgent/ALFWorld-v0 --protocol agentgym --port 36001    # in one terminal
python examples/agentgym_client.py http://127.0.0.1:36001                 # in another
"""

import argparse
import json
import random
from urllib.request import Request, urlopen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="the address that roleagent serve prints: env_server_base of AgentGym's clients")
    parser.add_argument("--game", type=int, default=0, help="number of the task (default: 0)")
    options = parser.parse_args()

    def post(path, **body):
        request = Request(f"{options.url}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as answer:
            return json.load(answer)

    dice, steps = random.Random(0), 0
    number = post("create")["id"]
    state = post("reset", id=number, game=options.game, world_type="Text")
    print(f"{state['task_type']}: {state['observation'].splitlines()[-1]}")
    done = False
    while not done:
        state = post("step", id=number, action=dice.choice(state["available_actions"]))
        done, steps = state["done"], steps + 1
    print(f"reward {state['reward']:g} after {steps} steps; {post('close', id=number)['status']}")


if __name__ == "__main__":
    main()

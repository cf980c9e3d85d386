"""Tools from a function, an async function, a class and a function with state, and an episode that calls them.

`roleagent tools show examples/plug_your_tool.py` shows them as a model sees them.
"""

import asyncio
import json
from typing import Literal

import gymnasium

from roleagent.envs import ToolError, ToolTags, tool

PRICES = {"kettle": 40, "lamp": 25, "radio": 60}


@tool(read_only=True)
def price(item: Literal["kettle", "lamp", "radio"]) -> int:
    """Returns what an item costs, in euros.

    Args:
        item: what is wanted.
    """
    return PRICES[item]


@tool
async def rate(currency: Literal["USD", "CHF"]) -> float:
    """Returns how much of a currency one euro buys."""
    await asyncio.sleep(0.01)  # a request to a server, say; calls of several episodes wait together
    return {"USD": 1.25, "CHF": 0.95}[currency]


class Multiply:
    """A tool can be a class: it has a name, a description, a JSON Schema and `execute`."""

    name = "multiply"
    description = "Multiplies two numbers."
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        "required": ["a", "b"],
    }

    def execute(self, arguments, state):
        return arguments["a"] * arguments["b"]


@tool
def buy(item: Literal["kettle", "lamp", "radio"], state: dict) -> str:
    """Buys an item."""
    if PRICES[item] > state["euros"]:  # every episode has a copy of its task's state
        raise ToolError(f"{item} costs {PRICES[item]}, but {state['euros']} are left")
    state["euros"] -= PRICES[item]
    state["bought"].append(item)
    return f"bought, {state['euros']} euros are left"


TASKS = [
    {"id": "dollars", "prompt": "What does a lamp cost in USD?", "answer": 31.25, "judge": "number"},
    {
        "id": "shopping",
        "prompt": "Buy a kettle.",
        "state": {"euros": 50, "bought": []},
        "answer": {"bought.0": "kettle", "euros": 10},
        "judge": "state",
    },
]


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def play(env, task_id, replies):
    """Plays a task; a model would write the replies."""
    print(env.reset(options={"task_id": task_id})[0])
    for reply in replies:
        text, reward, terminated, truncated, _ = env.step(reply)
        print(f"  {reply}\n  → {text}")
        if terminated or truncated:
            print(f"reward {float(reward):.0f}\n")


if __name__ == "__main__":
    env = ToolTags(gymnasium.make("RoleAgent/ToolEnv-v0", tools=__file__, tasks=TASKS, split="all", max_steps=6))
    dollars = [call("price", item="lamp"), call("rate", currency="USD"), call("multiply", a=25, b=1.25)]
    play(env, "dollars", [*dollars, "<answer>31.25 dollars</answer>"])
    too_much = call("buy", item="radio")  # the episode goes on
    play(env, "shopping", [too_much, call("buy", item="kitchen"), call("buy", item="kettle"), "<answer>done</answer>"])

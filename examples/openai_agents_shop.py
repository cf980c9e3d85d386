"""An agent of OpenAI's Agents SDK with three tools of its own; the environment judges its answer.

pip install openai-agents        # in any environment; RoleAgent need not be in it
roleagent train --config configs/smollm2_tools.yaml --agent "python examples/openai_agents_shop.py"
"""

import json
import os
from urllib.request import Request, urlopen

from agents import (  # noqa: TID251
    Agent,
    MaxTurnsExceeded,
    ModelBehaviorError,
    Runner,
    function_tool,
    set_default_openai_api,
    set_tracing_disabled,
)

WORLD = os.environ["ROLEAGENT_URL"]
PRICES = {"kettle": 42, "lamp": 17, "radio": 63, "chair": 28, "clock": 15, "mirror": 36, "table": 94, "vase": 23}
PRICES |= {"stool": 19, "ladder": 57, "fan": 31, "tray": 12, "rug": 75, "desk": 88, "basket": 14, "sofa": 69}


@function_tool
def price(item: str) -> int:
    """Returns what an item costs, in euros."""
    return PRICES[item]


@function_tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@function_tool
def times(a: int, b: int) -> int:
    """Multiplies two numbers."""
    return a * b


set_default_openai_api("chat_completions")
set_tracing_disabled(True)
question = json.load(urlopen(f"{WORLD}/episode"))["observation"]
for tool in (price, add, times):  # a small model takes the titles that the SDK gives to schemas for names of tools
    tool.params_json_schema.pop("title", None)
agent = Agent("shop", instructions="Answer with a number.", model="policy", tools=[price, add, times])
try:
    answer = str(Runner.run_sync(agent, question, max_turns=6).final_output)
except (MaxTurnsExceeded, ModelBehaviorError):  # it never ends, or calls a tool that there is not
    answer = "none"
answer = answer.removeprefix("<answer>").removesuffix("</answer>")  # as a warm start's demonstrations have it
step = json.dumps({"action": {"answer": answer or "none"}}).encode()
urlopen(Request(f"{WORLD}/step", step, {"Content-Type": "application/json"}))

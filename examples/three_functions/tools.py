"""Three functions of a shop, and the tasks that an agent solves with them.

`python examples/three_functions/tools.py` writes the tasks beside this file, and `configs/smollm2_tools.yaml` trains a
language model on them.
"""

import json
import random
from itertools import combinations
from pathlib import Path

from roleagent.envs import ToolError, tool

PRICES = {
    **{"kettle": 42, "lamp": 17, "radio": 63, "chair": 28, "clock": 15, "mirror": 36, "table": 94, "vase": 23},
    **{"stool": 19, "ladder": 57, "fan": 31, "tray": 12, "rug": 75, "desk": 88, "basket": 14, "sofa": 69},
}


@tool(read_only=True)
def price(item: str) -> int:
    """Returns what an item costs, in euros."""
    if item not in PRICES:
        raise ToolError(f"there is no {item}")
    return PRICES[item]


@tool(read_only=True)
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@tool(read_only=True)
def times(a: int, b: int) -> int:
    """Multiplies two numbers."""
    return a * b


def task(kind, prompt, answer, *calls):
    named = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return {"id": f"{kind}-{prompt}", "type": kind, "prompt": prompt, "answer": answer, "calls": named}


def tasks():
    """All tasks: one to four calls each."""
    cost = PRICES
    for one in cost:
        yield task("one", f"What does a {one} cost?", cost[one], ("price", {"item": one}))
        for n in range(2, 7):
            calls = [("price", {"item": one}), ("times", {"a": n, "b": cost[one]})]
            yield task("several", f"What do {n} {one}s cost?", n * cost[one], *calls)
    for one, other in combinations(cost, 2):
        calls = [("price", {"item": one}), ("price", {"item": other})]
        both = [*calls, ("add", {"a": cost[one], "b": cost[other]})]
        yield task("two", f"What do a {one} and a {other} cost together?", cost[one] + cost[other], *both)
        for n in (2, 3):
            several = [calls[0], ("times", {"a": n, "b": cost[one]})]
            total = n * cost[one] + cost[other]
            all_of_them = [*several, calls[1], ("add", {"a": n * cost[one], "b": cost[other]})]
            yield task("three", f"What do {n} {one}s and a {other} cost together?", total, *all_of_them)


def main():
    every = list(tasks())
    random.Random(0).shuffle(every)
    folder = Path(__file__).parent
    for name, rows in (("valid", every[:100]), ("train", every[100:])):
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for row in rows:
                print(json.dumps(row), file=file)
        print(f"{name}.jsonl: {len(rows)} tasks")


if __name__ == "__main__":
    main()

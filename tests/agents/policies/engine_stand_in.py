"""An engine's process with a stand-in for vLLM, whose replies depend on its weights. Started by test_vllm.py."""

import os
import sys
import time

from roleagent.agents.policies.vllm import processes
from roleagent.types import Completion


class StandIn:
    def __init__(self, config, description, vocabulary):
        self.asked, self.weights, self.adapter = {}, {}, 0.0

    @property
    def idle(self):
        return not self.asked

    def submit(self, key, requests, temperature):
        self.asked[key] = requests

    def cancel(self):
        self.asked.clear()

    def offload(self):
        self.weights = {}

    def step(self):
        time.sleep(0.01)
        key = next(iter(self.asked))
        scale = self.weights["model.norm.weight"].sum().item() + self.adapter
        replies = [((sum(one.prompt_ids) + one.seed) % 300,) for one in self.asked.pop(key)]
        return [(key, [Completion(tokens, (-scale,), "length") for tokens in replies])]

    def load_weights(self, weights):
        found = dict(weights)
        if any(weight.isnan().any() for weight in found.values()):
            raise ValueError("a weight is no number")
        self.weights = found

    def load_adapter(self, adapter, rank, alpha):
        self.adapter = alpha / rank * sum(weight.sum().item() for _, weight in adapter)


def full(content):
    raise RuntimeError("out of memory")


if os.environ.get("ENGINE_STAND_IN") == "full":
    processes._borrow = full
processes.LocalEngine = StandIn  # pyright: ignore[reportAttributeAccessIssue]
processes.main(int(sys.argv[1]))

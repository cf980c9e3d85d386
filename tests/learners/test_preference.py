"""ETO: pairs of a tree as segments, and the gradient of their loss against plain torch."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import qwen
from trees import grow, kitchen

from roleagent.config import from_dict
from roleagent.learners.agent_r.data import Example
from roleagent.learners.agent_r.judges import PlaceJudge
from roleagent.learners.agent_r.learning import EXTRA_TURNS, PreferenceData, log_ratios, preference_step
from roleagent.learners.engine.engine import Learner
from roleagent.types import ACTION

TASK = "bring-egg-table-1"
GOOD = ["go to basket", "take egg from basket", "go to table", "move egg to table"]
BAD = ["go to basket", *["look", "go to counter"] * 5]


@pytest.fixture(scope="module")
def pair():
    """The example of a tree with one good and one bad path, and the policy that made it."""
    split, policy = kitchen("method=eto")
    data = PreferenceData(split, policy, PlaceJudge(), None, 0.5)
    [found] = data.make([grow(split, policy, TASK, [GOOD, BAD])], [np.random.default_rng(0)])
    [example] = found.examples
    return example, policy


def trained(segment):
    return (segment.token_kind == ACTION) & (segment.advantages > 0)


def test_tokens_behind_the_common_prefix_are_compared_and_a_long_bad_path_is_cut(pair):
    example, policy = pair
    texts = [policy.decode(one.token_ids[trained(one)].tolist()) for one in example.segments]
    wrap = "".join(f"<action>{command}</action>" for command in GOOD[1:])
    assert texts[0] == wrap, "the first step is shared"
    assert texts[1] == "".join(f"<action>{command}</action>" for command in BAD[1 : len(GOOD) + EXTRA_TURNS])
    assert Example.from_json(example.to_json()).key == example.key


def logprob(model, segment):
    ids = torch.tensor(segment.token_ids.tolist())[None]
    found = torch.log_softmax(model(ids).logits[0, :-1].double(), -1).gather(-1, ids[0, 1:, None])[:, 0]
    return found[torch.tensor(trained(segment))[1:]].sum()


def test_the_gradient_is_that_of_the_loss_in_plain_torch(pair):
    example, policy = pair
    model = policy.model
    reference, beta = [1.5], 0.3
    good, bad = (logprob(model, segment) for segment in example.segments)
    loss = -torch.nn.functional.logsigmoid(beta * (good - bad - reference[0]))
    wanted = torch.autograd.grad(loss, list(model.parameters()))
    kept = {}

    def update(segments, rows, objective, temperature):
        total = torch.zeros((), dtype=torch.float64)
        for segment, weights in zip(segments, rows["weights"], strict=True):
            ids = torch.tensor(segment.token_ids.tolist())[None]
            logprobs = torch.log_softmax(model(ids).logits[0, :-1].double(), -1).gather(-1, ids[0, 1:, None])[:, 0]
            assert temperature == 1.0 and weights[0] == 0
            total = total + objective(
                SimpleNamespace(columns={"weights": torch.tensor(weights[1:])}, logprobs=logprobs)
            )
        kept["gradient"] = torch.autograd.grad(total, list(model.parameters()))
        return 0.0

    def score(segments, temperature):
        with torch.no_grad():
            return [trained(one) * (float(logprob(model, one)) / trained(one).sum()) for one in segments]

    learner = SimpleNamespace(score=score, update=update, ranks=SimpleNamespace(sum=float))
    found = preference_step(learner, [example], reference, beta, total=1)
    assert found["loss"] == pytest.approx(float(loss.detach()), rel=1e-6)
    for one, other in zip(kept["gradient"], wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-7)


def test_updates_widen_the_margin(pair):
    example, _ = pair
    config = from_dict({"method": "grpo", "optim": {"lr": 1e-3, "warmup_steps": 0}})
    learner = Learner(qwen(context=2000), config, 1e-3)
    reference = log_ratios(learner, [example])
    rows = [preference_step(learner, [example], reference, 0.1, 1) for _ in range(4)]
    assert rows[0]["margin"] == pytest.approx(0, abs=1e-6) and rows[0]["loss"] == pytest.approx(np.log(2))
    assert rows[-1]["margin"] > 0 and rows[-1]["loss"] < rows[0]["loss"] and rows[-1]["accuracy"] == 1

"""The updates of an iteration: old policy, mismatch, importance weights and minibatches."""

import copy
import math
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_batch import TASK, batch_of, configured, transcript, two_groups, windows
from tiny import plain, qwen

import roleagent.learners.update as update_module
from roleagent.config import from_dict, load
from roleagent.config.settings import LossConfig
from roleagent.learners.batch import build_batch
from roleagent.learners.critic import open_critic
from roleagent.learners.dealing import Outline
from roleagent.learners.engine.engine import Learner
from roleagent.learners.engine.logprobs import TokenScores
from roleagent.learners.loss import SampledTokens, policy_loss, token_weights
from roleagent.learners.method import method_of
from roleagent.learners.rl import update_policy
from roleagent.learners.update import importance, minibatches, prepared, starts_from_learner, update, world_shares
from roleagent.types import ACTION, TEXT, Group


def learner_of(**tree):
    tree["loss"] = {"prediction_credit": "advantage"} | tree.get("loss", {})
    config = from_dict({"method": "grpo", "optim": {"lr": 1e-2, "warmup_steps": 1}} | tree)
    policy = qwen()
    reference = copy.deepcopy(policy.model).requires_grad_(False) if config.loss.kl else None
    return Learner(policy, config, config.optim.lr, reference)


def orders(n):
    return [np.random.default_rng(epoch) for epoch in range(n)]


def test_the_first_step_from_the_learners_logprobs_has_a_ratio_of_exactly_one():
    learner = learner_of(loss={"old_logprobs": "learner", "kl": 0.0}, optim={"minibatches": 1})
    metrics = update(learner, two_groups(learner.config), orders(1))
    assert metrics["ratio"] == 1.0 and metrics["logprob_gap"] == 0.0 and metrics["clip_fraction"] == 0.0


def test_in_the_critics_warm_up_the_critic_learns_and_the_policy_stays_as_it_is():
    """Agent-R1 trains its critic alone for five steps first."""
    policy, loss = qwen(), {"loss": {"kl": 0.0, "prediction_credit": "advantage"}}
    config = from_dict({"method": "ppo", "critic": {"warmup": 2}, "optim": {"lr": 1e-2, "warmup_steps": 1}, **loss})
    learner = Learner(policy, config, config.optim.lr)
    learner.critic = open_critic(config, policy)
    run = SimpleNamespace(config=config, timer=nullcontext, ranks=learner.ranks, method=method_of(config))
    run.own_stream = lambda *place: np.random.default_rng(0)

    def weights(model):
        return [weight.clone() for weight in model.parameters()]

    for iteration, moves in ((1, False), (2, False), (3, True)):
        run.iteration = iteration
        before = weights(policy.model), weights(learner.critic.module)
        batch = prepared(learner, batch_of(config, transcript(1.0), transcript(0.0, shift=50)))
        metrics = update_policy(run, learner, batch)
        after = weights(policy.model), weights(learner.critic.module)
        moved = [not all(map(torch.equal, *pair)) for pair in zip(before, after, strict=True)]
        assert moved == [moves, True] and metrics["value_loss"] > 0 and ("ratio" in metrics) == moves


def test_later_updates_start_from_the_weights_before_the_first():
    found = []
    for old in ("sampler", "learner"):
        learner = learner_of(loss={"old_logprobs": old, "kl": 0.0}, optim={"minibatches": 1, "lr": 1e-3})
        batch = two_groups(learner.config)
        batch.columns["sampler"] = learner.score(batch.segments, 1.0)
        metrics = update(learner, batch, orders(3))
        assert metrics["logprob_gap"] > 1e-3 and metrics["mismatch_max"] < 1e-5
        found.append((metrics["ratio"], metrics["logprob_gap"], metrics["loss"]))
    assert found[0] == pytest.approx(found[1], rel=1e-4)


@pytest.mark.parametrize(("parts", "share", "scored"), [(1, 1.0, 0), (2, 1.0, 2), (2, 0.0, 0)])
def test_later_passes_start_from_what_the_first_step_computed(monkeypatch, parts, share, scored):
    """Only minibatches behind the first are scored apart, and of them only what is trained."""
    learner = learner_of(loss={"old_logprobs": "learner", "kl": 0.0}, optim={"minibatches": parts, "lr": 1e-3})
    batch, asked, kept = two_groups(learner.config), [], []
    batch.columns["advantages"] = [share * row for row in batch.columns["advantages"]]
    before = learner.score(batch.segments, 1.0)
    score, step = learner.score, update_module.policy_step

    def counted(segments, *given):
        asked.extend(segments)
        return score(segments, *given)

    def remembered(learner, segments, columns, *given):
        kept.append((segments, columns.get("old")))
        return step(learner, segments, columns, *given)

    monkeypatch.setattr(learner, "score", counted)
    monkeypatch.setattr(update_module, "policy_step", remembered)
    update(learner, batch, [np.random.default_rng(3) for _ in range(2)])
    assert len(asked) == scored
    known = {id(segment): row for segment, row in zip(batch.segments, before, strict=True)}
    for segments, old in kept[1:]:
        for segment, row in zip(segments, old, strict=True):
            assert row == pytest.approx(known[id(segment)], abs=1e-5) and row.any()


def test_the_mismatch_is_that_of_the_first_update():
    learner = learner_of(loss={"kl": 0.0}, optim={"minibatches": 1, "lr": 1e-2})
    batch = two_groups(learner.config)
    exact = learner.score(batch.segments, 1.0)
    # The sampler's log-probabilities are larger by 0.1, of each first reply's first token by 0.5.
    off = [np.where(np.arange(len(segment)) == 2, 0.5, 0.1) * (segment.token_kind > 0) for segment in batch.segments]
    batch.columns["sampler"] = [row + more for row, more in zip(exact, off, strict=True)]
    metrics = update(learner, batch, orders(4))
    assert metrics["mismatch"] == pytest.approx((0.5 + 3 * 0.1) / 4, abs=1e-4)
    assert metrics["mismatch_max"] == pytest.approx(0.5, abs=1e-4)
    assert metrics["importance"] == pytest.approx((math.exp(-0.5) + 3 * math.exp(-0.1)) / 4, abs=1e-4)
    assert metrics["logprob_gap"] > metrics["mismatch"] + 0.01  # later updates went away from the sampler


@pytest.mark.parametrize("cap", [1.2, 10.0])
def test_the_correction_weighs_tokens_up_to_its_cap(cap):
    """The sampler thought every token less likely than the learner does: each counts e^0.5 times, or the cap."""
    losses = {}
    for correction in (0.0, cap):
        learner = learner_of(
            loss={"old_logprobs": "learner", "kl": 0.0, "importance_cap": correction}, optim={"minibatches": 1}
        )
        batch = two_groups(learner.config)
        # Only winners are left, so that the loss is not 0 on average.
        batch.columns["advantages"] = [abs(row) for row in batch.columns["advantages"]]
        batch.columns["sampler"] = [np.where(row, row - 0.5, 0.0) for row in learner.score(batch.segments, 1.0)]
        metrics = update(learner, batch, orders(1))
        losses[correction] = metrics["loss"]
        assert metrics["importance"] == pytest.approx(min(math.exp(0.5), correction or math.inf), rel=1e-4)
    assert losses[cap] / losses[0.0] == pytest.approx(min(math.exp(0.5), cap), rel=1e-4)


@pytest.mark.parametrize("passes", [1, 2])
def test_the_old_logprobs_of_text_tokens_are_the_learners(passes):
    learner = learner_of(
        loss={"kl": 0.0, "action_mask": False}, estimator={"action_mask": False}, optim={"minibatches": 1}
    )
    batch = two_groups(learner.config)
    batch.columns["sampler"] = learner.score(batch.segments, 1.0)
    for segment, row in zip(batch.segments, batch.columns["sampler"], strict=True):
        row[segment.token_kind == TEXT] = 0.0
    metrics = update(learner, batch, orders(passes))
    assert metrics["tokens"] == 4 * 7
    if passes == 1:
        assert metrics["logprob_gap"] == pytest.approx(0, abs=1e-5)
    else:
        assert 0 < metrics["logprob_gap"] < 1
    assert metrics["mismatch_max"] < 1e-5


@pytest.mark.parametrize(("turns", "count"), [(1, 8), (3, 3), (100, 1)])
@pytest.mark.parametrize("aggregation", ["trajectory", "token", "constant"])
def test_the_mean_over_minibatches_of_turns_is_the_objective(monkeypatch, aggregation, turns, count):
    loss = {"kl": 1e-3, "aggregation": aggregation}
    learner = learner_of(loss=loss, optim={"minibatch_turns": turns, "minibatches": 7})
    groups = [Group(TASK, (windows(1.0), windows(0.0))) for _ in range(2)]
    advantages = [method_of(learner.config).estimate(group) for group in groups]
    batch, seen = build_batch(groups, advantages, learner.config, None, np.random.default_rng(0)), []

    def policy_step(learner, segments, columns, temperature, fresh, loss, keep):
        rows = zip(plain(segments), columns["weights"], strict=True)
        seen.append([(segment.trajectory, segment.token_ids, *row) for segment, row in rows])
        return {"loss": 0.0}

    monkeypatch.setattr("roleagent.learners.update.policy_step", policy_step)
    update(learner, batch, orders(1))
    assert len(seen) == count and {len(part) for part in seen} <= {8 // count, -(-8 // count)}
    whole = token_weights(batch.segments, 4, 0.5, aggregation)
    expected = {(one.trajectory, one.token_ids): row for one, row in zip(plain(batch.segments), whole, strict=True)}
    found = {(trajectory, ids): weights for part in seen for trajectory, ids, *weights in part}
    assert found.keys() == expected.keys()
    for key, weights in found.items():
        assert [weight / count for weight in weights] == pytest.approx(expected[key])


def test_minibatches_are_counted_in_the_turns_of_all_ranks():
    config = from_dict({"method": "grpo", "optim": {"minibatch_turns": 2}})
    outline = Outline([[2], [14]], ["a", "b"], [0, 0, 1], [0, 0, 1], [0, 0, 1], [4, 4, 9], [0, 1])
    parts = minibatches(config, outline, np.random.default_rng(0))
    assert len(parts) == 8 and sorted(i for part in parts for i in part.segments) == [0, 1, 2]


def test_an_empty_batch_makes_no_update():
    learner = learner_of(loss={"kl": 0.0})
    assert update(learner, build_batch([], [], learner.config, None, np.random.default_rng(0)), orders(1)) == {
        "optimizer_steps": 0.0,
        "world_share": 0.0,
        "world_loss_share": 0.0,
    }
    assert learner.policy.version == 0


@pytest.mark.parametrize("mask", [True, False])
def test_the_worlds_share_of_the_loss_by_hand(mask):
    """Behind the first reply 3 of 6 tokens of a transcript are the world's, and 1 of 4 of windows; half of each."""
    config = configured(loss=mask)
    batch = batch_of(config, transcript(1.0), windows(1.0))
    trained = token_weights(batch.segments, 2, 0.5, action_mask=mask)
    assert world_shares(batch, trained) == {"world_share": 0.375, "world_loss_share": 0.0 if mask else 0.375}


def gradient(mode):
    """What the loss makes of all tokens of a small vocabulary, each as often as a sampler with other numerics draws it;
    and the gradient of the expected advantage."""
    generator = torch.Generator().manual_seed(3)
    theta = torch.randn(8, generator=generator).requires_grad_()
    worth, drift = (torch.randn(8, generator=generator) for _ in range(2))
    (theta.softmax(0) * worth).sum().backward()
    true, theta.grad = theta.grad.clone(), None
    sampler, logprobs = (theta.detach() + 0.6 * drift).log_softmax(0), theta.log_softmax(0)
    tokens = TokenScores(logprobs, sampler[:0], torch.full((8,), ACTION), torch.arange(8), {"sampler": sampler})
    old = logprobs.detach()
    weights = importance(tokens, old, torch.ones(8), 50.0, mode)
    columns = (tokens.token_kind, tokens.segments, torch.zeros(8))
    loss, _ = policy_loss(
        SampledTokens(logprobs, old, worth, sampler.exp(), *columns, importance=weights), LossConfig(kl=0.0)
    )
    loss.backward()
    return -theta.grad, true


@pytest.mark.parametrize("mode", ["cap", "mask"])
def test_a_sampler_with_other_numerics_gives_the_gradient_of_the_policy(mode):
    found, true = gradient(mode)
    torch.testing.assert_close(found, true, rtol=1e-4, atol=1e-6)


def test_a_segment_above_the_cap_is_left_out():
    sampler = torch.tensor([-1.0, -1.0, 0.0, -1.0, -1.0])
    tokens = TokenScores(
        sampler, sampler[:0], torch.full((5,), ACTION), torch.tensor([0, 0, 0, 1, 1]), {"sampler": sampler}
    )
    old = torch.tensor([-0.6, -0.6, -3.0, -0.9, -1.2])  # products of the sampled tokens: e^0.8 > 2, e^-0.1
    weights = importance(tokens, old, torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0]), 2.0, "mask")
    assert weights[:2].tolist() == [0.0, 0.0], "an imitated token, which nobody sampled, does not save a segment"
    assert weights[3:].tolist() == pytest.approx([math.exp(0.1), math.exp(-0.2)])


@pytest.mark.parametrize(("backend", "expected"), [("local", False), ("vllm", True), ("mine:Sampler", True)])
def test_another_sampler_than_the_policy_itself_is_corrected(backend, expected):
    assert starts_from_learner(load(overrides=[f"rollout.backend={backend}"])) is expected

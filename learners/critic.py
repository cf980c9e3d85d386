"""PPO's value model, and generalized advantage estimation (Schulman et al. 2016) token by token."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.policies.sampling import body_of
from roleagent.config import Config
from roleagent.learners.batch import Batch, Column, counted_kinds
from roleagent.learners.engine.engine import Engine, zero_stage
from roleagent.learners.engine.logprobs import (
    MicroBatch,
    TokenScores,
    copy_on_cpu,
    enable_activation_checkpointing,
    find_scoring,
    hidden_states,
    plan_for,
)
from roleagent.learners.engine.prefix_sharing import select_rows
from roleagent.learners.loss import MetricSums
from roleagent.learners.method import method_of
from roleagent.types import ACTION, CONTEXT, PREDICTION, TEXT, Segment


class Critic(torch.nn.Module):
    """A transformer that predicts, before each sampled token, the rest of the episode's return.

    Args:
        model: a causal language model; its body is used in place (pass a copy), its head is not used.
        shares: whether equal beginnings are computed once (:class:`~roleagent.learners.engine.logprobs.Scoring`).
    """

    def __init__(self, model: PreTrainedModel, shares: bool):
        super().__init__()
        self.body, self.shares = body_of(model), shares
        like = model.get_input_embeddings().weight  # type: ignore[operator]
        self.head = torch.nn.Linear(like.shape[1], 1, device=like.device, dtype=like.dtype)
        # Values start at 0, so advantages start as returns, without any random number.
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, batch: MicroBatch, temperature: float, entropy: bool = False) -> tuple[Tensor, Tensor]:
        """``(N,)`` values of the states before the trained tokens, and an empty tensor for the entropies."""
        before = batch.prefixes.numbers[batch.rows, batch.positions - 1]
        states = hidden_states(self.body, batch, self.shares).to(self.head.weight.dtype)  # Mamba's are float32
        values = select_rows(self.head(states)[:, 0].float(), before)
        return values, values.new_empty(0)

    def plan(self, segments: Sequence[Segment], max_tokens: int) -> list[list[int]]:
        """See :meth:`TokenScorer.plan`."""
        return plan_for(self.shares, segments, max_tokens)


def open_critic(config: Config, policy: HFPolicy) -> Engine | None:
    """The critic of a run, which starts as a copy of the present policy; None for methods without one."""
    if not method_of(config).critic:
        return None
    shares = find_scoring(policy.model, policy.context_length).shares
    model = copy_on_cpu(policy.model) if zero_stage(config) == 3 else copy.deepcopy(policy.model)
    if config.deepspeed.activation_checkpointing:
        enable_activation_checkpointing(model)
    return Engine(Critic(model, shares), config, config.critic.lr, int(policy.tokenizer.pad_token_id or 0))  # type: ignore[arg-type]


def generalized_advantages(
    rewards: Sequence[float], values: Sequence[float], gamma: float, gae_lambda: float
) -> list[float]:
    """A_t = Σ_k (γλ)^k δ_{t+k} with δ_t = r_t + γ V_{t+1} − V_t, and V = 0 behind the last step.

    Args:
        rewards: of each step.
        values: predicted before each step, as many.

    >>> generalized_advantages([0.0, 1.0], [0.5, 0.5], gamma=1.0, gae_lambda=0.5)
    [0.25, 0.5]
    >>> generalized_advantages([0.0, 1.0], [0.5, 0.5], gamma=1.0, gae_lambda=1.0)
    [0.5, 0.5]
    """
    advantages: list[float] = []
    following = advantage = 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        advantage = reward + gamma * following - value + gamma * gae_lambda * advantage
        following = value
        advantages.append(advantage)
    return advantages[::-1]


def critic_advantages(batch: Batch, critic: Engine, config: Config) -> Batch:
    """The batch with generalized advantages in place of the turns' rewards, by the critic's present values.

    GAE runs over a trajectory's action tokens in order (with ``estimator.action_mask`` off, over the TEXT tokens
    between them too) and skips all others. A turn's reward is at its last action token. The value behind the last token
    is 0, also if the episode was truncated. A follow-up prediction is no step of the episode: the critic does not learn
    there, and its tokens carry the advantage of their turn's last action token, or keep their own
    (``Batch.own_prediction_credit``).

    With ``estimator.gae_level=turn`` a step is a turn: it has one reward, one value (before its first action token) and
    one advantage, which all of its tokens carry. The critic learns at that token only.
    """
    options = config.estimator
    covered = counted_kinds(options.action_mask)
    kept = (CONTEXT, TEXT, PREDICTION) if batch.own_prediction_credit else (CONTEXT, TEXT)
    values = critic.score(batch.segments, config.rollout.temperature)
    returns, fitted = ([np.zeros(len(row)) for row in values] for _ in range(2))
    advantages = list(batch.columns["advantages"])
    members: defaultdict[int, list[int]] = defaultdict(list)
    for number, segment in enumerate(batch.segments):
        members[segment.trajectory].append(number)
    for numbers in members.values():
        segments = [batch.segments[number] for number in numbers]
        places = [np.flatnonzero(np.isin(segment.token_kind, covered)) for segment in segments]
        ends = np.cumsum([len(chosen) for chosen in places])[:-1]
        # As they were played: an agent program's conversations are segments, and take turns.
        played = [batch.turns[number][chosen] for number, chosen in zip(numbers, places, strict=True)]
        order = np.concatenate(played).argsort(kind="stable")

        def steps(
            column: Sequence[np.ndarray], places: Sequence[np.ndarray] = places, order: np.ndarray = order
        ) -> np.ndarray:
            return np.concatenate([row[chosen] for row, chosen in zip(column, places, strict=True)])[order]

        kinds, turns = steps([segment.token_kind for segment in segments]), np.concatenate(played)[order]
        earned = steps([segment.advantages for segment in segments])
        actions = np.flatnonzero(kinds == ACTION)
        last = dict(zip(turns[actions].tolist(), actions.tolist(), strict=True))  # a turn's last action token
        rewards = np.zeros(len(kinds))
        ending = list(last.values())
        rewards[ending] = earned[ending]
        expected = steps([values[number] for number in numbers])
        at_end = np.zeros(max(int(batch.turns[number].max(initial=0)) for number in numbers) + 1)
        if options.gae_level == "turn":
            first = actions[np.unique(turns[actions], return_index=True)[1]]  # a turn's first action token
            at_end[list(last)] = generalized_advantages(
                rewards[ending].tolist(), expected[first].tolist(), options.gamma, options.gae_lambda
            )
            found, starts = at_end[turns], np.isin(np.arange(len(kinds)), first)
        else:
            found = np.array(
                generalized_advantages(rewards.tolist(), expected.tolist(), options.gamma, options.gae_lambda)
            )
            at_end[list(last)], starts = found[ending], np.ones(len(kinds), bool)
        back = order.argsort()
        parts = (np.split(part[back], ends) for part in (found, expected, starts))
        for number, segment, chosen, part, value, learned in zip(numbers, segments, places, *parts, strict=True):
            row = np.where(np.isin(segment.token_kind, kept), segment.advantages, at_end[batch.turns[number]])
            row[chosen] = part
            advantages[number] = row
            returns[number][chosen] = part + value
            fitted[number][chosen] = learned
    columns = {**batch.columns, "advantages": advantages, "values": values, "returns": returns}
    return replace(batch, columns=columns | ({"fitted": fitted} if options.gae_level == "turn" else {}))


def value_loss(values: Tensor, old: Tensor, returns: Tensor, weights: Tensor, clip: float) -> Tensor:
    """½ Σ w·(V − R)²; with ``clip`` the larger of this error and that of V clipped to the old value ± ``clip``.

    Args:
        values: of the critic that learns; any shape, as are all below.
        old: the same before the iteration's updates.
        returns: the targets.
        weights: each token's weight; 0 for untrained tokens.
        clip: in units of reward; 0 for no limit.
    """
    error = (values - returns) ** 2
    if clip:
        near = old + (values - old).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns) ** 2)
    return 0.5 * torch.where(weights != 0, weights * error, 0.0).sum()


def fit(
    critic: Engine, segments: Sequence[Segment], columns: dict[str, Column], temperature: float, clip: float
) -> dict[str, float]:
    """One update of the critic; every rank must call it, some may have no segments.

    Args:
        critic: the value model.
        segments: those of this rank.
        columns: ``values``, ``returns`` and ``weights`` (:func:`~roleagent.learners.loss.token_weights`).
        temperature: unused by the critic.
        clip: see :func:`value_loss`.

    Returns:
        ``value_loss``, ``value_error`` (root of the mean squared error) and ``critic_grad_norm``.
    """
    sums = MetricSums()

    def objective(tokens: TokenScores) -> Tensor:
        known, values = tokens.columns, tokens.logprobs
        weights, returns = known["weights"], known["returns"]
        loss = value_loss(values, known["values"], returns, weights, clip)
        sums.add({"loss": loss, "error": (weights * (values.detach() - returns) ** 2).sum(), "weight": weights.sum()})
        return loss

    norm = critic.update(segments, columns, objective, temperature)
    total = sums.over_ranks(critic.ranks)
    error = (total["error"] / max(total["weight"], 1e-9)) ** 0.5
    return {"value_loss": total["loss"], "value_error": error, "critic_grad_norm": norm}

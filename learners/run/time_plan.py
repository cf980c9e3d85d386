"""How long a run will take: measured rates of this machine times the work that the configuration names.

The work of a run does not depend on the machine. Its seconds do, so they are estimated from three short measurements of
the policy itself: its first updates, reading a batch, and sampling replies.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from roleagent.agents.policies.hf import HFPolicy
from roleagent.config import Config
from roleagent.slow_notice import waiting
from roleagent.types import ACTION, PREDICTION, Request, Segment

MEASURED = 5
"""Updates of the warm start whose time is measured."""
FRESH = 0.95
"""Share of the tokens of groups with variance that an update computes: their episodes share their beginnings."""
LONGER = 1.6
"""Turns of an episode of the policy, per turn of a demonstration."""
ALIKE = 0.65
"""Share of the groups whose episodes all end alike: they have no advantage, and dynamic sampling replaces them."""
REST = 1.25
"""Seconds of an iteration per second of sampling and learning: the world, small batches of replaced groups, the log."""
COMPARED = 0.5
"""Share of the turns that predict with ``rollout.predicted_turns=compared``."""
_TOKENS = 4096  # read in a measurement, at most; a long text is measured alone


def time_plan(
    config: Config,
    policy: HFPolicy,
    segments: Sequence[Segment],
    tasks: int,
    measured: Sequence[float],
    updates: int,
    rounds: int,
) -> dict[str, float]:
    """The estimated seconds that a run in its warm start still takes, by the stage's name in the display.

    Args:
        config: of the run, which reinforces after its warm start.
        policy: that will be trained; its random stream stays as it is.
        segments: the demonstrations.
        tasks: of an evaluation.
        measured: seconds of updates of the warm start.
        updates: of the warm start that are left.
        rounds: of corrections that are left to play.
    """
    rollout, optim = config.rollout, config.optim
    acted = [one for one in segments if (one.token_kind == ACTION).any()]
    predicted = [one for one in segments if (one.token_kind == PREDICTION).any()]
    episodes, replies = config.warmstart.episodes, sum(_spans(one.token_kind == ACTION) for one in acted)
    length, turns = sum(map(len, acted)) / episodes, replies / episodes  # of an episode, which may be many segments
    reply = sum(int((one.token_kind == ACTION).sum()) for one in acted) / replies
    prediction = sum(int((one.token_kind == PREDICTION).sum()) for one in predicted) / max(1, len(predicted))

    state = policy.generator.get_state()
    with waiting("the speed of the policy to be measured"):
        read, sample = _reading(policy, acted), _sampling(policy, acted, max(1, round(reply)))
    policy.generator.set_state(state)
    length, turns = LONGER * length, LONGER * turns
    update = statistics.median(measured) / config.warmstart.batch_tokens  # forward, backward, optimizer, per token
    episode, predictions = turns * reply * sample + length * read, turns * prediction * sample if config.wia else 0.0
    evaluation = episode + (predictions if rollout.eval_predictions else 0.0)
    replays = sum(ALIKE**again for again in range(1, rollout.dynamic_sampling_rounds + 1))
    live = FRESH * min(rollout.keep_groups, 1.0 - ALIKE ** (rollout.dynamic_sampling_rounds + 1))
    if rollout.predicted_turns == "compared":
        predicted = COMPARED * (predictions + length * read if config.wia else 0.0)
    else:
        predicted = (1.0 + replays) * predictions
    learned = live * optim.epochs * (length + (prediction if config.wia else 0.0)) * update
    iteration = REST * rollout.num_groups * rollout.group_size * ((1.0 + replays) * episode + predicted + learned)
    train, options = config.train.last * iteration, config.train
    if options.evaluate_every:
        train += options.last // options.evaluate_every * min(options.evaluate_tasks or tasks, tasks) * evaluation
    played = rounds * config.warmstart.round_episodes * episode * (1.0 + 1.0 / LONGER) / 2.0  # half by the expert
    plan = {"warmstart": updates * config.warmstart.batch_tokens * update + played}
    plan |= {"evaluate before": tasks * evaluation}
    plan |= {"evaluate before-sampled": tasks * evaluation} if rollout.eval_sampled else {}
    plan |= {"train": train, "evaluate after": tasks * evaluation}
    plan |= {"evaluate after-sampled": tasks * evaluation} if rollout.eval_sampled else {}
    return plan


def _spans(chosen: np.ndarray) -> int:
    """How often a mask begins to be true.

    >>> _spans(np.array([False, True, True, False, True]))
    2
    """
    return int(chosen[0]) + int((chosen[1:] & ~chosen[:-1]).sum())


def _reading(policy: HFPolicy, segments: Sequence[Segment]) -> float:
    """Seconds per token of a forward pass over some demonstrations."""
    rows = _rows(segments, max(map(len, segments)))
    width = min(map(len, rows))
    ids = torch.tensor(np.stack([one.token_ids[:width] for one in rows]), device=policy.device)

    def read() -> None:
        with torch.inference_mode():
            policy.model(input_ids=ids)

    return _seconds(read) / ids.numel()


def _sampling(policy: HFPolicy, segments: Sequence[Segment], tokens: int) -> float:
    """Seconds per sampled token of short replies to the beginnings of some demonstrations."""
    longest = max(int((one.token_kind == ACTION).argmax()) for one in segments)
    prompts = [one.token_ids[: int((one.token_kind == ACTION).argmax())].tolist() for one in _rows(segments, longest)]
    requests = [Request(tuple(prompt), slot, tokens, frozenset({-1})) for slot, prompt in enumerate(prompts)]

    def sample() -> None:
        policy.clear_cache()
        policy.generate(requests, 1.0)

    seconds = _seconds(sample) / (len(requests) * tokens)
    policy.clear_cache()
    return seconds


def _rows(segments: Sequence[Segment], longest: int) -> Sequence[Segment]:
    return segments[: max(1, _TOKENS // longest)]


def _seconds(work: Callable[[], None]) -> float:
    """The median of five calls: the first may compile or allocate, and one may be lucky."""
    found = []
    for _ in range(5):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return statistics.median(found)

"""The mutual information of task and reply: a sign of collapse that entropy does not show.

Replies that vary, and vary in the same way for every task, have entropy and ignore what they read. RAGEN-2 (arXiv
2604.06268) calls it template collapse, and finds that mutual information follows success more closely than entropy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roleagent.learners.engine.engine import Learner
from roleagent.learners.run.ranks import dealt_back
from roleagent.learners.run.run import Run
from roleagent.types import ACTION, CONTEXT, Group, Segment, Turn

PAIRS = 16
"""Most prompts, each of another group, in an estimate: it scores the square of their number, and is at most their
logarithm."""


def task_information(run: Run, learner: Learner, groups: Sequence[Group]) -> dict[str, float]:
    """Estimates the mutual information I(X; R) of a prompt X and its reply R every ``train.information_every``.

    Up to :data:`PAIRS` tasks are drawn, and of each a turn, at any place: a prompt x_i and the sampled reply r_i. Every
    reply is scored behind every prompt, l_ij = log π(r_i | x_j), summed over its tokens, with the weights and the
    temperature that sampled it. With each of the N prompts alike the estimate is the mean over i of

        l_ii - log(1/N · Σ_j exp l_ij),

    the in-batch estimator of RAGEN-2 over whole replies. It is at most log N, and 0 if no reply depends on its prompt.
    Every rank must call it.

    Args:
        run: says when it is due, and draws.
        learner: with the weights that sampled.
        groups: of this rank.

    Returns:
        ``task_information`` in nats per reply; ``task_information_limit``, log N; ``task_recognized``, the share of the
        replies that are most probable behind their own prompt, 1/N by chance. Empty where it is not due, or with fewer
        than two prompts.
    """
    every, ranks = run.config.train.information_every, run.ranks
    if not every or run.iteration % every:
        return {}
    with run.timer("update"):
        drawn = dealt_back(ranks.everywhere(_drawn(groups, run.own_stream("information", run.iteration))))
        turns = [*{task_id: turn for task_id, turn in drawn if turn}.values()]  # of each task one
        most = max((len(turn.completion.token_ids) for turn in turns), default=0)
        fitting = [turn for turn in turns if len(turn.prompt_ids) + most <= learner.policy.context_length]
        order = run.stream("information pairs", run.iteration).permutation(len(fitting))
        pairs = [fitting[int(place)] for place in order[:PAIRS]]
        crossed = ranks.share([_behind(prompt, reply) for reply in pairs for prompt in pairs])
        scores = [float(row.sum()) for row in learner.score(crossed, run.config.rollout.temperature)]
        return information(np.array(dealt_back(ranks.everywhere(scores))).reshape(len(pairs), len(pairs)))


def information(scores: np.ndarray) -> dict[str, float]:
    """The estimate of :func:`task_information`.

    Args:
        scores: l_ij in nats, of reply i behind prompt j; shape [N, N].

    >>> information(np.zeros((4, 4)))["task_information"]
    0.0
    >>> {name: round(value, 3) for name, value in information(np.log(np.eye(4) + 1e-9)).items()}
    {'task_information': 1.386, 'task_information_limit': 1.386, 'task_recognized': 1.0}
    """
    if len(scores) < 2:
        return {}
    own, limit = np.diag(scores), float(np.log(len(scores)))
    mean = np.logaddexp.reduce(scores, axis=1) - limit
    others = np.where(np.eye(len(scores), dtype=bool), -np.inf, scores).max(axis=1)
    return {
        "task_information": float((own - mean).mean()),
        "task_information_limit": limit,
        "task_recognized": float((own > others).mean()),
    }


def _drawn(groups: Sequence[Group], rng: np.random.Generator) -> list[tuple[str, Turn | None]]:
    """The task and a turn of each group that has a prompt and a reply."""
    found: list[tuple[str, Turn | None]] = []
    for group in groups:
        turns = [t for one in group.trajectories for t in one.turns if t.prompt_ids and t.completion.token_ids]
        found.append((group.task.task_id, turns[int(rng.integers(len(turns)))] if turns else None))
    return found


def _behind(prompt: Turn, reply: Turn) -> Segment:
    """The reply of one turn behind the prompt of another."""
    ids, sampled = prompt.prompt_ids, reply.completion.token_ids
    zeros = [0.0] * (len(ids) + len(sampled))
    return Segment([*ids, *sampled], [CONTEXT] * len(ids) + [ACTION] * len(sampled), zeros, zeros)


__all__ = ["PAIRS", "information", "task_information"]

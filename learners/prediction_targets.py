"""Prediction replies written from the states that really followed, for imitation.

The warm start teaches predictions this way, and so does ``loss.prediction_credit=imitate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from roleagent.agents.policies.protocol import Policy
from roleagent.agents.rollout import Rollout
from roleagent.types import Completion, Trajectory

_SHORTENED = 0.75
"""Share of the token limit that a shortened prediction uses: a policy that learns from it cannot count exactly."""


def with_true_states(trajectory: Trajectory, rollout: Rollout, most: int, rng: np.random.Generator) -> Trajectory:
    """The same episode with each sampled prediction replaced by the states that followed.

    States are tokenized and shortened to ``rollout.prediction_tokens`` as in the warm start. A turn loses its
    prediction if no state is known or none fits.

    Args:
        trajectory: the episode.
        rollout: gives tokenizer, limits and horizon.
        most: turns that keep a prediction, drawn as in the warm start; 0: all of them.
        rng: draws those turns.
    """
    chosen = [n for n, turn in enumerate(trajectory.turns) if turn.prediction and turn.prediction.completion]
    if most:
        known = [n for n in chosen if trajectory.turns[n].next_state is not None]
        failed = [n for n in known if not trajectory.turns[n].info.get("valid_action", True)]
        chosen = draw_turns(known, failed, most, rng)
    states = [turn.info.get("state", turn.observation) for turn in trajectory.turns]  # as predictions are scored
    turns = []
    for number, turn in enumerate(trajectory.turns):
        asked = turn.prediction
        if asked is not None and number not in chosen:
            turn = replace(turn, prediction=None)
        elif asked is not None:
            limit = min(rollout.config.prediction_tokens, rollout.policy.context_length - len(asked.prompt_ids))
            target = prediction_reply(states[number : number + rollout.horizon], rollout, limit, shorten=True)
            turn = replace(turn, prediction=None if target is None else replace(asked, completion=target))
        turns.append(turn)
    return replace(trajectory, turns=tuple(turns))


def draw_turns(
    known: Sequence[int], failed: Sequence[int], most: int, rng: np.random.Generator, failed_share: float = 0.5
) -> list[int]:
    """Up to ``most`` different turns of an episode, whose outcomes teach predictions.

    Failed commands are drawn more often than they occur: they get rarer as a policy improves, and it would forget how
    commands fail.

    Args:
        known: turns whose outcome has a state.
        failed: those of them whose command failed.
        failed_share: probability, in [0, 1], that a draw is among the failed turns only, while there is one.

    >>> draw_turns([0, 1, 2], [1], 3, np.random.default_rng(0)), draw_turns([], [], 1, np.random.default_rng(0))
    ([1, 0, 2], [])
    """
    chosen: list[int] = []
    for _ in range(min(most, len(known))):
        left = [turn for turn in known if turn not in chosen]
        among = [turn for turn in failed if turn not in chosen] if rng.random() < failed_share else []
        among = among or left
        chosen.append(among[int(rng.integers(len(among)))])
    return chosen


def prediction_reply(states: Sequence[str | None], rollout: Rollout, limit: int, shorten: bool) -> Completion | None:
    """The reply that predicts these states, as a policy would have sampled it.

    Args:
        states: of horizons 1, 2, …; None for a state that is unknown.
        rollout: gives tokenizer and stop tokens.
        limit: most tokens of the reply.
        shorten: whether to cut states that do not fit; otherwise such a reply predicts nothing.

    Returns:
        None if no state is known or none fits.
    """
    text = prediction_text(states, rollout.policy)
    reply = rollout.text_reply(text, rollout.prediction_stops)
    if len(reply.token_ids) > limit:
        beginnings = _beginnings(states, rollout, int(_SHORTENED * limit)) if shorten else []
        text = prediction_text(beginnings, rollout.policy)
        reply = rollout.text_reply(text, rollout.prediction_stops)
    return reply if text else None


def prediction_text(states: Sequence[str | None], policy: Policy) -> str:
    """The prediction tags of the known states."""
    return "".join(
        f'<prediction h="{h}">{policy.literal(state)}</prediction>'
        for h, state in enumerate(states, start=1)
        if state is not None
    )


def _beginnings(states: Sequence[str | None], rollout: Rollout, limit: int) -> list[str | None]:
    """The same states, the longest shortened until their prediction has at most ``limit`` tokens."""
    policy, most = rollout.policy, limit
    encoded = [None if state is None else policy.encode(policy.literal(state)) for state in states]
    while most > 0:
        cut = [None if ids is None else policy.decode(ids[:most]) for ids in encoded]
        over = len(policy.encode(prediction_text(cut, policy))) - limit
        if over <= 0:
            return cut
        most -= max(1, over // len(states))
    return []


__all__ = ["draw_turns", "prediction_reply", "prediction_text", "with_true_states"]

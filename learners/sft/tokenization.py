"""Demonstrations as training sequences, token for token as a rollout would record them.

Predictions are taught in the form in which they will be asked for, from the states that really followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from roleagent.agents.builders import EnvSplit
from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.policies.protocol import Policy
from roleagent.agents.rollout import Rollout
from roleagent.config import ConfigError
from roleagent.envs.failures.command_noise import verb_of
from roleagent.learners.batch import segments_of
from roleagent.learners.prediction_targets import draw_turns, prediction_reply, prediction_text
from roleagent.learners.sft.demonstrations import Demonstration
from roleagent.types import Prediction, Segment, Trajectory, Turn

FAILED_SHARE = 0.7
"""How often a demonstration with a failed command teaches such a failure. With 0.5 the policy predicts too few of its
own failures (R2), with 1 it expects failure everywhere."""


def tokenize(
    split: EnvSplit,
    policy: HFPolicy,
    demonstrations: Sequence[Demonstration],
    rng: np.random.Generator,
    most_fit: bool = False,
) -> list[Segment]:
    """Demonstrations as segments; those beyond the policy's context are left out.

    Args:
        split: the environment, and how it is prompted.
        policy: has the tokenizer.
        demonstrations: the episodes.
        rng: draws the corrupted predictions, and the demonstrations without any prediction.
        most_fit: whether most demonstrations must fit into the context.

    Raises:
        ConfigError: they do not; one line with the length of the longest.
    """
    options = split.config.warmstart
    predicting, plain = split.rollout(policy), replace(split, horizon=0).rollout(policy)
    detached = split.config.prompt.predictions == "detached"
    corrupted_predictions = (
        None if detached else CorruptedPredictions(demonstrations, split.horizon, options.corrupted_predictions, rng)
    )  # detached predictions are not read again

    def segments(demonstration: Demonstration) -> list[Segment]:
        has_failure = any(not step.info.get("valid_action", True) for step in demonstration.steps)  # these are rare
        if not has_failure and options.predictions < 1 and rng.random() >= options.predictions:
            return segments_from(demonstration, plain)
        if not (detached and split.horizon):
            return segments_from(demonstration, predicting, corrupted_predictions)
        step = _predicted_step(demonstration, rng)
        return segments_from(demonstration, plain if step is None else predicting, only=step)

    rows, limit = [segments(demonstration) for demonstration in demonstrations], policy.context_length
    longest = [max(map(len, row), default=0) for row in rows]
    late = sum(length > limit for length in longest)
    if most_fit and 2 * late > len(rows):
        raise ConfigError(
            f"{late} of {len(rows)} demonstrations do not fit into policy.context={limit}: the longest has "
            f"{max(longest)} tokens"
        )
    return [segment for row in rows for segment in row if len(segment) <= limit]


def check_reply_lengths(split: EnvSplit, policy: Policy, demonstrations: Sequence[Demonstration]) -> None:
    """Refuses demonstrations most of which have a reply beyond ``rollout.action_tokens``: it would never be finished.

    Raises:
        ConfigError: one line with the length of the longest reply.
    """
    reader, limit = split.reader, split.config.rollout.action_tokens
    longest = [
        max(len(policy.encode(reader.write(step.command, policy.literal))) for step in demonstration.steps)
        for demonstration in demonstrations
    ]
    late = sum(length > limit for length in longest)
    if 2 * late > len(longest):
        raise ConfigError(
            f"{late} of {len(longest)} demonstrations have replies that do not fit into rollout.action_tokens={limit}: "
            f"the longest has {max(longest)} tokens"
        )


def _predicted_step(demonstration: Demonstration, rng: np.random.Generator) -> int | None:
    """The step whose outcome a detached prediction teaches; None if no outcome has a state."""
    known = [number for number, state in enumerate(demonstration.states[1:]) if state is not None]
    failed = [number for number in known if not demonstration.steps[number].info.get("valid_action", True)]
    return next(iter(draw_turns(known, failed, 1, rng, FAILED_SHARE)), None)


class CorruptedPredictions:
    """Plausible but wrong predictions: the states after a command of the same kind in another episode.

    Predictions stay in a transcript. If all of them were correct, a policy would learn to read its own prediction
    instead of the observation that follows, and would trust its mistakes in rollouts.

    Args:
        demonstrations: the source of the states.
        horizon: most steps that a prediction looks ahead.
        share: of the predictions that are replaced, in [0, 1).
        rng: of the draws.
    """

    def __init__(self, demonstrations: Sequence[Demonstration], horizon: int, share: float, rng: np.random.Generator):
        self._share, self._rng = share, rng
        self._places: dict[tuple[str, int], list[tuple[Demonstration, int]]] = {}
        for demonstration in demonstrations:
            for number, step in enumerate(demonstration.steps):
                for ahead in range(1, min(horizon, len(demonstration.steps) - number) + 1):
                    self._places.setdefault((verb_of(step.command), ahead), []).append((demonstration, number))

    def draw(self, command: str, ahead: int) -> list[str | None] | None:
        """``ahead`` states that might follow ``command``; None: the prediction stays correct."""
        if self._rng.random() >= self._share:
            return None
        places = self._places[verb_of(command), ahead]
        demonstration, number = places[int(self._rng.integers(len(places)))]
        return demonstration.states[number + 1 : number + 1 + ahead]


def segments_from(
    demonstration: Demonstration,
    rollout: Rollout,
    corrupted_predictions: CorruptedPredictions | None = None,
    only: int | None = None,
) -> list[Segment]:
    """A demonstration exactly as a rollout would have recorded it, token for token.

    A state beyond ``rollout.prediction_tokens`` is not predicted if predictions stay in the transcript: the whole
    episode would carry half a page. A detached prediction contains the page's beginning.

    Args:
        demonstration: the episode.
        rollout: gives prompt style, tokenizer, stop tokens and horizon.
        corrupted_predictions: wrong predictions that sometimes replace the true ones; they are not imitated.
        only: number of the one step with a prediction; None: every step. A detached prediction is a segment of its own
            with everything before it, so one per step would repeat most tokens as often as there are steps.
    """
    policy, horizon = rollout.policy, rollout.horizon
    inline, detached = (rollout.prompt.predictions == form for form in ("inline", "detached"))
    conversation = rollout.open(demonstration.observation, demonstration.info)
    states = demonstration.states
    turns: list[Turn] = []
    for number, step in enumerate(demonstration.steps):
        prompt = conversation.action_prompt()
        ahead = states[number + 1 : number + 1 + horizon]
        action_text = rollout.reader.write(step.command, policy.literal)
        prediction = None
        if step.reply is not None:
            action = step.reply
        elif horizon and inline:
            action = rollout.text_reply(action_text + prediction_text(ahead, policy), rollout.action_stops)
        else:
            action = rollout.text_reply(action_text, rollout.action_stops)
        stream, last = (*prompt, *action.token_ids), action.token_ids
        if horizon and not inline and only in (None, number):
            asked = conversation.prediction_prompt(action)
            wrong = corrupted_predictions.draw(step.command, len(ahead)) if corrupted_predictions is not None else None
            limit = rollout.config.prediction_tokens
            answer = prediction_reply(ahead if wrong is None else wrong, rollout, limit, shorten=detached)
            answer = answer or rollout.text_reply("", rollout.prediction_stops)
            prediction = Prediction(asked, answer, ()) if wrong is None else None
            if not detached:
                stream, last = (*asked, *answer.token_ids), answer.token_ids
        turns.append(Turn(prompt, action, step.command, step.observation, prediction=prediction))
        conversation.advance(stream, last, step.command, step.observation, step.info)
    trajectory = Trajectory(demonstration.task, tuple(turns), True, False, "won", demonstration.observation)
    return segments_of(trajectory, [float(step.imitated) for step in demonstration.steps])

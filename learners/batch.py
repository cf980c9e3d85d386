"""The training batch: an iteration's episodes as segments, with numpy columns per token.

Tokens are trained exactly as they were sampled: ids are never decoded and encoded again, and masks come from
bookkeeping, never from a search for marker tokens. Turns share a :class:`~roleagent.types.Segment` only where the next
prompt literally begins with everything before it. A window of history or a stripped thought starts a new segment.

Kinds of token
--------------
Sampled tokens are ACTION or PREDICTION. With ``loss.prediction_credit=imitate`` PREDICTION tokens were not sampled: the
true next states replace the sampled prediction.

With an action mask off, the environment's tokens matter too. Within a segment, every untrained token behind the first
trained one (observations, prediction questions, untrained predictions) is TEXT. There are two such masks:

=====================  ======================================================  =========================================
option, when off       effect on TEXT tokens                                   otherwise
=====================  ======================================================  =========================================
``loss.action_mask``   enter the loss and the KL penalty, and count as action  weigh nothing in the loss
                       tokens in its averages
``estimator.``         carry the advantage of the turn before them; whitening  carry the advantage 0, and statistics and
``action_mask``        and GAE include them                                    GAE skip them
=====================  ======================================================  =========================================

TEXT tokens were not sampled. Their old log-probability is the learner's before the iteration's updates.

Prediction replies are written here, too, from the states that really followed: the warm start imitates them, and so
does ``loss.prediction_credit=imitate``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from roleagent.agents.policies.protocol import Policy
from roleagent.agents.rollout import Rollout
from roleagent.config import Config, method_class
from roleagent.learners.advantages import Advantages
from roleagent.learners.rewards import EPSILON, Values
from roleagent.types import (
    ACTION,
    CONTEXT,
    PREDICTION,
    ROUNDING,
    TEXT,
    Completion,
    Group,
    Prediction,
    Segment,
    Trajectory,
    Turn,
)

Column = list[np.ndarray]
"""One number per token: an array (T,) for each segment."""


def trained_tokens(segments: Sequence[Segment]) -> int:
    """The number of action tokens that are imitated with full weight: an analysis beside demonstrations has less."""
    return sum(int(((one.token_kind == ACTION) & (one.advantages == 1)).sum()) for one in segments)


@dataclass(frozen=True)
class Batch:
    """An iteration's episodes on this rank. What adds or replaces columns returns another batch.

    Attributes:
        segments: of all trajectories, group after group; ``Segment.trajectory`` numbers the trajectories.
        groups: each segment's group.
        turns: int64 column: the turn of each token, from 1; 0 before the first reply.
        lengths: per group and trajectory the number of turns.
        tasks: the task id of each trajectory.
        columns: float64, by name: ``advantages`` and ``sampler``; later ``reference``, ``old``, ``values``,
            ``returns`` and, with ``gae_level=turn``, ``fitted`` (1 where the critic learns).
        own_prediction_credit: whether prediction tokens have advantages of their own, which GAE and whitening keep.
        whitening: the mean that :func:`whiten` subtracted and the deviation that it divided by; None: not whitened.
    """

    segments: list[Segment] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    turns: Column = field(default_factory=list)
    lengths: list[list[int]] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    columns: dict[str, Column] = field(default_factory=dict)
    own_prediction_credit: bool = False
    whitening: tuple[float, float] | None = None

    def advantages_by_turn(self) -> list[Values]:
        """Each turn's mean advantage over its action tokens, per group and trajectory; 0 for a turn without any."""
        lengths = [length for group in self.lengths for length in group]
        first = np.cumsum([0, *lengths])
        sums = np.zeros(first[-1])
        counts = np.zeros(first[-1])
        for segment, turns, row in zip(self.segments, self.turns, self.columns["advantages"], strict=True):
            chosen = segment.token_kind == ACTION
            places = first[segment.trajectory] + turns[chosen] - 1
            np.add.at(sums, places, row[chosen])
            np.add.at(counts, places, 1.0)
        means = np.split(sums / np.maximum(counts, 1.0), first[1:-1])
        rows = iter([mean.tolist() for mean in means])
        return [[next(rows) for _ in group] for group in self.lengths]


def build_batch(
    groups: Sequence[Group],
    estimated: Sequence[Advantages],
    config: Config,
    rollout: Rollout,
    rng: np.random.Generator,
) -> Batch:
    """The episodes as segments, with each turn's advantage on the turn's tokens.

    Args:
        groups: the episodes.
        estimated: the advantages of each group.
        config: the masks and ``loss.prediction_credit``.
        rollout: tokenizes the true states (``prediction_credit=imitate``).
        rng: draws the turns whose states are imitated (``loss.imitated_turns``).
    """
    rule = config.loss.prediction_credit
    batch = Batch(columns={"advantages": [], "sampler": []}, own_prediction_credit=rule != "advantage")
    trains_text = (
        not (config.loss.action_mask and config.estimator.action_mask) or method_class(config.method).reads_world
    )
    silent = _silent_kinds(config.estimator.action_mask)
    for number, (group, of_group) in enumerate(zip(groups, estimated, strict=True)):
        batch.lengths.append([len(row) for row in of_group.values])
        for member, (trajectory, values) in enumerate(zip(group.trajectories, of_group.values, strict=True)):
            index = len(batch.tasks)
            batch.tasks.append(trajectory.task.task_id)
            if rule == "imitate":
                trajectory = with_true_states(trajectory, rollout, config.loss.imitated_turns, rng)
            of_actions = of_predictions = np.array([0.0, *values])
            if batch.own_prediction_credit:
                own = of_group.prediction if rule == "own" else None
                of_predictions = np.zeros_like(of_actions) if own is None else np.array([0.0, *own[member]])
            # The "advantages" of these segments are the numbers of the turns.
            for segment in segments_of(trajectory, range(1, len(values) + 1), index, rule != "none"):
                turns = np.maximum.accumulate(segment.advantages.astype(np.int64))  # unsampled: the turn before
                kind = segment.token_kind
                if trains_text:
                    kind = np.where((turns > 0) & (kind == CONTEXT), np.int8(TEXT), kind)
                advantages = np.where(kind == PREDICTION, of_predictions[turns], of_actions[turns])
                advantages[np.isin(kind, silent)] = 0.0
                batch.segments.append(replace(segment, token_kind=kind, advantages=advantages))
                batch.groups.append(number)
                batch.turns.append(turns)
                batch.columns["advantages"].append(advantages)
                batch.columns["sampler"].append(segment.sampler_logprobs)
    return batch


def segments_of(
    trajectory: Trajectory, advantages: Sequence[float], index: int = 0, train_predictions: bool = True
) -> list[Segment]:
    """A trajectory as few segments as its prompts allow.

    A turn's stream is its prompt and reply, and after a follow-up prediction also that question and its answer. The
    next turn continues the segment if its prompt begins with the whole stream (style ``transcript``). If it begins with
    prompt and reply but not with the prediction, the prediction becomes a segment of its own, in which the reply is
    context: no token is trained twice. It may also continue an earlier segment (an agent program with several
    conversations). Otherwise a new segment begins (style ``window``).

    Args:
        trajectory: the episode.
        advantages: one value per turn, for the turn's action and prediction tokens.
        index: the trajectory's number within its batch.
        train_predictions: whether prediction tokens are trained; if not, they are context.

    Raises:
        ValueError: the number of advantages is wrong, a prompt is empty (the reply's first token has no probability),
            or a prediction's prompt does not begin with the turn's prompt and reply.
    """
    if len(advantages) != len(trajectory.turns):
        raise ValueError(f"{len(advantages)} advantages for the {len(trajectory.turns)} turns of a trajectory")
    finished: list[_OpenSegment] = []
    current = _OpenSegment()
    for position, (turn, advantage) in enumerate(zip(trajectory.turns, advantages, strict=True)):
        if not turn.prompt_ids and not turn.completion.token_ids:
            continue  # a command without a reply of its own
        if not current.continues_in(turn.prompt_ids):
            earlier = [number for number, one in enumerate(finished) if one.continues_in(turn.prompt_ids)]
            finished.append(current)
            current = finished.pop(earlier[-1]) if earlier else _OpenSegment()
        current.extend(turn.prompt_ids, turn.completion, ACTION, advantage)
        asked = turn.prediction
        if asked is None or asked.completion is None:  # inline predictions are part of the reply
            continue
        if not current.continues_in(asked.prompt_ids):
            raise ValueError(f"the prediction's prompt of turn {position} does not begin with the turn's own tokens")
        target = current
        if position + 1 < len(trajectory.turns):
            following = trajectory.turns[position + 1].prompt_ids
            if current.continues_in(following) and not _begins(
                following, asked.prompt_ids + asked.completion.token_ids
            ):
                target = _OpenSegment(current.token_ids)
                finished.append(target)
        target.extend(asked.prompt_ids, asked.completion, PREDICTION if train_predictions else CONTEXT, advantage)
    finished.append(current)
    return [built for segment in finished if (built := segment.build(index)) is not None]


@dataclass(slots=True)
class _OpenSegment:
    """A segment that still grows: its tokens, and (start, completion, kind, advantage) of what is trained."""

    token_ids: tuple[int, ...] = ()
    trained: list[tuple[int, Completion, int, float]] = field(default_factory=list)

    def continues_in(self, prompt: tuple[int, ...]) -> bool:
        return _begins(prompt, self.token_ids)

    def extend(self, prompt: tuple[int, ...], completion: Completion, kind: int, advantage: float) -> None:
        """Adds a prompt, which begins with this segment, and its completion."""
        if completion.token_ids and not prompt:
            raise ValueError("a reply to an empty prompt cannot be trained: begin prompts with at least one token")
        if kind != CONTEXT and completion.token_ids:
            self.trained.append((len(prompt), completion, kind, advantage))
        self.token_ids = tuple(prompt) + completion.token_ids

    def build(self, index: int) -> Segment | None:
        """The tokens up to the last trained one: the rest has no influence. None if nothing is trained."""
        if not self.trained:
            return None
        start, completion, _, _ = self.trained[-1]
        size = start + len(completion.token_ids)
        kinds, logprobs, advantages = np.zeros(size, np.int8), np.zeros(size), np.zeros(size)
        for start, completion, kind, advantage in self.trained:
            span = slice(start, start + len(completion.token_ids))
            kinds[span], logprobs[span], advantages[span] = kind, completion.logprobs, advantage
        return Segment(np.array(self.token_ids[:size], np.int64), kinds, logprobs, advantages, index)


def _begins(sequence: tuple[int, ...], prefix: tuple[int, ...]) -> bool:
    size = len(prefix)
    return sequence[size - 1 : size] == prefix[-1:] and sequence[:size] == prefix  # most differ in that token


def whiten(
    batch: Batch, action_mask: bool, sum_over_ranks: Callable[[float], float] = float, level: str = "token"
) -> Batch:
    """The batch with advantages of mean 0 and population deviation 1 over the action tokens of all ranks.

    Without ``action_mask`` TEXT tokens are included. Predictions are shifted with their turns but not counted. A batch
    of advantages that are equal up to rounding becomes 0.

    Args:
        level: ``"turn"`` counts one token of each turn, its first action token.
    """
    kinds = np.concatenate([segment.token_kind for segment in batch.segments] or [np.zeros(0, np.int8)])
    values = np.concatenate(batch.columns["advantages"] or [np.zeros(0)])
    chosen = np.isin(kinds, counted_kinds(action_mask))
    if level == "turn":
        chosen = np.concatenate(first_action_tokens(batch) or [np.zeros(0, bool)])
    counted = values[chosen]
    # fsum: the same result however the tokens are spread over ranks.
    count = max(1.0, sum_over_ranks(float(len(counted))))
    mean = sum_over_ranks(math.fsum(counted.tolist())) / count
    deviation = math.sqrt(sum_over_ranks(math.fsum(((counted - mean) ** 2).tolist())) / count)
    scale = 1.0 / (deviation + EPSILON) if deviation > 1e-9 + ROUNDING * abs(mean) else 0.0
    kept = _silent_kinds(action_mask)  # silent tokens stay at 0
    kept = (*kept, PREDICTION) if batch.own_prediction_credit else kept
    values = np.where(np.isin(kinds, kept), values, (values - mean) * scale)
    advantages = split_tokens(values, batch.segments)
    return replace(batch, columns={**batch.columns, "advantages": advantages}, whitening=(mean, deviation))


def first_action_tokens(batch: Batch) -> Column:
    """Whether a token is the first action token of its turn: a bool column."""
    first_tokens = []
    for segment, turns in zip(batch.segments, batch.turns, strict=True):
        actions = np.flatnonzero(segment.token_kind == ACTION)
        first = actions[np.unique(turns[actions], return_index=True)[1]]
        first_tokens.append(np.isin(np.arange(len(segment)), first))
    return first_tokens


def counted_kinds(action_mask: bool) -> tuple[int, ...]:
    """The kinds of token that statistics and GAE include."""
    return (ACTION,) if action_mask else (ACTION, TEXT)


def _silent_kinds(action_mask: bool) -> tuple[int, ...]:
    """The kinds of token that carry the advantage 0."""
    return (CONTEXT, TEXT) if action_mask else (CONTEXT,)


def split_tokens(values: np.ndarray, segments: Sequence[Segment]) -> Column:
    """One number per token of all segments, one after another, as a column.

    >>> pair = Segment((5, 6), (0, 1), (0, 0), (0, 0))
    >>> [part.tolist() for part in split_tokens(np.arange(4), [pair, pair])]
    [[0, 1], [2, 3]]
    """
    return np.split(values, np.cumsum([len(segment) for segment in segments])[:-1]) if segments else []


_SHORTENED = 0.75
"""Share of the token limit that a shortened prediction uses: a policy that learns from it cannot count exactly."""


def with_true_states(trajectory: Trajectory, rollout: Rollout, most: int, rng: np.random.Generator) -> Trajectory:
    """The same episode with the states that followed as the predictions of its turns, sampled or not.

    States are tokenized and shortened to ``rollout.prediction_tokens`` as in the warm start. A turn has no
    prediction if no state is known or none fits.

    Args:
        trajectory: the episode.
        rollout: gives tokenizer, limits and horizon.
        most: turns that keep a prediction, drawn as in the warm start; 0: all of them.
        rng: draws those turns.
    """
    rollout = rollout.of(trajectory.task.task_id)
    prompts = {n: prompt for n, turn in enumerate(trajectory.turns) if (prompt := _asked(turn, rollout))}
    chosen = [*prompts]
    if most:
        known = [n for n in chosen if trajectory.turns[n].next_state is not None]
        failed = [n for n in known if not trajectory.turns[n].info.get("valid_action", True)]
        chosen = draw_turns(known, failed, most, rng)
    states = [turn.info.get("state", turn.observation) for turn in trajectory.turns]  # as predictions are scored
    turns = []
    for number, turn in enumerate(trajectory.turns):
        imitated = None
        if number in chosen:
            limit = min(rollout.config.prediction_tokens, rollout.policy.context_length - len(prompts[number]))
            target = prediction_reply(states[number : number + rollout.horizon], rollout, limit, shorten=True)
            imitated = None if target is None else Prediction(prompts[number], target, ())
        turns.append(replace(turn, prediction=imitated))
    return replace(trajectory, turns=tuple(turns))


def _asked(turn: Turn, rollout: Rollout) -> tuple[int, ...]:
    """The prompt of a turn's detached prediction; empty if it has none."""
    if turn.prediction is not None and turn.prediction.completion is not None:
        return turn.prediction.prompt_ids
    if rollout.predicts or not rollout.horizon:
        return ()
    prompt = rollout.prediction_prompt(turn)
    return prompt if rollout.has_room(prompt) else ()


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

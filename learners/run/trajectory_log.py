"""The log of an iteration's episodes: what the policy did, and its rewards and advantages.

A line is an episode:

===========================  ==========================================================================================
``group``, ``member``        the number of the group in the iteration, and of the episode in it
``task_id``, ``task_type``,  the task
``goal``
``stop_reason``, ``won``,    how it ended; the reward is R^E, unmodulated
``reward``
``replaced``                 whether its group was not trained on: dynamic sampling replaced it, or
                             ``rollout.keep_groups`` left it out
``chosen_because``,          the failure mode that led the curriculum to the task, and the reason; null: uniform
``chosen_reason``
``lessons``                  only if there are any: those of earlier failures that its prompts held
``initial_observation``      of ``reset``
``analysis``                 of a failure: mode, detail, critical_step (0-based), lesson, query, source, repaired; else
                             null
``whitening``                mean and deviation of the batch (``estimator.whiten``), else null: a whitened advantage is
                             the distance from the mean in deviations
``turns``                    below
===========================  ==========================================================================================

and of every turn

=====================  ================================================================================================
``action``             the command; ``""`` for a malformed reply
``reply``              the whole reply, if it is more than the command in its tags; else null
``format_error``       why the reply is malformed, or null
``valid``              whether the command had an effect
``observation``        after the command
``calls``, ``answer``  only if there are any: calls of tools (name, arguments, error or null, result, reward), and what
                       was answered
``state``              the next state, only if it is not the observation; null: unknown
``rewards``            by name, as the environment gave them
``reward``             the terms of the reward that was trained, by name: weighted, process terms normalized
``predictions``        texts for 1..H turns ahead, ``""`` if absent
``scores``             of each, null if it could not be scored
``return_task``        R_task(a_t), ``return_predictive`` R_pre(a_t) (Eq. 5, by ``estimator.unscored_predictions``),
                       ``return_others`` the discounted return of all other terms, and
                       ``return_modulated`` R_t = R_task·(1 + R_pre) + R_others (Eq. 6), null if the estimator does not
                       use it
``state_group``        the number of its state within the group, or null
``grouping_state``     the state by which the turn is compared, only if it is not the one before the turn: a failed
                       command changes nothing (``estimator.failed_command_state``)
``advantage_state``    A^S (Eq. 8), ``advantage_outcome`` A^E (Eq. 1), null if the estimator does not use it
``advantage``          the final advantage of the turn's action, ``advantage_estimate`` the one before whitening:
                       A^S + α·A^E, or what the estimator has in its place
``tokens``             of a few groups: text, kind (see :data:`~roleagent.learners.batch.ACTION`) and log-probability
                       of every token since the turn before; of predictions the sampled ones, also if
                       ``loss.prediction_credit=imitate`` trains the true states instead
=====================  ================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from roleagent.agents.episode import short
from roleagent.agents.evaluation.transcripts import played_turn
from roleagent.agents.policies.protocol import Policy
from roleagent.agents.policies.token_texts import decoder, token_texts
from roleagent.config import Config
from roleagent.learners.advantages import Advantages, state_of
from roleagent.learners.method import Method
from roleagent.learners.rewards import Values, has_zero_variance
from roleagent.types import ACTION, CONTEXT, PREDICTION, TEXT, Group, Reflection, Trajectory

MOST_READ = 400
"""Most context tokens of a turn that are logged one by one: its last ones."""

Token = tuple[str, int, float]
"""Text, kind, log-probability."""


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group with its advantages.

    Attributes:
        group: its episodes.
        estimated: by the estimator.
        advantages: per episode and turn the final ones, after GAE and whitening.
        replaced: whether dynamic sampling replaced the group, or ``rollout.keep_groups`` left it out.
        whitening: mean and deviation of the batch's advantages (:func:`~roleagent.learners.batch.whiten`).
    """

    group: Group
    estimated: Advantages
    advantages: Values
    replaced: bool = False
    whitening: tuple[float, float] | None = None

    def estimate(self, member: int, number: int) -> float:
        """The advantage of a turn before whitening."""
        mean, deviation = self.whitening or (0.0, 1.0)
        return mean + deviation * self.advantages[member][number]


@dataclass(frozen=True, slots=True)
class Analysis:
    """The curriculum's part of an iteration.

    Attributes:
        choices: why tasks were sampled, by task id (:meth:`roleagent.types.Sampler.choices`).
        reflections: of failed episodes, by group and member.
        metrics: of the sampler.
    """

    choices: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    reflections: Mapping[tuple[int, int], Reflection] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


def records(
    scored: Sequence[ScoredGroup],
    analysis: Analysis,
    policy: Policy,
    config: Config,
    method: Method,
) -> Iterator[dict[str, Any]]:
    """The lines of an iteration, group after group.

    Args:
        scored: all groups of the iteration.
        analysis: of their failures.
        policy: decodes tokens.
        config: gives the trained kinds of token.
        method: gave the advantages.
    """
    with_tokens = group_with_tokens(scored)
    for number, one in enumerate(scored):
        because, reason = analysis.choices.get(one.group.task.task_id, (None, None))
        for member, trajectory in enumerate(one.group.trajectories):
            reflection = analysis.reflections.get((number, member))
            turns = _turns(one, member, policy, method)
            if number == with_tokens:
                for turn, tokens in zip(turns, tokens_of(trajectory, policy, config), strict=True):
                    turn["tokens"] = tokens
            yield {
                "group": number,
                "member": member,
                "task_id": trajectory.task.task_id,
                "task_type": trajectory.task.task_type,
                "goal": trajectory.task.goal,
                "stop_reason": trajectory.stop_reason,
                "won": trajectory.success,
                "reward": trajectory.outcome,
                "replaced": one.replaced,
                "chosen_because": because,
                "chosen_reason": reason,
                **({"lessons": [*trajectory.lessons]} if trajectory.lessons else {}),
                "initial_observation": trajectory.initial_observation,
                "analysis": asdict(reflection) if reflection else None,
                "whitening": [*map(short, one.whitening)] if one.whitening else None,
                "turns": turns,
            }


def group_with_tokens(scored: Sequence[ScoredGroup]) -> int | None:
    """The number of the group whose tokens are logged: the first one with different outcomes, or else the first one."""
    trained = [number for number, one in enumerate(scored) if not one.replaced]
    return min(trained, key=lambda number: has_zero_variance(scored[number].group), default=None)


def _turns(one: ScoredGroup, member: int, policy: Policy, method: Method) -> list[dict[str, Any]]:
    trajectory, estimated = one.group.trajectories[member], one.estimated
    assert estimated.states is not None
    tasks, predictive, others = (rows[member] for rows in estimated.returns)
    outcome = estimated.outcome[member] if estimated.outcome is not None else None
    lines = []
    for number, turn in enumerate(trajectory.turns):
        predicted, label = turn.prediction, estimated.states[member][number]
        modulated = tasks[number] * (1.0 + predictive[number]) + others[number]
        lines.append(
            {
                **played_turn(turn, policy),
                "reward": {name: short(value) for name, value in estimated.rewards[member][number].items()},
                "return_task": short(tasks[number]),
                "return_predictive": short(predictive[number]) if predicted else None,
                "return_others": short(others[number]),
                "return_modulated": short(modulated) if method.modulates else None,
                "state_group": label if label >= 0 else None,
                **({} if (state := state_of(turn, method.estimator)) == turn.state else {"grouping_state": state}),
                "advantage_state": short(estimated.state[member][number]) if estimated.state is not None else None,
                "advantage_outcome": short(outcome) if outcome is not None else None,
                "advantage_estimate": short(one.estimate(member, number)),
                "advantage": short(one.advantages[member][number]),
            }
        )
    return lines


def tokens_of(trajectory: Trajectory, policy: Policy, config: Config) -> list[list[Token]]:
    """The tokens of an episode, by the turn that read or sampled them.

    Of a prompt that continues the last turn, as in segments (:mod:`roleagent.learners.batch`), the new part belongs to
    the turn; of any other prompt all of it does. Only the last :data:`MOST_READ` tokens are kept, behind a piece with
    the number of the others.
    """
    decode = decoder(policy)
    predicted = CONTEXT if config.loss.prediction_credit == "none" else PREDICTION
    text_kind = CONTEXT if config.loss.action_mask and config.estimator.action_mask else TEXT
    turns: list[list[Token]] = []
    stream: tuple[int, ...] = ()
    for turn in trajectory.turns:
        continues = bool(stream) and turn.prompt_ids[: len(stream)] == stream
        before = len(stream) if continues else 0
        read = turn.prompt_ids[before:]
        left_out = max(0, len(read) - MOST_READ)
        reply = turn.completion
        ids, kinds = [*read[left_out:]], [text_kind if continues else CONTEXT] * (len(read) - left_out)
        logprobs = [0.0] * len(kinds)
        stream = turn.prompt_ids + reply.token_ids
        ids += reply.token_ids
        kinds += [ACTION] * len(reply.token_ids)
        logprobs += reply.logprobs
        if turn.prediction is not None and (answer := turn.prediction.completion) is not None:
            question = turn.prediction.prompt_ids[len(stream) :]
            ids += [*question, *answer.token_ids]
            kinds += [text_kind] * len(question) + [predicted] * len(answer.token_ids)
            trained = predicted == PREDICTION
            logprobs += [0.0] * len(question) + [x if trained else 0.0 for x in answer.logprobs]
            stream = turn.prediction.prompt_ids + answer.token_ids
        context = turn.prompt_ids[: before + left_out][-4:]
        pieces = token_texts(ids, decode, context)
        tokens: list[Token] = [(f"… {left_out:,} tokens …\n", CONTEXT, 0.0)] if left_out else []
        tokens += [(piece, kind, short(logprob)) for piece, kind, logprob in zip(pieces, kinds, logprobs, strict=True)]
        turns.append(tokens)
    return turns

"""How an episode was played: loops, revision signals with their false alarms (Agent-R, arXiv 2501.11425), and failures
that were predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from roleagent.curricula.rule_analyst import RuleAnalyst
from roleagent.failures.modes import failure_modes_of
from roleagent.types import Prediction, Trajectory, Turn

LONGEST_BLOCK = 5
"""Commands of the longest block whose repetitions are counted, as published."""


def loops(commands: Sequence[str], longest: int = LONGEST_BLOCK) -> dict[str, float]:
    """For each block length the largest number of consecutive repetitions of one block of commands; 0 without a loop.

    >>> loops(["look", "look", "look", "a", "b", "a", "b"], longest=2)
    {'loops_1': 2.0, 'loops_2': 1.0}
    """
    found = {}
    for length in range(1, longest + 1):
        most = run = 0
        for place in range(length, len(commands)):
            run = run + 1 if commands[place] == commands[place - length] else 0
            most = max(most, run // length)
        found[f"loops_{length}"] = float(most)
    return found


def signals(trajectory: Trajectory) -> dict[str, float]:
    """The revision signals of an episode, and how many of them follow a step that is no mistake.

    The rule analyst decides: it reads the episode up to the signal as one that failed. A signal is right if the
    critical step is the last one before it.

    Returns:
        ``revisions``, and, with rules for the environment, ``false_alarms``; empty without a signal.
    """
    turns = trajectory.turns
    places = [place for place, turn in enumerate(turns) if turn.info.get("revision")]
    if not places:
        return {}
    found = {"revisions": float(len(places))}
    if not failure_modes_of(trajectory.task.env_id).detectors:
        return found
    played = [[turn for turn in turns[:place] if not turn.info.get("revision")] for place in places]
    past = [replace(trajectory, turns=tuple(steps)) for steps in played if steps]
    reflections = RuleAnalyst().reflect(past) if past else []
    right = sum(
        reflection.critical_step == len(steps) - 1
        for reflection, steps in zip(reflections, filter(None, played), strict=True)
    )
    return {**found, "false_alarms": float(len(places) - right)}


def is_exact(prediction: Prediction, state: str) -> bool:
    """Whether the prediction for the next state is that state. The parser of tags strips predictions."""
    return prediction.texts[:1] == (state.strip(),)


def failure_predicted(turn: Turn) -> bool | None:
    """Whether the prediction for the next state is exactly the state of the failed command.

    Returns:
        None if the command did not fail (``info["valid_action"]``), or has no prediction or no known state.
    """
    if turn.prediction is None or turn.next_state is None or turn.info.get("valid_action", True):
        return None
    return is_exact(turn.prediction, turn.next_state)


def predicted_failures(trajectory: Trajectory) -> dict[str, float]:
    """``failures`` with a prediction, and how many of them were ``predicted_failures``; empty without predictions."""
    if all(turn.prediction is None for turn in trajectory.turns):
        return {}
    found = [known for known in map(failure_predicted, trajectory.turns) if known is not None]
    return {"failures": float(len(found)), "predicted_failures": float(sum(found))}


def behavior_of(trajectory: Trajectory) -> dict[str, float]:
    """All measures of this module; notes are no commands."""
    commands = [turn.action for turn in trajectory.turns if not turn.info.get("revision")]
    return {**loops(commands), **signals(trajectory), **predicted_failures(trajectory)}


__all__ = ["LONGEST_BLOCK", "behavior_of", "failure_predicted", "is_exact", "loops", "predicted_failures", "signals"]

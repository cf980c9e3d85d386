"""A live episode of a rollout, and the counters of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from roleagent.agents.rendering import Conversation
from roleagent.types import Completion, PredictionScore, Task, Trajectory, Turn


@dataclass
class RolloutStats:
    """Counters of a rollout. Tokens are sampled tokens.

    Attributes:
        errors: episodes whose environment failed.
        failures: their errors, by task id.
    """

    episodes: int = 0
    turns: int = 0
    action_tokens: int = 0
    prediction_tokens: int = 0
    errors: int = 0
    failures: dict[str, str] = field(default_factory=dict)

    @classmethod
    def gather(cls, parts: Sequence[RolloutStats]) -> RolloutStats:
        """The sum of several rollouts' counters."""
        total = cls()
        for part in parts:
            total.episodes += part.episodes
            total.turns += part.turns
            total.action_tokens += part.action_tokens
            total.prediction_tokens += part.prediction_tokens
            total.errors += part.errors
            total.failures |= part.failures
        return total


@dataclass
class Episode:
    """One live episode: its place in the pool, its conversation, its turns so far."""

    index: int
    task_id: str
    task: Task
    given: tuple[Completion, ...] = ()
    conversation: Conversation | None = None
    first: str = ""
    state: str | None = None
    grouping_state: str | None = None
    turns: list[Turn] = field(default_factory=list)
    asked: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by turn, prompts of predictions to be sampled
    scores: dict[int, list[PredictionScore]] = field(default_factory=dict)
    stop_reason: str = ""
    terminated: bool = False
    truncated: bool = False

    def trajectory(self) -> Trajectory:
        """The frozen record; scores that arrived late go to the turns that made the predictions."""
        turns = tuple(
            replace(turn, prediction=replace(turn.prediction, scores=tuple(self.scores.get(number, ()))))
            if turn.prediction is not None
            else turn
            for number, turn in enumerate(self.turns)
        )
        return Trajectory(self.task, turns, self.terminated, self.truncated, self.stop_reason, self.first)

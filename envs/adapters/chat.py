"""An episode as a chat: what the adapters to verifiers, SkyRL, Tinker and verl share.

The system message contains the environment's instructions and the reply format, the user messages contain the
observations. A reply contains a command in ``<action>``, or the calls of an environment of tools, and predictions where
they are asked for.

>>> episode = ChatEpisode("RoleAgent/Toy-v0", hints=False)
>>> system, first = episode.reset("bring-egg-tray-1")
>>> first["content"][:20]
'You are in a kitchen'
>>> episode.step("<action>look</action>")["content"][:34], episode.over
('You are in the middle of the kitch', False)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, TypedDict

import gymnasium

from roleagent.env_card import instructions_of
from roleagent.envs.adapters.splits import Splits, Wrapper, load_function
from roleagent.envs.wrappers.predicted_state import PredictedState
from roleagent.envs.wrappers.tags import COMMAND_FORM, THOUGHTS, Tags, Think, prediction_forms
from roleagent.envs.wrappers.tool_tags import ToolTags, read_replies
from roleagent.markers import escape_markers
from roleagent.types import Group, Prediction, PredictionScore, Recorder, Sampler, Task, Trajectory

_ONE_AT_A_TIME = Lock()  # trainers step from several threads; episodes share loaded data and TextWorld's parser


class Message(TypedDict):
    """A message of a chat."""

    role: str
    content: str


PROMPT_TO_COME: tuple[Message, ...] = (
    {"role": "user", "content": "The environment writes this prompt when the episode begins."},
)
"""The prompt in a trainer's data, which :meth:`ChatEpisode.reset` replaces."""


class ChatEpisode:
    """An environment that plays one episode after the other as a chat.

    Args:
        env_id: a Gymnasium id of an environment that has a split.
        arguments: of the environment.
        horizon: steps ahead that a reply predicts; 0: no predictions; None: 5 % of an episode
            (:func:`~roleagent.envs.wrappers.default_horizon`).
        think: whether a ``<think>`` block is forbidden (``"none"``), ``"optional"`` or ``"required"``.
        hints: whether observations end with the possible commands, where the environment lists them.
        wrappers: put around the environment, the first one innermost: functions, or names as ``module:function``.
            :class:`~roleagent.envs.wrappers.PredictedState` follows them unless ``horizon`` is 0.
        weights: of the named terms in the reward; None: ``{"task": 1.0}``.
        on_episode: is called with the :class:`~roleagent.types.Trajectory` of each finished episode, which has no
            tokens; a function, or its name as ``module:function``. See :class:`GroupObserver`.

    Attributes:
        rewards: the sum of each named reward term.
        step_rewards: the named reward terms of the last step.
        failure: the environment's error, if it has failed; None otherwise.
    """

    def __init__(
        self,
        env_id: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        horizon: int | None = 0,
        think: Think = "optional",
        hints: bool = True,
        wrappers: Sequence[Wrapper | str] = (),
        weights: Mapping[str, float] | None = None,
        on_episode: Callable[[Trajectory], None] | str | None = None,
    ):
        self._splits = Splits(env_id, arguments or {}, wrappers)
        self._think: Think = think
        self._horizon, self._hints = horizon, hints
        self.weights = {"task": 1.0} if weights is None else dict(weights)
        self._on_episode = None if on_episode is None else load_function(on_episode)
        self._env: Tags | ToolTags | None = None
        self._ahead = 0  # steps that a reply predicts
        self._record: Recorder | None = None
        self.rewards: dict[str, float] = {}
        self.step_rewards: dict[str, float] = {}
        self.failure: str | None = None

    def reset(self, task_id: str | None = None, split: str | None = None, seed: int | None = None) -> list[Message]:
        """Begins an episode: the system message and the first observation.

        Args:
            task_id: of the split; None: a task that a curriculum chooses, or a random one.
            split: of the environment; None: its default split.
            seed: of the random choices.

        Raises:
            ValueError: the split has no such task.
        """
        self.finish()
        with _ONE_AT_A_TIME:
            env = self._splits(split)
            if self._horizon != 0 and not env.has_wrapper_attr("horizon"):
                env = PredictedState(env, self._horizon)
            self._ahead = env.get_wrapper_attr("horizon") if env.has_wrapper_attr("horizon") else 0
            env = read_replies(env, self._think, self._ahead)
            text, info = env.reset(seed=seed, options={} if task_id is None else {"task_id": task_id})
        self._env = env
        self._record = Recorder(Task.of(self._splits.env_id, info.get("task_id", ""), info), text, info)
        self.rewards, self.step_rewards, self.failure = {}, {}, None
        goal = str(self.info.get("goal", ""))
        task = f"\n\nYour task is to: {escape_markers(goal, 'tool_call', 'think')}" if goal not in text else ""
        return [
            {"role": "system", "content": "\n\n".join(self._instructions(env))},
            {"role": "user", "content": f"{self._shown(text)}{task}"},
        ]

    def step(self, reply: str) -> Message:
        """Plays a reply; the message has the observation. A malformed reply is the invalid command ``""``.

        Raises:
            gymnasium.error.ResetNeeded: the episode is over or has not begun.
            Exception: the environment failed; the episode is over and has no outcome.
        """
        if self._env is None or self._record is None or self._record.over:
            raise gymnasium.error.ResetNeeded("the episode is over or has not begun: call reset() before step()")
        parsed = self._env.reader.read(reply)
        try:
            with _ONE_AT_A_TIME:
                text, reward, terminated, truncated, info = self._env.step(reply)
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            self._end("error")
            raise
        prediction = Prediction((), None, parsed.predictions) if self._ahead else None
        played = (parsed.command, text, float(reward), terminated, truncated, info)
        self.step_rewards = dict(self._record.add(*played, prediction=prediction).rewards)
        for name, value in self.step_rewards.items():
            self.rewards[name] = self.rewards.get(name, 0.0) + value
        if self.over:
            self._show()
        return {"role": "user", "content": self._shown(text)}

    @property
    def info(self) -> Mapping[str, Any]:
        """The environment's last report (see :mod:`roleagent.types`)."""
        return self._record.info if self._record else {}

    @property
    def commands(self) -> list[str]:
        """Of this episode so far; ``""`` for a malformed reply."""
        return [turn.action for turn in self._record.turns] if self._record else []

    @property
    def scores(self) -> list[PredictionScore]:
        """Of the predictions so far."""
        return self._record.scores if self._record else []

    @property
    def over(self) -> bool:
        """Whether the episode is over or has not begun."""
        return self._record is None or self._record.over

    @property
    def step_reward(self) -> float:
        """The weighted sum of the last step's terms."""
        return sum(self.weights.get(name, 0.0) * value for name, value in self.step_rewards.items())

    @property
    def reward(self) -> float:
        """The weighted sum of all terms so far."""
        return sum(self.weights.get(name, 0.0) * value for name, value in self.rewards.items())

    def metrics(self) -> dict[str, float]:
        """Figures of the episode for a trainer's log, JSON numbers.

        ``won``, ``steps``, ``invalid`` (malformed or impossible commands), ``reward_…`` per named term and, with
        predictions, ``prediction_similarity`` (mean of those that were made, in [0, 1]) and ``predictions_absent``
        (share that is missing).
        """
        figures = {"won": float(self._record is not None and self._record.won), "steps": float(len(self.commands))}
        turns = self._record.turns if self._record else []
        figures["invalid"] = float(sum(not turn.info.get("valid_action", True) for turn in turns))
        terms = {**dict.fromkeys(self.weights, 0.0), **self.rewards}
        figures |= {f"reward_{name}": float(value) for name, value in sorted(terms.items())}
        if self._ahead:
            made = [score.score for score in self.scores if not score.absent]
            figures["prediction_similarity"] = sum(made) / max(1, len(made))
            figures["predictions_absent"] = 1 - len(made) / max(1, len(self.scores))
        return figures

    def finish(self) -> None:
        """Ends an episode that the trainer does not continue, e.g. because its context is full."""
        if not self.over:
            self._end("context")

    def close(self) -> None:
        """Ends the episode and closes the environments."""
        self.finish()
        self._splits.close()

    def _instructions(self, env: Tags | ToolTags) -> list[str]:
        """The system message: the environment's instructions, its tools, and the form of a reply."""
        thought = THOUGHTS.get(self._think, "Do not write anything else.")
        sentences = [f"{env.reader.form or COMMAND_FORM} {thought}"]
        if self._ahead:
            forms = prediction_forms(self._ahead)
            what = "observation" if self._ahead == 1 else f"{self._ahead} observations"
            sentences.append(
                f"After it, write down the next {what} exactly as you expect the world to word them: {forms}"
            )
        tools = [json.dumps(tool, ensure_ascii=False) for tool in self.info.get("tools", ())]
        described = [escape_markers("\n".join(("The tools:", *tools)), "tool_call", "think")] if tools else []
        return [instructions_of(env).rules, *described, "\n".join(sentences)]

    def _shown(self, text: str) -> str:
        """What the model reads. Its markers are replaced: other trainers recognize special tokens in it."""
        commands = [name for name in self.info.get("admissible_actions") or () if name != "help"]
        hints = f"\nPossible now: {', '.join(commands)}" if commands and self._hints and not self.over else ""
        return escape_markers(text + hints, "tool_call", "think")

    def _end(self, stop_reason: str) -> None:
        assert self._record is not None
        self._record.end(stop_reason, truncated=stop_reason != "error")
        self._show()

    def _show(self) -> None:
        """Shows the finished episode to `on_episode`."""
        if self._on_episode is not None and self._record is not None:
            self._on_episode(self._record.trajectory())


class GroupObserver:
    """Collects finished episodes into groups, and shows each full batch of groups to a sampler.

    So the curriculum of a :class:`~roleagent.envs.wrappers.FailureCurriculum` learns in any trainer's loop. Between
    batches its choices do not change, so that all episodes of a row have the same task.

    Args:
        sampler: of the curriculum.
        group_size: episodes per row, ≥ 1.
        groups: rows per batch, ≥ 1.
    """

    def __init__(self, sampler: Sampler, group_size: int, groups: int):
        if group_size < 1 or groups < 1:
            raise ValueError(f"group_size and groups must be at least 1, not {group_size} and {groups}")
        self.sampler, self.group_size, self.groups = sampler, group_size, groups
        self._lock = Lock()
        self._open: dict[str, list[Trajectory]] = {}
        self._full: list[list[Trajectory]] = []

    def __call__(self, trajectory: Trajectory) -> None:
        """Takes in an episode. One whose environment failed counts, but the sampler does not see it.

        Raises:
            ValueError: the sampler does not know the task.
        """
        with self._lock:
            episodes = self._open.setdefault(trajectory.task.task_id, [])
            episodes.append(trajectory)
            if len(episodes) == self.group_size:
                self._full.append(self._open.pop(trajectory.task.task_id))
            if len(self._full) < self.groups:
                return
            full, self._full = self._full, []
            sound = [[each for each in group if each.stop_reason != "error"] for group in full]
            self.sampler.observe([Group(group[0].task, tuple(group)) for group in sound if group])


__all__ = ["PROMPT_TO_COME", "ChatEpisode", "GroupObserver", "Message"]

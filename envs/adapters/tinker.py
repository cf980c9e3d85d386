"""RoleAgent's environments for Tinker: the ``Env``, ``EnvGroupBuilder`` and ``RLDataset`` of ``tinker_cookbook``.

    dataset = TaskDataset("RoleAgent/ALFWorld-v0", renderer=renderer, batch_size=16, group_size=8)
    group = await do_group_rollout(dataset.get_batch(0)[0], policy)

All environments of a group play the task of their row.
"""

# Where the package is missing, pyright finds this module in its place.
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false, reportInvalidTypeForm=false, reportGeneralTypeIssues=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gymnasium.error import DependencyNotInstalled

from roleagent.envs.adapters.chat import ChatEpisode
from roleagent.envs.adapters.splits import Splits

try:
    from tinker import ModelInput
    from tinker_cookbook.completers import StopCondition
    from tinker_cookbook.renderers import Message, Renderer
    from tinker_cookbook.rl.types import ActionExtra, Env, EnvGroupBuilder, RLDataset, StepResult
except ImportError as error:
    raise DependencyNotInstalled(
        f"tinker-cookbook is not installed ({error}): pip install 'roleagent[tinker]'"
    ) from error


class TokenEnv(Env):
    """One episode in tokens, rendered by the model's renderer.

    A reply that was cut at its token limit is a malformed reply: the invalid command ``""``. Messages are rendered one
    after the other, because tokenizers of transformers cannot be used by several threads.

    Args:
        episode: the chat.
        row: arguments of its ``reset``: ``task_id`` or ``seed``, and ``split``.
        renderer: of the model.
        max_tokens: an episode ends before a prompt that is longer; None: no limit.
    """

    def __init__(self, episode: ChatEpisode, row: Mapping[str, Any], renderer: Renderer, max_tokens: int | None = None):
        self.episode, self.renderer = episode, renderer
        self.example_id = str(row.get("task_id", row.get("seed", "")))
        self._row, self._max_tokens = dict(row), max_tokens
        self._messages: list[Message] = []

    async def initial_observation(self) -> tuple[ModelInput, StopCondition]:
        """Begins the episode: the prompt with the system message and the first observation.

        Raises:
            ValueError: there is no such task, or the prompt is longer than ``max_tokens``.
        """
        self._messages = [Message(**message) for message in self.episode.reset(**self._row)]
        prompt = self.renderer.build_generation_prompt(self._messages)
        if self._overlong(prompt):
            raise ValueError(f"the first prompt has {prompt.length} tokens, more than max_tokens={self._max_tokens}")
        return prompt, self.renderer.get_stop_sequences()

    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        """Plays a reply. The last step has the episode's figures as metrics."""
        reply, _ = self.renderer.parse_response(action)
        observation = self.episode.step("" if (extra or {}).get("stop_reason") == "length" else _text(reply))
        self._messages += [reply, Message(**observation)]
        prompt = self.renderer.build_generation_prompt(self._messages)
        if self._overlong(prompt):
            self.episode.finish()
        over = self.episode.over
        return StepResult(
            reward=self.episode.step_reward,
            episode_done=over,
            next_observation=prompt,
            next_stop_condition=self.renderer.get_stop_sequences(),
            metrics=dict(self.episode.metrics()) if over else {},
            logs={"command": self.episode.commands[-1], "observation": observation["content"]},
        )

    def _overlong(self, prompt: ModelInput) -> bool:
        return self._max_tokens is not None and prompt.length > self._max_tokens


@dataclass
class TaskGroupBuilder(EnvGroupBuilder):
    """Makes the environments of a group, which all play the same task.

    Attributes:
        env: a Gymnasium id of an environment that has a split.
        arguments: of the environment.
        row, renderer, max_tokens: as in :class:`TokenEnv`.
        group_size: episodes per task, ≥ 1.
        options: of :class:`~roleagent.envs.adapters.chat.ChatEpisode`.
    """

    env: str
    arguments: Mapping[str, Any]
    row: Mapping[str, Any]
    renderer: Renderer
    group_size: int
    max_tokens: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._episodes: list[ChatEpisode] = []

    async def make_envs(self) -> Sequence[Env]:
        """The group's environments, which share nothing but loaded data."""
        made = [ChatEpisode(self.env, self.arguments, **self.options) for _ in range(self.group_size)]
        self._episodes += made
        return [TokenEnv(episode, self.row, self.renderer, self.max_tokens) for episode in made]

    async def cleanup(self) -> None:
        """Ends the episodes that Tinker has cut."""
        while self._episodes:
            self._episodes.pop().close()

    def logging_tags(self) -> list[str]:
        """The environment's id."""
        return [self.env]


class TaskDataset(RLDataset):
    """The tasks of a split in batches of group builders; it begins again when it has come to the end.

    Args:
        env: a Gymnasium id of an environment that has a split.
        renderer: of the model.
        batch_size: tasks per batch, ≥ 1.
        group_size: episodes per task, ≥ 1.
        batches: length of the data set; None: as many as it takes to play each task once.
        arguments: of the environment.
        split, limit, draws: which tasks (:meth:`~roleagent.envs.adapters.splits.Splits.rows`).
        max_tokens: an episode ends before a prompt that is longer; None: no limit.
        options: of :class:`~roleagent.envs.adapters.chat.ChatEpisode`.

    Raises:
        ValueError: a number is not positive.
    """

    def __init__(
        self,
        env: str,
        *,
        renderer: Renderer,
        batch_size: int,
        group_size: int,
        batches: int | None = None,
        arguments: Mapping[str, Any] | None = None,
        split: str | None = None,
        limit: int | None = None,
        draws: int | None = None,
        max_tokens: int | None = None,
        **options: Any,
    ):
        if min(batch_size, group_size, batches or 1) < 1:
            raise ValueError(
                f"batch_size, group_size and batches must be at least 1, not {batch_size}, {group_size}, {batches}"
            )
        splits = Splits(env, arguments or {})
        self._rows = splits.rows(split, limit, draws)
        splits.close()
        self._env, self._arguments, self._renderer = env, splits.arguments, renderer
        self._batch_size, self._group_size = batch_size, group_size
        self._batches = batches or -(-len(self._rows) // batch_size)
        self._max_tokens, self._options = max_tokens, options

    def get_batch(self, index: int) -> list[EnvGroupBuilder]:
        """The builders of batch ``index``."""
        first = index * self._batch_size
        rows = (self._rows[place % len(self._rows)] for place in range(first, first + self._batch_size))
        return [
            TaskGroupBuilder(
                self._env, self._arguments, row, self._renderer, self._group_size, self._max_tokens, self._options
            )
            for row in rows
        ]

    def __len__(self) -> int:
        return self._batches


def _text(message: Message) -> str:
    """The reply as the model wrote it: Tinker takes thoughts apart."""
    content = message["content"]
    if isinstance(content, str):
        return content
    parts = []
    for part in content:
        if part["type"] == "thinking":
            parts.append(f"<think>{part['thinking']}</think>")
        elif part["type"] == "text":
            parts.append(part["text"])
    return "".join(parts)


__all__ = ["TaskDataset", "TaskGroupBuilder", "TokenEnv"]

"""RoleAgent's environments for verl's multi-turn rollout: an interaction, which verl has up to version 0.7.

    interaction:                                   # the file that multi_turn.interaction_config_path names
      - name: alfworld
        class_name: roleagent.envs.adapters.verl.Interaction
        config: {env: RoleAgent/ALFWorld-v0}

The interaction plays the user's side of a chat. verl reads the first prompt from the data, so :func:`rows` writes it
there. Later versions of verl have agent loops instead: :mod:`roleagent.envs.adapters.verl_loop`. Nothing of verl is
imported here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from roleagent.envs.adapters.chat import ChatEpisode
from roleagent.envs.adapters.splits import Splits

MOST_OPEN = 4096


class Interaction:
    """Episodes as verl's ``ToolAgentLoop`` plays them, one per ``instance_id``.

    verl does not report that it has cut an episode. Of more than 4,096 open ones the oldest is therefore ended.

    Args:
        config: ``env`` (a Gymnasium id), ``arguments`` of the environment, and options of
            :class:`~roleagent.envs.adapters.chat.ChatEpisode` by name; ``name`` comes from verl.

    Raises:
        ValueError: ``env`` is missing.
    """

    def __init__(self, config: Mapping[str, Any]):
        self.config = dict(config)
        self.name = str(self.config.get("name", "interaction_agent"))
        self._options = {key: value for key, value in self.config.items() if key not in ("name", "env", "arguments")}
        if "env" not in self.config:
            raise ValueError(
                "the interaction's config has no env: name an environment, e.g. env: RoleAgent/ALFWorld-v0"
            )
        self._episodes: dict[str, ChatEpisode] = {}
        self._finished: dict[str, float] = {}

    async def start_interaction(
        self, instance_id: str | None = None, task_id: str | None = None, split: str | None = None, **unused: Any
    ) -> str:
        """Begins the episode of a row, and returns its ``instance_id``.

        Raises:
            ValueError: the row has no task, or the split has no such task.
        """
        if task_id is None:
            raise ValueError(
                "interaction_kwargs has no task_id: verl's first prompt is in the data; write them by rows()"
            )
        instance_id = instance_id or uuid4().hex
        episode = ChatEpisode(self.config["env"], self.config.get("arguments"), **self._options)
        episode.reset(task_id, split)
        self._episodes[instance_id] = episode
        if len(self._episodes) > MOST_OPEN:
            self._end(next(iter(self._episodes)))
        return instance_id

    async def generate_response(
        self, instance_id: str, messages: Sequence[Mapping[str, Any]], **unused: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Plays the newest reply.

        Returns:
            whether the episode is over, the observation, the step's reward, and its named terms and figures.
        """
        replies = (message["content"] for message in reversed(messages) if message["role"] == "assistant")
        episode = self._episodes[instance_id]
        observation = episode.step(next(replies, ""))["content"]
        report = {"rewards": dict(episode.step_rewards), **episode.metrics()}
        over, reward = episode.over, episode.step_reward
        if over:
            self._end(instance_id)
        return over, observation, reward, report

    async def calculate_score(self, instance_id: str, **unused: Any) -> float:
        """The reward of an episode so far."""
        episode = self._episodes.get(instance_id)
        return self._finished[instance_id] if episode is None else episode.reward

    async def finalize_interaction(self, instance_id: str, **unused: Any) -> None:
        """Ends an episode and forgets it."""
        if instance_id in self._episodes:
            self._end(instance_id)
        self._finished.pop(instance_id, None)

    def _end(self, instance_id: str) -> None:
        episode = self._episodes.pop(instance_id)
        episode.close()
        self._finished[instance_id] = episode.reward


def rows(
    name: str,
    *,
    env: str,
    arguments: Mapping[str, Any] | None = None,
    split: str | None = None,
    limit: int | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """The rows of verl's data for a split: prompt, ``interaction_kwargs``, and the fields of its reward managers.

    Args:
        name: of the interaction in its configuration.
        env, arguments, options: as in its configuration.
        split, limit: which tasks (:meth:`~roleagent.envs.adapters.splits.Splits.rows`).
    """
    splits = Splits(env, arguments or {})
    episode = ChatEpisode(env, arguments, **options)
    found = [
        {
            "data_source": env,
            "prompt": [dict(message) for message in episode.reset(**row)],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"interaction_kwargs": {"name": name, **row}},
        }
        for row in splits.rows(split, limit)
    ]
    episode.close()
    splits.close()
    return found


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> float:
    """The sum of an episode's rewards: verl's ``custom_reward_function``, which gets them as ``turn_scores``."""
    return float(sum(extra_info.get("turn_scores") or ()))


__all__ = ["Interaction", "compute_score", "rows"]

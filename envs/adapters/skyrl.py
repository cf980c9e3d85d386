"""RoleAgent's environments for SkyRL: a text environment of ``skyrl_gym``.

    from roleagent.envs.adapters.skyrl import register, rows

    register("alfworld", env="RoleAgent/ALFWorld-v0")
    pandas.DataFrame(rows("alfworld", env="RoleAgent/ALFWorld-v0")).to_parquet("train.parquet")

SkyRL makes the environment with ``skyrl_gym.make``. A row of the data names it in ``env_class``, and the task in
``task_id`` and ``split``; all samples of a prompt have the same row and so the same task.
"""

# The package may be missing.
# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.error import DependencyNotInstalled

from roleagent.envs.adapters.chat import PROMPT_TO_COME, ChatEpisode
from roleagent.envs.adapters.splits import Splits, chosen

try:
    import skyrl_gym
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput, ConversationType
except ImportError as error:
    raise DependencyNotInstalled(f"skyrl-gym is not installed ({error}): pip install 'roleagent[skyrl]'") from error


class TextEnv(BaseTextEnv):
    """One episode as SkyRL plays it.

    Args:
        env_config: of the trainer; nothing of it is used.
        extras: the row: ``task_id``, ``split``, ``seed``, and ``max_turns`` (the episode ends after so many replies;
            without it, when the environment ends it).
        env: a Gymnasium id of an environment that has a split.
        arguments: of the environment.
        options: of :class:`~roleagent.envs.adapters.chat.ChatEpisode`. SkyRL copies them for each episode: wrappers
            are named as ``module:function``, or are plain functions.
    """

    def __init__(
        self,
        env_config: Any = None,
        extras: Mapping[str, Any] | None = None,
        *,
        env: str,
        arguments: Mapping[str, Any] | None = None,
        **options: Any,
    ):
        super().__init__()
        row = dict(extras or {})
        self.max_turns = row.get("max_turns")
        self._row = chosen(row)
        self.episode = ChatEpisode(env, arguments, **options)

    def init(self, prompt: ConversationType) -> tuple[ConversationType, dict[str, Any]]:
        """Begins the episode: its messages replace the row's prompt.

        Raises:
            ValueError: the split has no such task.
        """
        return [dict(message) for message in self.episode.reset(**self._row)], dict(self.episode.info)

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Plays a reply. The metadata is the environment's ``info``, with the named reward terms."""
        message = self.episode.step(action)
        self.turns += 1
        if self.max_turns is not None and self.turns >= self.max_turns:
            self.episode.finish()
        return BaseTextEnvStepOutput(
            observations=[] if self.episode.over else [dict(message)],
            reward=self.episode.step_reward,
            done=self.episode.over,
            metadata=dict(self.episode.info),
        )

    def get_metrics(self) -> dict[str, Any]:
        """The episode's figures (:meth:`~roleagent.envs.adapters.chat.ChatEpisode.metrics`); SkyRL averages them."""
        return self.episode.metrics()

    def close(self) -> None:
        """Ends the episode."""
        self.episode.close()


def register(name: str, *, env: str, **options: Any) -> None:
    """Registers an environment with ``skyrl_gym`` under a name, for ``env_class`` in the data.

    Args:
        name: a new one.
        env, options: as in :class:`TextEnv`.
    """
    skyrl_gym.register(name, entry_point=f"{__name__}:TextEnv", kwargs={"env": env, **options})


def rows(
    name: str,
    *,
    env: str,
    arguments: Mapping[str, Any] | None = None,
    split: str | None = None,
    limit: int | None = None,
    draws: int | None = None,
) -> list[dict[str, Any]]:
    """The rows of SkyRL's data for a split.

    Args:
        name: that the environment is registered under.
        split, limit, draws: which tasks (:meth:`~roleagent.envs.adapters.splits.Splits.rows`).
    """
    splits = Splits(env, arguments or {})
    found = [
        {"prompt": list(PROMPT_TO_COME), "env_class": name, "data_source": env, **row}
        for row in splits.rows(split, limit, draws)
    ]
    splits.close()
    return found


__all__ = ["TextEnv", "register", "rows"]

"""RoleAgent's environments for verifiers: ``load_environment`` of a multi-turn environment with a rubric.

    vf-eval roleagent.envs.adapters.verifiers -a '{"env": "RoleAgent/ALFWorld-v0", "eval_split": "valid_unseen"}'

This is the interface of verifiers before 0.4, which has ``MultiTurnEnv`` and ``Rubric``. A row of the data set is a
task; all rollouts of a row have the same task.
"""

# Where the package is missing, pyright finds this module in its place.
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.error import DependencyNotInstalled

from roleagent.envs.adapters.chat import PROMPT_TO_COME, ChatEpisode, Message
from roleagent.envs.adapters.splits import Splits

try:
    import verifiers as vf
    from datasets import Dataset

    _ = vf.MultiTurnEnv  # not from 0.4 on
    from verifiers.types import SystemMessage, UserMessage
except (ImportError, AttributeError) as error:
    raise DependencyNotInstalled(
        f"verifiers before 0.4 is not installed ({error}): pip install 'verifiers<0.4', or from 0.4 on use "
        "roleagent.envs.adapters.verifiers_v1"
    ) from error


class TextEnv(vf.MultiTurnEnv):
    """Episodes as verifiers plays them; see :func:`load_environment`.

    Args:
        env: a Gymnasium id.
        arguments: of the environment.
        chat: options of :class:`~roleagent.envs.adapters.chat.ChatEpisode`.
        options: of ``MultiTurnEnv``.
    """

    def __init__(self, env: str, arguments: Mapping[str, Any], chat: Mapping[str, Any], **options: Any):
        super().__init__(**options)
        self._env, self._arguments, self._chat = env, dict(arguments), dict(chat)

    async def setup_state(self, state: vf.State) -> vf.State:
        """Begins the episode of a row: its messages become the prompt."""
        episode = ChatEpisode(self._env, self._arguments, **self._chat)
        state["episode"] = episode
        try:
            messages = episode.reset(**(state.get("info") or {}))
        except Exception as error:
            raise vf.Error(f"{type(error).__name__}: {error}") from error
        state["input"] = {**state["input"], "prompt": [_message(message) for message in messages]}
        return state

    async def env_response(self, messages: Any, state: vf.State, **unused: Any) -> Any:
        """Plays the last reply; the response is the observation."""
        episode: ChatEpisode = state["episode"]
        try:
            message = _message(episode.step(_text(messages[-1])))
        except Exception as error:  # an error of the environment is no outcome: verifiers drops the rollout
            raise vf.Error(f"{type(error).__name__}: {error}") from error
        if episode.over:
            state["final_env_response"] = [message]
        return [message]

    @vf.cleanup
    async def end_episode(self, state: vf.State) -> None:
        """Ends an episode that verifiers has ended, and leaves its results in the state as JSON."""
        episode: ChatEpisode | None = state.pop("episode", None)
        if episode is not None:
            episode.close()
            state["task_id"] = episode.info.get("task_id", "")
            state["rewards"], state["figures"] = dict(episode.rewards), episode.metrics()


def load_environment(
    env: str,
    *,
    split: str | None = None,
    eval_split: str | None = None,
    limit: int | None = None,
    draws: int | None = None,
    max_turns: int = -1,
    weights: Mapping[str, float] | None = None,
    arguments: Mapping[str, Any] | None = None,
    **options: Any,
) -> vf.Environment:
    """A verifiers environment of a Gymnasium environment.

    Its rubric has a reward function for each named term in ``weights``, and the metrics of
    :meth:`~roleagent.envs.adapters.chat.ChatEpisode.metrics` that every episode has.

    Args:
        env: a Gymnasium id of an environment that has a split.
        split: that is trained on; None: the environment's default.
        eval_split: that is evaluated on; None: the one that is trained on.
        limit, draws: which tasks of ``split`` (:meth:`~roleagent.envs.adapters.splits.Splits.rows`). ``limit`` holds
            for ``eval_split`` as well, ``draws`` does not.
        max_turns: replies at most; -1: until the environment ends the episode.
        weights: of the named terms; None: ``{"task": 1.0}``, and with predictions ``"prediction": 0.0``.
        arguments: of the environment.
        options: of :class:`~roleagent.envs.adapters.chat.ChatEpisode`.

    Raises:
        ValueError: there is no such environment, split or argument.
    """
    splits = Splits(env, arguments or {})
    predicts = options.get("horizon", 0) != 0
    weights = {"task": 1.0, **({"prediction": 0.0} if predicts else {})} if weights is None else dict(weights)
    figures = ["won", "steps", "invalid", *(["prediction_similarity", "predictions_absent"] if predicts else [])]
    rubric = vf.Rubric(
        [*(_term(name) for name in weights), *(_figure(name) for name in figures)],
        [*weights.values(), *(0.0 for _ in figures)],
    )
    made = TextEnv(
        env,
        splits.arguments,
        {"weights": weights, **options},
        dataset=_dataset(splits.rows(split, limit, draws)),
        eval_dataset=_dataset(splits.rows(eval_split or split, limit)),
        rubric=rubric,
        max_turns=max_turns,
    )
    splits.close()
    return made


def _dataset(rows: list[dict[str, Any]]) -> Dataset:
    return Dataset.from_list([{"prompt": list(PROMPT_TO_COME), "answer": "", "info": row} for row in rows])


def _term(name: str) -> Any:
    def term(state: vf.State) -> float:
        return float(state["rewards"].get(name, 0.0))

    term.__name__ = name
    return term


def _figure(name: str) -> Any:
    def figure(state: vf.State) -> float:
        return float(state["figures"].get(name, 0.0))

    figure.__name__ = name
    return figure


def _message(message: Message) -> Any:
    return (SystemMessage if message["role"] == "system" else UserMessage)(content=message["content"])


def _text(message: Any) -> str:
    content = message["content"] if isinstance(message, Mapping) else message.content
    return content if isinstance(content, str) else ""


__all__ = ["TextEnv", "load_environment"]

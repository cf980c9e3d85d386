"""World-In-Agent: the agent's predictions are scored when the predicted state arrives."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import floor
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from roleagent.env_card import step_limit
from roleagent.envs.tools.calls.broker import PreparedCall, prepared_calls
from roleagent.similarity import lms
from roleagent.spaces import Unicode
from roleagent.types import PredictionScore, reward_terms


def default_horizon(max_steps: int) -> int:
    """Steps ahead that are predicted, 5 % of an episode: max(1, ⌊0.05·T_max + 0.5⌋).

    >>> default_horizon(50), default_horizon(15), default_horizon(4)
    (3, 1, 1)
    """
    return max(1, floor(0.05 * max_steps + 0.5))


def score_predictions(
    predictions: Sequence[Sequence[str]], states: Sequence[Any], similarity: Callable[[str, str], float]
) -> list[list[PredictionScore]]:
    """Scores all predictions of an episode (paper, Eq. 4), as :class:`PredictedState` does step by step.

    Args:
        predictions: of each turn, for horizons 1..H; ``""`` where nothing was predicted.
        states: the state after each turn; what is no text is not scored.
        similarity: maps two texts to [0, 1].

    Returns:
        the scores by the step in which their state arrived, those of the oldest turn first.

    >>> score_predictions([("a", "b"), ("c", "")], ["a", "b"], lambda text, state: float(text == state))[1][0]
    PredictionScore(turn=0, horizon=2, score=1.0, absent=False)
    """
    horizon = max(map(len, predictions), default=0)
    return [
        _score_state(state, step, predictions[max(0, step + 1 - horizon) : step + 1], similarity)
        for step, state in enumerate(states)
    ]


def _score_state(
    state: Any, turn: int, made: Sequence[Sequence[str]], similarity: Callable[[str, str], float]
) -> list[PredictionScore]:
    """Scores what was predicted of the state after a turn; ``made``: the last turns' predictions, oldest first."""
    scores = []
    for ahead in range(len(made), 0, -1) if isinstance(state, str) else ():
        if ahead <= len(made[-ahead]):
            text = made[-ahead][ahead - 1]
            score = similarity(text, state) if text else 0.0
            scores.append(PredictionScore(turn + 1 - ahead, ahead, score, absent=not text))
    return scores


def _load(name: str) -> Callable[[str, str], float]:
    """The function that ``module:function`` names.

    Raises:
        ValueError: there is no such function.
    """
    try:
        function = load_env_creator(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"cannot load the similarity {name!r}: name a function as module:function") from error
    if not callable(function):
        raise ValueError(f"the similarity {name!r} is no function but {type(function).__name__}")
    return function


def _name(similarity: Callable[[str, str], float]) -> str | Callable[[str, str], float]:
    """``module:function`` if that imports the same function, else the function itself."""
    name = f"{getattr(similarity, '__module__', None)}:{getattr(similarity, '__qualname__', None)}"
    try:
        return name if _load(name) is similarity else similarity
    except ValueError:
        return similarity


class PredictedState(gymnasium.Wrapper, gymnasium.utils.RecordConstructorArgs):
    """Adds predictions to the action and their scores to ``info`` (paper, Eq. 4).

    An action is ``{"command": …, "predictions": (ŝ_{t,1}, …, ŝ_{t,H})}`` with ``""`` where nothing was predicted; a
    bare command is an action without predictions. Predictions go no further than this wrapper. After each step,
    ``info["prediction_scores"]`` holds one :class:`~roleagent.types.PredictionScore` per earlier turn that spoke of the
    state that has just arrived, labeled with that turn, and ``info["rewards"]["prediction"]`` their sum. That term is
    for the log: the reward returned by ``step`` is left alone, since modulating returns is the estimator's business.
    A horizon that looks past the last state is never scored. To evaluate without predictions, leave the wrapper off.

    Args:
        env: any environment; ``info["state"]`` names the state (None: not scored), else a text observation is taken.
        horizon: H in steps, ≥ 1; None: :func:`default_horizon` of :func:`~roleagent.env_card.step_limit`.
        similarity: maps two texts to [0, 1]: a function, or its name as ``module:function``. The environment's ``spec``
            records the name; only a function that cannot be imported keeps the spec from becoming JSON.

    Attributes:
        scoring_seconds: wall-clock time spent on scoring so far.

    Raises:
        ValueError: no horizon is given and the environment has no limit of steps, or there is no such similarity.
    """

    def __init__(
        self, env: gymnasium.Env, horizon: int | None = None, similarity: str | Callable[[str, str], float] = lms
    ):
        similarity = _load(similarity) if isinstance(similarity, str) else similarity
        gymnasium.utils.RecordConstructorArgs.__init__(self, horizon=horizon, similarity=_name(similarity))
        gymnasium.Wrapper.__init__(self, env)
        if horizon is None:
            limit = step_limit(env)
            if limit is None:
                raise ValueError(f"{env} has no max_steps and no TimeLimit: pass horizon=, the steps to predict ahead")
            horizon = default_horizon(limit)
        if horizon < 1:
            raise ValueError(f"the horizon is a number of steps, at least 1, not {horizon}")
        self.horizon = horizon
        self.similarity = similarity
        self.action_space = gymnasium.spaces.Dict(
            command=env.action_space, predictions=gymnasium.spaces.Tuple([Unicode() for _ in range(horizon)])
        )
        self.scoring_seconds = 0.0
        self._turn = 0
        self._made: deque[tuple[str, ...]] = deque(maxlen=horizon)  # predictions of the last H turns, oldest first

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._turn = 0
        self._made.clear()
        return observation, {**info, "prediction_scores": ()}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        command, predictions = self._split(action)
        observation, reward, terminated, truncated, info = self.env.step(command)
        self._made.append(predictions)
        begun = time.perf_counter()
        scores = tuple(_score_state(info.get("state", observation), self._turn, self._made, self.similarity))
        self.scoring_seconds += time.perf_counter() - begun
        self._turn += 1
        rewards = {**reward_terms(info, reward), "prediction": sum(score.score for score in scores)}
        return observation, reward, terminated, truncated, {**info, "prediction_scores": scores, "rewards": rewards}

    def prepare(self, action: Any) -> list[PreparedCall] | None:
        """The tool calls of a step; see :func:`roleagent.envs.tools.calls.broker.prepared_calls`."""
        return prepared_calls(self.env, self._split(action)[0])

    def _split(self, action: Any) -> tuple[Any, tuple[str, ...]]:
        if not isinstance(action, Mapping):
            return action, ("",) * self.horizon
        if "command" not in action:
            raise ValueError(f'an action is a command or {{"command": …, "predictions": …}}, not {sorted(action)}')
        given = [text if isinstance(text, str) else "" for text in action.get("predictions", ())][: self.horizon]
        return action["command"], (*given, *[""] * (self.horizon - len(given)))

"""RoleAgent's environments behind HTTP, in the protocol of OpenEnv: its clients play them, and so does ours.

    roleagent serve RoleAgent/ALFWorld-v0 --port 8000

A client has a session over a WebSocket, with an environment of its own. What OpenEnv calls an observation carries what
Gymnasium returns: the text, ``terminated``, ``truncated`` and ``info``; reward and ``done`` stand beside it.
``GET /task_split`` lists the tasks. :class:`roleagent.envs.adapters.remote.RemoteEnv` makes a Gymnasium environment
of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from threading import Lock
from typing import Any

import gymnasium
from gymnasium.error import DependencyNotInstalled

from roleagent.env_card import step_limit
from roleagent.envs.adapters.splits import Splits

try:
    from fastapi import HTTPException, WebSocketDisconnect
    from openenv.core.env_server import Action, ConcurrencyConfig, Environment, Observation, State, create_app
    from openenv.core.env_server.types import EnvironmentMetadata
except ImportError as error:
    raise DependencyNotInstalled(f"OpenEnv is not installed ({error}): pip install 'roleagent[openenv]'") from error

LOST = "the session has ended, after a long silence"


class Command(Action):
    """A command as the environment takes it: ``go to desk 1``, ``search[red mug]``."""

    command: str


class Text(Observation):
    """The result of a step: Gymnasium's observation, end flags and ``info``; tuples are lists in JSON."""

    text: str
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = {}  # noqa: RUF012  (pydantic copies it)


class Session(Environment[Command, Text, State]):
    """One client's environment.

    Args:
        env_id: a Gymnasium id.
        arguments: of the environment.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    # Sessions share what was read from the disk, and TextWorld's parser: one thread takes their steps in turn.
    REQUIRES_SINGLE_THREAD_EXECUTOR = True

    def __init__(self, env_id: str, arguments: Mapping[str, Any]):
        super().__init__()
        self._splits = Splits(env_id, arguments)
        self._env: gymnasium.Env | None = None
        self._closed = False
        self._state = State()

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task_id: str | None = None,
        split: str | None = None,
        options: dict[str, Any] | None = None,
        **unknown: Any,
    ) -> Text:
        """Begins an episode.

        Args:
            seed: of the environment's random choices.
            episode_id: a name that :attr:`state` gives back.
            task_id: what is played; None: a task at random.
            split: of the environment; None: the one that is served.
            options: for Gymnasium's ``reset``, besides ``task_id``.

        Raises:
            ValueError: there is no such task or split, or no such argument.
            RuntimeError: the session has ended.
        """
        if unknown:
            raise ValueError(f"reset takes seed, episode_id, task_id, split, options; not {', '.join(unknown)}")
        self._require_open()
        self._env = None  # no further steps after an error
        env = self._splits(split)
        given = dict(options or {}) | ({} if task_id is None else {"task_id": task_id})
        text, info = env.reset(seed=seed, options=given)
        played = {"task_id": info["task_id"], "split": info["split"]}  # a state takes further fields
        self._env, self._state = env, State(episode_id=episode_id, step_count=0, **played)
        return Text(text=text, info=info)

    def step(self, action: Command, timeout_s: float | None = None, **unknown: Any) -> Text:
        """One command.

        Raises:
            gymnasium.error.ResetNeeded: no episode has begun, or it is over.
            RuntimeError: the session has ended.
        """
        self._require_open()
        if self._env is None:
            raise gymnasium.error.ResetNeeded("no episode has begun: reset comes before step, on the same connection")
        env, self._env = self._env, None  # no steps after an error
        text, reward, terminated, truncated, info = env.step(action.command)
        self._env = env
        self._state.step_count += 1
        done = bool(terminated or truncated)
        return Text(text=text, terminated=terminated, truncated=truncated, info=info, reward=float(reward), done=done)

    @property
    def state(self) -> State:
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        about = (type(self._splits().unwrapped).__doc__ or "").partition("\n")[0]
        return EnvironmentMetadata(name=self._splits.env_id, description=about, version=version("roleagent"))

    def close(self) -> None:
        """Ends the session, when its client leaves or has long been silent."""
        self._closed = True
        self._splits.close()

    def _require_open(self) -> None:
        if self._closed:  # OpenEnv gives the place of a silent client to others, and leaves its connection open
            raise RuntimeError(f"{LOST}: connect again")


def application(env_id: str, sessions: int = 16, timeout: float | None = 3600.0, **arguments: Any) -> Any:
    """The FastAPI application that serves an environment.

    Args:
        env_id: a Gymnasium id of an environment that has a split.
        sessions: maximum number of concurrent clients, ≥ 1; others are refused.
        timeout: seconds after which a silent client loses its session; None: never.
        arguments: of the environment.

    Raises:
        ValueError: the environment has no task_split.
    """

    # Whatever is missing is reported before any session starts; and what is read now, the sessions share.
    splits = Splits(env_id, arguments)
    splits.task_split()
    one_at_a_time = Lock()
    config = ConcurrencyConfig(max_concurrent_envs=sessions, session_timeout=timeout)
    app = create_app(partial(Session, env_id, arguments), Command, Text, env_name=env_id, concurrency_config=config)
    app.add_middleware(_Departures)

    @app.get("/task_split", summary="The tasks that can be played")
    def task_split(split: str | None = None) -> dict[str, Any]:
        try:
            with one_at_a_time:
                found = splits.task_split(split)
                max_steps = step_limit(splits(split))
        except (gymnasium.error.Error, ValueError, TypeError, OSError) as error:
            raise HTTPException(404, " ".join(str(error).split())) from error
        return {**found.manifest(), "max_steps": max_steps, "task_ids": list(found.task_ids)}

    return app


class _Departures:
    """A client that has left is no error of the server: OpenEnv tries to shut the connection once more."""

    def __init__(self, app: Any):
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with suppress(WebSocketDisconnect):
            await self._app(scope, receive, send)


__all__ = ["Command", "Session", "Text", "application"]

"""An environment on another machine as a Gymnasium environment: the client of :mod:`roleagent.envs.adapters.openenv`.

>>> from roleagent.envs.adapters.remote import RemoteEnv
>>> env = RemoteEnv("http://127.0.0.1:8000")                                                       # doctest: +SKIP

By name, as a configuration of a run wants it (``env.id``, with ``url`` among ``env.kwargs``), they are
``roleagent.envs.adapters.remote:Remote/ALFWorld-v0`` and so on.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import ProxyHandler, build_opener

import gymnasium

# First: it names what to install where OpenEnv is missing.
from roleagent.envs.adapters.openenv import LOST, Command, State, Text  # isort: skip

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from websockets.exceptions import ConnectionClosed, WebSocketException

from roleagent.spaces import Unicode, check_render_mode
from roleagent.tasks.split import TaskSplit

_LATE = (TimeoutError, asyncio.TimeoutError)  # the same from Python 3.11 on
_BROKEN = (OSError, EOFError, WebSocketException, *_LATE)


class CommandClient(EnvClient[Command, Text, State]):
    """OpenEnv's own client, with our commands and texts."""

    def _step_payload(self, action: Command) -> dict[str, Any]:
        return action.model_dump()

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Text]:
        observation = Text(**payload["observation"], reward=payload["reward"], done=payload["done"])
        return StepResult(observation, payload["reward"], payload["done"])

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)

    async def _send_and_receive(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            return await super()._send_and_receive(message)
        except ConnectionClosed as closed:  # a full server reports it and leaves, perhaps before it is asked anything
            try:
                said = (await self._receive())["data"]
            except ConnectionClosed:
                raise closed from None
            raise RuntimeError(f"Server error: {said['message']} (code: {said['code']})") from closed


class RemoteEnv(gymnasium.Env[str, str]):
    """The environment that a server has, with the same observations, rewards and ``info`` (JSON has lists, no tuples).

    Every one has a session of its own. If that is lost, ``step`` raises ConnectionError, and the next ``reset`` begins
    another. Wrappers go around it here, not there.

    Args:
        url: of the server, e.g. ``http://127.0.0.1:8000``.
        split: which split; None: the one that is served.
        env_id: what must be served there; None: anything.
        timeout: seconds that an answer may take.
        render_mode: ``"ansi"`` renders the last observation.

    Raises:
        ConnectionError: no server answers, or it is not a RoleAgent server.
        ValueError: another environment is served, or it has no such split.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(
        self,
        url: str,
        split: str | None = None,
        env_id: str | None = None,
        timeout: float = 60.0,
        render_mode: str | None = None,
    ):
        self.render_mode = check_render_mode(render_mode, self.metadata)
        self.url, self.split, self.timeout = url.rstrip("/"), split, timeout
        about = self._get(f"/task_split?split={quote(split)}" if split else "/task_split")
        try:
            self.task_split = TaskSplit(about["env_id"], about["split"], tuple(about["task_ids"]))
            self.max_steps: int = about["max_steps"]
        except (KeyError, TypeError) as error:
            raise ConnectionError(f"{self.url} is another server: its /task_split has no tasks") from error
        if env_id not in (None, self.task_split.env_id):
            raise ValueError(f"{self.url} serves {self.task_split.env_id}, not {env_id}")
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self._client: Any = None
        self._over = True
        self._text = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Plays ``options["task_id"]``, or a task of the split that the server draws.

        Raises:
            ValueError: the split has no such task.
            ConnectionError: the server does not answer, or has no place.
            RuntimeError: the environment has failed.
        """
        super().reset(seed=seed)
        self._over = True  # even if what follows fails
        given = dict(options or {})
        task_id = given.pop("task_id", None)
        if task_id is not None:
            self.task_split.require(task_id)
        asked = {"seed": seed, "task_id": task_id, "split": self.split, "options": given}
        asked = {key: value for key, value in asked.items() if value not in (None, {})}
        known = self._client is not None
        try:
            found = self._ask("reset", **asked)
        except ConnectionError:
            if not known:
                raise
            found = self._ask("reset", **asked)  # the session has ended meanwhile: this is a new one
        self._over = False
        self._text = found.text
        return found.text, found.info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carries out one command.

        Raises:
            ConnectionError: the session is lost, and the episode with it.
            RuntimeError: the environment has failed.
        """
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over or has not begun: call reset() before step()")
        found = self._ask("step", Command(command=action))
        self._over = found.done
        self._text = found.text
        return found.text, float(found.reward or 0.0), found.terminated, found.truncated, found.info

    def render(self) -> str | None:  # type: ignore[override]
        return self._text if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Ends the session."""
        client, self._client, self._over = self._client, None, True
        if client is not None:
            client.close()

    def _ask(self, verb: str, *arguments: Any, **named: Any) -> Text:
        """One question to the session, which begins with the first one."""
        try:
            if self._client is None:
                self._client = CommandClient(
                    self.url, connect_timeout_s=min(10.0, self.timeout), message_timeout_s=self.timeout
                ).sync()
                self._client.connect()
            return getattr(self._client, verb)(*arguments, **named).observation
        except _BROKEN as error:
            self.close()
            reason = f"no answer in {self.timeout:g} s" if isinstance(error, _LATE) else str(error)
            raise ConnectionError(f"{self.url}: {reason or type(error).__name__}") from error
        except RuntimeError as error:  # that is how OpenEnv's client reports the server's error
            self._over = True
            if LOST not in str(error) and "CAPACITY_REACHED" not in str(error):
                raise
            self.close()
            raise ConnectionError(f"{self.url}: {error}") from error

    def _get(self, path: str) -> Any:
        near = urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1")
        opener = build_opener(*([ProxyHandler({})] if near else []))
        try:
            with opener.open(self.url + path, timeout=self.timeout) as answer:
                return json.load(answer)
        except HTTPError as error:
            try:
                said = json.load(error)["detail"]
            except (ValueError, KeyError, TypeError):
                said = "no environment of RoleAgent is served there"
            raise ValueError(f"{self.url}: {said}") from error
        except (URLError, OSError, ValueError) as error:
            raise ConnectionError(f"{self.url} does not answer as a server of RoleAgent: {error}") from error


for _name in ("Toy-v0", "ALFWorld-v0", "WebShop-v0", "SearchQA-v0"):
    gymnasium.register(f"Remote/{_name}", entry_point=f"{__name__}:RemoteEnv", kwargs={"env_id": f"RoleAgent/{_name}"})

__all__ = ["CommandClient", "RemoteEnv"]

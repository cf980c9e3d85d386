"""RoleAgent's environments in AgentGym's HTTP protocol, for its clients (AgentGym, AgentGym-RL, Agent-R).

    roleagent serve RoleAgent/ALFWorld-v0 --protocol agentgym --port 36001

A client creates an environment (``POST /create``), begins a task by its number (``/reset``), plays (``/step``) and
leaves (``/close``); ``GET /observation`` repeats what it sees. AgentGym's servers differ in the names of fields: an
environment's card may name a :class:`WireFormat`. The default is that of TextCraft, SciWorld and BabyAI.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import gymnasium
from gymnasium.error import DependencyNotInstalled

from roleagent.env_card import card_of
from roleagent.envs.adapters.splits import Splits
from roleagent.markers import escape_markers

try:
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route
except ImportError as error:
    raise DependencyNotInstalled(f"Starlette is not installed ({error}): pip install 'roleagent[serve]'") from error

BODY = 1 << 20  # bytes of a request at most


@dataclass
class Played:
    """An environment of a client, and its last return value.

    Attributes:
        number: the environment's id, from 0.
        task: the number of the task.
        text: the newest observation.
        request: the newest body of ``/reset``.
        seen: when a client last asked for it, in seconds of :func:`time.monotonic`.
    """

    number: int
    splits: Splits
    task: int = 0
    env: gymnasium.Env | None = None
    text: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    reward: float = 0.0
    done: bool = False
    request: dict[str, Any] = field(default_factory=dict)
    seen: float = 0.0

    @property
    def actions(self) -> list[str]:
        """The possible commands, as far as the environment lists them."""
        return list(self.info.get("admissible_actions") or ())


class WireFormat:
    """The JSON that AgentGym's clients of an environment send and read. Subclasses are in the environments' folders.

    Attributes:
        env_field: of the environment's id in requests.
        task_field: of the task's number in ``/reset`` and ``/create``.
        splits: whose tasks are numbered, one after the other; empty: the environment's default split.
        arguments: of the environment, unless the server is given others.
        error_status: HTTP status of an error that its client reads as ``{"error": …}``.
        pages: further GET paths and what they return.
    """

    env_field = "id"
    task_field = "data_idx"
    splits: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = {}
    error_status = 200

    def __init__(self) -> None:
        self.pages: dict[str, Callable[[Played], Any]] = {
            "observation": self.observation,
            "available_actions": lambda played: played.actions,
            "goal": lambda played: played.info.get("goal", ""),
            "detail": lambda played: {**self.stepped(played), "deleted": False},
        }

    def command(self, action: str) -> str:
        """The environment's command in a client's request."""
        return action

    def first_text(self, text: str, info: Mapping[str, Any]) -> str:
        """The first observation of an episode."""
        return text

    def text(self, text: str) -> str:
        """A later observation."""
        return text

    def created(self, played: Played) -> Any:
        """The answer to ``/create``."""
        return {"id": played.number, **self.stepped(played)}

    def reset(self, played: Played) -> Any:
        """The answer to ``/reset``."""
        return {"id": played.number, **self.stepped(played)}

    def stepped(self, played: Played) -> Any:
        """The answer to ``/step``."""
        return {
            "observation": played.text,
            "reward": played.reward,
            "available_actions": played.actions,
            "done": played.done,
        }

    def observation(self, played: Played) -> Any:
        """The answer to ``/observation``."""
        return played.text

    def closed(self, played: Played) -> Any:
        """The answer to ``/close``."""
        return {"id": played.number, "status": "closed"}


class ProtocolError(Exception):
    """A request that cannot be answered; the message is for the client."""

    def __init__(self, message: str, status: int | None = None):
        super().__init__(message)
        self.status = status


class Server:
    """The environments of all clients. Its methods take a request's fields and return JSON; one runs at a time.

    Args:
        env_id: a Gymnasium id of an environment that has a split.
        arguments: of the environment.
        sessions: environments at most, ≥ 1.
        timeout: seconds after which a silent environment may be forgotten; None: never.
        task_ids: the tasks in the order of their numbers; None: those of the format's splits.

    Raises:
        ValueError: the environment has no task_split, or there is no such task.
    """

    def __init__(
        self,
        env_id: str,
        arguments: Mapping[str, Any],
        sessions: int,
        timeout: float | None,
        task_ids: Sequence[str] | None = None,
    ):
        self.format: WireFormat = (card_of(env_id).load("agentgym") or WireFormat)()
        self.env_id, self._sessions, self._timeout = env_id, sessions, timeout
        self._arguments = {**self.format.arguments, **arguments}
        splits = Splits(env_id, self._arguments)
        names = [None] if "split" in arguments or not self.format.splits else list(self.format.splits)
        self.tasks = [(name, task_id) for name in names for task_id in _task_ids(splits, name, names)]
        splits.close()
        if task_ids is not None:
            known = {task_id: name for name, task_id in self.tasks}
            if unknown := next((task_id for task_id in task_ids if task_id not in known), None):
                raise ValueError(f"{env_id} has no task {unknown!r} in {', '.join(map(str, names))}")
            self.tasks = [(known[task_id], task_id) for task_id in task_ids]
        self._played: dict[int, Played] = {}
        self._next = 0
        self._lock = Lock()

    def create(self, body: Mapping[str, Any]) -> Any:
        """Makes an environment, and begins a task in it."""
        with self._lock:
            self._forget_silent()
            if len(self._played) >= self._sessions:
                raise ProtocolError(
                    f"all {self._sessions} environments are taken: close one, or start with --sessions", 503
                )
            played = Played(self._next, Splits(self.env_id, self._arguments))
            given = body.get(self.format.task_field)
            self._begin(played, self._next % len(self.tasks) if given is None else given)
            played.seen = time.monotonic()
            self._played[self._next] = played
            self._next += 1
            return self.format.created(played)

    def reset(self, body: Mapping[str, Any]) -> Any:
        """Begins the task of a number; without one, the task that was begun last."""
        with self._lock:
            played = self._find(body)
            given = body.get(self.format.task_field)
            played.request = dict(body)
            self._begin(played, played.task if given is None else given)
            return self.format.reset(played)

    def step(self, body: Mapping[str, Any]) -> Any:
        """Plays an action."""
        with self._lock:
            played = self._find(body)
            action = body.get("action")
            if not isinstance(action, str):
                raise ProtocolError(f"the field action must be a text, not {action!r}")
            if played.done or played.env is None:
                raise ProtocolError(f"the task of environment {played.number} has finished: reset it")
            command = self.format.command(action)
            played.done = True  # no steps after an error
            text, reward, terminated, truncated, played.info = played.env.step(command)
            played.text = escape_markers(self.format.text(text))
            played.reward, played.done = float(reward), bool(terminated or truncated)
            return self.format.stepped(played)

    def page(self, name: str, query: Mapping[str, Any]) -> Any:
        """One of the format's pages."""
        with self._lock:
            return self.format.pages[name](self._find(query))

    def list(self) -> list[int]:
        """The ids of all environments."""
        with self._lock:
            return list(self._played)

    def close(self, body: Mapping[str, Any]) -> Any:
        """Forgets an environment."""
        with self._lock:
            played = self._played.pop(self._find(body).number)
            played.splits.close()
            return self.format.closed(played)

    def _begin(self, played: Played, task: Any) -> None:
        if not isinstance(task, int) or isinstance(task, bool) or not 0 <= task < len(self.tasks):
            raise ProtocolError(f"there is no task {task!r}: {self.format.task_field} is 0 to {len(self.tasks) - 1}")
        split, task_id = self.tasks[task]
        played.done = True  # until reset: no steps after an error
        played.env = played.splits(split)
        text, played.info = played.env.reset(options={"task_id": task_id})
        played.text = escape_markers(self.format.first_text(text, played.info))
        played.task, played.reward, played.done = task, 0.0, False

    def _find(self, fields: Mapping[str, Any]) -> Played:
        number = fields.get(self.format.env_field)
        if isinstance(number, str) and number.isdecimal():
            number = int(number)
        if not isinstance(number, int) or number not in self._played:
            raise ProtocolError(f"there is no environment {number!r}: {self.format.env_field} comes from /create")
        played = self._played[number]
        played.seen = time.monotonic()
        return played

    def _forget_silent(self) -> None:
        if self._timeout is not None and len(self._played) >= self._sessions:
            now = time.monotonic()
            for played in [each for each in self._played.values() if now - each.seen > self._timeout]:
                self._played.pop(played.number).splits.close()


def _task_ids(splits: Splits, name: str | None, names: Sequence[str | None]) -> tuple[str, ...]:
    try:
        return splits.task_split(name).task_ids
    except ValueError:  # these data lack the split
        if name == names[0]:
            raise
        return ()


def application(
    env_id: str,
    sessions: int = 16,
    timeout: float | None = 3600.0,
    task_ids: Sequence[str] | None = None,
    **arguments: Any,
) -> Starlette:
    """The application that serves an environment.

    Args:
        env_id: a Gymnasium id of an environment that has a split.
        sessions: environments at most, ≥ 1.
        timeout: seconds after which a silent environment may be forgotten; None: never.
        task_ids: the tasks in the order of their numbers; None: those of the format's splits.
        arguments: of the environment.

    Raises:
        ValueError: the environment has no task_split, or there is no such task.
    """
    server = Server(env_id, arguments, sessions, timeout, task_ids)

    async def answer(call: Callable[..., Any], *given: Any) -> JSONResponse:
        try:
            return JSONResponse(await run_in_threadpool(call, *given))
        except ProtocolError as error:
            return JSONResponse({"error": _encodable(error)}, error.status or server.format.error_status)
        except Exception as error:  # of the environment: no outcome of the task
            message = f"{type(error).__name__}: {' '.join(_encodable(error).split())}"
            return JSONResponse({"error": message}, max(500, server.format.error_status))

    async def posted(request: Request, call: Callable[[Mapping[str, Any]], Any]) -> JSONResponse:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > BODY:
                return JSONResponse({"error": f"a request has at most {BODY} bytes"}, 413)
        try:
            fields = json.loads(body or b"{}")
        except (ValueError, RecursionError) as error:
            return JSONResponse({"error": f"the body is no JSON: {_encodable(error)}"}, 422)
        if not isinstance(fields, dict):
            return JSONResponse({"error": "the body must be a JSON object"}, 422)
        return await answer(call, fields)

    def post(call: Callable[[Mapping[str, Any]], Any]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> JSONResponse:
            return await posted(request, call)

        return endpoint

    def get(name: str) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> JSONResponse:
            return await answer(server.page, name, dict(request.query_params))

        return endpoint

    async def hello(request: Request) -> JSONResponse:
        return JSONResponse(f"This is environment {env_id}, with {len(server.tasks)} tasks.")

    async def listed(request: Request) -> JSONResponse:
        return await answer(server.list)

    calls = {"create": server.create, "reset": server.reset, "step": server.step, "close": server.close}
    return Starlette(
        routes=[
            Route("/", hello),
            Route("/list_envs", listed),
            *(Route(f"/{name}", post(call), methods=["POST"]) for name, call in calls.items()),
            *(Route(f"/{name}", get(name)) for name in server.format.pages),
        ]
    )


def _encodable(error: Exception) -> str:
    """An error's text, without halves of surrogate pairs, which a client's text may hold."""
    return str(error).encode("utf-8", "replace").decode()


__all__ = ["Played", "Server", "WireFormat", "application"]

"""Tools, calls and results (Agent-R1, arXiv 2511.14460, "BaseTool").

A tool reports what happened; the environment (:mod:`roleagent.envs.tools`) decides what that means for the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


class ToolError(Exception):
    """A tool refuses a call. The agent reads the message, the call counts as failed, and the episode goes on."""


class CallTimeout(ToolError):
    """A tool got no answer in time: as :class:`ToolError`, and the call counts as a timeout."""


class EpisodeError(Exception):
    """The world behind a tool is unusable, such as a server that has died: the episode is an error, not an outcome."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool, as a model wrote it.

    Attributes:
        name: of the tool.
        arguments: by parameter name, JSON values; not yet checked against the tool's schema.
        id: what the server calls this call (native tool calls); None for calls read from text.
    """

    name: str
    arguments: Mapping[str, Any]
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a tool.

    Attributes:
        text: what the agent reads.
        success: whether the tool did what it was asked for.
        reward: the tool's own reward for this call (term ``process``); None: none.
        images: of any type; counted and kept in the trajectory.
        info: anything else, for logs and judges. The agent does not read it.
    """

    text: str
    success: bool = True
    reward: float | None = None
    images: tuple[Any, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Tool(Protocol):
    """Anything with a name, a description, a schema and ``execute``.

    ``execute`` may be async; or a tool has ``is_async`` and ``start``, which returns its coroutine. A tool may also
    have ``batch_execute(list of arguments, list of states)``, which returns one value or exception per call, the
    attributes ``random``, ``network`` and ``read_only`` (all False by default), ``takes_state`` (True by default), and
    ``timeout`` in seconds, in place of the environment's.

    A tool with a server may have ``begin(episode, isolation) -> Tool``, the tool of one episode (``episode`` is an
    integer, the same for all tools of the episode; ``isolation`` is the environment's argument), ``end(episode)``,
    which follows it, and ``check_ready()``, which raises ``RuntimeError`` or ``OSError`` if it cannot be used now. The
    tool of an episode may have ``set_timeout(seconds)``, which follows ``begin`` with the environment's timeout.

    Attributes:
        name: what a call names.
        description: what a model reads about it.
        parameters: a JSON Schema of the arguments, of type ``object``.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]

    def execute(self, arguments: Mapping[str, Any], state: Any) -> Result | Any:
        """Runs the tool.

        Args:
            arguments: checked against ``parameters``.
            state: the episode's own state; the tool may change it.

        Returns:
            A :class:`Result`, or a JSON value that becomes its text.

        Raises:
            ToolError: the call is refused.
            EpisodeError: the episode cannot go on.
        """
        ...

"""Converts a model's reply to tool calls: the only place that knows the formats of calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import gymnasium

from roleagent.envs.tools.calls.broker import PreparedCall, prepared_calls
from roleagent.envs.tools.calls.command import answer_command, call_command, error_command, read_command
from roleagent.envs.tools.formats import FORMATS, Reading, answer_text
from roleagent.envs.wrappers.tags import Parsed, Tags, Think, predictions_of
from roleagent.spaces import Unicode
from roleagent.tools import Call, Tool

Answer = Literal["tag", "plain"]


@dataclass(frozen=True)
class ToolReader:
    """Reads and writes replies in one format (see :class:`~roleagent.envs.wrappers.tags.ReplyReader`).

    Attributes:
        format: a name of ``roleagent.envs.tools.formats.FORMATS``.
        think: whether a thought is forbidden, allowed or demanded.
        answer: whether an answer needs its tag, or any reply without calls is one.
        horizon: predictions read from a reply.
        max_calls: of one reply that are run.
        tools: that may be called; the format ``tags`` reads them.
    """

    format: str = "hermes"
    think: Think = "optional"
    answer: Answer = "tag"
    horizon: int = 0
    max_calls: int = 1
    tools: tuple[Tool, ...] = ()

    @property
    def stops(self) -> tuple[str, ...]:
        """Closing tags that end a reply; none where it may hold several calls."""
        return self.tags[1::2] if self.max_calls == 1 else ()

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that a tokenizer from scratch has as tokens."""
        answer = ("<answer>", "</answer>") if self.answer == "tag" else ()
        return (*FORMATS[self.format].tags(self.tools), *answer)

    @property
    def form(self) -> str:
        """The sentences of a prompt about the form of a reply."""
        call, answer = self._forms
        many = "one call of a tool" if self.max_calls == 1 else f"up to {self.max_calls} calls of tools"
        return f"Each of your replies is {many}, written as {call}, or the answer, written as {answer}."

    @property
    def _forms(self) -> tuple[str, str]:
        return FORMATS[self.format].form, "<answer>…</answer>" if self.answer == "tag" else "plain text"

    def read(self, reply: Any) -> Parsed:
        """The command and the predictions of a reply: a text, or a server's message. Never raises."""
        return self.command(reply)[0]

    def command(self, reply: Any) -> tuple[Parsed, str, int]:
        """The result of :meth:`read`, the command for the environment, and the number of repaired calls.

        The command of a malformed reply explains why, for the agent to read.
        """
        if isinstance(reply, Mapping) and self.format != "native":  # a server has read the calls
            return replace(self, format="native").command(reply)
        reading = FORMATS[self.format].read(reply, self.tools, self.answer == "plain")
        return *self._parsed(reading), reading.repaired

    def write(self, command: str, literal: Callable[[str], str] = str) -> str:
        """The reply that a command is read from; ``""`` for one that is neither calls nor an answer."""
        found = read_command(command)
        if found.answer is not None:
            return answer_text(found.answer, self.answer == "plain", literal)
        calls = [call for call in found.calls if isinstance(call, Call)]
        return FORMATS[self.format].write(calls, self.tools, literal) if calls else ""

    def _parsed(self, reading: Reading) -> tuple[Parsed, str]:
        predictions = tuple(reading.predictions.get(ahead, "") for ahead in range(1, self.horizon + 1))
        error = reading.error or _thoughts(self.think, reading.thoughts)
        wrong = [call for call in reading.calls if isinstance(call, str)]
        if error or len(wrong) == len(reading.calls) > 0:
            error = error or wrong[0]
            wanted = "The reply is malformed: {}. Write {} or {}.".format(error, *self._forms)
            return Parsed("", predictions, error), error_command(wanted)
        command = answer_command(reading.answer) if reading.answer is not None else call_command(reading.calls)
        return Parsed(command, predictions, wrong[0] if wrong else None), command


def _thoughts(think: Think, count: int) -> str | None:
    if think == "required" and count != 1:
        return f"{count or 'no'} <think> block{'s' * (count > 1)}"
    return "a <think> block" if think == "none" and count else None


class ToolTags(gymnasium.Wrapper, gymnasium.utils.RecordConstructorArgs):
    """Lets a model's raw reply be the action of an environment of tools, as :class:`Tags` does for other commands.

    A malformed reply costs a turn and is answered with what was wrong. ``info["format_error"]`` has the reason (None
    where all is well), and ``info["counters"]["repaired"]`` the calls that had to be repaired.

    Args:
        env: an environment whose attribute ``tools`` lists what can be called.
        format: a name of ``roleagent.envs.tools.formats.FORMATS``.
        think: whether a ``<think>`` block is forbidden (``"none"``), ``"optional"`` or ``"required"``.
        answer: ``"tag"``: an answer is ``<answer>…</answer>``; ``"plain"``: any reply without calls is one.
        horizon: predictions read from a reply; None: as many as the environment takes.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        format: str = "hermes",
        think: Think = "optional",
        answer: Answer = "tag",
        horizon: int | None = None,
    ):
        gymnasium.utils.RecordConstructorArgs.__init__(self, format=format, think=think, answer=answer, horizon=horizon)
        gymnasium.Wrapper.__init__(self, env)
        for name, value, choices in (
            ("format", format, tuple(FORMATS)),
            ("think", think, get_args(Think)),
            ("answer", answer, get_args(Answer)),
        ):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
        if not env.has_wrapper_attr("tools"):
            raise ValueError(f"{env} has no tools: Tags is the wrapper for other commands")
        self.format = format
        self._predictions, self.horizon = predictions_of(env, horizon)
        self.think: Think = think
        self.answer: Answer = answer
        self.action_space = Unicode()

    @property
    def reader(self) -> ToolReader:
        """Reads and writes replies, with the tools of the current task."""
        tools: Sequence[Tool] = self.env.get_wrapper_attr("tools")
        most = self.env.get_wrapper_attr("max_calls") if self.env.has_wrapper_attr("max_calls") else 1
        return ToolReader(self.format, self.think, self.answer, self.horizon, most, tuple(tools))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, _with(info, None, 0)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        parsed, inner, repaired = self._inner(action)
        observation, reward, terminated, truncated, info = self.env.step(inner)
        return observation, reward, terminated, truncated, _with(info, parsed.error, repaired)

    def prepare(self, action: Any) -> list[PreparedCall] | None:
        """The calls that a reply makes (see :meth:`~roleagent.envs.tools.env.ToolEnv.prepare`)."""
        return prepared_calls(self.env, self._inner(action)[1])

    def _inner(self, action: Any) -> tuple[Parsed, Any, int]:
        parsed, command, repaired = self.reader.command(action)
        inner = {"command": command, "predictions": parsed.predictions} if self._predictions else command
        return parsed, inner, repaired


def _with(info: dict[str, Any], error: str | None, repaired: int) -> dict[str, Any]:
    return {**info, "format_error": error, "counters": {**info.get("counters", {}), "repaired": repaired}}


def read_replies(
    env: gymnasium.Env,
    think: Think = "optional",
    horizon: int | None = None,
    tool_format: str = "hermes",
    revisions: int = 0,
) -> Tags | ToolTags:
    """The environment in the wrapper that reads a model's replies: :class:`ToolTags` if it has ``tools``, else
    :class:`Tags`.

    Raises:
        ValueError: ``revisions`` are wanted where replies are calls of tools, which have no notes.
    """
    if env.has_wrapper_attr("tools"):
        if revisions:
            raise ValueError("calls of tools have no <revise> notes: set prompt.revisions=none")
        return ToolTags(env, tool_format, think, horizon=horizon)
    return Tags(env, think, horizon=horizon, revisions=revisions)


__all__ = ["ToolReader", "ToolTags", "read_replies"]

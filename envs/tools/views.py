"""Existing environments as environments of tools: the same tasks, observations and rewards, played by calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import gymnasium

from roleagent.env_card import Instructions, card_of
from roleagent.envs.tools.calls.broker import CallResult
from roleagent.envs.tools.calls.command import INVALID, Command, answer_command, call_command, read_command
from roleagent.envs.tools.calls.shown_text import neutralize
from roleagent.envs.tools.calls.step_calls import StepCalls
from roleagent.envs.tools.definition.command_tools import DEFAULT, CommandTools
from roleagent.envs.tools.definition.function_tool import DescribedTool, function_schema
from roleagent.envs.tools.definition.schema import ArgumentCheck
from roleagent.tools import Call, Result
from roleagent.types import Expert, reward_terms

VIEWS = ("tools", "fine")
"""Values of ``env.kwargs.view``: a few general tools, or one for each verb."""
_REFUSAL = "only the environment can carry out its commands"
_UNCUT = 10**9  # words: an environment limits its own observations


class ToolView(gymnasium.Wrapper, gymnasium.utils.RecordConstructorArgs):
    """An environment whose commands are calls of tools, with the same tasks, observations, rewards and steps.

    An action is a command of :class:`~roleagent.envs.tools.ToolEnv`, as :class:`~roleagent.envs.wrappers.ToolTags`
    writes it from a model's reply. One call is played per step. A call that is refused, and a malformed reply, cost a
    step, as any invalid command does, and are answered with the reason. Any other text is played as the environment's
    own command, for scripted agents.

    ``info`` has in addition ``tools``, ``calls`` and ``counters`` (as ``ToolEnv``), and ``command``, the environment's
    command that was played.

    Args:
        env: an environment, or a Gymnasium id.
        fine: whether there is a tool for each verb.
        format_gate: whether a malformed reply or a missing answer costs the outcome (Eq. 6 of Agent-R1): the last step
            has the term ``format``, as in ``ToolEnv``, and ``task`` counts only where it is 0.
        options: of :func:`gymnasium.make`, for an id.

    Raises:
        ValueError: the environment has tools already, or no tools for each verb.

    >>> view = ToolView("RoleAgent/Toy-v0")
    >>> view.reset(options={"task_id": "bring-egg-tray-1"})[1]["tools"][0]["function"]["name"]
    'act'
    >>> view.step('{"calls": [{"name": "act", "arguments": {"command": "look"}}]}')[0][:34]
    'You are in the middle of the kitch'
    """

    max_calls = 1

    def __init__(self, env: gymnasium.Env | str, fine: bool = False, format_gate: bool = False, **options: Any):
        gymnasium.utils.RecordConstructorArgs.__init__(self, fine=fine, format_gate=format_gate)
        env = gymnasium.make(env, disable_env_checker=True, **options) if isinstance(env, str) else env
        gymnasium.Wrapper.__init__(self, env)
        if env.has_wrapper_attr("tools"):
            raise ValueError(f"{card_of(env).env_id or env} is an environment of tools: leave the view out")
        found: CommandTools = card_of(env).load("command_tools") or DEFAULT
        if fine and not found.fine:
            raise ValueError(f"{card_of(env).env_id or env} has no tools for each verb: say view=tools")
        self.fine, self.format_gate, self._view = fine, format_gate, found
        self._commands = found.fine if fine else found.tools
        self._by_name = {tool.name: tool for tool in self._commands}
        self._offer({})

    @property
    def tools(self) -> tuple[DescribedTool, ...]:
        """The tools of the current task."""
        return tuple(self._tools.values())

    @property
    def instructions(self) -> Instructions:
        """The world and the task; the commands are described by the tools."""
        ending = "When you know the answer, reply with <answer>the answer</answer>, as short as possible."
        form = f"Call one tool in each reply.{f' {ending}' if self._view.answer else ''}"
        return Instructions(self._view.rules, form=form)

    def hints(self, info: Mapping[str, Any]) -> list[str]:
        """The possible calls in this state, if the environment lists commands."""
        return list(self._view.hints(info))

    def call_of(self, command: str) -> str:
        """The action that plays a command of the environment; the command itself if no tool has it.

        >>> ToolView("RoleAgent/SearchQA-v0").call_of("search[Silver Harbor]")
        '{"calls": [{"name": "search", "arguments": {"query": "Silver Harbor"}}]}'
        """
        for tool in self._commands:
            arguments = tool.arguments_of(command)
            if arguments is not None:
                answers = tool.name == self._view.answer
                return answer_command(*arguments.values()) if answers else call_command([Call(tool.name, arguments)])
        return command

    def command_of(self, action: Any) -> str:
        """The environment's command that an action plays; ``""`` if none."""
        return self._read(action)[1]

    def walkthrough(self) -> tuple[str, ...]:
        """The environment's own walkthrough, as actions."""
        return tuple(map(self.call_of, self.get_wrapper_attr("unwrapped").walkthrough()))

    def calling_expert(self, expert: Expert) -> Expert:
        """The environment's expert, acting by calls."""
        return _CallingExpert(self, expert)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._offer(info)
        self._calls = StepCalls(self._tools, self._checks)
        self._malformed = 0
        text, _ = neutralize(observation, tuple(self._tools))
        return text, self._info(info, "")

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        read, command = self._read(action)
        observation, reward, terminated, truncated, info = self.env.step(command)
        calls = self._calls
        if command and calls.made:
            calls.enter([CallResult(Result(observation, success=bool(info.get("valid_action", True))))])
        text = calls.show(_UNCUT)
        calls.counters["malformed"] += read.error is not None or calls.any_malformed
        if not read.calls:
            text = read.error or neutralize(observation, tuple(self._tools))[0]
        elif not command:
            info = {**info, "valid_action": False}
        rewards = {**reward_terms(info, reward), **calls.terms}
        self._malformed += calls.counters["malformed"]
        if self.format_gate and (terminated or truncated):
            form = (bool(terminated) + (self._malformed == 0)) / 2 - 1
            reward = reward if form == 0 else 0.0
            rewards |= {"format": form, "task": rewards["task"] if form == 0 else 0.0}
        return text, reward, terminated, truncated, self._info({**info, "rewards": rewards}, command)

    def snapshot(self) -> tuple[Any, ...]:
        """The state of the episode (:class:`~roleagent.sharing.Restorable`).

        Raises:
            NotImplementedError: the environment has no snapshots.
        """
        if not self.env.has_wrapper_attr("snapshot"):
            raise NotImplementedError(f"{self.env.unwrapped} has no snapshots: replay the commands")
        return self.env.get_wrapper_attr("snapshot")(), self._possible, self._malformed

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Goes back to a snapshot."""
        inner, self._possible, self._malformed = snapshot
        self.env.get_wrapper_attr("restore")(inner)

    def _read(self, action: Any) -> tuple[Command, str]:
        """An action, and the environment's command in it."""
        read = read_command(action)
        self._calls = calls = StepCalls(self._tools, self._checks, self.max_calls)
        if read.error == INVALID:
            return replace(read, error=None), action if isinstance(action, str) else ""
        if read.answer is not None:
            if not self._view.answer:
                return Command(error="There is nothing to answer here: call a tool."), ""
            tool = self._by_name[self._view.answer]
            return read, tool.command(dict.fromkeys(tool.arguments, read.answer))
        ready = calls.prepare(read.calls, None, 0.0)
        return read, self._by_name[ready[0].tool.name].command(ready[0].arguments, self._possible) if ready else ""

    def _offer(self, info: Mapping[str, Any]) -> None:
        """The tools of a task that begins."""
        self._possible = info.get("admissible_actions") or ()
        values: dict[str, dict[str, None]] = {}
        for tool in self._commands:
            for found in map(tool.arguments_of, self._possible) if tool.listed else ():
                for name in tool.listed if found else ():
                    values.setdefault(name, {})[found[name]] = None  # type: ignore[index]
        known = {name: list(found) for name, found in values.items()}
        self._tools = {
            name: DescribedTool(name, tool.description, tool.schema(known), _REFUSAL)
            for name, tool in self._by_name.items()
        }
        self._checks = {name: _check(json.dumps(tool.parameters)) for name, tool in self._tools.items()}
        self._schemas = [function_schema(tool) for tool in self._tools.values()]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_checks": None, "_calls": None}  # validators cannot be pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._checks = {name: _check(json.dumps(tool.parameters)) for name, tool in self._tools.items()}

    def _info(self, info: Mapping[str, Any], command: str) -> dict[str, Any]:
        self._possible = info.get("admissible_actions") or ()
        report = {"tools": self._schemas, "calls": self._calls.described, "command": command}
        return {**info, **report, "counters": {**info.get("counters", {}), **self._calls.counters}}


@lru_cache(maxsize=1024)  # the tools of most tasks are those of others, and a check is slow to make
def _check(schema: str) -> ArgumentCheck:
    return ArgumentCheck(json.loads(schema))


class _CallingExpert:
    """An expert of commands that acts by calls."""

    def __init__(self, view: ToolView, expert: Expert):
        self._view, self._expert = view, expert

    def __getattr__(self, name: str) -> Any:
        return getattr(self._expert, name)

    def reset(self, goal: str, observation: str) -> None:
        self._expert.reset(goal, observation)

    def act(self) -> str:
        return self._view.call_of(self._expert.act())

    def observe(self, command: str, observation: str) -> None:
        self._expert.observe(self._view.command_of(command), observation)


__all__ = ["VIEWS", "ToolView"]

"""Plays groups of episodes that an agent program plays: a process per episode, answered by the policy.

A turn of the trajectory is one reply of the policy, with the first command that the program sends after it. Commands
without a reply of their own, and replies without a command, are turns as well.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from roleagent.agents.chat_renderer import ChatRenderer
from roleagent.agents.episode import Action, Ask, Backend, EnvError, Episode
from roleagent.agents.gateway.conversations import Conversations, Known
from roleagent.agents.gateway.protocol import BadRequest, ChatRequest, answer_of, error_of, read_reply, read_request
from roleagent.agents.gateway.server import GONE, Call, Gateway, Program
from roleagent.agents.rendering import PlainRenderer
from roleagent.agents.rollout import Rollout
from roleagent.config.settings import AgentConfig
from roleagent.options import ConfigError, shown
from roleagent.slow_notice import waiting
from roleagent.timer import Timer
from roleagent.types import Completion, Group, Request, Turn

QUIET = 1.0
"""Seconds after the newest request to the policy at which it answers those that it has, though programs are busy."""
_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What a request of any content may raise here, in a chat template or in a tokenizer. It is the program's mistake."""
_LINES = 3  # of the last words
_OF_TASK = ("task_id", "goal", "task_type", "split", "admissible_actions", "state", "grouping_state", "tools")


class _Requests:
    """A backend of :class:`~roleagent.agents.episode.Scheduler`: what programs ask for, and the policy's replies.

    The policy replies once every program waits for it, or :data:`QUIET` seconds after the newest request to it. So
    programs that think quickly are answered in the same batches in every run.

    Args:
        sample: replies to the requests of several episodes.
        gateway: serves the programs.
        watch: books the time of waiting for programs as ``environment``.
    """

    def __init__(self, sample: Callable[[Sequence[Ask]], list[list[Completion]]], gateway: Gateway, watch: Timer):
        self._sample, self._changed, self._watch = sample, gateway.changed, watch
        self._listening: dict[int, Program] = {}
        self._asked: dict[int, Ask] = {}
        self._newest = 0.0  # when the newest of them came

    def submit(self, slot: int, ask: Ask) -> None:
        if isinstance(ask.content, Program):
            self._listening[slot] = ask.content
        else:
            self._asked[slot], self._newest = ask, time.monotonic()

    def wait(self) -> list[tuple[int, Any]]:
        with self._watch("environment"), self._changed:
            while self._listening:
                news = [slot for slot, program in self._listening.items() if program.has_news]
                quiet = self._newest + QUIET - time.monotonic() if self._asked else math.inf
                if quiet <= 0 and not any(program.asks_policy for program in self._listening.values()):
                    break
                if news:
                    return [(slot, self._listening.pop(slot).take()) for slot in sorted(news)]
                rest = min(program.seconds_left for program in self._listening.values())
                self._changed.wait(min(rest, quiet))
        slots = sorted(self._asked)
        return list(zip(slots, self._sample([self._asked.pop(slot) for slot in slots]), strict=True))

    def close(self) -> None:
        pass


class ProgramRollout(Rollout):
    """Plays groups of episodes by an agent program.

    Its environments take bare commands.

    Args:
        agent: the program and its limits.
        log: receives the last words of the newest program that crashed or took too long.
        others: of :class:`~roleagent.agents.rollout.Rollout`; predictions are not asked for.
    """

    def __init__(self, *others: Any, agent: AgentConfig, log: Path, parts: Mapping[str, ProgramRollout] | None = None):
        super().__init__(*others, parts=parts)
        assert isinstance(self.renderer, ChatRenderer | PlainRenderer)
        self.chat_renderer: ChatRenderer | PlainRenderer = self.renderer
        self.agent, self.slots, self._log = agent, agent.processes, log
        self._warned = False

    def play(self, task_ids: Sequence[str], copies: int, *others: Any, **more: Any) -> list[Group]:
        with Gateway() as self._gateway:
            return super().play(task_ids, copies, *others, **more)

    def backend(self, temperature: float) -> Backend:
        return _Requests(partial(self.sample, temperature), self._gateway, self.watch)

    async def _play(self, episode: Episode, given: Sequence[Completion]) -> str:
        try:
            episode.begin()
        except EnvError as error:
            return str(error)
        try:
            program = Program(shlex.split(self.agent.command), self._gateway, self.agent.timeout)
        except OSError as error:
            return f"the agent program cannot be started: {error}"
        player = _ProgramPlayer(self, episode, program)
        try:
            while calls := await Ask(program):
                await player.answer(calls)
            return player.conclude()
        except EnvError as error:
            return str(error)
        finally:
            program.close()

    def report(self, task_id: str, program: Program) -> str:
        """Reports a program that has failed, the first time also as a warning; returns its last words."""
        output = program.output()
        said = f"the agent program {_ended(program, self.agent)} in task {task_id}: {_last_words(output)}"
        if program.end == "gave_up":
            return said
        if self._log.parent.is_dir():
            self._log.write_text(f"{said}\n\n{output}\n", encoding="utf-8")
            said += f" (all of it is in {self._log})"
        if not self._warned:
            warnings.warn(said, stacklevel=2)
        self._warned = True
        return said


def check_start(agent: AgentConfig) -> None:
    """Starts the program once, and ends it at its first request.

    Raises:
        ConfigError: it cannot be started, or ends or takes too long without a request.
    """
    with waiting("the agent program to ask for something"), Gateway() as gateway:
        try:
            program = Program(shlex.split(agent.command), gateway, agent.timeout)
        except OSError as error:
            raise ConfigError(f"agent.command cannot be started: {error}") from error
        try:
            with gateway.changed:
                while not program.has_news:
                    gateway.changed.wait(program.seconds_left)
                asked = program.take()
            if not asked:
                raise ConfigError(
                    f"the program of agent.command {_ended(program, agent)} without a request to the policy or the "
                    f"world: {_last_words(program.output())}"
                )
        finally:
            program.close()


def _ended(program: Program, agent: AgentConfig) -> str:
    return {"crashed": "crashed", "timeout": f"took more than {agent.timeout:g} s"}.get(program.end, "ended")


def _last_words(output: str) -> str:
    """The last lines of an output, in one; without indented ones, which in tracebacks are code and calls.

    >>> print(_last_words("/shop.js:1\\nthrow Error()\\n^\\n\\nError: no egg\\n    at main\\n\\nNode.js v20\\n"))
    'throw Error()' / 'Error: no egg' / 'Node.js v20'
    """
    lines = [line for line in output.splitlines() if re.search(r"\w", line)]
    plain = [line for line in lines if not line[0].isspace()] or lines
    return " / ".join(shown(line.strip()) for line in plain[-_LINES:]) or "it wrote nothing"


class _ProgramPlayer:
    """Answers a program in one episode, and records what it does."""

    def __init__(self, rollout: ProgramRollout, episode: Episode, program: Program):
        self._rollout, self._episode, self._program = rollout, episode, program
        self._conversations = Conversations(rollout.chat_renderer)
        self._unplayed: tuple[tuple[int, ...], Completion, int] | None = None  # a reply without a command so far
        self._replies, self._version, self._conversation = 0, rollout.policy.version, 0
        self._overlong = False  # whether the last request was
        assert episode.record is not None
        self._record = episode.record

    async def answer(self, calls: Sequence[Call]) -> None:
        """Answers some calls, in their order; what the policy has to reply to, last and at once.

        Raises:
            EnvError: the environment failed.
        """
        asked: list[tuple[Call, ChatRequest, Request, Known | None]] = []
        for call in calls:
            try:
                if call.kind != "chat/completions":
                    self._program.reply(call, 200, await self._act(call))
                elif call.is_awaited():
                    request = read_request(call.body)
                    asked.append((call, request, *self._prompt(request, len(asked))))
                else:
                    self._program.reply(call, *GONE)
            except BadRequest as error:
                self._program.reply(call, error.status, error_of(str(error), error.code))
            except _MALFORMED as error:
                self._program.reply(
                    call, 400, error_of(f"the request cannot be used ({type(error).__name__}: {error})")
                )
        if not asked:
            return
        completions: list[Completion] = await Ask([ask for _, _, ask, _ in asked])
        for (call, request, ask, before), sampled in zip(asked, completions, strict=True):
            if not call.is_awaited():  # its client took too long, and asks again: what nobody has read is not trained
                self._program.reply(call, *GONE)
                continue
            completion, text = self._cut(sampled, request)
            key = f"{self._program.key[:6]}-{self._replies}"
            message = read_reply(text, request.tools, self._rollout.prompt.call_format, key)
            number = self._conversations.add(request, ask.prompt_ids, before, completion, message)
            self._heard(ask.prompt_ids, completion, number)
            self._program.reply(call, 200, answer_of(message, ask.prompt_ids, completion, key))

    def conclude(self) -> str:
        """Ends the episode if its program has left it; returns the error of one that never asked the policy, or ""."""
        record, end = self._record, self._program.end
        if not (record.over and self._replies):
            self._play_silence()
            said = self._rollout.report(record.task.task_id, self._program)
            if not self._replies and not self._overlong:
                return f"{said}; it has not asked the policy anything"
            record.end("context" if self._overlong else end)
        return ""

    def _prompt(self, request: ChatRequest, others: int) -> tuple[Request, Known | None]:
        """What the policy is asked, and the conversation that this continues; ``others`` are asked at the same time."""
        rollout, most = self._rollout, self._rollout.config.action_tokens
        if self._replies + others >= rollout.agent.replies:
            if not self._record.over and not others:
                self._play_silence()
                self._end("max_steps")
            raise BadRequest(f"the episode is over after {rollout.agent.replies} replies (agent.replies)", status=403)
        prompt, before = self._conversations.prompt(request)
        limit = min(request.max_tokens or most, most)
        self._overlong = len(prompt) + limit > rollout.policy.context_length
        if self._overlong:
            raise BadRequest(
                f"the conversation has {len(prompt)} tokens, and the context {rollout.policy.context_length}",
                "context_length_exceeded",
            )
        tokens = [token for stop in request.stops if (token := rollout.policy.single_token(stop)) is not None]
        stops = rollout.policy.end_ids.union(tokens)
        return Request(prompt, self._episode.slot, limit, stops), before

    def _cut(self, sampled: Completion, request: ChatRequest) -> tuple[Completion, str]:
        """A reply up to the first of the request's stops, and its text without it."""
        read = self._rollout.renderer.read
        text = read(sampled.token_ids)
        if not any(stop in text for stop in request.stops):
            return sampled, text
        size = next(
            size
            for size in range(1, len(sampled.token_ids) + 1)
            if any(stop in read(sampled.token_ids[:size]) for stop in request.stops)
        )
        text = read(sampled.token_ids[:size])
        text = text[: min(text.index(stop) for stop in request.stops if stop in text)]
        kept = replace(
            sampled, token_ids=sampled.token_ids[:size], logprobs=sampled.logprobs[:size], finish_reason="stop"
        )
        return kept, text

    def _heard(self, prompt: tuple[int, ...], completion: Completion, number: int) -> None:
        """Keeps a reply for the command that follows it. One behind the end of the episode is not trained."""
        self._replies += 1
        self._rollout.stats.action_tokens += len(completion.token_ids)
        self._version = completion.policy_version
        if not self._record.over:
            self._play_silence()
            self._unplayed = prompt, completion, number

    async def _act(self, call: Call) -> dict[str, Any]:
        """What the environment, or the gateway in its place, answers to a call.

        Raises:
            BadRequest: it is no command and no reward, or the episode is over.
            EnvError: the environment failed.
        """
        record = self._record
        if call.kind == "episode":
            return self._situation()
        if record.over:
            raise BadRequest("the episode is over", status=410)
        if call.kind == "reward":
            self._reward(call.body)
            return self._situation()
        action = call.body.get("action")
        if action is None:
            raise BadRequest('a step is {"action": …}, a command of the environment')
        prompt, completion = self._said()
        command = action if isinstance(action, str) else json.dumps(action, ensure_ascii=False)
        command = command.encode(errors="replace").decode()  # half a character of UTF-16 cannot be stored
        await self._episode.step(Action(command, None, prompt, completion))
        self._note()
        if record.over:
            self._program.finish()
        return {**self._situation(), "reward": float(record.turns[-1].rewards["task"])}

    def _reward(self, body: Mapping[str, Any]) -> None:
        """Ends the episode with the reward that the program reports.

        Raises:
            BadRequest: it is no number.
        """
        reward, won = body.get("reward"), body.get("won")
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
            raise BadRequest(f'a reward is {{"reward": 0.5}}, a number, and not {shown(reward)}')
        if not isinstance(won, bool | None):
            raise BadRequest(f"won must be true or false, not {shown(won)}")
        prompt, completion = self._said()
        won = reward > 0 if won is None else won
        self._add(prompt, completion, float(reward), True, {"won": won})
        self._program.finish()

    def _end(self, reason: str) -> None:
        self._record.end(reason)
        self._program.finish()

    def _said(self) -> tuple[tuple[int, ...], Completion]:
        """The reply that a command follows; none for a second command."""
        if self._unplayed is None:
            return (), Completion((), (), "stop", self._version)
        (prompt, completion, self._conversation), self._unplayed = self._unplayed, None
        return prompt, completion

    def _play_silence(self) -> None:
        """Records a reply that no command has followed: nothing has happened."""
        if self._unplayed is not None:
            self._add(*self._said(), 0.0, False, {"won": False})

    def _add(
        self, prompt: tuple[int, ...], completion: Completion, reward: float, ends: bool, more: Mapping[str, Any]
    ) -> None:
        """Records a turn that the environment does not see."""
        record = self._record
        observation, info = record.observation, record.info
        known = {name: info[name] for name in _OF_TASK if name in info}
        own = {**known, "valid_action": True, "command": "", "rewards": {}, "silent": True, **more}
        turn = record.add("", "", reward, ends, False, own, prompt_ids=prompt, completion=completion)
        record.turns[-1] = _without_state(turn)
        record.observation, record.info = observation, info
        self._note()

    def _note(self) -> None:
        """Notes the conversation of the newest turn."""
        turn = self._record.turns[-1]
        self._record.turns[-1] = replace(turn, info={**turn.info, "conversation": self._conversation})
        self._rollout.stats.turns += 1

    def _situation(self) -> dict[str, Any]:
        """The task and the newest observation, in JSON."""
        record = self._record
        task = {name: getattr(record.task, name) for name in ("env_id", "task_id", "split", "task_type", "goal")}
        info = {name: value for name, value in record.info.items() if name in ("admissible_actions", "tools")}
        return {**task, "observation": record.observation, **info, "won": record.won, "over": record.over}


def _without_state(turn: Turn) -> Turn:
    """A turn that the environment does not see: what the program replied to is not its state, and it would be compared
    with the commands there."""
    info = {name: value for name, value in turn.info.items() if name not in ("state", "grouping_state")}
    return replace(turn, state=None, grouping_state=None, info=info)


__all__ = ["QUIET", "ProgramRollout", "check_start"]

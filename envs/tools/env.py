"""``RoleAgent/ToolEnv-v0``: tasks that are solved by calling tools (Agent-R1, arXiv 2511.14460)."""

from __future__ import annotations

import copy
import itertools
import json
import warnings
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, Literal

import gymnasium

from roleagent.envs.searchqa.scoring import Score
from roleagent.envs.tools.calls.broker import CallResult, PreparedCall, shared_broker
from roleagent.envs.tools.calls.command import INVALID, Command, answer_command, call_command, read_command
from roleagent.envs.tools.calls.shown_text import neutralize
from roleagent.envs.tools.calls.step_calls import COUNTERS, StepCalls, task_report
from roleagent.envs.tools.definition.function_tool import function_schema
from roleagent.envs.tools.definition.load import load_tools
from roleagent.envs.tools.definition.schema import ArgumentCheck
from roleagent.envs.tools.examples import EXAMPLES, example_tasks
from roleagent.envs.tools.judges import JUDGES, Episode, Judge, check_answer, judge_of, score_of, terms_of
from roleagent.envs.tools.tasks import SPLITS, Tasks, ToolTask, open_tasks
from roleagent.envs.tools.written import is_written, written_task
from roleagent.options import shown
from roleagent.spaces import Unicode, check_render_mode
from roleagent.tasks.grammar import OpenTaskSplit
from roleagent.tasks.split import TaskSplit, TaskSplitEnv
from roleagent.tools import Call, EpisodeError, Tool

ANSWERED = "The answer was taken."
_EPISODES = itertools.count()


class ToolEnv(TaskSplitEnv):
    """Solve a task by calling tools, then answer.

    A command is one JSON line: ``{"calls": [{"name": …, "arguments": {…}}]}`` or ``{"answer": "…"}``. The wrapper
    :class:`~roleagent.envs.wrappers.ToolTags` reads them from what a model writes. Every call is run or refused with a
    reason, and its result is the observation. An answer ends the episode; after ``max_steps`` commands it is cut off.
    Both are judged. No reply and no result raises, except that a tool which cannot be used any more
    (:class:`~roleagent.tools.EpisodeError`) ends the episode with that error, which is no outcome.

    ``info`` holds, besides the keys of :mod:`roleagent.types`:

    ==================  ================================================================================================
    ``tools``           the tools of this task, as chat templates and OpenAI-compatible servers take them
    ``calls``           the step's calls: ``name``, ``arguments``, ``id``, ``error`` (None: it succeeded), ``result``
                        (the text), ``seconds``, ``reward``
    ``answer``          what was answered, ``""`` until then
    ``em``, ``f1``,     of the answer, in [0, 1]; 0 until there is one
    ``sub_em``
    ``counters``        events of this step by name (:data:`~roleagent.envs.tools.calls.step_calls.COUNTERS`)
    ``images``          the images of this step's results, where there are any; the agent reads their sizes and texts
    ==================  ================================================================================================

    ``rewards`` has ``task`` (the judge's, on the last step). A step with calls has ``tool`` (the share that succeeded),
    ``tool_error`` (the number that did not) and ``process`` (the sum of the results' own rewards). With ``format_gate``
    the last step has ``format`` (Eq. 6 of the paper): minus a half for an episode with a malformed reply, and minus a
    half for one without an answer; ``task`` then counts only where it is 0.

    ``state`` is the observation. It is None after an answer, and where a tool declares itself ``random`` or
    ``network``: with such a tool ``observations_repeat`` is False, and a replay is compared by rewards and ends alone.

    Args:
        tools: see :func:`~roleagent.envs.tools.definition.load.load_tools`; with None for both, a small example.
        tasks: see :func:`~roleagent.envs.tools.tasks.open_tasks`.
        judge: ``exact_match``, ``f1``, ``sub_em``, ``number``, ``state``, ``calls``, or a function of task and episode.
        split: ``"train"``, ``"valid"``, ``"test"`` or ``"all"``.
        max_steps: commands until the episode is cut off, ≥ 1.
        max_calls: calls of one command that are run, 1 to 8; the others are refused.
        max_words: of a result; a longer one is cut in its middle. At least 1.
        timeout: seconds of a call, > 0. A function that takes longer goes on by itself, and may still change the state.
        format_gate: whether a malformed reply costs the outcome (Eq. 6).
        coerce: whether texts such as ``"3"`` are read as numbers where the schema wants these.
        isolation: of the tools' servers, see :mod:`roleagent.envs.tools.mcp`; ``state`` belongs to the episode anyway.
        generated_tasks: whether tasks of :class:`~roleagent.envs.tools.task_grammar.ToolTaskGrammar` can be played; of
            the training split only.
        render_mode: ``"ansi"`` renders the last observation.

    Raises:
        ValueError: an argument has no meaning, or tools or tasks cannot be used; one line.
    """

    ENV_ID = "RoleAgent/ToolEnv-v0"
    _is_generated = staticmethod(is_written)

    def __init__(
        self,
        tools: Any = None,
        tasks: Any = None,
        judge: Any = "exact_match",
        split: str = "train",
        max_steps: int = 5,
        max_calls: int = 1,
        max_words: int = 375,
        timeout: float = 10.0,
        format_gate: bool = False,
        coerce: bool = False,
        isolation: Literal["episode", "session", "process", "shared"] = "episode",
        generated_tasks: bool = False,
        render_mode: str | None = None,
    ):
        for name, value, least, most in (
            ("max_steps", max_steps, 1, 10_000),
            ("max_calls", max_calls, 1, 8),
            ("max_words", max_words, 1, 1_000_000),
            ("timeout", timeout, 0.001, 86_400),
        ):
            if not least <= value <= most:
                raise ValueError(f"{name} must be from {least} to {most}, not {value}")
        self.render_mode = check_render_mode(render_mode, self.metadata)
        if (tools is None) != (tasks is None):
            raise ValueError(f"{'tools' if tools is None else 'tasks'} are missing: tools and tasks belong together")
        if tools is None:
            tools, tasks = EXAMPLES, example_tasks()
        self._source, self._judge = tools, judge
        self._open(tools, judge)
        self._tasks: Tasks = open_tasks(tasks, self.ENV_ID)
        self._generated_tasks = generated_tasks
        self.task_split = self._find_task_split(split)
        self._check_tasks()
        for tool in self._tools.values():
            getattr(tool, "check_isolation", lambda kind: None)(isolation)
        self.max_steps, self.max_calls, self.max_words = max_steps, max_calls, max_words
        self.timeout, self.format_gate, self.coerce, self.isolation = timeout, format_gate, coerce, isolation
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self._task: ToolTask | None = None
        self._text = self._situation = ""
        self._episode: int | None = None
        self._offered: dict[str, Tool] = {}
        self._results: list[CallResult] | None = None  # for the step that follows

    def _open(self, tools: Any, judge: str | Judge) -> None:
        """Loads what a pickle does not hold."""
        self._tools = {tool.name: tool for tool in load_tools(tools)}
        self._checks = {name: ArgumentCheck(tool.parameters) for name, tool in self._tools.items()}
        self._schemas = {name: function_schema(tool) for name, tool in self._tools.items()}
        self._default_judge = judge_of(judge)

    def _check_tasks(self) -> None:
        """Refuses tasks with an unknown tool or judge, with calls that would be refused, or without a usable answer."""
        for task in self._tasks.by_id.values():
            self.check_task(task)

    def check_task(self, task: ToolTask) -> None:
        """Refuses a task with an unknown tool or judge, with calls that would be refused, or without a usable answer.

        Raises:
            ValueError: one line.
        """
        for name in task.tools:
            if name not in self._tools:
                raise ValueError(f"the task {task.id!r} has the tool {name!r}; there are {', '.join(self._tools)}")
        offered = task.tools or tuple(self._tools)
        for call in task.calls:
            if call["name"] not in offered:
                name = shown(call["name"])
                raise ValueError(f"the task {task.id!r} calls the tool {name}; there are {', '.join(offered)}")
            if problem := self._checks[call["name"]].problem(call.get("arguments", {})):
                raise ValueError(f"the task {task.id!r} calls {call['name']} wrongly: {problem}")
        check_answer(task, self.judge_name(task))

    def judge_name(self, task: ToolTask) -> str:
        """The name of the judge that scores a task."""
        return task.judge or str(self._judge)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that the current task offers; before the first task, all."""
        return tuple((self._offered or self._tools).values())

    @property
    def data_info(self) -> dict[str, str]:
        """The tasks: the example's, or the user's own by their digest and that of the tools as the agent reads them."""
        if self._source == EXAMPLES:
            return {"source": "built in"}
        tools = sha256(json.dumps(self.schemas, sort_keys=True, default=str).encode()).hexdigest()[:16]
        return {"source": "own", "digest": self._tasks.digest, "tools": tools}

    @property
    def observations_repeat(self) -> bool:
        """Whether equal commands have equal results."""
        return not any(tool.random or tool.network for tool in self._tools.values())

    @property
    def tools_by_task(self) -> bool:
        """Whether a task offers fewer tools than there are."""
        return any(task.tools and set(task.tools) != set(self._tools) for task in self._tasks.by_id.values())

    @property
    def state(self) -> dict[str, Any]:
        """The episode's own state, as the tools have left it; empty before the first task."""
        return getattr(self, "_state", {})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begins ``options["task_id"]``, or a task of the split drawn with ``np_random``.

        Raises:
            ValueError: the split has no such task.
        """
        super().reset(seed=seed)
        task_id = self.task_split.requested(options, self.np_random)
        self._task = task = self.task(self.task_split.require(task_id))
        if is_written(task.id):
            self.check_task(task)
        self._end_episode()
        self._episode = next(_EPISODES)
        names = task.tools or tuple(self._tools)
        self._offered = {name: self._begin(self._tools[name]) for name in names}
        self._state = copy.deepcopy(dict(task.state or {}))
        self._text, _ = neutralize(task.prompt, tuple(self._offered))  # a data set's text may hold markers
        self._situation = self._text
        self._steps, self._malformed = 0, 0
        self._made: list[Call] = []
        self._results = None
        return self._text, self._info({}, state=self._text, grouping_state=self._text)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Runs the calls of a command one after another, or takes its answer.

        Raises:
            EpisodeError: a tool cannot be used any more.
        """
        results, self._results = self._results, None
        if results is None or self._prepared_action != action:
            calls = self.prepare(action)
            results = shared_broker().run([calls])[0] if calls else []
        return self._end_step(results)

    def finish(self, results: Sequence[CallResult]) -> None:
        """Takes the results of the calls that :meth:`prepare` returned, in their order, for the step that follows."""
        self._results = list(results)

    def prepare(self, action: Any) -> list[PreparedCall]:
        """Reads a command and checks its calls, so that the calls of many environments can be run together.

        :meth:`finish` takes the results. Without it :meth:`step` prepares the command again, and runs its calls.

        Returns:
            The calls to run. Those with one ``state`` must run one after another, in this order.
        """
        if self._steps is None or self._task is None:
            raise gymnasium.error.ResetNeeded("the episode is over or has not begun: call reset() before step()")
        self._command: Command = read_command(action)
        self._prepared_action, self._results = action, None
        self._calls = StepCalls(self._offered, self._checks, self.max_calls, self.coerce)
        return self._calls.prepare(self._command.calls, self._state, self.timeout)

    def _end_step(self, results: Sequence[CallResult]) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Observation, rewards and ``info`` of a step whose calls have been run."""
        task, steps, command, calls = self._task, self._steps, self._command, self._calls
        assert task is not None and steps is not None
        try:
            calls.enter(results)
        except EpisodeError:
            self._steps = None
            self._end_episode()
            raise
        shown_text = calls.show(self.max_words)
        answered, malformed = command.answer is not None, command.error is not None or calls.any_malformed
        self._text = shown_text if command.calls else ANSWERED if answered else (command.error or INVALID)
        self._malformed += malformed
        calls.counters["malformed"] += malformed
        self._made += calls.made
        valid = answered or calls.any_succeeded
        self._situation = self._text if valid else self._situation
        self._steps = steps + 1
        truncated = not answered and self._steps >= self.max_steps
        rewards, score = {"task": 0.0, **calls.terms}, Score()
        if answered or truncated:
            episode = Episode(command.answer, tuple(self._made), self._state, self._malformed, self._steps)
            score = score_of(task, episode)
            rewards |= self._outcome(task, episode)
        info = self._info(
            rewards,
            won=rewards["task"] >= 1.0,
            valid_action=valid,
            state=None if answered or calls.unpredictable else self._text,
            grouping_state=None if answered else self._situation,
            calls=calls.described,
            answer=command.answer or "",
            counters=calls.counters,
            **score._asdict(),
            **({"images": calls.images} if calls.images else {}),
        )
        if answered or truncated:
            self._steps = None
            self._end_episode()
        return self._text, rewards["task"], answered, truncated, info

    def _outcome(self, task: ToolTask, episode: Episode) -> dict[str, float]:
        """The terms of the last step."""
        judge = JUDGES[task.judge] if task.judge else self._default_judge
        terms = terms_of(judge(task, episode))
        if terms["task"] > 1:
            warnings.warn("a judge gave more than 1: let 1 be whole success, for it counts as won", stacklevel=2)
        if self.format_gate:
            form = ((episode.answer is not None) + (episode.malformed == 0)) / 2 - 1
            terms |= {"format": form, "task": terms["task"] if form == 0 else 0.0}
        return terms

    def walkthrough(self) -> tuple[str, ...]:
        """The task's own ``calls``, one per step, and its answer; empty where it brings none."""
        if self._task is None:
            raise gymnasium.error.ResetNeeded("there is no task yet: call reset() before walkthrough()")
        if not self._task.calls:
            return ()
        calls = [call_command([Call(call["name"], call.get("arguments", {}))]) for call in self._task.calls]
        answer = self._task.answer
        answer = next(iter(answer), None) if isinstance(answer, list | tuple) else answer
        return (*calls, answer_command(str(answer) if isinstance(answer, str | int | float) else "done"))

    def task(self, task_id: str) -> ToolTask:
        """A task, without playing it: a listed one, or a written one."""
        return written_task(task_id) if is_written(task_id) else self._tasks.by_id[task_id]

    def task_type(self, task_id: str) -> str:
        """The type of a task, without playing it."""
        return self.task(task_id).type

    def held_out_tasks(self) -> Iterator[ToolTask]:
        """The tasks of the evaluation splits."""
        return (self._tasks.by_id[task_id] for split in SPLITS[1:] for task_id in self._tasks.ids(split))

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """All tools, as chat templates and OpenAI-compatible servers take them."""
        return [*self._schemas.values()]

    def check_ready(self) -> None:
        """Checks the tools that have a check.

        Raises:
            RuntimeError, OSError: one cannot.
        """
        for tool in self._tools.values():
            getattr(tool, "check_ready", lambda: None)()

    def close(self) -> None:
        """Ends the episode of tools that have servers."""
        self._end_episode()

    def _begin(self, tool: Tool) -> Tool:
        begin = getattr(tool, "begin", None)
        if begin is None:
            return tool
        begun = begin(self._episode, self.isolation)
        getattr(begun, "set_timeout", lambda seconds: None)(self.timeout)
        return begun

    def _end_episode(self) -> None:
        if self._episode is not None:
            for tool in self._tools.values():
                getattr(tool, "end", lambda episode: None)(self._episode)
            self._episode = None

    def _find_task_split(self, split: str) -> TaskSplit:
        found = self._tasks.task_split(split)
        return OpenTaskSplit.of(found, self._is_generated) if self._generated_tasks else found

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_tools", "_checks", "_schemas", "_default_judge", "_calls")
        state = {name: value for name, value in super().__getstate__().items() if name not in left_out}
        return state | {"_offered": tuple(self._offered), "_episode": None, "_results": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._open(state["_source"], state["_judge"])
        super().__setstate__(state)
        playing = self._steps is not None
        self._episode = next(_EPISODES) if playing else None
        self._offered = {
            name: self._begin(self._tools[name]) if playing else self._tools[name] for name in self._offered
        }

    def _info(self, rewards: dict[str, float], **report: Any) -> dict[str, Any]:
        task = self._task
        assert task is not None
        tools = [self._schemas[name] for name in self._offered]
        known = task_report(task, self.task_split.split, tools, COUNTERS)
        return {**known, "rewards": rewards, **Score()._asdict(), **report}


__all__ = ["ANSWERED", "ToolEnv"]

"""The tasks that can be written for an environment of tools (GenEnv): a prompt, what judges it, and the gold calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from roleagent.envs.searchqa.text import contains, normalize
from roleagent.envs.tools.judges import JUDGES, numbers
from roleagent.envs.tools.tasks import ToolTask
from roleagent.envs.tools.written import task_of
from roleagent.tasks.free_form import FreeTaskGrammar, canonical, encode
from roleagent.tasks.grammar import Refused, TaskForm, TaskSpec
from roleagent.tools import EpisodeError

_TEXTS = ("exact_match", "f1", "sub_em", "number")  # judges that compare the answer with a text or a number


class ToolTaskGrammar(FreeTaskGrammar):
    """Tasks for the tools of an environment.

    The gold calls are run. A task is ``unsolvable`` if one of them fails, if the judge does not accept what they lead
    to, or if its answer is in no result: then nothing that the tools return makes it right. It is ``trivial`` if the
    prompt holds the answer, or if the judge accepts an episode without calls.
    """

    keys = MappingProxyType(
        {
            "prompt": "what the agent is asked",
            "answer": "what the judge compares with",
            "calls": 'the calls that solve it, in order: [{"name": …, "arguments": {…}}]',
            "judge": f"one of {', '.join(JUDGES)}; left out: that of all tasks",
            "state": "the state that the tools begin with; left out: none",
            "tools": "names of the tools that are offered; left out: all",
        }
    )
    optional = frozenset({"judge", "state", "tools"})

    def row_of(self, task_id: str) -> dict[str, Any] | None:
        task = self.env.task(task_id)
        if not task.calls:
            return None
        row = {name: getattr(task, name) for name in self.keys if getattr(task, name)}
        return json.loads(canonical({name: list(v) if isinstance(v, tuple) else v for name, v in row.items()}))

    def check_row(self, row: Mapping[str, Any]) -> None:
        try:
            task = task_of(encode(row), row)
            self.env.check_task(task)
        except ValueError:
            raise Refused("vocabulary") from None
        if not task.calls:
            raise Refused("vocabulary")

    def task_type(self, spec: TaskSpec) -> str:
        return self._task(spec).type

    def content(self, spec: TaskSpec) -> str:
        """The gold calls: the same ones in other words are the same task."""
        return _calls_of(self._task(spec))

    def held_out_contents(self) -> frozenset[str]:
        return frozenset(_calls_of(task) for task in self.env.held_out_tasks() if task.calls)

    def solve(self, spec: TaskSpec) -> Sequence[str]:
        prompt = normalize(self._task(spec).prompt)
        if prompt in (normalize(task.prompt) for task in self.env.held_out_tasks()):
            raise Refused("held_out")
        return super().solve(spec)

    def form(self) -> TaskForm:
        form = super().form()
        tools = "\n".join(f"- {json.dumps(schema['function'], ensure_ascii=False)}" for schema in self.env.schemas)
        return form._replace(description=f"{form.description}\nThe agent has these tools:\n{tools}")

    def _task(self, spec: TaskSpec) -> ToolTask:
        return task_of(self.task_id(spec), self.row(spec))

    def _replay(self, spec: TaskSpec, plan: Sequence[str]) -> None:
        task = self._task(spec)
        results, won = self._play(spec, plan)
        if not won:
            raise Refused("unsolvable")
        if self.env.judge_name(task) not in _TEXTS:
            if self._play(spec, plan[-1:])[1]:
                raise Refused("trivial")
            return
        answers = task.answer if isinstance(task.answer, list | tuple) else [task.answer]
        if not any(_stands_in(str(answer), results) for answer in answers):
            raise Refused("unsolvable")
        if any(_stands_in(str(answer), [task.prompt]) for answer in answers):
            raise Refused("trivial")

    def _play(self, spec: TaskSpec, plan: Sequence[str]) -> tuple[list[str], bool]:
        """The results of a plan's calls, and whether it wins.

        Raises:
            Refused: a call fails (``unsolvable``).
        """
        results: list[str] = []
        _, info = self.env.reset(options={"task_id": self.task_id(spec)})
        try:
            for command in plan:
                *_, terminated, truncated, info = self.env.step(command)
                if any(call["error"] is not None for call in info["calls"]):
                    raise Refused("unsolvable", "a gold call fails")
                results += [call["result"] for call in info["calls"]]
                if terminated or truncated:
                    break
        except EpisodeError as error:
            raise Refused("unsolvable", str(error)) from None
        return results, info["won"]


def _stands_in(answer: str, texts: Sequence[str]) -> bool:
    """Whether an answer stands in one of the texts: its words in normal form, or its number."""
    value = numbers(answer)
    return any(contains(text, answer) or (len(value) == 1 and value[0] in numbers(text)) for text in texts)


def _calls_of(task: ToolTask) -> str:
    return json.dumps([[call["name"], call.get("arguments", {})] for call in task.calls], sort_keys=True)


__all__ = ["ToolTaskGrammar"]

"""``RoleAgent/TravelPlanner-v0``: plan a trip from given information. The action is the plan."""

from __future__ import annotations

import json
import os
from typing import Any

import gymnasium

from roleagent.envs.tools.calls.shown_text import neutralize
from roleagent.envs.travelplanner.constraints import check
from roleagent.envs.travelplanner.plan import read_plan
from roleagent.envs.travelplanner.tasks import TripTask, load
from roleagent.options import user_path
from roleagent.spaces import Unicode, check_render_mode
from roleagent.tasks.split import TaskSplit, TaskSplitEnv

DONE = "The plan was taken."
MEASURES = ("delivered", "commonsense_micro", "commonsense_macro", "hard_micro", "hard_macro")


class TravelPlannerEnv(TaskSplitEnv):
    """TravelPlanner (Xie et al. 2024), sole planning, on the 45 training tasks.

    The observation is the publisher's prompt: the reference information and the query. The only action is the plan, in
    the publisher's annotated form or its text form. The reward is the mean of four rates of this plan: the share of
    constraints of common sense that hold, whether all do, and the same of the query's constraints. An episode is won
    with a reward of 1.

    ``info`` of the step has ``constraints``, by name whether one holds, and ``problems``, why one does not; a wish that
    the query does not have is in neither. Floats are measures of an evaluation: ``delivered`` (the reply is a plan) and
    the four rates. Success is the publisher's final pass rate.

    Args:
        split: ``"train"``, or a level: ``"easy"``, ``"medium"``, ``"hard"``.
        data_dir: the published data: the archive, its folder, or the unpacked files.
        render_mode: ``"ansi"`` renders the last observation.

    Raises:
        ValueError: there is no such split, or a file is broken.
        FileNotFoundError: there are no such data.
    """

    max_steps = 1

    def __init__(
        self,
        split: str = "train",
        data_dir: str | os.PathLike[str] | None = None,
        render_mode: str | None = None,
    ):
        self.render_mode = check_render_mode(render_mode, self.metadata)
        self.tasks = load(None if data_dir is None else str(user_path(data_dir).resolve()))
        self.task_split = self._find_task_split(split)
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self._task: TripTask | None = None
        self._text = ""

    @property
    def data_info(self) -> dict[str, str]:
        """The published tasks."""
        return {"source": "official", "version": "TravelPlanner train"}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Asks for the trip ``options["task_id"]``, or for one of the split drawn with ``np_random``.

        Raises:
            ValueError: the split has no such task.
        """
        super().reset(seed=seed)
        task_id = self.task_split.requested(options, self.np_random)
        self._task = task = self.tasks.by_id[self.task_split.require(task_id)]
        self._steps = 0
        self._text, _ = neutralize(task.prompt)
        return self._text, self._info(task, {}, state=self._text, grouping_state=self._text)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judges the plan."""
        task = self._task
        if self._steps is None or task is None:
            raise gymnasium.error.ResetNeeded("the episode is over or has not begun: call reset() before step()")
        self._steps = None
        try:
            plan = read_plan(action if isinstance(action, str) else "")
        except ValueError as error:
            self._text = f"There is no plan: {error}."
            return self._text, 0.0, True, False, self._info(task, {"task": 0.0}, valid_action=False)
        verdict = check(task, plan)
        rates = verdict.rates
        reward = sum(rates.values()) / len(rates)
        won = reward == 1.0
        reasons = {**verdict.commonsense, **verdict.hard}
        self._text = DONE
        return (
            self._text,
            reward,
            True,
            False,
            self._info(
                task,
                {"task": reward},
                won=won,
                constraints={name: reason is None for name, reason in reasons.items()},
                problems={name: reason for name, reason in reasons.items() if reason},
                delivered=1.0,
                **rates,
            ),
        )

    def walkthrough(self) -> tuple[str, ...]:
        """The published plan."""
        if self._task is None:
            raise gymnasium.error.ResetNeeded("there is no task yet: call reset() before walkthrough()")
        return (json.dumps(self._task.gold, ensure_ascii=False),)

    def task_type(self, task_id: str) -> str:
        """The level of a task, without asking it."""
        return self.tasks.by_id[task_id].type

    def _find_task_split(self, split: str) -> TaskSplit:
        if split not in self.tasks.splits:
            raise ValueError(f"unknown split {split!r}; there are {', '.join(self.tasks.splits)}")
        return self.tasks.splits[split]

    def _info(self, task: TripTask, rewards: dict[str, float], **report: Any) -> dict[str, Any]:
        return {
            "task_id": task.id,
            "goal": task.query,
            "task_type": task.type,
            "split": self.task_split.split,
            "admissible_actions": [],
            "won": False,
            "valid_action": True,
            "state": None,
            "grouping_state": None,
            "rewards": rewards,
            "constraints": {},
            "problems": {},
            **dict.fromkeys(MEASURES, 0.0),
            **report,
        }


__all__ = ["TravelPlannerEnv"]

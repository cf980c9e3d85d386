"""``RoleAgent/TravelPlanner-v0``: plan a trip from given information. The action is the plan."""

from __future__ import annotations

import json
from typing import Any

from roleagent.envs.single_reply import SingleReplyEnv, SingleReplyTasks
from roleagent.envs.travelplanner.constraints import check
from roleagent.envs.travelplanner.plan import read_plan
from roleagent.envs.travelplanner.tasks import TripTask, load

DONE = "The plan was taken."
MEASURES = ("delivered", "commonsense_micro", "commonsense_macro", "hard_micro", "hard_macro")


class TravelPlannerEnv(SingleReplyEnv[TripTask]):
    """TravelPlanner (Xie et al. 2024), sole planning, on the 45 training tasks.

    The observation is the publisher's prompt: the reference information and the query. The only action is the plan, in
    the publisher's annotated form or its text form. The reward is the mean of four rates of this plan: the share of
    constraints of common sense that hold, whether all do, and the same of the query's constraints. An episode is won
    with a reward of 1.

    ``info`` of the step has ``constraints``, by name whether one holds, and ``problems``, why one does not; a wish that
    the query does not have is in neither. Floats are measures of an evaluation: ``delivered`` (the reply is a plan) and
    the four rates. Success is the publisher's final pass rate.

    Args:
        split: ``"train"`` (None is the same), or a level: ``"easy"``, ``"medium"``, ``"hard"``.
        data_dir: the published data: the archive, its folder, or the unpacked files.
        render_mode: ``"ansi"`` renders the last observation.

    Raises:
        ValueError: there is no such split, or a file is broken.
        FileNotFoundError: there are no such data.
    """

    version = "TravelPlanner train"

    def open_tasks(self, data_dir: str | None) -> SingleReplyTasks[TripTask]:
        return load(data_dir)

    def judge(self, task: TripTask, action: Any) -> tuple[str, float, dict[str, Any]]:
        try:
            plan = read_plan(action if isinstance(action, str) else "")
        except ValueError as error:
            return f"There is no plan: {error}.", 0.0, {"valid_action": False}
        verdict = check(task, plan)
        rates = verdict.rates
        reward = sum(rates.values()) / len(rates)
        reasons = {**verdict.commonsense, **verdict.hard}
        judged = {
            "won": reward == 1.0,
            "constraints": {name: reason is None for name, reason in reasons.items()},
            "problems": {name: reason for name, reason in reasons.items() if reason},
            "delivered": 1.0,
        }
        return DONE, reward, {**judged, **rates}

    def report(self, task: TripTask) -> dict[str, Any]:
        return {
            "task_id": task.id,
            "goal": task.query,
            "task_type": task.type,
            "split": self.task_split.split,
            "admissible_actions": [],
            "won": False,
            "valid_action": True,
            "constraints": {},
            "problems": {},
            **dict.fromkeys(MEASURES, 0.0),
        }

    def right_reply(self, task: TripTask) -> str:
        """The published plan."""
        return json.dumps(task.gold, ensure_ascii=False)


__all__ = ["TravelPlannerEnv"]

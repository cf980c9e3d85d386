"""The scripted expert that slips: an agent that wins some types of tasks often, others never, and does not learn."""

from __future__ import annotations

from collections.abc import Mapping

import gymnasium
import numpy as np
from task_levers import LEARNED, NoisyExpert

from roleagent.env_card import make_expert
from roleagent.tasks.grammar import TaskGrammar
from roleagent.types import Completion, Group, Task, Trajectory, Turn

ATTEMPTS = 8
NOTHING = Completion((), (), "stop")
SLIPS: dict[str, dict[str, float]] = {
    "toy": {"bring": 0.005, "heat": 0.08, "cool": 0.3, "clean": 0.5},
    "alfworld": {
        **{"pick_and_place_simple": 0.005, "look_at_obj_in_light": 0.005, "pick_heat_then_place_in_recep": 0.07},
        **{"pick_cool_then_place_in_recep": 0.1, "pick_clean_then_place_in_recep": 0.5, "pick_two_obj_and_place": 0.5},
    },
}
"""The chance of a slip per step, by environment and task type."""
NOISES: dict[str, dict[str, float]] = {
    "toy": {"bring": 0.1, "heat": 0.55, "cool": 0.65, "clean": 0.95},
    "alfworld": {
        **{"pick_and_place_simple": 0.2, "look_at_obj_in_light": 0.2, "pick_heat_then_place_in_recep": 0.65},
        **{
            "pick_cool_then_place_in_recep": 0.7,
            "pick_clean_then_place_in_recep": 0.95,
            "pick_two_obj_and_place": 0.95,
        },
    },
}
"""The same for ``--noise``."""


class Agent:
    """The expert that slips.

    Args:
        env: plays the tasks.
        grammar: of its tasks.
        slips: the rates, by task type.
        noise: whether a slip is a wrong command, and does not lose the episode.
        seed: of the slips.
    """

    def __init__(self, env: gymnasium.Env, grammar: TaskGrammar, slips: Mapping[str, float], noise: bool, seed: int):
        self.env, self.grammar, self.slips, self.noise = env, grammar, slips, noise
        self.rng = np.random.default_rng((seed, 1))
        self.noisy = NoisyExpert(env, self.rng, 0.0)
        for _ in range(LEARNED):
            self.noisy.play(grammar.task_id(grammar.base(self.rng)), learn=True)

    def play(self, task_id: str) -> Group:
        """A group of episodes of a task."""
        task = Task("", task_id, "train", "", self.grammar.task_type(self.grammar.spec(task_id)))
        self.noisy.rate = rate = self.slips[task.task_type]
        won = (self.noisy.play(task_id) if self.noise else self._wins(task_id, rate) for _ in range(ATTEMPTS))
        return Group(task, tuple(episode(task, one) for one in won))

    def _wins(self, task_id: str, rate: float) -> bool:
        observation, info = self.env.reset(options={"task_id": task_id})
        expert = make_expert(self.env, self.rng)
        expert.reset(info["goal"], observation)
        ended = False
        while not ended:
            if self.rng.random() < rate:
                return False
            command = expert.act()
            observation, _, terminated, truncated, info = self.env.step(command)
            expert.observe(command, observation)
            ended = terminated or truncated
        return info["won"]


def episode(task: Task, won: bool) -> Trajectory:
    """What the sampler reads of an episode."""
    turn = Turn((), NOTHING, "", "", rewards={"task": float(won)}, info={"won": won})
    return Trajectory(task, (turn,), won, not won, "won" if won else "max_steps")

"""Single-step accuracy: which command does a policy give next, after the history that the expert played?

GenEnv's paper measures ALFWorld in this way. The scripted expert plays a task. At each of its steps the policy reads
the expert's history, and its command counts if it is exactly the expert's. No command of the policy is played, so
it never has to recover from a mistake, and a right command that the expert did not choose counts as wrong. So does a
step whose prompt does not fit the context: an episode would end there. The figure is no success of episodes, and cannot
be compared with one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roleagent.agents.builders import EnvSplit
from roleagent.agents.evaluation.statistics import rate
from roleagent.agents.policies.protocol import Policy
from roleagent.envs.failures.scripted_episode import ScriptedEpisode
from roleagent.types import Request

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ExpertStep:
    """One step of the expert, and the prompt on which a policy gives a command; empty if it does not fit."""

    task_id: str
    task_type: str
    prompt_ids: tuple[int, ...]
    command: str


def expert_steps(env_split: EnvSplit, policy: Policy, task_id: str, seed: int) -> list[ExpertStep]:
    """The expert's steps of a task; none if the expert does not win."""
    rollout = env_split.rollout(policy)
    room = policy.context_length - rollout.config.action_tokens
    rng = np.random.default_rng([seed, env_split.task_split.position(task_id)])
    episode = ScriptedEpisode(env_split.base, task_id, rng)
    conversation, task_type = rollout.open(episode.observation, episode.info), episode.info["task_type"]
    if not episode.finish():
        return []
    steps: list[ExpertStep] = []
    for turn in episode.turns:
        prompt = conversation.action_prompt()
        steps.append(ExpertStep(task_id, task_type, prompt if len(prompt) <= room else (), turn.action))
        reply = tuple(rollout.renderer.write(rollout.reader.write(turn.action, policy.literal)))
        conversation.advance((*prompt, *reply), reply, turn.action, turn.observation, turn.info)
    return steps


def single_step(env_split: EnvSplit, policy: Policy, seed: int, progress: Progress | None = None) -> dict[str, Any]:
    """Measures single-step accuracy on every task of a split.

    Returns:
        ``accuracy`` with its 95 % ``interval`` over tasks, ``by_type``, the numbers of ``tasks`` and ``steps``, and
        ``left_out``: tasks that the expert does not win.

    Raises:
        ValueError: the expert wins none of the tasks.
    """
    env_split = env_split.without_program()
    task_ids, options = env_split.task_split.task_ids, env_split.config.rollout
    rollout = env_split.rollout(policy)
    steps: list[ExpertStep] = []
    right: list[bool] = []
    policy.reseed(seed)
    for number, task_id in enumerate(task_ids, start=1):
        own = expert_steps(env_split, policy, task_id, seed)
        fitting = [step for step in own if step.prompt_ids]
        for start in range(0, len(fitting), options.eval_batch):
            part = fitting[start : start + options.eval_batch]
            requests = [
                Request(step.prompt_ids, slot, options.action_tokens, rollout.action_stops)
                for slot, step in enumerate(part)
            ]
            replies = policy.generate(requests, options.eval_temperature)
            given = [rollout.reader.read(rollout.renderer.read(reply.token_ids)).command for reply in replies]
            right += [command == step.command for command, step in zip(given, part, strict=True)]
            policy.clear_cache()
        long = [step for step in own if not step.prompt_ids]
        steps += [*fitting, *long]
        right += [False] * len(long)
        if progress is not None:
            progress(number, len(task_ids))
    if not steps:
        raise ValueError("the expert wins no task of the split, so there is no step to compare with")
    kinds = sorted({step.task_type for step in steps})
    by_type = {
        kind: _share([pair for pair in zip(steps, right, strict=True) if pair[0].task_type == kind]) for kind in kinds
    }
    played = len({step.task_id for step in steps})
    whole = _share(list(zip(steps, right, strict=True)))
    return {**whole, "tasks": played, "left_out": len(task_ids) - played, "by_type": by_type}


def _share(pairs: Sequence[tuple[ExpertStep, bool]]) -> dict[str, Any]:
    found = rate([float(right) for _, right in pairs], [step.task_id for step, _ in pairs])
    return {"accuracy": found.value, "interval": [found.low, found.high], "steps": len(pairs)}


__all__ = ["ExpertStep", "expert_steps", "single_step"]

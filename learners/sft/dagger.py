"""Corrections: imitation of the expert in states that the policy reaches itself (DAgger, Ross et al. 2011).

Demonstrations only cover states that the expert reaches. The policy reaches others by its mistakes. So policy and
expert take turns in the same episode after the demonstrations, and the expert's commands are imitated, recoveries from
the policy's mistakes included.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from roleagent.agents.builders import EnvSplit, make_base
from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.policies.protocol import Policy
from roleagent.agents.rendering import Conversation
from roleagent.config import ConfigError
from roleagent.env_spec import make_expert
from roleagent.learners.run.run import Run
from roleagent.learners.sft.demonstrations import Demonstration, Step, reset_to
from roleagent.learners.sft.tokenization import tokenize
from roleagent.types import Expert, Request, Segment, Task

POLICY_SHARE = 0.5
"""Share of the steps that the policy plays."""

REPLAY_SHARE = 0.5
"""Segments of earlier rounds and demonstrations that are trained again, per segment of a round."""


@dataclass
class _Episode:
    env: gymnasium.Env
    expert: Expert
    task: Task
    observation: str
    info: dict[str, Any]
    conversation: Conversation
    steps: list[Step] = field(default_factory=list)

    def step(self, command: str, imitated: bool) -> bool:
        """Plays a command; returns whether the episode continues."""
        observation, _, terminated, truncated, info = self.env.step(command)
        self.expert.observe(command, observation)
        self.steps.append(Step(command, imitated, observation, info))
        return not (terminated or truncated)

    def demonstration(self) -> Demonstration:
        return Demonstration(self.task, self.observation, self.info, tuple(self.steps))


def take_turns(
    split: EnvSplit,
    policy: Policy,
    task_ids: Sequence[str],
    temperature: float,
    rng: np.random.Generator,
    progress: Callable[[float, int], None] | None = None,
) -> list[Demonstration]:
    """One episode per task; each step is the policy's with probability :data:`POLICY_SHARE`, or else the expert's.

    Args:
        split: the training tasks.
        policy: samples actions, but no predictions.
        task_ids: a task may occur twice.
        temperature: of the policy's commands.
        rng: draws the player of each step, and the experts' choices.
        progress: called after every batch with (played, all) episodes.

    Returns:
        the episodes, won or not. Steps with the expert's command are marked as imitated.
    """
    rollout = replace(split, horizon=0).rollout(policy)
    batch = split.config.rollout.eval_batch
    played: list[Demonstration] = []
    with contextlib.ExitStack() as stack:
        made = (make_base(split.config, split.task_split.split) for _ in range(min(batch, len(task_ids))))
        envs = [stack.enter_context(contextlib.closing(env)) for env in made]  # closed even if a later one fails
        for start in range(0, len(task_ids), batch):
            episodes: list[_Episode] = []
            for env, task_id in zip(envs, task_ids[start : start + batch], strict=False):
                task, observation, info = reset_to(env, split.task_split.env_id, task_id)
                expert: Expert = make_expert(env, rng)
                expert.reset(info["goal"], observation)
                episodes.append(_Episode(env, expert, task, observation, info, rollout.open(observation, info)))
            live = dict(enumerate(episodes))
            while live:
                prompts = {slot: episode.conversation.action_prompt() for slot, episode in live.items()}
                room = policy.context_length - rollout.config.action_tokens
                live = {slot: episode for slot, episode in live.items() if len(prompts[slot]) <= room}
                requests = [Request(prompts[i], i, rollout.config.action_tokens, rollout.action_stops) for i in live]
                replies = policy.generate(requests, temperature)
                continuing = {}
                for (slot, episode), reply in zip(live.items(), replies, strict=True):
                    command = expected = episode.expert.act()
                    if rng.random() < POLICY_SHARE:
                        said = rollout.renderer.read(reply.token_ids)
                        command = rollout.reader.read(said).command or expected
                    if episode.step(command, command == expected):
                        continuing[slot] = episode
                        ids = tuple(rollout.renderer.write(rollout.reader.write(command, policy.literal)))
                        last = episode.steps[-1]
                        episode.conversation.advance((*prompts[slot], *ids), ids, command, last.observation, last.info)
                live = continuing
            played += [episode.demonstration() for episode in episodes]
            policy.clear_cache()
            if progress is not None:
                progress(len(played), len(task_ids))
    return played


class Corrections:
    """The rounds of corrections of a run. Their episodes are in the run folder, so a resumed run imitates the same.

    Args:
        run: in the stage of the warm start, or later.
        split: the training tasks.
    """

    def __init__(self, run: Run, split: EnvSplit):
        self._run, self.split = run, split
        options = split.config.warmstart
        self.rounds, self.episodes = options.rounds, options.round_episodes
        self.started: list[int] = [self._read(number)["step"] for number in range(1, self._kept() + 1)]
        """Updates before each round."""

    def _kept(self) -> int:
        return self._run.ranks.once(lambda: len(self._run.folder.rounds()))

    def _read(self, number: int) -> dict[str, Any]:
        name = self._run.folder.round_name(number)
        saved = self._run.ranks.once(lambda: self._run.folder.read_json(name))
        if saved is None or type(saved.get("step")) is not int or not isinstance(saved.get("episodes"), list):
            raise ConfigError(f"{self._run.folder.path / name} is damaged: put back a copy of it")
        return saved

    def play(self, number: int, policy: Policy) -> None:
        """Plays and saves a round; rounds are numbered from 1."""
        run, split = self._run, self.split
        rng = run.own_stream("dagger", number)
        drawn = run.stream("dagger tasks", number).integers(len(split.task_split), size=self.episodes)
        policy.reseed(int(rng.integers(2**62)))
        own = run.ranks.share([split.task_split.task_ids[int(place)] for place in drawn])
        temperature = split.config.rollout.temperature
        played = run.ranks.collect(take_turns(split, policy, own, temperature, rng, partial(run.inner, "episodes")))

        def keep() -> None:
            steps = [step for episode in played for step in episode.steps]
            failed = sum(not step.info.get("valid_action", True) for step in steps) / max(1, len(steps))
            deviating = sum(not step.imitated for step in steps) / max(1, len(steps))
            run.display.say(
                f"round {number}: policy and expert took turns in {len(played)} episodes; "
                f"{deviating:.0%} of the commands were not the expert's, {failed:.0%} failed"
            )
            run.folder.write_json(
                run.folder.round_name(number),
                {
                    "step": run.progress.step,
                    "episodes": [
                        {
                            "task_id": episode.task.task_id,
                            "commands": [step.command for step in episode.steps],
                            "imitated": [int(step.imitated) for step in episode.steps],
                        }
                        for episode in played
                    ],
                },
            )

        run.ranks.once(keep)
        self.started.append(run.progress.step)

    def demonstrations(self, number: int) -> list[Demonstration]:
        """The episodes of a round: the environment replays the saved commands."""
        env = self.split.base
        found = []
        for episode in self._read(number)["episodes"]:
            task, observation, info = reset_to(env, self.split.task_split.env_id, episode["task_id"])
            steps = []
            for command, imitated in zip(episode["commands"], episode["imitated"], strict=True):
                text, _, terminated, truncated, info_after = env.step(command)
                steps.append(Step(command, bool(imitated), text, info_after))
                if terminated or truncated:
                    break
            found.append(Demonstration(task, observation, info, tuple(steps)))
        return found

    def segments(self, policy: HFPolicy, number: int = 0) -> list[Segment]:
        """The segments of a round; 0: of all rounds."""
        chosen = [number] if number else range(1, len(self.started) + 1)
        rounds = (
            tokenize(self.split, policy, self.demonstrations(one), self._run.stream("dagger segments", one))
            for one in chosen
        )
        return [segment for segments in rounds for segment in segments]

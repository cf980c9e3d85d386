"""Corrections: imitation of the expert in states that the policy reaches itself (DAgger, Ross et al. 2011).

Demonstrations only cover states that the expert reaches. The policy reaches others by its mistakes. So policy and
expert take turns in the same episode after the demonstrations, and the expert's commands are imitated, recoveries from
the policy's mistakes included.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from roleagent.agents.builders import EnvSplit, make_base
from roleagent.agents.episode import Episode, play_episode
from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.policies.protocol import Policy
from roleagent.agents.rendering import Conversation
from roleagent.agents.scheduler import Ask, Scheduler
from roleagent.config import ConfigError
from roleagent.env_spec import make_expert
from roleagent.envs.pool import EnvPool
from roleagent.learners.run.run import Run
from roleagent.learners.sft.demonstrations import Demonstration, Step, reset_to
from roleagent.learners.sft.tokenization import tokenize
from roleagent.types import Request, Segment

POLICY_SHARE = 0.5
"""Share of the steps that the policy plays."""

REPLAY_SHARE = 0.5
"""Segments of earlier rounds and demonstrations that are trained again, per segment of a round."""


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
    limit, batch = rollout.config.action_tokens, split.config.rollout.eval_batch

    async def play(episode: Episode) -> Demonstration:
        conversation: Conversation | None = None
        said: tuple[Any, ...] = ()  # tokens so far, the last ones, and their command
        imitated: list[bool] = []
        expert: Any = None

        async def decide(episode: Episode) -> str | None:
            nonlocal conversation, expert, said
            if conversation is None:
                expert = make_expert(pool.env(episode.slot), rng)
                expert.reset(episode.info["goal"], episode.observation)
                conversation = rollout.open(episode.observation, episode.info)
            else:
                expert.observe(said[2], episode.observation)
                conversation.advance(*said, episode.observation, episode.info)
            prompt = conversation.action_prompt()
            if len(prompt) + limit > policy.context_length:
                return None
            [reply] = await Ask([Request(prompt, episode.slot, limit, rollout.action_stops)])
            command = expected = expert.act()
            if rng.random() < POLICY_SHARE:
                command = rollout.reader.read(rollout.renderer.read(reply.token_ids)).command or expected
            ids = tuple(rollout.renderer.write(rollout.reader.write(command, policy.literal)))
            said = (*prompt, *ids), ids, command
            imitated.append(command == expected)
            return command

        await play_episode(episode, decide)
        assert episode.record is not None
        record = episode.record
        steps = [
            Step(turn.action, right, turn.observation, turn.info)
            for turn, right in zip(record.turns, imitated, strict=True)
        ]
        return Demonstration(record.task, record.initial_observation, record.initial_info, tuple(steps))

    played: list[Demonstration] = []
    with contextlib.closing(EnvPool(partial(make_base, split.config, split.task_split.split))) as pool:
        for start in range(0, len(task_ids), batch):
            part = task_ids[start : start + batch]

            def begin(index: int, slot: int, part: Sequence[str] = part) -> Coroutine[Any, Any, Demonstration]:
                return play(Episode(pool, slot, part[index], split.task_split.env_id))

            found = dict(Scheduler(rollout.backend(temperature), pool.step_many, begin, len(part)).run())
            played += [found[index] for index in range(len(part))]
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

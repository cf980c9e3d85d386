"""Plays agents on a fixed split: one record per task and repeat, for training runs and ``evaluate.py``.

The generators named ``*_attempts`` play the missing attempts of an evaluation. An interrupted evaluation ends with the
same records as an uninterrupted one: repeat r draws its random numbers from the seed s + r and the position in the
split, never from what was played before.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from roleagent.agents.builders import EnvSplit, make_base
from roleagent.agents.chat.episode import EnvError, Episode, EpisodeResult, PromptingAgent
from roleagent.agents.chat.models import ChatModel
from roleagent.agents.chat.rollout import play_all
from roleagent.agents.evaluation.baselines import Agent, build_agent, is_thread_safe
from roleagent.agents.evaluation.records import Attempt, Record, measures
from roleagent.agents.evaluation.revision import Failure, revise_failures
from roleagent.agents.policies.protocol import Policy
from roleagent.agents.rollout import Rollout
from roleagent.envs.pool import EnvPool
from roleagent.options import shown
from roleagent.types import Trajectory

if TYPE_CHECKING:  # an agent without a model needs no torch
    from roleagent.agents.policies.hf import HFPolicy

Progress = Callable[[float, int], None]
"""Receives (finished, all) episodes, with the shares of those under way."""
Keep = Callable[[Trajectory | EpisodeResult, int], None]
"""Takes a played episode and its repeat."""


def _keep_nothing(episode: Trajectory | EpisodeResult, repeat: int) -> None:
    pass


def evaluate_policy(
    rollout: Rollout,
    task_ids: Sequence[str],
    temperature: float,
    batch_size: int,
    progress: Progress | None = None,
    keep: Callable[[Trajectory | EpisodeResult], None] = lambda episode: None,
) -> Iterator[Record]:
    """Plays every task once, ``batch_size`` episodes at a time; yields a record per task as batches finish.

    A task whose environment failed yields a record with the stop reason ``error``. ``keep`` is given every episode.
    """
    done = 0
    for start in range(0, len(task_ids), batch_size):
        part = task_ids[start : start + batch_size]
        before = done

        def report(finished: float, _: int, before: int = before) -> None:
            if progress is not None:
                progress(before + finished, len(task_ids))

        for task_id, group in zip(part, rollout.play(part, 1, temperature, report), strict=True):
            if group.trajectories:
                keep(group.trajectories[0])
                yield Record.of(group.trajectories[0])
            else:
                error = rollout.stats.failures[task_id]
                keep(EpisodeResult(task_id, group.task.task_type, error=error, goal=group.task.goal))
                yield Record.failed(task_id, group.task.task_type, error)
        done += len(part)


def evaluate_agent(
    env: gymnasium.Env,
    agent: Agent,
    task_ids: Iterable[str],
    repeat: int = 0,
    keep: Keep = _keep_nothing,
    progress: Progress | None = None,
) -> Iterator[Record]:
    """Plays every task once with an agent that gives bare commands to a base environment.

    A task whose environment fails yields a record with the stop reason ``error``. Errors of the agent are raised.
    ``keep`` is given every episode, ``progress`` the share of the one under way.
    """
    pool = EnvPool(lambda: env)
    for task_id in task_ids:
        episode = Episode(pool, 0, task_id)
        try:
            episode.begin()
            agent.reset(episode.observation, episode.info)
            while not episode.over:
                episode.step(_act(agent, episode.observation, episode.info))
                if progress is not None:
                    progress(episode.share, 1)
        except EnvError as error:
            keep(episode.end("error", error=str(error)), repeat)
            yield Record.failed(task_id, episode.task_type, str(error), repeat)
        else:
            keep(episode.end(episode.stop_reason), repeat)
            yield _record(episode, repeat)


def play_in_threads(
    build: Callable[[], Agent],
    make: Callable[[], gymnasium.Env],
    attempts: Sequence[Attempt],
    threads: int,
    keep: Keep = _keep_nothing,
    progress: Progress | None = None,
) -> Iterator[Record]:
    """Plays every attempt once, each of the threads with an agent of its own; yields records as episodes finish.

    Only agents run in the threads. Environments stay in the thread that iterates, so they need not be thread-safe.

    Args:
        build: builds an agent; called in its thread.
        make: builds a base environment.
        attempts: what to play.
        threads: episodes at the same time, ≥ 1.
        keep: is given every played episode.
        progress: is given the shares of the episodes under way, and their number.
    """
    pool, waiting = EnvPool(make), deque(attempts)
    live: dict[int, tuple[Attempt, Episode]] = {}
    asked: list[SimpleQueue[tuple[bool, str, Any] | None]] = [SimpleQueue() for _ in range(threads)]
    answers: SimpleQueue[tuple[int, Any]] = SimpleQueue()  # the thread, and its agent's command or error

    def work(number: int) -> None:
        try:
            agent = build()
            while (situation := asked[number].get()) is not None:
                first, observation, info = situation
                if first:
                    agent.reset(observation, info)
                answers.put((number, _act(agent, observation, info)))
        except BaseException as error:
            answers.put((number, error))

    def begin(number: int) -> Iterator[Record]:
        """Begins the next attempt; yields the records of those that cannot begin."""
        while waiting:
            attempt = waiting.popleft()
            episode = Episode(pool, number, attempt.task_id)
            try:
                episode.begin()
            except EnvError as error:
                keep(episode.end("error", error=str(error)), attempt.repeat)
                yield Record.failed(attempt.task_id, episode.task_type, str(error), attempt.repeat)
            else:
                live[number] = attempt, episode
                asked[number].put((True, episode.observation, episode.info))
                return

    for number in range(threads):
        threading.Thread(target=work, args=(number,), name=f"agent-{number}", daemon=True).start()
    try:
        for number in range(threads):
            yield from begin(number)
        while live:
            number, command = answers.get()
            if isinstance(command, BaseException):
                raise command
            attempt, episode = live[number]
            try:
                episode.step(command)
            except EnvError as error:
                keep(episode.end("error", error=str(error)), attempt.repeat)
                record = Record.failed(attempt.task_id, episode.task_type, str(error), attempt.repeat)
            else:
                if progress is not None:
                    progress(sum(other.share for _, other in live.values()), len(live))
                if not episode.over:
                    asked[number].put((False, episode.observation, episode.info))
                    continue
                keep(episode.end(episode.stop_reason), attempt.repeat)
                record = _record(episode, attempt.repeat)
            del live[number]
            yield record
            yield from begin(number)
    finally:
        for queue in asked:
            queue.put(None)
        pool.close()


def _act(agent: Agent, observation: str, info: Mapping[str, Any]) -> str:
    command = agent.act(observation, info)
    if not isinstance(command, str):
        raise ValueError(f"act() of the agent {type(agent).__name__} returned {shown(command)}, not a text")
    return command


def _record(episode: Episode, repeat: int) -> Record:
    return Record(
        episode.task_id,
        episode.task_type,
        episode.won,
        episode.reward,
        episode.steps,
        episode.stop_reason,
        repeat=repeat,
        invalid=episode.invalid,
        metrics=measures(episode.info),
    )


def agent_attempts(
    env_split: EnvSplit,
    name: str,
    missing: Set[Attempt],
    seed: int,
    concurrency: int = 1,
    keep: Keep = _keep_nothing,
    progress: Progress | None = None,
    /,
    **options: Any,
) -> Iterator[Record]:
    """Plays an agent that gives bare commands; each attempt of a scripted one has its own random numbers.

    Args:
        concurrency: episodes at the same time, of ``module:Class`` unless it has ``thread_safe = False``.
        keep: is given every played episode.
        options: of the agent (see :func:`roleagent.agents.evaluation.baselines.build_agent`).

    Raises:
        ValueError: there is no such agent, or it has no such option.
    """
    rng = np.random.default_rng(seed)
    build = partial(build_agent, name, env_split.base, rng, **options)
    places = {task_id: place for place, task_id in enumerate(env_split.task_split.task_ids)}
    attempts = _in_order(missing, places)
    threads = min(concurrency, len(attempts)) if is_thread_safe(name) else 1
    if threads > 1:
        make = partial(make_base, env_split.config, env_split.task_split.split)
        yield from play_in_threads(build, make, attempts, threads, keep, progress)
        return
    agent = build()
    for attempt in attempts:
        stream = np.random.default_rng([seed + attempt.repeat, places[attempt.task_id]])
        rng.bit_generator.state = stream.bit_generator.state
        yield from evaluate_agent(env_split.base, agent, [attempt.task_id], attempt.repeat, keep, progress)


def policy_attempts(
    env_split: EnvSplit,
    policy: HFPolicy,
    missing: Set[Attempt],
    seed: int,
    keep: Keep = _keep_nothing,
    progress: Progress | None = None,
    failures: Mapping[str, Failure] | None = None,
) -> Iterator[Record]:
    """Plays a policy with the standard prompts; a batch with a missing attempt is played whole.

    Args:
        keep: is given every played episode.
        failures: by task, where the policy goes on (the revision test); None: it plays from the start.
    """
    rollout, temperature = env_split.rollout(policy), env_split.config.rollout.eval_temperature
    for repeat, part in _batches(env_split, policy, missing, seed):

        def of_part(episode: Trajectory | EpisodeResult, repeat: int = repeat) -> None:
            keep(episode, repeat)

        if failures is not None:
            given = [failures[one] for one in part]
            played = revise_failures(env_split, policy, given, temperature, progress, of_part)
        else:
            played = evaluate_policy(rollout, part, temperature, len(part), progress, of_part)
        for record in played:
            record = replace(record, repeat=repeat)
            if record.attempt in missing:
                yield record


def chat_attempts(
    env_split: EnvSplit,
    agent: PromptingAgent,
    model: ChatModel,
    make: Callable[[], gymnasium.Env],
    missing: Set[Attempt],
    seed: int,
    keep: Keep = _keep_nothing,
    progress: Progress | None = None,
    policy: Policy | None = None,
) -> Iterator[Record]:
    """Plays a prompting agent with the configured temperature and token limit.

    Args:
        make: builds the environment as the agent wants it.
        keep: is given every played episode.
        policy: the local model behind ``model``, which plays whole batches; None: a server, which plays exactly the
            missing attempts, and whose answers no seed repeats.

    Raises:
        EndpointError: the server cannot be used as it is configured, or has stopped answering.
    """
    options = env_split.config.rollout
    play = partial(play_all, agent, model, make, max_tokens=options.action_tokens, temperature=options.eval_temperature)
    if policy is None:
        places = {task_id: place for place, task_id in enumerate(env_split.task_split.task_ids)}
        attempts, yielded = _in_order(missing, places), 0

        def of_live(finished: float, every: int) -> None:
            if progress is not None:
                progress(finished - yielded, every - yielded)

        for place, result in play([attempt.task_id for attempt in attempts], progress=of_live):
            yielded += 1
            keep(result, attempts[place].repeat)
            yield Record.of_chat_episode(result, attempts[place].repeat, timed=True)
        return
    for repeat, part in _batches(env_split, policy, missing, seed):
        batch = sorted(play(part, progress=progress), key=lambda found: found[0])
        for _, result in batch:
            keep(result, repeat)
            record = Record.of_chat_episode(result, repeat, timed=False)
            if record.attempt in missing:
                yield record


def _batches(
    env_split: EnvSplit, policy: Policy, missing: Set[Attempt], seed: int
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Repeat and tasks of each batch with a missing attempt; reseeds the policy for each batch."""
    task_ids, size = env_split.task_split.task_ids, env_split.config.rollout.eval_batch
    for repeat in sorted({attempt.repeat for attempt in missing}):
        for start in range(0, len(task_ids), size):
            part = task_ids[start : start + size]
            if missing.isdisjoint(Attempt(repeat, task_id) for task_id in part):
                continue
            policy.reseed(int(np.random.default_rng([seed + repeat, start]).integers(2**62)))
            policy.clear_cache()  # a cached prefix may differ in rounding
            yield repeat, part


def _in_order(missing: Set[Attempt], places: Mapping[str, int]) -> list[Attempt]:
    return sorted(missing, key=lambda attempt: (attempt.repeat, places[attempt.task_id]))


__all__ = [
    "agent_attempts",
    "chat_attempts",
    "evaluate_agent",
    "evaluate_policy",
    "play_in_threads",
    "policy_attempts",
]

"""Plays agents on a fixed split: one record per task and repeat, for training runs and ``evaluate.py``.

The generators named ``*_attempts`` play the missing attempts of an evaluation. An interrupted evaluation ends with the
same records as an uninterrupted one: repeat r draws its random numbers from the seed s + r and the position in the
split, never from what was played before.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from roleagent.agents.builders import EnvSplit
from roleagent.agents.chat.models import ChatModel
from roleagent.agents.chat.types import Answer, EndpointError, OverlongError, Prompt
from roleagent.agents.episode import (
    UNANSWERED,
    Ask,
    Batch,
    Episode,
    EpisodeFailed,
    EpisodeResult,
    NoAnswerError,
    PromptingAgent,
    Scheduler,
    Threads,
    play_episode,
)
from roleagent.agents.evaluation.baselines import Agent, FunctionAgent, build_agent, is_thread_safe
from roleagent.agents.evaluation.records import Attempt, Record, records_of
from roleagent.agents.evaluation.revision import Failure, revise_failures
from roleagent.agents.policies.protocol import Policy
from roleagent.agents.rollout import Rollout
from roleagent.envs.pool import EnvPool
from roleagent.options import shown
from roleagent.types import Trajectory

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

        yield from records_of(rollout.play(part, 1, temperature, report), rollout.stats.failures, keep)
        done += len(part)


def play_agents(
    build: Callable[[], Agent],
    pool: EnvPool,
    attempts: Sequence[Attempt],
    threads: int = 1,
    keep: Keep = _keep_nothing,
    progress: Progress | None = None,
) -> Iterator[Record]:
    """Plays every attempt once with agents that give bare commands; yields records as episodes finish.

    A task whose environment fails yields a record with the stop reason ``error``.

    Args:
        build: builds an agent.
        pool: has base environments.
        attempts: what to play.
        threads: episodes at the same time, each with an agent of its own in a thread of its own; 1: one agent plays
            them all, in this thread.
        keep: is given every played episode.
        progress: is given the shares of the episodes under way, and their number.

    Raises:
        ValueError: an agent raised something, or returned no text; with its name and the place.
    """
    episodes: dict[int, Episode] = {}

    async def decide(episode: Episode) -> str:
        command: str = await Ask((not episode.turns, episode.observation, episode.info))
        return command

    invalid = InvalidCommands()

    async def play(index: int, slot: int) -> EpisodeResult:
        episode = episodes[index] = Episode(pool, slot, attempts[index].task_id)
        try:
            await play_episode(episode, decide)
        except EpisodeFailed as error:
            return episode.result(error=str(error))
        return episode.result()

    def thinking() -> Callable[[tuple[bool, str, Mapping[str, Any]]], str]:
        return partial(_act, build())

    def under_way(finished: float, every: int) -> None:
        live = [episode.share for episode in episodes.values() if not episode.over]
        if progress is not None and live:
            progress(sum(live), len(live))

    if threads > 1:
        backend: Batch | Threads = Threads(thinking)
    else:
        act = thinking()
        backend = Batch(lambda asked: [act(ask.content) for ask in asked])
    for index, result in Scheduler(backend, pool.step_many, play, len(attempts), threads, under_way).run():
        del episodes[index]
        invalid.add(result)
        keep(result, attempts[index].repeat)
        yield Record.of_result(result, attempts[index].repeat)


def _act(agent: Agent, situation: tuple[bool, str, Mapping[str, Any]]) -> str:
    first, observation, info = situation
    try:
        if first:
            agent.reset(observation, info)
        command = agent.act(observation, info)
    except Exception as error:  # a function of somebody else's
        if type(agent).__module__.startswith("roleagent.") and not isinstance(agent, FunctionAgent):
            raise
        raise ValueError(_failure(agent, error, info)) from error
    if not isinstance(command, str):
        raise ValueError(f"{_called(agent)} returned {shown(command)}, not a text")
    return command


def _called(agent: Agent) -> str:
    return (
        f"the function {agent.name}"
        if isinstance(agent, FunctionAgent)
        else f"act() of the agent {type(agent).__name__}"
    )


def _failure(agent: Agent, error: Exception, info: Mapping[str, Any]) -> str:
    """An error of an agent in one line: where it was raised, and what may have been expected of the environment."""
    file = inspect.getfile(agent.own if isinstance(agent, FunctionAgent) else type(agent))
    places = traceback.extract_tb(error.__traceback__)
    place = [*places[-1:], *(one for one in places if one.filename == file)][-1]
    said = " ".join(str(error).split())
    line = f"{_called(agent)} raised {type(error).__name__}{': ' * bool(said)}{said} ({place.filename}:{place.lineno})"
    if info.get("admissible_actions") == [] and "admissible_actions" in (place.line or ""):
        line += "; info['admissible_actions'] is empty here, where commands are free text: see docs/your_agent.md"
    return line


class InvalidCommands:
    """Warns once if the first episodes of an agent have hardly a valid command, and says what its replies stand in."""

    EPISODES = 3

    def __init__(self) -> None:
        self._results: list[EpisodeResult] = []

    def add(self, result: EpisodeResult) -> None:
        """Takes the next episode."""
        if len(self._results) == self.EPISODES or result.error:
            return
        self._results.append(result)
        steps = sum(one.steps for one in self._results)
        if len(self._results) < self.EPISODES or sum(one.invalid for one in self._results) < 0.9 * steps:
            return
        commands = [str(turn["action"]) for one in self._results for turn in one.turns]
        causes = Counter(cause for command in commands if (cause := around(command)))
        if causes and causes.total() >= 0.9 * len(commands):
            (what, bare), _ = causes.most_common(1)[0]
            example = next(command for command in commands if around(command) == (what, bare))
            warnings.warn(
                f"the environment understands none of the agent's commands, such as {shown(example)}: take {what} away "
                f"and return the bare command, {bare!r} (docs/your_agent.md)",
                stacklevel=2,
            )


_AROUND = {
    "the tags": re.compile(r"<(?P<tag>\w+)[^<>]*>(?P<bare>.*)</(?P=tag)>.*", re.DOTALL),
    "the Markdown fence": re.compile(r"```\w*\s*(?P<bare>.*?)\s*```", re.DOTALL),
    "the quotes": re.compile(r"([\"'`])(?P<bare>.*)\1|[“„«](?P<other>.*)[”“»]", re.DOTALL),
    "the JSON": re.compile(r"[{\[].*?(?::\s*)?\"(?P<bare>[^\"]*)\"\s*[}\]]", re.DOTALL),
    "the label": re.compile(r"\w+:\s+(?P<bare>.*)", re.DOTALL),
}


def around(reply: str) -> tuple[str, str] | None:
    """What a command stands in, in words, and the bare command; None: it stands bare.

    >>> around("<action>look</action>"), around('{"command": "look"}'), around("look")
    (('the tags', 'look'), ('the JSON', 'look'), None)
    """
    for what, pattern in _AROUND.items():
        if found := pattern.fullmatch(reply.strip()):
            parts = found.groupdict()
            return what, (parts.get("bare") or parts.get("other") or "").strip()
    return None


def play_prompting(
    agent: PromptingAgent,
    model: ChatModel,
    make: Callable[[], gymnasium.Env],
    task_ids: Sequence[str],
    *,
    max_tokens: int = 512,
    temperature: float = 0.0,
    progress: Progress | None = None,
) -> Iterator[tuple[int, EpisodeResult]]:
    """Plays every task with a prompting agent, ``model.concurrency`` at a time; yields each task's index in
    ``task_ids`` and its result.

    Episodes come as they finish. A failed environment or an unanswered prompt ends its own episode only.

    Args:
        make: builds a base environment, which takes bare commands.
        task_ids: tasks; one may occur several times.
        max_tokens: most tokens of an answer.
        temperature: of sampling.
        progress: called after every answer with (finished, all) tasks; an unfinished one counts
            as the share of its steps that is played.

    Raises:
        EndpointError: the server cannot be used as it is configured, or has stopped answering.
        ValueError: the environment's split has no such task.
    """
    pool, slots = EnvPool(make), min(model.concurrency, len(task_ids))
    episodes: dict[int, Episode] = {}
    unanswered, answered = 0, -1  # prompts in a row without an answer, and the answers before them

    def ask(prompts: Sequence[Prompt]) -> list[Answer | None]:
        return model.chat(prompts, max_tokens=max_tokens, temperature=temperature)

    async def play(index: int, slot: int) -> EpisodeResult:
        nonlocal unanswered, answered
        episode = episodes[index] = Episode(pool, slot, task_ids[index])
        try:
            await agent.play(episode)
        except NoAnswerError:
            so_far = sum(one.usage.answers for one in episodes.values())
            unanswered, answered = (unanswered + 1 if so_far == answered else 1), so_far
            if unanswered > max(3, slots):
                raise EndpointError(
                    f"{unanswered} prompts in a row had no answer; the warning above gives the reason"
                ) from None
            return episode.result(error=UNANSWERED)
        except EpisodeFailed as error:
            return episode.result(error=str(error))
        except OverlongError:
            return episode.result("context")
        if not episode.trials:
            raise ValueError("the agent did not begin the episode: play(episode) must call episode.begin()")
        return episode.result()

    if model.lockstep:
        backend: Batch | Threads = Batch(lambda asked: ask([one.content for one in asked]))
    else:
        backend = Threads(lambda: lambda prompt: ask([prompt])[0])
    share = lambda index: episodes[index].share  # noqa: E731
    try:
        yield from Scheduler(backend, pool.step_many, play, len(task_ids), slots, progress, share).run()
    finally:
        pool.close()


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
        ValueError: there is no such agent, or it has no such option; before an episode is asked for.
    """
    rng = np.random.default_rng(seed)
    build = partial(build_agent, name, env_split.base, rng, **options)
    places = {task_id: place for place, task_id in enumerate(env_split.task_split.task_ids)}
    attempts = _in_order(missing, places)
    threads = min(concurrency, len(attempts)) if is_thread_safe(name) else 1

    def in_threads() -> Iterator[Record]:
        with contextlib.closing(EnvPool(env_split.make_base)) as pool:
            yield from play_agents(build, pool, attempts, threads, keep, progress)

    def one_by_one(agent: Agent) -> Iterator[Record]:
        pool = EnvPool(lambda: env_split.base)
        for attempt in attempts:
            stream = _stream(seed, places[attempt.task_id], attempt.repeat)
            rng.bit_generator.state = stream.bit_generator.state
            yield from play_agents(lambda: agent, pool, [attempt], 1, keep, progress)

    return in_threads() if threads > 1 else one_by_one(build())


def policy_attempts(
    env_split: EnvSplit,
    policy: Policy,
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
    play = partial(
        play_prompting, agent, model, make, max_tokens=options.action_tokens, temperature=options.eval_temperature
    )
    if policy is None:
        places = {task_id: place for place, task_id in enumerate(env_split.task_split.task_ids)}
        attempts, yielded = _in_order(missing, places), 0

        def of_live(finished: float, every: int) -> None:
            if progress is not None:
                progress(finished - yielded, every - yielded)

        for place, result in play([attempt.task_id for attempt in attempts], progress=of_live):
            yielded += 1
            keep(result, attempts[place].repeat)
            yield Record.of_result(result, attempts[place].repeat, timed=True)
        return
    for repeat, part in _batches(env_split, policy, missing, seed):
        batch = sorted(play(part, progress=progress), key=lambda found: found[0])
        for _, result in batch:
            keep(result, repeat)
            record = Record.of_result(result, repeat)
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
            policy.reseed(int(_stream(seed, start, repeat).integers(2**62)))
            policy.clear_cache()  # a cached prefix may differ in rounding
            yield repeat, part


def _stream(seed: int, place: int, repeat: int) -> np.random.Generator:
    """The random numbers of a task, or of the batch that begins with it, in one repeat; no other seed has them.

    The repeat is last, for numpy fills with zeros: the first one has the numbers of seed and place alone.
    """
    return np.random.default_rng([seed, place, repeat])


def _in_order(missing: Set[Attempt], places: Mapping[str, int]) -> list[Attempt]:
    return sorted(missing, key=lambda attempt: (attempt.repeat, places[attempt.task_id]))


__all__ = [
    "agent_attempts",
    "chat_attempts",
    "evaluate_policy",
    "play_agents",
    "play_prompting",
    "policy_attempts",
]

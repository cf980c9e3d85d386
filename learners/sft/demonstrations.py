"""Demonstrations of the environment's scripted expert, as episodes and as training sequences; and corrections:
imitation of the expert in states that the policy reaches itself (DAgger, Ross et al. 2011).

The expert sees only what an agent sees, so its behavior can be learned from the transcript. Some of its steps are
replaced by the slips of a weak policy, many of which fail. Slips are shown but not imitated; the expert's recovery from
them is imitated.

Demonstrations only cover states that the expert reaches. The policy reaches others by its mistakes. So policy and
expert take turns in the same episode after the demonstrations, and the expert's commands are imitated, recoveries from
the policy's mistakes included.

Sequences are token for token what a rollout would record. Predictions are taught in the form in which they will be
asked for, from the states that really followed.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from roleagent.agents.builders import EnvSplit
from roleagent.agents.episode import Ask, Episode, EpisodeFailed, Scheduler, play_episode
from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.policies.protocol import Policy, Weights
from roleagent.agents.rendering import Conversation, TextRecorder
from roleagent.agents.rollout import Rollout
from roleagent.config import ConfigError
from roleagent.config.settings import WarmStartConfig
from roleagent.env_card import make_expert
from roleagent.envs.failures.command_noise import CommandNoise, verb_of
from roleagent.envs.failures.scripted_episode import ScriptedEpisode
from roleagent.envs.mixture import joined
from roleagent.envs.pool import EnvPool
from roleagent.envs.wrappers.tags import ReplyReader
from roleagent.envs.wrappers.tool_tags import ToolReader
from roleagent.learners.batch import draw_turns, prediction_reply, prediction_text, segments_of
from roleagent.learners.run.display import Display
from roleagent.learners.run.run import Run
from roleagent.tasks.split import is_of
from roleagent.types import Completion, Prediction, Request, Segment, Task, Trajectory, Turn

PER_TASK = 40
"""Most episodes of a training task in a warm start: more of them repeat each other."""
_REPEATS = 5
"""Demonstrations of a task in a row that say nothing new, after which it is not played again."""
_TIMED = 3
"""Episodes from whose time that of all of them is estimated."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a demonstration. ``imitated`` is False for a slip.

    ``reply`` is the reply that was sampled; None: it is written from the command.
    """

    command: str
    imitated: bool
    observation: str
    info: Mapping[str, Any]
    reply: Completion | None = None


@dataclass(frozen=True, slots=True)
class Demonstration:
    """An episode in which the expert played all or some of the steps, as text."""

    task: Task
    observation: str
    info: dict[str, Any]
    steps: tuple[Step, ...]

    @property
    def shown(self) -> tuple[str, ...]:
        """Everything that is said in it, in order."""
        return (self.observation, *(text for step in self.steps for text in (step.command, step.observation)))

    def named(self, name: str) -> Demonstration:
        """As an episode of one of several environments; unchanged without a name."""
        task_id, task_type = joined(name, self.task.task_id), joined(name, self.task.task_type)
        return replace(self, task=replace(self.task, task_id=task_id, task_type=task_type))

    @property
    def states(self) -> list[str | None]:
        """s_1 … s_{T+1}."""
        return [self.info.get("state"), *(step.info.get("state") for step in self.steps)]


def reset_to(env: gymnasium.Env, env_id: str, task_id: str) -> tuple[Task, str, dict[str, Any]]:
    """Resets an environment to a task; returns the task, the first observation and its info."""
    observation, info = env.reset(options={"task_id": task_id})
    return Task.of(env_id, task_id, info), observation, info


def demonstrate(
    env: gymnasium.Env, task_id: str, noise: float, slips: CommandNoise, rng: np.random.Generator
) -> Demonstration | None:
    """One episode of the environment's expert.

    Args:
        env: a base environment (bare commands).
        task_id: the task.
        noise: probability that a slip replaces the expert's command, in [0, 1).
        slips: draws the steps that slip and the slips, and learns the expert's commands of this episode.
        rng: draws the expert's choices.

    Returns:
        the episode; None if the expert did not win.
    """
    episode = ScriptedEpisode(env, task_id, rng)
    observation, info = episode.observation, episode.info
    imitated = slips.play(episode, noise, learn=True)
    if not episode.info["won"]:
        return None
    task = Task.of(env.spec.id if env.spec else "", task_id, info)
    steps = [
        Step(turn.action, right, turn.observation, turn.info)
        for turn, right in zip(episode.turns, imitated, strict=True)
    ]
    return Demonstration(task, observation, info, tuple(steps))


def texts_of(
    demonstrations: Sequence[Demonstration],
    style: type[Conversation],
    history: int,
    reader: ReplyReader | None = None,
) -> Iterator[str]:
    """All texts of these episodes, for training a tokenizer: replies as ``reader`` writes them, without its tags."""
    for demonstration in demonstrations:
        recorder = TextRecorder()
        conversation = style(recorder, 0, "none", demonstration.observation, demonstration.info, history)
        for step in demonstration.steps:
            conversation.advance((), (), step.command, step.observation, step.info)
            yield step.command if reader is None else _without(reader.write(step.command), reader.tags)
            yield step.observation
        yield from recorder.texts


def _without(text: str, tags: Sequence[str]) -> str:
    for tag in tags:
        text = text.replace(tag, "")
    return text


def sized(config: WarmStartConfig, tasks: int) -> WarmStartConfig:
    """The warm start with at most :data:`PER_TASK` episodes per training task, those of its rounds included.

    >>> from roleagent.config.settings import WarmStartConfig
    >>> few = sized(WarmStartConfig(episodes=2000, rounds=12, round_episodes=600), tasks=46)
    >>> few.episodes, few.rounds, few.round_episodes
    (400, 12, 120)
    >>> sized(WarmStartConfig(episodes=0, rounds=12, round_episodes=600), tasks=24).episodes  # there is none
    0
    """
    share = PER_TASK * tasks / max(1, config.episodes + config.rounds * config.round_episodes)
    if not config.episodes or share >= 1:
        return config
    each = max(1, int(share * config.round_episodes))
    return replace(config, episodes=max(1, int(share * config.episodes)), round_episodes=each)


def collect_demonstrations(split: EnvSplit, rng: np.random.Generator, display: Display) -> list[Demonstration]:
    """``warmstart.episodes`` episodes of the expert on training tasks; with the same ``rng`` the same on every rank.

    A task whose last :data:`_REPEATS` episodes were known is not played again: its further demonstrations are drawn
    from the episodes that it has.

    Raises:
        ConfigError: the expert wins too rarely.
    """
    config = split.config.warmstart
    slips = CommandNoise((), rng)
    order = rng.permutation(len(split.task_split))
    display.stage("demonstrations", config.episodes)
    chosen: list[Demonstration] = []
    won: dict[str, list[Demonstration]] = {}  # by task
    repeats: Counter[str] = Counter()  # of a task's newest demonstrations, in a row
    attempts, began = 0, time.monotonic()
    drawn: set[tuple[str, str]] = set()
    least = min((share for share in config.shares.values() if share > 0), default=1.0)
    while len(chosen) < config.episodes:
        if attempts * least >= 3 * config.episodes:
            raise ConfigError(
                f"the expert won only {len(chosen)} of {attempts} tasks: set warmstart.episodes=0 and policy.path"
            )
        task_id = split.task_split.task_ids[order[attempts % len(order)]]
        earlier = won.setdefault(task_id, [])
        if repeats[task_id] >= _REPEATS:
            demonstration: Demonstration | None = earlier[int(rng.integers(len(earlier)))]
        else:
            demonstration = demonstrate(split.base, task_id, config.noise, slips, rng)
            if demonstration is not None:
                is_new = all(demonstration.shown != one.shown for one in earlier)
                repeats[task_id] = 0 if is_new else repeats[task_id] + 1
                earlier.append(demonstration)
        attempts += 1
        if attempts == _TIMED:
            _say_cost((time.monotonic() - began) / _TIMED, len(order), config.episodes, display)
        if demonstration is not None:
            drawn.add((task_id, demonstration.task.task_type))
            if _is_chosen(demonstration.task, config.shares, rng):
                chosen.append(demonstration)
        if attempts % 20 == 0:
            display.advance(len(chosen))
    for kind in config.shares:
        if not any(is_of(kind, *task) for task in drawn):
            display.say(f"warmstart.shares: none of {len(drawn)} drawn tasks of {split.task_split.env_id} is of {kind}")
    return chosen


def _say_cost(seconds: float, tasks: int, episodes: int, display: Display) -> None:
    """Shows how long the demonstrations take at these seconds per episode, where that may be two minutes or more."""
    least, most = (max(1, round(seconds * number / 60)) for number in (min(tasks, episodes), episodes))
    if most > 1:
        minutes = f"{least} to {most}" if least < most else most
        display.say(f"an episode of the expert takes {seconds:.1f} s: demonstrations take {minutes} minutes")


def _is_chosen(task: Task, shares: Mapping[str, float], rng: np.random.Generator) -> bool:
    """Whether a drawn task is in the configured share of its kind."""
    share = next((share for kind, share in shares.items() if is_of(kind, task.task_id, task.task_type)), 1.0)
    return share >= 1 or rng.random() < share


def _drawn(split: EnvSplit, count: int, rng: np.random.Generator) -> list[str]:
    """Tasks of one environment."""
    shares = split.config.warmstart.shares
    if not shares:
        places = rng.integers(len(split.task_split), size=count)
        return [split.task_split.task_ids[int(place)] for place in places]
    drawn: list[str] = []
    while len(drawn) < count:
        task_id = split.task_split.task_ids[int(rng.integers(len(split.task_split)))]
        task, _, _ = reset_to(split.base, split.task_split.env_id, task_id)
        if _is_chosen(task, shares, rng):
            drawn.append(task_id)
    return drawn


CORRUPTED = 0.3
"""Share of predictions in the transcript that are replaced by a wrong one: shown, and not imitated."""

FAILED_SHARE = 0.7
"""How often a demonstration with a failed command teaches such a failure. With 0.5 the policy predicts too few of its
own failures (R2), with 1 it expects failure everywhere."""


def tokenize(
    split: EnvSplit,
    policy: HFPolicy,
    demonstrations: Sequence[Demonstration],
    rng: np.random.Generator,
    most_fit: bool = False,
) -> list[Segment]:
    """Demonstrations as segments; those beyond the policy's context are left out.

    Args:
        split: the environment, and how it is prompted.
        policy: has the tokenizer.
        demonstrations: the episodes.
        rng: draws the corrupted predictions, and the demonstrations without any prediction.
        most_fit: whether most demonstrations must fit into the context.

    Raises:
        ConfigError: they do not; one line with the length of the longest.
    """
    options = split.config.warmstart
    predicting, plain = split.rollout(policy), split.without_predictions().rollout(policy)
    detached = split.config.prompt.predictions == "detached"
    corrupted_predictions = (
        None if detached else CorruptedPredictions(demonstrations, split.horizon, CORRUPTED, rng)
    )  # detached predictions are not read again

    def segments(demonstration: Demonstration) -> list[Segment]:
        has_failure = any(not step.info.get("valid_action", True) for step in demonstration.steps)  # these are rare
        if not has_failure and options.predictions < 1 and rng.random() >= options.predictions:
            return segments_from(demonstration, plain)
        if not (detached and split.horizon):
            return segments_from(demonstration, predicting, corrupted_predictions)
        step = _predicted_step(demonstration, rng)
        return segments_from(demonstration, plain if step is None else predicting, only=step)

    rows, limit = [segments(demonstration) for demonstration in demonstrations], policy.context_length
    longest = [max(map(len, row), default=0) for row in rows]
    late = sum(length > limit for length in longest)
    if most_fit and 2 * late > len(rows):
        raise ConfigError(
            f"{late} of {len(rows)} demonstrations do not fit into policy.context={limit}: the longest has "
            f"{max(longest)} tokens"
        )
    return [segment for row in rows for segment in row if len(segment) <= limit]


def plan_of(demonstration: Demonstration, reader: ReplyReader) -> str:
    """The expert's commands in an episode, as a note for a prompt; of tools, the calls. ``""`` without any."""
    write = reader.write if isinstance(reader, ToolReader) else str
    commands = [write(step.command) for step in demonstration.steps if step.imitated]
    return "\n".join(("This solves the task:", *commands)) if commands else ""


def tokenize_with_plans(split: EnvSplit, policy: HFPolicy, demonstrations: Sequence[Demonstration]) -> list[Segment]:
    """Demonstrations as segments whose prompts hold their plan (:func:`plan_of`): so a policy learns to read one.

    A slip is not in the plan, and what follows it leads back. Segments beyond the policy's context are left out.
    """
    rollout = split.without_predictions().rollout(policy)
    rows = [
        segments_from(one, rollout, note=plan_of(one, rollout.of(one.task.task_id).reader)) for one in demonstrations
    ]
    return [segment for row in rows for segment in row if len(segment) <= policy.context_length]


def check_reply_lengths(
    split: EnvSplit, policy: Policy, demonstrations: Sequence[Demonstration], warn: Callable[[str], None]
) -> None:
    """Warns of demonstrations with a reply beyond ``rollout.action_tokens``: the policy could not finish it.

    Raises:
        ConfigError: most demonstrations have one; one line with the length of the longest reply.
    """
    limit, longest = split.config.rollout.action_tokens, []
    for demonstration in demonstrations:
        reader, steps = split.of(demonstration.task.task_id).reader, demonstration.steps
        longest.append(max(len(policy.encode(reader.write(step.command, policy.literal))) for step in steps))
    late = sum(length > limit for length in longest)
    if late:
        found = (
            f"{late} of {len(longest)} demonstrations have replies that do not fit into rollout.action_tokens={limit}: "
            f"the longest has {max(longest)} tokens"
        )
        if 2 * late > len(longest):
            raise ConfigError(found)
        warn(found)


def _predicted_step(demonstration: Demonstration, rng: np.random.Generator) -> int | None:
    """The step whose outcome a detached prediction teaches; None if no outcome has a state."""
    known = [number for number, state in enumerate(demonstration.states[1:]) if state is not None]
    failed = [number for number in known if not demonstration.steps[number].info.get("valid_action", True)]
    return next(iter(draw_turns(known, failed, 1, rng, FAILED_SHARE)), None)


class CorruptedPredictions:
    """Plausible but wrong predictions: the states after a command of the same kind in another episode.

    Predictions stay in a transcript. If all of them were correct, a policy would learn to read its own prediction
    instead of the observation that follows, and would trust its mistakes in rollouts.

    Args:
        demonstrations: the source of the states.
        horizon: most steps that a prediction looks ahead.
        share: of the predictions that are replaced, in [0, 1).
        rng: of the draws.
    """

    def __init__(self, demonstrations: Sequence[Demonstration], horizon: int, share: float, rng: np.random.Generator):
        self._share, self._rng = share, rng
        self._places: dict[tuple[str, int], list[tuple[Demonstration, int]]] = {}
        for demonstration in demonstrations:
            for number, step in enumerate(demonstration.steps):
                for ahead in range(1, min(horizon, len(demonstration.steps) - number) + 1):
                    self._places.setdefault((verb_of(step.command), ahead), []).append((demonstration, number))

    def draw(self, command: str, ahead: int) -> list[str | None] | None:
        """``ahead`` states that might follow ``command``; None: the prediction stays correct."""
        if self._rng.random() >= self._share:
            return None
        places = self._places[verb_of(command), ahead]
        demonstration, number = places[int(self._rng.integers(len(places)))]
        return demonstration.states[number + 1 : number + 1 + ahead]


def segments_from(
    demonstration: Demonstration,
    rollout: Rollout,
    corrupted_predictions: CorruptedPredictions | None = None,
    only: int | None = None,
    note: str = "",
) -> list[Segment]:
    """A demonstration exactly as a rollout would have recorded it, token for token.

    A state beyond ``rollout.prediction_tokens`` is not predicted if predictions stay in the transcript: the whole
    episode would carry half a page. A detached prediction contains the page's beginning.

    Args:
        demonstration: the episode.
        rollout: gives prompt style, tokenizer, stop tokens and horizon.
        corrupted_predictions: wrong predictions that sometimes replace the true ones; they are not imitated.
        only: number of the one step with a prediction; None: every step. A detached prediction is a segment of its own
            with everything before it, so one per step would repeat most tokens as often as there are steps.
        note: in the prompts (:class:`~roleagent.agents.rendering.Conversation`).
    """
    rollout = rollout.of(demonstration.task.task_id)
    policy, horizon = rollout.policy, rollout.horizon
    inline, detached = (rollout.prompt.predictions == form for form in ("inline", "detached"))
    conversation = rollout.open(demonstration.observation, demonstration.info, note)
    states = demonstration.states
    turns: list[Turn] = []
    for number, step in enumerate(demonstration.steps):
        prompt = conversation.action_prompt()
        ahead = states[number + 1 : number + 1 + horizon]
        action_text = rollout.reader.write(step.command, policy.literal)
        prediction = None
        if step.reply is not None:
            action = step.reply
        elif horizon and inline:
            action = rollout.text_reply(action_text + prediction_text(ahead, policy), rollout.action_stops)
        else:
            action = rollout.text_reply(action_text, rollout.action_stops)
        stream, last = (*prompt, *action.token_ids), action.token_ids
        if horizon and not inline and only in (None, number):
            asked = conversation.prediction_prompt(action)
            wrong = corrupted_predictions.draw(step.command, len(ahead)) if corrupted_predictions is not None else None
            limit = rollout.config.prediction_tokens
            answer = prediction_reply(ahead if wrong is None else wrong, rollout, limit, shorten=detached)
            answer = answer or rollout.text_reply("", rollout.prediction_stops)
            prediction = Prediction(asked, answer, ()) if wrong is None else None
            if not detached:
                stream, last = (*asked, *answer.token_ids), answer.token_ids
        turns.append(Turn(prompt, action, step.command, step.observation, prediction=prediction))
        conversation.advance(stream, last, step.command, step.observation, step.info)
    trajectory = Trajectory(demonstration.task, tuple(turns), True, False, "won", demonstration.observation)
    return segments_of(trajectory, [float(step.imitated) for step in demonstration.steps])


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
) -> tuple[list[Demonstration], list[str]]:
    """One episode per task; each step is the policy's with probability :data:`POLICY_SHARE`, or else the expert's.

    Args:
        split: the training tasks.
        policy: samples actions, but no predictions.
        task_ids: a task may occur twice.
        temperature: of the policy's commands.
        rng: draws the player of each step, and the experts' choices.
        progress: called after every batch with (played, all) episodes.

    Returns:
        the episodes, won or not, without those that their environment broke. Steps with the expert's command are marked
        as imitated. And the errors of the others.
    """
    several = split.without_predictions().rollout(policy)
    limit, batch = several.config.action_tokens, split.config.rollout.eval_batch

    broken: list[str] = []

    async def play(episode: Episode) -> Demonstration | None:
        rollout, conversation = several.of(episode.task_id), None
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
            ids = rollout.text_reply(rollout.reader.write(command, policy.literal), rollout.action_stops).token_ids
            said = (*prompt, *ids), ids, command
            imitated.append(command == expected)
            return command

        try:
            await play_episode(episode, decide)
        except EpisodeFailed as error:
            broken.append(str(error))
            return None
        assert episode.record is not None
        record = episode.record
        steps = [
            Step(turn.action, right, turn.observation, turn.info)
            for turn, right in zip(record.turns, imitated, strict=True)
        ]
        return Demonstration(record.task, record.initial_observation, record.initial_info, tuple(steps))

    played: list[Demonstration] = []
    with contextlib.closing(EnvPool(split.make_base)) as pool:
        for start in range(0, len(task_ids), batch):
            part = task_ids[start : start + batch]

            def begin(index: int, slot: int, part: Sequence[str] = part) -> Coroutine[Any, Any, Demonstration | None]:
                return play(Episode(pool, slot, part[index], split.of(part[index]).task_split.env_id))

            found = dict(Scheduler(several.backend(temperature), pool.step_many, begin, len(part)).run())
            played += [one for index in range(len(part)) if (one := found[index]) is not None]
            policy.clear_cache()
            if progress is not None:
                progress(start + len(part), len(task_ids))
    return played, broken


class Corrections:
    """The rounds of corrections of a run. Their episodes are in the run folder, so a resumed run imitates the same.

    Args:
        run: in the stage of the warm start, or later.
        split: the training tasks.
        actor: plays, with the learner's weights.
    """

    def __init__(self, run: Run, split: EnvSplit, actor: Policy):
        self._run, self.split, self._actor = run, split, actor
        options = split.config.warmstart
        self.rounds = options.rounds
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

    def play(self, number: int, learner: Weights, version: int) -> None:
        """Plays and saves a round with the present weights; rounds are numbered from 1."""
        run, split, actor = self._run, self.split, self._actor
        actor.sync(learner, version)
        rng = run.own_stream("dagger", number)
        actor.reseed(int(rng.integers(2**62)))
        drawn = run.ranks.once(lambda: self._draw(run.stream("dagger tasks", number)))
        own = run.ranks.share(drawn)
        temperature = split.config.rollout.temperature
        played, broken = map(
            run.ranks.collect, take_turns(split, actor, own, temperature, rng, partial(run.inner, "episodes"))
        )
        actor.offload()

        def keep() -> None:
            if not played:
                raise ConfigError(f"all {len(drawn)} episodes of a round of the warm start failed: {broken[0]}")
            steps = [step for episode in played for step in episode.steps]
            failed = sum(not step.info.get("valid_action", True) for step in steps) / max(1, len(steps))
            deviating = sum(not step.imitated for step in steps) / max(1, len(steps))
            run.display.say(
                f"round {number}: policy and expert took turns in {len(played)} episodes; "
                f"{deviating:.0%} of the commands were not the expert's, {failed:.0%} failed"
            )
            if broken:
                lost = f"{len(broken)} of {len(drawn)} episodes failed and are left out, the first with: {broken[0]}"
                run.display.warn(f"round {number}: {lost}")
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

    def _draw(self, rng: np.random.Generator) -> list[str]:
        """The tasks of a round: uniform in each environment, but for what ``warmstart.shares`` makes rare."""
        return [
            joined(name, task_id)
            for name, part in self.split.environments.items()
            for task_id in _drawn(part, part.config.warmstart.round_episodes, rng)
        ]

    def demonstrations(self, number: int) -> list[Demonstration]:
        """The episodes of a round: the environment replays the saved commands."""
        env = self.split.base
        found = []
        for episode in self._read(number)["episodes"]:
            task_id = episode["task_id"]
            task, observation, info = reset_to(env, self.split.of(task_id).task_split.env_id, task_id)
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

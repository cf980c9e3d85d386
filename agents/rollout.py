"""Plays groups of episodes of a policy, side by side.

The policy samples for all live episodes in one call; finished episodes leave the batch. Predictions are sampled in one
call after all episodes if no later prompt contains them, else in a second call per turn; or, for chosen turns of played
episodes, by :meth:`Rollout.predict`. What comes out are :class:`~roleagent.types.Trajectory` objects with every prompt
and every sampled token as they were.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from roleagent.agents.episode import Action, Ask, Backend, Batch, EnvError, Episode, Scheduler, play_episode
from roleagent.agents.policies.protocol import HasBackend, Policy
from roleagent.agents.prompt_templates import read_templates
from roleagent.agents.rendering import Conversation, note_of, prediction_prompt, renderer_of, style_of
from roleagent.config.settings import PromptConfig, RolloutConfig
from roleagent.env_card import Instructions, instructions_of
from roleagent.envs.mixture import parted
from roleagent.envs.pool import EnvPool, Outcome
from roleagent.envs.wrappers.predicted_state import score_predictions
from roleagent.envs.wrappers.tags import ReplyReader, TagReader
from roleagent.timer import Timer
from roleagent.types import Completion, Group, Prediction, PredictionScore, Request, Task, Turn

if TYPE_CHECKING:
    from roleagent.curricula.lessons import Lessons

_TRIED = 4  # lessons that are tried for each that a prompt may hold: those that are too long are passed over
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


@dataclass
class RolloutStats:
    """Counters of a rollout. Tokens are sampled tokens.

    Attributes:
        seconds: of a rollout that was played beside the update; else 0, and the iteration's timer has them.
        errors: episodes whose environment failed.
        failures: their errors, by task id.
    """

    episodes: int = 0
    turns: int = 0
    action_tokens: int = 0
    prediction_tokens: int = 0
    seconds: float = 0.0
    errors: int = 0
    failures: dict[str, str] = field(default_factory=dict)

    @classmethod
    def gather(cls, parts: Sequence[RolloutStats]) -> RolloutStats:
        """The sum of several rollouts' counters."""
        total = cls()
        for part in parts:
            total.episodes += part.episodes
            total.turns += part.turns
            total.action_tokens += part.action_tokens
            total.prediction_tokens += part.prediction_tokens
            total.seconds = max(total.seconds, part.seconds)
            total.errors += part.errors
            total.failures |= part.failures
        return total


class Rollout:
    """Plays groups of episodes.

    Args:
        policy: the model that acts (and predicts).
        pool: environments wrapped in ``Tags`` or ``ToolTags`` (outermost) and, with predictions, ``PredictedState``.
        env_id: the Gymnasium id, for the tasks.
        prompt: style, thinking, how predictions are asked for.
        config: token limits.
        horizon: steps a prediction looks ahead; 0 asks for none.
        guide: the environment's instructions; None: those of ``env_id``.
        reader: of the outermost wrapper; None: that of ``Tags``.
        plain: whether :meth:`play` asks for no predictions, because :meth:`predict` will.
        parts: of several environments the rollout of each, by name (:meth:`of`); instructions, reader and stop tokens
            are theirs.

    Attributes:
        slots: most episodes side by side; None: all.
        lessons: of earlier failures, for the prompts; None: there are none.
        name: of this environment among several, with which its task ids and types begin.
        most_turns: of an episode; None: as many as the environment allows.
        watch: time spent on generation, prediction, the environment and scoring.
    """

    slots: int | None = None
    lessons: Lessons | None = None
    name = ""
    most_turns: int | None = None

    def __init__(
        self,
        policy: Policy,
        pool: EnvPool,
        env_id: str,
        prompt: PromptConfig,
        config: RolloutConfig,
        horizon: int,
        guide: Instructions | None = None,
        reader: ReplyReader | None = None,
        plain: bool = False,
        parts: Mapping[str, Rollout] | None = None,
    ):
        self.policy, self.pool, self.parts = policy, pool, parts or {}
        self.prompt, self.config, self.horizon = prompt, config, horizon
        self.renderer = renderer_of(policy, prompt.thinks, read_templates(prompt.templates))
        self.style = style_of(prompt.style)
        self.stats, self.watch = RolloutStats(), Timer()
        inline = horizon and prompt.predictions == "inline"
        self.action_limit = config.action_tokens + (config.prediction_tokens if inline else 0)
        # Prompts that only grow are the beginnings of one text, so their questions can be asked together, afterwards.
        self.predicts_later = bool(horizon) and self.style.grows and prompt.predictions == "detached"
        self.predicts = bool(horizon) and not plain  # while it plays, or right behind
        if self.parts:
            return
        self.env_id, self.guide = env_id, guide or instructions_of(env_id)
        self.reader: ReplyReader = reader or TagReader(prompt.think, horizon=horizon)
        self.action_stops = self._stops(*self.reader.stops)
        # With one horizon its closing tag ends the reply; with several the model itself ends the reply.
        self.prediction_stops = self._stops("</prediction>") if horizon == 1 else policy.end_ids

    def of(self, task_id: str) -> Rollout:
        """The rollout of the environment that has a task, with counters, watch, pool, lessons and limit of this one."""
        if not self.parts:
            return self
        name = task_id.partition("/")[0]
        part = copy.copy(self.parts[name])
        part.pool, part.stats, part.watch = self.pool, self.stats, self.watch
        part.lessons, part.name, part.most_turns = self.lessons, name, self.most_turns
        return part

    def _stops(self, *closing_tags: str) -> frozenset[int]:
        """Tokens that end a reply: closing tags that are one token, and always the end tokens."""
        inline = self.horizon and self.prompt.predictions == "inline"
        tokens = () if inline else map(self.policy.single_token, closing_tags)
        return self.policy.end_ids | {token for token in tokens if token is not None}

    def text_reply(self, text: str, stops: frozenset[int]) -> Completion:
        """A text as a completion that ends in a stop token; its log-probabilities are 0."""
        ids = self.renderer.write(text)
        if not ids or ids[-1] not in stops:
            ids.append(self.policy.eos_id)
        return Completion(tuple(ids), (0.0,) * len(ids), "stop")

    def open(self, observation: str, info: Mapping[str, Any], note: str = "") -> Conversation:
        """A conversation in the configured style, after ``reset``; with a note in its prompts."""
        think, history = self.prompt.think, self.prompt.history
        return self.style(self.renderer, self.horizon, think, observation, info, history, self.guide, note)

    def lessons_for(self, task_id: str, observation: str, info: Mapping[str, Any]) -> tuple[str, ...]:
        """The lessons that a prompt holds: the nearest to the task and the present state that fit the budget."""
        if self.lessons is None:
            return ()
        shown: list[str] = []
        task_type, goal = parted(self.name, info.get("task_type", "")), info.get("goal", "")
        near = self.lessons.nearest(self.env_id, task_id, task_type, goal, info.get("state") or observation)
        for lesson in islice(near, _TRIED * self.lessons.most):
            if len(shown) == self.lessons.most:
                break
            text = self.renderer.literal(note_of([*shown, lesson]))
            if len(self.policy.encode(text)) <= self.lessons.tokens:
                shown.append(lesson)
        return tuple(shown)

    def play(
        self,
        task_ids: Sequence[str],
        copies: int,
        temperature: float,
        progress: Callable[[float, int], None] | None = None,
        openings: Sequence[Sequence[Completion]] | None = None,
    ) -> list[Group]:
        """Plays each task ``copies`` times, all side by side.

        Args:
            task_ids: one group each, in order; a task may occur twice.
            copies: episodes per group (G).
            temperature: of sampling.
            progress: called after every turn with (finished, all) episodes; an unfinished one counts
                as the share of its steps that is played.
            openings: for each task id, replies that its episodes begin with; none of them is sampled.

        Returns:
            One group per task id. Episodes whose environment failed are left out of their group and counted in
            ``stats.errors``: a crash is not a reward of 0.
        """
        wanted = [task_id for task_id in task_ids for _ in range(copies)]
        env_ids = {task_id: self.of(task_id).env_id for task_id in task_ids}
        episodes = [Episode(self.pool, index, task_id, env_ids[task_id]) for index, task_id in enumerate(wanted)]
        given = [() if openings is None else tuple(one) for one in openings or task_ids for _ in range(copies)]
        scheduler = Scheduler(
            self.backend(temperature),
            self._step,
            lambda index, slot: self._play(episodes[index].at(slot), given[index]),
            len(episodes),
            self.slots,
            progress=progress,
            share=lambda index: episodes[index].share,
            watch=self.watch,
        )
        with self.watch("environment"):
            errors = dict(scheduler.run())
        self.policy.clear_cache()
        self.stats.failures |= {wanted[index]: error for index, error in sorted(errors.items()) if error}
        groups = []
        for position, task_id in enumerate(task_ids):
            members = range(position * copies, (position + 1) * copies)
            records = [episodes[index].record for index in members if not errors[index]]
            trajectories = tuple(record.trajectory() for record in records if record is not None)
            self.stats.errors += copies - len(trajectories)
            self.stats.episodes += len(trajectories)
            known = next((record for index in members if (record := episodes[index].record)), None)
            task = trajectories[0].task if trajectories else known.task if known else Task(env_ids[task_id], task_id)
            groups.append(Group(task, trajectories))
        return groups

    async def _play(self, episode: Episode, given: Sequence[Completion]) -> str:
        """Plays an episode, and returns the error of its environment, or ``""``."""
        own = self.of(episode.task_id)
        player = _Player(own, given)
        try:
            await play_episode(episode, player.decide)
        except EnvError as error:
            return str(error)
        if player.asked:
            record = episode.record
            assert record is not None
            record.turns[:] = await own._predicted(episode.slot, record.turns, player.asked)
            # While it was played no prediction had arrived.
            made = [turn.prediction for turn in record.turns if turn.prediction is not None]
            record.scores[:] = [score for prediction in made for score in prediction.scores]
        return ""

    def predict(
        self,
        groups: Sequence[Group],
        chosen: Sequence[Sequence[Sequence[int]]],
        temperature: float,
        progress: Callable[[float, int], None] | None = None,
    ) -> list[Group]:
        """Samples and scores detached predictions of some turns of played episodes, all side by side.

        Args:
            groups: the episodes.
            chosen: of each group and trajectory, the numbers of the turns that predict.
            temperature: of sampling.
            progress: called with (answered, all) trajectories.
        """
        members = [(g, m) for g, rows in enumerate(chosen) for m, turns in enumerate(rows) if turns]

        async def predicted(index: int, slot: int) -> list[Turn]:
            group, member = members[index]
            turns, own = groups[group].trajectories[member].turns, self.of(groups[group].task.task_id)
            prompts = {number: own.prediction_prompt(turns[number]) for number in chosen[group][member]}
            asked = {number: prompt for number, prompt in prompts.items() if own.has_room(prompt)}
            return await own._predicted(slot, turns, asked) if asked else [*turns]

        scheduler = Scheduler(
            self.backend(temperature), self._step, predicted, len(members), progress=progress, watch=self.watch
        )
        predicted_turns = {members[index]: tuple(turns) for index, turns in scheduler.run()}
        self.policy.clear_cache()
        return [
            replace(
                group,
                trajectories=tuple(
                    replace(one, turns=predicted_turns.get((g, m), one.turns))
                    for m, one in enumerate(group.trajectories)
                ),
            )
            for g, group in enumerate(groups)
        ]

    def prediction_prompt(self, turn: Turn) -> tuple[int, ...]:
        """The prompt of a turn's detached prediction."""
        return prediction_prompt(self.renderer, self.horizon, turn.prompt_ids, turn.completion)

    def has_room(self, prompt: Sequence[int]) -> bool:
        """Whether the context has room for a reply to a prompt."""
        return len(prompt) + 1 < self.policy.context_length

    def backend(self, temperature: float) -> Backend:
        """What samples for the episodes: the policy's own backend, or one call for all live ones."""
        if isinstance(self.policy, HasBackend):
            return self.policy.backend(temperature)

        return Batch(partial(self.sample, temperature))

    def sample(self, temperature: float, asked: Sequence[Ask]) -> list[list[Completion]]:
        """The policy's replies to the requests of several episodes, in one call."""
        requests = [request for ask in asked for request in ask.content]
        with self.watch(asked[0].kind):
            replies = iter(self.policy.generate(requests, temperature))
        return [[next(replies) for _ in ask.content] for ask in asked]

    def _step(self, actions: Mapping[int, Any]) -> dict[int, Outcome]:
        """The steps of some episodes; the time that environments spend on scoring predictions is booked as such."""
        scored = self.pool.scoring_seconds(actions)
        outcomes = self.pool.step_many(actions)
        # An environment that failed has taken its part of the sum along.
        self.watch.move(max(0.0, self.pool.scoring_seconds(actions) - scored), "scoring")
        return outcomes

    async def _predicted(self, slot: int, turns: Sequence[Turn], asked: Mapping[int, tuple[int, ...]]) -> list[Turn]:
        """The turns of a played episode with sampled and scored predictions.

        Args:
            slot: of the cache.
            turns: all of them.
            asked: the prompt of each prediction, by turn.
        """
        predicted, limit, stops = [*turns], self.config.prediction_tokens, self.prediction_stops
        requests = [Request(prompt, slot, limit, stops) for prompt in asked.values()]
        replies: list[Completion] = await Ask(requests, "prediction", later=True)
        with self.watch("prediction"):
            for (number, prompt), reply in zip(asked.items(), replies, strict=True):
                self.stats.prediction_tokens += len(reply.token_ids)
                texts = self.reader.read(self.text_of(predicted[number].completion, reply)).predictions
                predicted[number] = replace(predicted[number], prediction=Prediction(prompt, reply, texts))
        with self.watch("scoring"):
            return self._scored(predicted)

    def _scored(self, turns: Sequence[Turn]) -> list[Turn]:
        """The turns of an episode with the scores of their predictions."""
        scored = [*turns]
        steps = [number for number, turn in enumerate(turns) if turn.played]
        similarity = self.pool.common_attr("similarity")
        states = [turns[number].info.get("state", turns[number].observation) for number in steps]
        texts = [made.texts if (made := turns[number].prediction) else () for number in steps]
        made_by: defaultdict[int, list[PredictionScore]] = defaultdict(list)
        for number, arrived in zip(steps, score_predictions(texts, states, similarity), strict=True):
            rewards = {**scored[number].rewards, "prediction": sum(score.score for score in arrived)}
            info = {**scored[number].info, "prediction_scores": arrived}
            scored[number] = replace(scored[number], rewards=rewards, info=info)
            for score in arrived:
                made_by[steps[score.turn]].append(replace(score, turn=steps[score.turn]))
        for number, turn in enumerate(scored):
            if turn.prediction is not None:
                prediction = replace(turn.prediction, scores=tuple(made_by[number]))
                scored[number] = replace(turn, prediction=prediction)
        return scored

    def text_of(self, action: Completion, prediction: Completion | None) -> str:
        """The reply as text, with a follow-up prediction appended. Thoughts about the prediction are no part of it."""
        text = self.renderer.read(action.token_ids)
        if prediction is None:
            return text
        predicted = self.renderer.read(prediction.token_ids)
        if not self.renderer.opening:
            return text + predicted
        cut = text.startswith("<think>") and "</think>" not in text
        return text + ("</think>" if cut else "") + _THOUGHT.sub("", predicted)


class _Player:
    """Decides in one episode: by the replies that it was given, then by those of the policy.

    Attributes:
        asked: by turn, the prompts of predictions that are to be sampled after the episode.
    """

    def __init__(self, rollout: Rollout, given: Sequence[Completion]):
        self._rollout, self._given = rollout, given
        self._conversation: Conversation | None = None
        self._said: tuple[tuple[int, ...], tuple[int, ...], str] = ((), (), "")  # tokens so far, the last ones, command
        self._lessons: tuple[str, ...] = ()
        self.asked: dict[int, tuple[int, ...]] = {}

    async def decide(self, episode: Episode) -> Action | None:
        """The next reply, and what it predicts; None where there is no room for one, or no turn is left."""
        rollout, number = self._rollout, len(episode.turns)
        if number == rollout.most_turns:
            assert episode.record is not None
            episode.record.end("max_steps")
            return None
        if self._conversation is None or not rollout.style.grows:
            self._lessons = rollout.lessons_for(episode.task_id, episode.observation, episode.info)
        if self._conversation is None:
            self._conversation = rollout.open(episode.observation, episode.info, note_of(self._lessons))
        else:
            self._conversation.note = note_of(self._lessons)
            self._conversation.advance(*self._said, episode.observation, episode.info)
        prompt = self._conversation.action_prompt()
        if len(prompt) + rollout.config.action_tokens > rollout.policy.context_length:
            assert episode.record is not None
            episode.record.end("context")
            return None
        if number < len(self._given):
            completion = self._given[number]
        else:
            [completion] = await Ask([Request(prompt, episode.slot, rollout.action_limit, rollout.action_stops)])
        asked, answer = await self._predict(completion, episode.slot, number)
        text = rollout.text_of(completion, answer)
        reply = rollout.reader.read(text)
        rollout.stats.turns += 1
        rollout.stats.action_tokens += len(completion.token_ids)
        self._said = (*prompt, *completion.token_ids), completion.token_ids, reply.command
        if answer is not None and rollout.prompt.predictions != "detached":
            self._said = (*asked, *answer.token_ids), answer.token_ids, reply.command
        prediction = Prediction(asked, answer, reply.predictions) if rollout.predicts else None
        return Action(text, reply.command, prompt, completion, prediction, self._lessons)

    async def _predict(self, action: Completion, slot: int, number: int) -> tuple[tuple[int, ...], Completion | None]:
        """A follow-up prediction: its prompt and tokens; none where there is none yet or no room for one."""
        rollout = self._rollout
        if not rollout.predicts or rollout.prompt.predictions == "inline":
            return (), None
        assert self._conversation is not None
        prompt = self._conversation.prediction_prompt(action)
        if not rollout.has_room(prompt):
            return (), None
        if rollout.predicts_later:
            self.asked[number] = prompt
            return (), None
        limit, stops = rollout.config.prediction_tokens, rollout.prediction_stops
        [completion] = await Ask([Request(prompt, slot, limit, stops)], "prediction")
        rollout.stats.prediction_tokens += len(completion.token_ids)
        return prompt, completion

"""Plays episodes of a policy in many environments, in lockstep over the live ones.

One batched call of the policy per turn; finished episodes leave the batch. Predictions are sampled in one call after
all episodes if no later prompt contains them, else in a second call per turn. What comes out are
:class:`~roleagent.types.Trajectory` objects with every prompt and every sampled token as they were.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from roleagent.agents.episode import Episode
from roleagent.agents.episode import RolloutStats as RolloutStats
from roleagent.agents.policies.protocol import Policy
from roleagent.agents.rendering import STYLES, Conversation, renderer_of
from roleagent.config.settings import PromptConfig, RolloutConfig
from roleagent.env_spec import Instructions, instructions_of
from roleagent.envs.pool import EnvPool, Outcome
from roleagent.envs.wrappers.predicted_state import score_predictions
from roleagent.envs.wrappers.tags import ReplyReader, TagReader
from roleagent.timer import Timer
from roleagent.types import (
    Completion,
    Group,
    Prediction,
    Request,
    Task,
    Turn,
    grouping_state,
)

_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


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

    Attributes:
        watch: time spent on generation, prediction, the environment and scoring.
    """

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
    ):
        self.policy, self.pool, self.env_id = policy, pool, env_id
        self.prompt, self.config, self.horizon = prompt, config, horizon
        self.renderer = renderer_of(policy, prompt.think != "none")
        self.guide = guide or instructions_of(env_id)
        self.stats, self.watch = RolloutStats(), Timer()
        self.reader: ReplyReader = reader or TagReader(prompt.think, horizon=horizon)
        self.action_stops = self._stops(*self.reader.stops)
        # Prompts that only grow are the beginnings of one text, so their questions can be asked together, afterwards.
        self._predicts_later = bool(horizon) and (prompt.style, prompt.predictions) == ("transcript", "detached")
        # With one horizon its closing tag ends the reply; with several the model itself ends the reply.
        self.prediction_stops = self._stops("</prediction>") if horizon == 1 else policy.end_ids

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

    def open(self, observation: str, info: dict[str, Any]) -> Conversation:
        """A conversation in the configured style, after ``reset``."""
        style = STYLES[self.prompt.style]
        think, history = self.prompt.think, self.prompt.history
        return style(self.renderer, self.horizon, think, observation, info, history, self.guide)

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
        episodes = [
            self._begin(position * copies + copy, task_id, () if openings is None else tuple(openings[position]))
            for position, task_id in enumerate(task_ids)
            for copy in range(copies)
        ]
        live = [episode for episode in episodes if not episode.stop_reason]
        while live:
            self._turn(live, temperature)
            live = [episode for episode in live if not episode.stop_reason]
            if progress is not None:
                going = sum(self.pool.share(episode.index, len(episode.turns)) for episode in live)
                progress(len(episodes) - len(live) + going, len(episodes))
        if self._predicts_later:
            self._predict_later([episode for episode in episodes if episode.stop_reason != "error"], temperature)
        self.policy.clear_cache()
        groups = []
        for position in range(len(task_ids)):
            members = episodes[position * copies : (position + 1) * copies]
            sound = [episode for episode in members if episode.stop_reason != "error"]
            self.stats.errors += len(members) - len(sound)
            self.stats.episodes += len(sound)
            groups.append(Group((sound or members)[0].task, tuple(episode.trajectory() for episode in sound)))
        return groups

    def _begin(self, index: int, task_id: str, given: tuple[Completion, ...]) -> Episode:
        with self.watch("environment"):
            outcome = self.pool.reset(index, task_id)
        info = outcome.info
        episode = Episode(index, task_id, Task.of(self.env_id, task_id, info), given)
        if outcome.error is not None:
            self._fail(episode, outcome.error)
            return episode
        episode.first, episode.state, episode.grouping_state = (
            outcome.observation,
            info.get("state"),
            grouping_state(info),
        )
        episode.conversation = self.open(outcome.observation, info)
        return episode

    def _fail(self, episode: Episode, error: str) -> None:
        episode.stop_reason = "error"
        self.stats.failures[episode.task_id] = error

    def _turn(self, live: list[Episode], temperature: float) -> None:
        with self.watch("generation"):
            acting, prompts, actions = self._act(live, temperature)
        if not acting:
            return
        with self.watch("prediction"):
            predicted = self._predict(acting, actions, temperature)
        with self.watch("environment"):
            scored = self.pool.scoring_seconds
            replies = [
                self._reply(action, followup and followup[1])
                for action, followup in zip(actions, predicted, strict=True)
            ]
            indices = [episode.index for episode in acting]
            outcomes = self.pool.step_many(dict(zip(indices, replies, strict=True)))
            for episode, prompt, action, followup, text in zip(
                acting, prompts, actions, predicted, replies, strict=True
            ):
                self._record(episode, prompt, action, followup, text, outcomes[episode.index])
            # An environment that failed has taken its part of the sum along.
            self.watch.move(max(0.0, self.pool.scoring_seconds - scored), "scoring")

    def _act(
        self, live: list[Episode], temperature: float
    ) -> tuple[list[Episode], list[tuple[int, ...]], list[Completion]]:
        """The next action of every episode that still has room for one: episodes, prompts and replies."""
        acting: list[Episode] = []
        prompts: list[tuple[int, ...]] = []
        for episode in live:
            assert episode.conversation is not None
            prompt = episode.conversation.action_prompt()
            if len(prompt) + self.config.action_tokens > self.policy.context_length:
                episode.stop_reason, episode.truncated = "context", True
                continue
            acting.append(episode)
            prompts.append(prompt)
        limit = self.config.action_tokens
        if self.horizon and self.prompt.predictions == "inline":
            limit += self.config.prediction_tokens
        requests = [
            Request(prompt, episode.index, limit, self.action_stops)
            for prompt, episode in zip(prompts, acting, strict=True)
            if len(episode.turns) >= len(episode.given)
        ]
        sampled = iter(self.policy.generate(requests, temperature) if requests else ())
        turns = [len(episode.turns) for episode in acting]
        actions = [
            episode.given[turn] if turn < len(episode.given) else next(sampled)
            for episode, turn in zip(acting, turns, strict=True)
        ]
        return acting, prompts, actions

    def _predict(
        self, acting: list[Episode], actions: list[Completion], temperature: float
    ) -> list[tuple[tuple[int, ...], Completion] | None]:
        """Follow-up predictions: prompt and completion per episode; None where there is none yet or no room for one."""
        if not self.horizon or self.prompt.predictions == "inline":
            return [None] * len(acting)
        prompts: dict[int, tuple[int, ...]] = {}
        for episode, action in zip(acting, actions, strict=True):
            assert episode.conversation is not None
            prompt = episode.conversation.prediction_prompt(action)
            if len(prompt) + 1 < self.policy.context_length:
                prompts[episode.index] = prompt
                if self._predicts_later:
                    episode.asked[len(episode.turns)] = prompt
        if self._predicts_later:
            return [None] * len(acting)
        completions = self._sample_predictions(list(prompts.items()), temperature)
        predicted = {index: (prompt, next(completions)) for index, prompt in prompts.items()}
        return [predicted.get(episode.index) for episode in acting]

    def _sample_predictions(
        self, prompts: Sequence[tuple[int, tuple[int, ...]]], temperature: float
    ) -> Iterator[Completion]:
        """The predictions to some prompts, each with its episode's slot."""
        limit, stops = self.config.prediction_tokens, self.prediction_stops
        completions = self.policy.generate([Request(ids, slot, limit, stops) for slot, ids in prompts], temperature)
        self.stats.prediction_tokens += sum(len(completion.token_ids) for completion in completions)
        return iter(completions)

    def _predict_later(self, episodes: Sequence[Episode], temperature: float) -> None:
        """Samples and scores the predictions of finished episodes, and adds them to their turns."""
        with self.watch("prediction"):
            prompts = [(episode.index, prompt) for episode in episodes for prompt in episode.asked.values()]
            completions = self._sample_predictions(prompts, temperature)
        for episode in episodes:
            replies = {number: next(completions) for number in episode.asked}
            with self.watch("prediction"):
                for number, reply in replies.items():
                    turn = episode.turns[number]
                    texts = self.reader.read(self._reply(turn.completion, reply)).predictions
                    prediction = Prediction(episode.asked[number], reply, texts)
                    episode.turns[number] = replace(turn, prediction=prediction)
            with self.watch("scoring"):
                self._score(episode)

    def _score(self, episode: Episode) -> None:
        """Adds the scores of an episode's predictions to its turns."""
        steps = [number for number, turn in enumerate(episode.turns) if not turn.info.get("revision")]
        turns = [episode.turns[number] for number in steps]
        if not turns:
            return
        similarity = self.pool.get_wrapper_attr(episode.index, "similarity")
        states = [turn.info.get("state", turn.observation) for turn in turns]
        arrived = score_predictions([turn.prediction.texts for turn in turns if turn.prediction], states, similarity)
        for number, turn, scores in zip(steps, turns, arrived, strict=True):
            rewards = {**turn.rewards, "prediction": sum(score.score for score in scores)}
            episode.turns[number] = replace(turn, rewards=rewards, info={**turn.info, "prediction_scores": scores})
            for score in scores:
                episode.scores.setdefault(steps[score.turn], []).append(score)

    def _reply(self, action: Completion, prediction: Completion | None) -> str:
        """The reply as text, with a follow-up prediction appended. Thoughts about the prediction are no part of it."""
        text = self.renderer.read(action.token_ids)
        if prediction is None:
            return text
        predicted = self.renderer.read(prediction.token_ids)
        if not self.renderer.opening:
            return text + predicted
        cut = text.startswith("<think>") and "</think>" not in text
        return text + "</think>" * cut + _THOUGHT.sub("", predicted)

    def _record(
        self,
        episode: Episode,
        prompt: tuple[int, ...],
        action: Completion,
        followup: tuple[tuple[int, ...], Completion] | None,
        text: str,
        outcome: Outcome,
    ) -> None:
        """Adds a turn to its episode."""
        self.stats.turns += 1
        self.stats.action_tokens += len(action.token_ids)
        stream, last = (*prompt, *action.token_ids), action.token_ids
        if followup is not None:
            asked, answer = followup
            if self.prompt.predictions != "detached":
                stream, last = (*asked, *answer.token_ids), answer.token_ids
        reply = self.reader.read(text)
        prediction = None
        if self.horizon:
            prediction = Prediction(
                followup[0] if followup else (), followup[1] if followup else None, reply.predictions
            )
        if outcome.error is not None:
            self._fail(episode, outcome.error)
            return
        info = outcome.info
        for score in () if self._predicts_later else info.get("prediction_scores", ()):
            episode.scores.setdefault(score.turn, []).append(score)
        episode.turns.append(
            Turn(
                prompt,
                action,
                info.get("command", reply.command),  # of a view: the environment's own, for detectors and reports
                outcome.observation,
                state=episode.state,
                prediction=prediction,
                rewards=dict(info.get("rewards", {})),
                info=info,
                grouping_state=episode.grouping_state,
            )
        )
        if not info.get("revision"):  # a note changes nothing
            episode.state, episode.grouping_state = info.get("state"), grouping_state(info)
        episode.terminated, episode.truncated = outcome.terminated, outcome.truncated
        if outcome.terminated or outcome.truncated:
            won = bool(info.get("won"))
            episode.stop_reason = "won" if won else ("lost" if outcome.terminated else "max_steps")
            return
        assert episode.conversation is not None
        episode.conversation.advance(stream, last, reply.command, outcome.observation, info)

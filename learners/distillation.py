"""On-policy distillation: a teacher scores the tokens that the policy sampled.

The objective is the reverse KL divergence from the teacher, on the policy's own episodes. Its gradient is that of a
reward log π_T(a) - log π(a) for each sampled token a, so the difference, times ``distill.weight``, is added to the
token's advantage, beside rewards or alone (``method=distill``). Agarwal et al. (arXiv 2306.13649) sum over the
vocabulary; the sampled token is all that a server gives, and has the same mean.

A teacher is another model of the same tokenizer, here or behind a vLLM server, or the policy itself as it starts, which
reads something in its prompt that the policy does not know when it acts (``distill.hint``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.random import Generator
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from roleagent.agents.builders import EnvSplit
from roleagent.agents.policies.hf import HFPolicy, PolicyError, check_path, own_device, positions_of, reason_of
from roleagent.agents.rendering import note_of
from roleagent.agents.rollout import Rollout
from roleagent.config import Config, ConfigError, to_dict
from roleagent.curricula.rule_analyst import RuleAnalyst
from roleagent.env_card import card_of
from roleagent.envs.failures.command_noise import CommandNoise
from roleagent.failures.modes import failure_modes_of
from roleagent.imports import load_object
from roleagent.learners.batch import Batch, Column, segments_of
from roleagent.learners.engine.engine import Learner
from roleagent.learners.engine.logprobs import TokenScorer, find_scoring
from roleagent.learners.run.checkpoints import Checkpoints
from roleagent.learners.run.folder import read_config
from roleagent.learners.sft.demonstrations import demonstrate, plan_of
from roleagent.options import differing, home_expanded, shown, user_path
from roleagent.slow_notice import waiting
from roleagent.types import ACTION, Group, Trajectory

Hint = Callable[[Trajectory, Group], str]
"""What a teacher reads about an episode of a group, ``""`` for nothing."""

_FURTHEST = 20.0  # nats: a token that the teacher excludes has no infinite advantage
_PROBES = 512  # tokens whose text two tokenizers must encode alike
_CONCURRENCY = 16  # requests to a server at the same time


class Teacher(Protocol):
    """Scores sampled tokens."""

    def score(self, learner: Learner, rollout: Rollout, groups: Sequence[Group], batch: Batch) -> Column:
        """log π_T of each action token, in nats, at the sampling temperature; NaN where it says nothing."""
        ...


def add_teacher(learner: Learner, rollout: Rollout, groups: Sequence[Group], batch: Batch) -> Batch:
    """The batch with the columns ``teacher`` and ``taught``, and the teacher's word in the advantages of action tokens.

    Where the teacher says nothing, ``taught`` is 0, and ``teacher`` the sampler's own log-probability; else it is 1.
    """
    if learner.teacher is None:
        return batch
    weight, advantages, teacher, taught = learner.config.distill.weight, [], [], []
    scores = learner.teacher.score(learner, rollout, groups, batch)
    sampled = batch.columns["sampler"]
    for segment, own, before, row in zip(batch.segments, sampled, batch.columns["advantages"], scores, strict=True):
        heard = (segment.token_kind == ACTION) & ~np.isnan(row)
        gap = np.clip(np.where(heard, row - own, 0.0), -_FURTHEST, _FURTHEST)
        advantages.append(before + weight * gap)
        teacher.append(own + gap)
        taught.append(heard.astype(np.float64))
    columns = {**batch.columns, "advantages": advantages, "teacher": teacher, "taught": taught}
    return replace(batch, columns=columns)


class ModelTeacher:
    """A model on this machine.

    Args:
        policy: the model with its tokenizer.
    """

    def __init__(self, policy: HFPolicy):
        scoring = find_scoring(policy.model, policy.context_length)
        self._scorer = TokenScorer(policy.model.requires_grad_(False), scoring)

    def score(self, learner: Learner, rollout: Rollout, groups: Sequence[Group], batch: Batch) -> Column:
        return learner.score(batch.segments, learner.config.rollout.temperature, self._scorer)


class ServedTeacher:
    """A model behind a vLLM server, which gives log-probabilities of a prompt's own tokens.

    Args:
        url: its base URL, e.g. ``http://127.0.0.1:8000/v1``; the key is in the environment.
        model: its name; empty: the only one of the server.

    Attributes:
        context: most tokens that it scores; None: not known.

    Raises:
        PolicyError: it does not answer, or has several models.
    """

    def __init__(self, url: str, model: str = ""):
        from openai import OpenAI

        from roleagent.agents.chat.server import KEYS

        key = next((os.environ[name] for name in KEYS if os.environ.get(name)), "none")
        self.url = url.rstrip("/")
        self._client = OpenAI(base_url=self.url, api_key=key, max_retries=5, timeout=600.0)
        served = self._asked(lambda: [*self._client.models.list()])
        names = [one.id for one in served]
        if (model and model not in names) or (not model and len(names) != 1):
            raise PolicyError(f"distill.model must be one of {', '.join(names)}, the models of {url}")
        self._model = model or names[0]
        longest = (served[names.index(self._model)].model_extra or {}).get("max_model_len")
        self.context = longest - 1 if isinstance(longest, int) else None  # a request is for one further token

    def _asked(self, ask: Callable[[], Any]) -> Any:
        from openai import OpenAIError

        try:
            return ask()
        except (OpenAIError, KeyError, TypeError, AttributeError, ValueError) as error:
            raise PolicyError(f"the teacher at {self.url} gives no answer: {reason_of(error)}") from error

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        root = self._client.with_options(base_url=self.url.removesuffix("/v1"))
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return self._asked(lambda: list(root.post("/tokenize", body=body, cast_to=dict[str, Any])["tokens"]))

    def score(self, learner: Learner, rollout: Rollout, groups: Sequence[Group], batch: Batch) -> Column:
        with ThreadPoolExecutor(_CONCURRENCY) as pool:
            return list(pool.map(lambda segment: self._row(segment.token_ids.tolist()), batch.segments))

    def _row(self, token_ids: list[int]) -> np.ndarray:
        def ask() -> np.ndarray:
            found = self._client.completions.create(
                model=self._model, prompt=token_ids, max_tokens=1, extra_body={"prompt_logprobs": 0}
            )
            scores: Any = found.choices[0].model_extra["prompt_logprobs"]  # type: ignore[index]
            values = [one[str(token)]["logprob"] for token, one in zip(token_ids[1:], scores[1:], strict=True)]
            return np.array([np.nan, *values])  # the first token has no probability

        return self._asked(ask)


class HintedTeacher:
    """The policy after the warm start, ``learner.reference``, which reads a hint in its prompts.

    Its weights stay as they are: a teacher that learns with its student can move with it anywhere.

    Args:
        hint: what it reads about an episode. Episodes without a hint, and those that do not fit into the context with
            it, are not scored.
    """

    def __init__(self, hint: Hint):
        self._hint = hint

    def score(self, learner: Learner, rollout: Rollout, groups: Sequence[Group], batch: Batch) -> Column:
        hinted, most = [], learner.policy.context_length
        played = ((trajectory, group) for group in groups for trajectory in group.trajectories)
        for index, (trajectory, group) in enumerate(played):
            hint = self._hint(trajectory, group)
            if not isinstance(hint, str):
                raise ConfigError(f"distill.hint returned {shown(hint)}, not a text")
            if hint:
                again = with_note(trajectory, rollout, hint)
                segments = segments_of(again, [0.0] * len(again.turns), index, train_predictions=False)
                if all(len(segment) <= most for segment in segments):
                    hinted += segments
        scores: dict[int, list[np.ndarray]] = {}
        rows = learner.score(hinted, learner.config.rollout.temperature, learner.reference)
        for segment, row in zip(hinted, rows, strict=True):
            scores.setdefault(segment.trajectory, []).append(row[segment.token_kind == ACTION])
        # The replies of an episode are the same tokens in the same order, whatever prompts stand between them.
        replies = {index: iter(np.concatenate(rows)) for index, rows in scores.items()}
        found = []
        for segment in batch.segments:
            row = np.full(len(segment), np.nan)
            if segment.trajectory in replies:
                chosen = segment.token_kind == ACTION
                row[chosen] = list(islice(replies[segment.trajectory], int(chosen.sum())))
            found.append(row)
        return found


def with_note(trajectory: Trajectory, rollout: Rollout, note: str) -> Trajectory:
    """The same replies behind prompts that hold a note (:class:`~roleagent.agents.rendering.Conversation`), too."""
    own = rollout.of(trajectory.task.task_id)
    notes = ["\n\n".join(filter(None, (note_of(turn.lessons), note))) for turn in trajectory.turns]
    conversation = own.open(trajectory.initial_observation, trajectory.initial_info, notes[0] if notes else note)
    turns = []
    for turn, after in zip(trajectory.turns, [*notes[1:], note], strict=False):
        prompt, reply = conversation.action_prompt(), turn.completion.token_ids
        turns.append(replace(turn, prompt_ids=prompt, prediction=None))
        conversation.note = after
        conversation.advance((*prompt, *reply), reply, turn.action, turn.observation, turn.info)
    return replace(trajectory, turns=tuple(turns))


class ExpertPlan:
    """The hint ``plan``: the commands with which the environment's expert wins the task; of tools, the calls.

    Args:
        split: the training tasks, with the expert's environment.
        stream: a random stream by name: a task's plan is the same in a resumed run.
    """

    def __init__(self, split: EnvSplit, stream: Callable[[str, str], Generator]):
        self._split, self._stream = split, stream
        self._plans: dict[str, str] = {}

    def __call__(self, trajectory: Trajectory, group: Group) -> str:
        task_id = group.task.task_id
        if task_id not in self._plans:
            rng = self._stream("plan", task_id)
            shown = demonstrate(self._split.base, task_id, 0.0, CommandNoise((), rng), rng)
            self._plans[task_id] = "" if shown is None else plan_of(shown, self._split.of(task_id).reader)
        return self._plans[task_id]


def failure_lesson(trajectory: Trajectory, group: Group) -> str:
    """The hint ``lesson``: what the rule analyst says about this episode, if it failed."""
    return "" if trajectory.success else RuleAnalyst().reflect([trajectory])[0].lesson


def check_teacher(split: EnvSplit) -> None:
    """Refuses a teacher that cannot score this run's tokens, as far as that is known before a policy is built.

    Args:
        split: the training tasks.

    Raises:
        ConfigError, PolicyError, CheckpointError: one line that explains what to change.
    """
    config, options = split.config, split.config.distill
    if not options.teacher:
        return
    if config.loss.function:
        raise ConfigError("distill.teacher needs advantages, and loss.function may read none: leave one of them out")
    if options.served:
        if config.rollout.temperature != 1.0:
            raise ConfigError("a server scores tokens at temperature 1: set rollout.temperature=1")
        with waiting("the server of distill.teacher to answer"):
            _check_context(config, ServedTeacher(options.teacher, options.model).context)
    elif options.teacher != "self":
        _check_context(config, positions_of(_folder(options.teacher)))
    elif config.agent.command:
        raise ConfigError(
            "distill.teacher=self writes prompts anew, and agent.command has its own: name another teacher"
        )
    elif config.wia and config.prompt.predictions != "detached":
        raise ConfigError(
            f"distill.teacher=self reads prompts without predictions, and prompt.predictions="
            f"{config.prompt.predictions} keeps them there: set prompt.predictions=detached, or wia=off"
        )
    elif options.hint == "plan" and not all(card_of(part.base).expert for part in split.environments.values()):
        raise ConfigError("distill.hint=plan needs an environment with a scripted expert: set another hint")
    elif options.hint == "lesson" and not all(
        failure_modes_of(part.task_split.env_id).detectors for part in split.environments.values()
    ):
        raise ConfigError("distill.hint=lesson needs an environment with rules for failures: set another hint")
    elif ":" in options.hint and not callable(load_object(options.hint)):
        raise ConfigError(f"distill.hint={options.hint} is no function of (trajectory, group)")


def _check_context(config: Config, most: int | None) -> None:
    """Refuses a teacher that reads fewer tokens than an episode may have."""
    own = positions_of(config.policy.path) if config.policy.path else None
    needed = min(config.policy.context, own or config.policy.context)
    if most is not None and most < needed:
        raise ConfigError(
            f"distill.teacher={config.distill.teacher} reads {most} tokens, and the policy {needed}: set "
            f"policy.context={most}"
        )


def check_tokenizer(config: Config, policy: HFPolicy | None = None) -> None:
    """Refuses a teacher of another tokenizer.

    Args:
        policy: the student; None: it is not built yet. From scratch, only the size of its tokenizer is known then.

    Raises:
        PolicyError, CheckpointError: a tokenizer cannot be read, or its tokens are others.
    """
    teacher = config.distill.teacher
    if not teacher or teacher == "self":
        return
    own = policy.tokenizer if policy else _tokenizer(config.policy.path) if config.policy.path else None
    other = None if config.distill.served else _tokenizer(_folder(teacher))
    if own is None:
        same = other is None or len(other) <= config.policy.vocabulary
    elif other is not None and other.get_vocab() != own.get_vocab():
        same = False
    else:
        size, special = len(own), {*own.all_special_ids}
        text = own.decode([token for token in range(0, size, max(1, size // _PROBES)) if token not in special])
        found = _encoded(other, text) if other else ServedTeacher(teacher, config.distill.model).encode(text)
        same = found == _encoded(own, text)
    if not same:
        reason = f"distill.teacher={teacher} has another tokenizer than the policy, whose own tokens it is to score"
        if (user_path(teacher) / "config.yaml").exists() and not config.policy.path:
            found = differing(to_dict(read_config(user_path(teacher))), to_dict(config))
            own = [name for name in found if name.startswith(_OF_TOKENIZER)]
            reason += f". From scratch, both need the same {', '.join(own)}" if own else ""
        raise PolicyError(reason)


_OF_TOKENIZER = (
    *("seed", "wia", "aiw", "genenv", "env.", "prompt.", "warmstart.", "curriculum.analyst", "policy.vocabulary"),
    *("policy.path", "simulator.kind"),
)
"""Beginnings of names of options that decide what text the tokenizer of a policy from scratch is trained on."""


def _tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(home_expanded(str(path)), trust_remote_code=False)
    except Exception as error:  # transformers and the hub raise a wide range
        raise PolicyError(f"the tokenizer of {path} cannot be read: {reason_of(error)}") from error


def _encoded(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def open_teacher(
    config: Config, split: EnvSplit, policy: HFPolicy, stream: Callable[[str, str], Generator]
) -> Teacher | None:
    """The teacher of a run; None without one.

    Args:
        split: the training tasks.
        policy: the student.
        stream: random streams by name, for the expert whose plan is read.

    Raises:
        PolicyError, CheckpointError: it cannot be read.
    """
    options = config.distill
    if not options.teacher:
        return None
    if options.teacher == "self":
        own: dict[str, Hint] = {"plan": ExpertPlan(split, stream), "lesson": failure_lesson}
        return HintedTeacher(own[options.hint] if options.hint in own else load_object(options.hint))
    if options.served:
        return ServedTeacher(options.teacher, options.model)
    path = _folder(options.teacher)
    return ModelTeacher(
        HFPolicy.from_path(path, torch.Generator(own_device()), config.policy.dtype, config.policy.context)
    )


def _folder(teacher: str) -> Path:
    """The model's folder: of a run that of its newest checkpoint."""
    path = user_path(teacher)
    if not (path / "config.yaml").exists():
        check_path(path)
        return path
    newest = Checkpoints(path / "checkpoints").latest()
    if newest is None:
        raise ConfigError(f"the run {path} has no checkpoint yet")
    Checkpoints.check(newest, "policy/")
    return newest / "policy"

"""The environment role (Agent-In-World) by a language model, the policy's or one behind an OpenAI-compatible server:
it explains failures and selects tasks.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from roleagent.agents.analysts.prompts import CLOSING, AnalystPrompts, PromptKind
from roleagent.agents.chat.types import EndpointError, estimated_tokens
from roleagent.agents.policies.protocol import Policy, PolicyError
from roleagent.agents.prompt_templates import NO_TEMPLATES, PromptTemplates
from roleagent.agents.rendering import renderer_of
from roleagent.failures.analyst_format import read_reflection, read_selection
from roleagent.failures.modes import UNKNOWN, taxonomy
from roleagent.types import Failure, Reflection, Request, Selection, Trajectory

if TYPE_CHECKING:
    from roleagent.agents.chat.endpoint import Endpoint


_SLACK = 8  # tokens that a text may grow by when its parts are put together
_CANDIDATES = 4096  # most tokens of the question to a server that lists the candidates


class LanguageAnalyst(ABC):
    """Writes the environment role's prompts and parses the answers; a base class.

    An answer that cannot be read becomes a reflection of mode ``unknown`` whose query is the task's goal, or a
    selection of nothing, both of source ``"fallback"``: a curriculum then searches its library by text (AIW, step 6).

    Attributes:
        source: of what is read.
        prompts: writes the questions.
    """

    source: str
    prompts: AnalystPrompts

    @abstractmethod
    def answer(self, questions: Sequence[str], kind: PromptKind) -> list[str]:
        """One reply per question that :attr:`prompts` wrote, in order; ``""`` where none came."""

    @abstractmethod
    def costs(self) -> dict[str, float]:
        """The costs since the last call, by name."""

    def reflect(self, trajectories: Sequence[Trajectory]) -> list[Reflection]:
        """One reflection per failed trajectory, in order."""
        replies = self.answer([self.prompts.reflection(trajectory) for trajectory in trajectories], "reflection")
        return self.read_reflections(replies, trajectories)

    def read_reflections(self, replies: Sequence[str], trajectories: Sequence[Trajectory]) -> list[Reflection]:
        """The reflections that replies hold, one per trajectory."""
        return [
            self._read(reply, trajectory) or unread(trajectory)
            for reply, trajectory in zip(replies, trajectories, strict=True)
        ]

    def select(self, reflections: Sequence[Reflection], candidates: Sequence[Sequence[Failure]]) -> list[Selection]:
        """For each reflection, which of its candidates are worth training on next."""
        asked = [self.prompts.selection(*pair) for pair in zip(reflections, candidates, strict=True)]
        places = [place for place, (_, shown) in enumerate(asked) if shown]  # from an empty list nothing can be picked
        replies = self.answer([asked[place][0] for place in places], "selection")
        selections = [Selection((), source=self.source)] * len(asked)
        for place, reply in zip(places, replies, strict=True):
            selections[place] = self._within(read_selection(reply, asked[place][1], self.source))
        return selections

    def _within(self, selection: Selection) -> Selection:
        """A selection, cut to the most tasks that may be selected."""
        most = self.prompts.most
        if len(selection.indices) <= most:
            return selection
        return replace(selection, indices=selection.indices[:most], reasons=selection.reasons[:most], repaired=True)

    def _read(self, reply: str, trajectory: Trajectory) -> Reflection | None:
        return read_reflection(reply, taxonomy(trajectory.task.env_id), len(trajectory.turns), self.source)


def unread(trajectory: Trajectory) -> Reflection:
    """The fallback reflection of a failure whose analysis could not be parsed."""
    task = trajectory.task
    return Reflection(UNKNOWN, "", None, "", f"{task.task_type}: {task.goal}".strip(": "), "fallback")


class ModelAnalyst(LanguageAnalyst):
    """The policy in the environment role.

    A policy that knows a chat template is prompted. One that does not has learned the role in its warm start, and
    finds after the question the mark for the answer that is due.

    Args:
        policy: the model; it samples with its own generator.
        temperature: of sampling (AIW, step 1).
        reflection_tokens: most tokens of a reflection, and of a verdict.
        selection_tokens: most tokens of a selection.
        candidate_tokens: most tokens of the question that lists the candidates.
        batch: questions answered side by side.
        templates: a user's texts of the questions.
        thinks: whether answers may begin with thoughts.

    Raises:
        PolicyError: the policy's context has no room for a question and its answer.
    """

    source = "model"

    def __init__(
        self,
        policy: Policy,
        temperature: float = 0.5,
        reflection_tokens: int = 256,
        selection_tokens: int = 128,
        candidate_tokens: int = 2048,
        batch: int = 64,
        templates: PromptTemplates = NO_TEMPLATES,
        thinks: bool = True,
    ):
        self.policy, self.temperature, self.batch = policy, temperature, batch
        self.limits: dict[PromptKind, int] = {"reflection": reflection_tokens, "selection": selection_tokens}
        self.limits["verdict"] = reflection_tokens
        self.renderer = renderer_of(policy, thinks)
        frame = len(self.renderer.analyst_prompt("", "reflection"))
        room = policy.context_length - max(self.limits.values()) - frame - _SLACK
        try:
            self.prompts = AnalystPrompts(
                lambda text: len(policy.encode(policy.literal(text))),
                room,
                min(room, candidate_tokens),
                self.renderer.explains,
                templates=templates,
            )
        except ValueError as error:
            raise PolicyError(
                f"a context of {policy.context_length} tokens has no room for analyses of {max(self.limits.values())} "
                f"({error}): lower curriculum.reflection_tokens, or choose curriculum.analyst=rule"
            ) from None
        self._tokens = self._seconds = 0.0

    def prompt(self, question: str, kind: PromptKind) -> tuple[int, ...]:
        """A prompt in tokens."""
        return tuple(self.renderer.analyst_prompt(question, kind))

    def stops(self, kind: PromptKind) -> frozenset[int]:
        """Tokens that end an answer: its closing tag where that is one token, and always the end tokens."""
        closing = self.policy.single_token(CLOSING[kind])
        return self.policy.end_ids | ({closing} if closing is not None else set())

    def answer(self, questions: Sequence[str], kind: PromptKind) -> list[str]:
        started = time.perf_counter()
        replies: list[str] = []
        limit, stops = self.limits[kind], self.stops(kind)
        for start in range(0, len(questions), self.batch):
            requests = [
                Request(self.prompt(question, kind), slot, limit, stops)
                for slot, question in enumerate(questions[start : start + self.batch])
            ]
            completions = self.policy.generate(requests, self.temperature)
            self._tokens += sum(len(completion.token_ids) for completion in completions)
            replies += [self.renderer.read(completion.token_ids) for completion in completions]
            self.policy.clear_cache()
        self._seconds += time.perf_counter() - started
        return replies

    def costs(self) -> dict[str, float]:
        """``analysis_tokens`` sampled, ``analysis_seconds`` of wall-clock time."""
        spent = {"analysis_tokens": self._tokens, "analysis_seconds": self._seconds}
        self._tokens = self._seconds = 0.0
        return spent


class EndpointAnalyst(LanguageAnalyst):
    """A model behind an OpenAI-compatible server in the environment role.

    Once training has begun no trouble with the server stops it: questions that stay unanswered become fallbacks, are
    counted, and are warned of once. :meth:`check` finds a wrong configuration before that.

    The lengths of questions are estimated from their characters (three bytes of UTF-8 to a token, which is rather too
    many tokens than too few in English).

    Args:
        endpoint: the server.
        temperature: of sampling (AIW, step 1).
        answer_tokens: most tokens of an answer, and of what a model thinks before it.
        context: most tokens of a question and its answer.
        prices: money per million prompt tokens and per million completion tokens.

    Raises:
        ValueError: the context has no room for a question and its answer.
    """

    source = "endpoint"

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        temperature: float = 0.5,
        answer_tokens: int = 2048,
        context: int = 16384,
        prices: tuple[float, float] | None = None,
        templates: PromptTemplates = NO_TEMPLATES,
    ):
        room = context - answer_tokens
        if room <= 0:
            raise ValueError(f"a context of {context} tokens has no room for answers of {answer_tokens}")
        self.endpoint, self.temperature, self.prices = endpoint, temperature, prices
        self.answer_tokens = answer_tokens
        self.prompts = AnalystPrompts(estimated_tokens, room, min(room, _CANDIDATES), templates=templates)

    def check(self) -> None:
        """Asks one short question.

        Raises:
            EndpointError: the server gives no answer; the message explains what to change.
        """
        self.endpoint.check(self.temperature)

    def answer(self, questions: Sequence[str], kind: PromptKind) -> list[str]:
        conversations = [[{"role": "user", "content": question}] for question in questions]
        try:
            answers = self.endpoint.chat(conversations, max_tokens=self.answer_tokens, temperature=self.temperature)
        except EndpointError as error:
            self.endpoint.warn(str(error))
            return [""] * len(questions)
        return [answer.text if answer else "" for answer in answers]

    def costs(self) -> dict[str, float]:
        """The costs since the last call.

        ``analysis_tokens`` written, ``analysis_seconds`` of wall-clock time, ``endpoint_`` + ``requests``, ``retries``,
        ``failures``, ``cut``, ``prompt_tokens`` and ``estimated`` (:class:`roleagent.agents.chat.types.Spending`),
        and ``endpoint_cost`` in money where prices were given.
        """
        spent = self.endpoint.settle()
        named = {f"endpoint_{name}": float(getattr(spent, name)) for name in _COUNTS}
        cost = {} if self.prices is None else {"endpoint_cost": spent.price(self.prices)}
        tokens_and_time = {"analysis_tokens": float(spent.completion_tokens), "analysis_seconds": spent.seconds}
        return {**tokens_and_time, **named, **cost}


_COUNTS = ("requests", "retries", "failures", "cut", "prompt_tokens", "estimated", "shortened")

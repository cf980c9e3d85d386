"""An analyst behind an OpenAI-compatible server, for example a stronger frozen model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from roleagent.agents.analysts.model import LanguageAnalyst
from roleagent.agents.analysts.prompts import AnalystPrompts, PromptKind
from roleagent.agents.chat.types import EndpointError, estimated_tokens

if TYPE_CHECKING:  # an analyst without a server needs no openai, which takes a second to load
    from roleagent.agents.chat.endpoint import Endpoint


class EndpointAnalyst(LanguageAnalyst):
    """A model behind an OpenAI-compatible server in the environment role.

    Once training has begun no trouble with the server stops it: questions that stay unanswered become fallbacks, are
    counted, and are warned of once. :meth:`check` finds a wrong configuration before that.

    The lengths of questions are estimated from their characters (three bytes of UTF-8 to a token, which is rather too
    many tokens than too few in English).

    Args:
        endpoint: the server.
        temperature: of sampling (AIW, step 1).
        reflection_tokens: most tokens of a reflection, and of what a model thinks before it.
        selection_tokens: most tokens of a selection, likewise.
        candidate_tokens: most tokens of the question that lists the candidates.
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
        reflection_tokens: int = 2048,
        selection_tokens: int = 2048,
        candidate_tokens: int = 4096,
        context: int = 16384,
        prices: tuple[float, float] | None = None,
    ):
        self.limits: dict[PromptKind, int] = {"reflection": reflection_tokens, "selection": selection_tokens}
        self.limits["verdict"] = reflection_tokens
        room = context - max(self.limits.values())
        if room <= 0:
            raise ValueError(f"a context of {context} tokens has no room for answers of {max(self.limits.values())}")
        self.endpoint, self.temperature, self.prices = endpoint, temperature, prices
        self.prompts = AnalystPrompts(estimated_tokens, room, min(room, candidate_tokens))

    def check(self) -> None:
        """Asks one short question.

        Raises:
            EndpointError: the server gives no answer; the message explains what to change.
        """
        self.endpoint.check(self.temperature)

    def answer(self, questions: Sequence[str], kind: PromptKind) -> list[str]:
        conversations = [[{"role": "user", "content": question}] for question in questions]
        try:
            answers = self.endpoint.chat(conversations, max_tokens=self.limits[kind], temperature=self.temperature)
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


_COUNTS = ("requests", "retries", "failures", "cut", "prompt_tokens", "estimated")

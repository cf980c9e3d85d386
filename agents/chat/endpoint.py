"""A model behind an OpenAI-compatible server, through the ``openai`` package.

A conversation that gets no answer is counted, and the others go on. If the configuration is wrong (key, model, URL),
:class:`EndpointError` explains in one line what to change.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
import warnings
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from roleagent.agents.chat.server import KEYS, ChatServer, listed
from roleagent.agents.chat.types import (
    OVERLONG,
    Answer,
    EndpointError,
    Message,
    OverlongError,
    RefusedError,
    Spending,
    UnansweredError,
)
from roleagent.slow_notice import count


class Endpoint:
    """A model behind an OpenAI-compatible server. Threads may share one.

    The ``openai`` package repeats requests that failed for a reason that may pass: HTTP 408, 409, 429 and 5xx, a lost
    connection, a timeout. It waits longer each time, or as ``Retry-After`` requires. If a conversation used up its
    attempts and no other one was answered meanwhile, the server is down and the call ends. Later calls try once until
    the server can be reached.

    Args:
        base_url: e.g. ``https://host/v1`` or ``http://127.0.0.1:8000/v1``.
        model: its name; empty: the only one that the server offers.
        concurrency: most conversations at the same time.
        timeout: seconds without a byte after which an attempt ends.
        deadline: seconds after which a call of :meth:`chat` ends in any case.
        retries: attempts after the first.

    Attributes:
        model: the name of the model.
        url: the base URL.
        lockstep: whether one call should ask for many answers (:class:`roleagent.agents.chat.models.ChatModel`).

    Raises:
        EndpointError: the URL is malformed, or the key (see :class:`~roleagent.agents.chat.server.ChatServer`).
    """

    lockstep = False

    def __init__(
        self,
        base_url: str,
        model: str = "",
        *,
        concurrency: int = 8,
        timeout: float = 60.0,
        deadline: float = 600.0,
        retries: int = 5,
    ):
        for name, value in (("concurrency", concurrency), ("timeout", timeout), ("deadline", deadline)):
            if not value > 0:
                raise ValueError(f"{name} must be positive, not {value}")
        self.model, self.concurrency, self.deadline, self.retries = model, concurrency, deadline, retries
        self._server = ChatServer(base_url, timeout, self._add)
        self.url = self._server.url
        self._slots = asyncio.Semaphore(concurrency)
        self._lock = threading.Lock()
        self._spent = Spending()
        self._answered = -math.inf  # when the server answered last, on the monotonic clock
        self._unreachable = False
        self._warned: set[str] = set()  # the kinds of problems

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r}, {self.model!r})"

    def models(self) -> list[str]:
        """The names of the models that the server offers.

        Raises:
            EndpointError: it does not say.
        """
        try:
            return _wait(self._server.models())
        except (RefusedError, UnansweredError) as error:
            raise self._unusable(error) from None

    def check(self, temperature: float = 0.0) -> None:
        """Asks one short question, so that a wrong configuration is found early.

        Raises:
            EndpointError: the server gives no answer, and why.
        """
        self._choose_model()
        options = {"max_tokens": 16, "temperature": temperature}
        question = [{"role": "user", "content": "Say yes."}]
        answer = self._server.complete(self.model, question, options, min(self.retries, 2))
        try:
            _wait(asyncio.wait_for(answer, self.deadline))
        except asyncio.TimeoutError:
            raise EndpointError(f"{self.url} did not answer within {self.deadline:.0f} s") from None
        except (RefusedError, UnansweredError) as error:
            raise self._unusable(error) from None

    def chat(
        self, conversations: Sequence[Sequence[Message]], *, max_tokens: int, temperature: float
    ) -> list[Answer | None]:
        """The model's next message in each conversation, in order; None if there is no answer.

        A conversation that does not fit the model's context has the answer ``""`` with the reason :data:`OVERLONG`.

        Args:
            conversations: each a list of messages with ``role`` and ``content``.
            max_tokens: most tokens of an answer, thoughts included.
            temperature: of sampling.

        Raises:
            EndpointError: the server refuses every conversation (key, credit, model, URL).
        """
        if not conversations:
            return []
        self._choose_model()
        began = time.monotonic()
        answers: list[Answer | None] = [None] * len(conversations)
        reasons: list[str] = []
        shortened: list[int] = []
        options = {"max_tokens": max_tokens, "temperature": temperature}
        try:
            _wait(self._answer_all(conversations, options, answers, reasons, shortened))
        finally:
            missing = sum(answer is None or answer.finish_reason == OVERLONG for answer in answers)
            self._add(failures=missing, seconds=time.monotonic() - began)
            count("tokens sampled", sum(answer.completion_tokens for answer in answers if answer is not None))
        if shortened:
            self.warn(
                f"the server counts {shortened[0]:,} prompt tokens of a conversation that has several times as many: "
                "it cuts conversations without saying so. Give it a longer context (Ollama: OLLAMA_CONTEXT_LENGTH)",
                "shortened",
            )
        if missing:
            why = reasons[0] if reasons else f"not done within {self.deadline:.0f} s"
            self.warn(f"{missing} of {len(answers)} questions stayed unanswered ({why})")
        return answers

    def warn(self, what: str, kind: str = "") -> None:
        """Warns of the first problem of a kind with the server; later ones are only counted."""
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(f"{self.url}: {what}; further cases are only counted", stacklevel=3)

    def settle(self) -> Spending:
        """The costs since the last call."""
        with self._lock:
            spent, self._spent = self._spent, Spending()
        return spent

    async def _answer_all(
        self,
        conversations: Sequence[Sequence[Message]],
        options: Mapping[str, Any],
        answers: list[Answer | None],
        reasons: list[str],
        shortened: list[int],
    ) -> None:
        """Fills ``answers``, until the deadline, an :class:`EndpointError` or a server that is down ends it.

        ``reasons`` are those of missing answers, ``shortened`` the prompt tokens of conversations that were cut.
        """
        retries = 0 if self._unreachable else self.retries

        async def answer(place: int) -> None:
            async with self._slots:
                began = time.monotonic()
                try:
                    found = answers[place] = await self._server.complete(
                        self.model, conversations[place], options, retries
                    )
                    self._answered, self._unreachable = time.monotonic(), False
                    if found.shortened:
                        shortened.append(found.prompt_tokens)
                except (RefusedError, UnansweredError) as error:
                    reasons.append(str(error))
                    if isinstance(error, OverlongError):
                        answers[place] = Answer("", OVERLONG, 0, 0, estimated=False)
                    if isinstance(error, UnansweredError) and self._answered < began:
                        self._unreachable = not error.reached
                        raise

        tasks = [asyncio.ensure_future(answer(place)) for place in range(len(conversations))]
        try:
            done, _ = await asyncio.wait(tasks, timeout=self.deadline, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
        for task in done:
            if (error := task.exception()) is not None and not isinstance(error, UnansweredError):
                raise error

    def _choose_model(self) -> None:
        if not self.model:
            offered = self.models()
            if len(offered) != 1:
                raise EndpointError(f"{self.url} offers {listed(offered)}: say which model to use")
            self.model = offered[0]

    def _unusable(self, error: Exception) -> EndpointError:
        reached = isinstance(error, RefusedError) or (isinstance(error, UnansweredError) and error.reached)
        return EndpointError(f"{self.url}: {error}{'' if reached else '; is it running, and the base URL right?'}")

    def _add(self, **spent: float) -> None:
        with self._lock:
            self._spent = replace(self._spent, **{name: getattr(self._spent, name) + n for name, n in spent.items()})


_loop_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def _wait(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine; Ctrl-C cancels it.

    All endpoints share an event loop in a thread of its own, so that any thread can wait for answers.
    """
    global _loop
    with _loop_lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="chat endpoints", daemon=True).start()
    future = asyncio.run_coroutine_threadsafe(work, _loop)
    try:
        return future.result()
    finally:
        future.cancel()


__all__ = ["KEYS", "OVERLONG", "Answer", "Endpoint", "EndpointError", "Message", "OverlongError", "Spending"]

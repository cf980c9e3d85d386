"""Concurrent conversations with a model behind an OpenAI-compatible server, with retries and a time limit.

Whatever goes wrong ends within a time that is set beforehand: a conversation stays unanswered and is counted, or, where
the configuration is at fault (key, model, URL), an :class:`EndpointError` says in one line what to change.
"""

from __future__ import annotations

import math
import random
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from roleagent.agents.chat.client import ChatServer, listed
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

_LONGEST_PAUSE = 30.0  # seconds, unless the server asks for more


class Endpoint:
    """A model behind an OpenAI-compatible server.

    What failed for a reason that may pass (HTTP 408, 409, 425, 429 and 5xx, a lost connection, no answer in time, an
    answer that cannot be read) is tried again, after a pause that doubles and is cut by chance, or is as long as the
    server asks for in ``Retry-After``. A conversation that used up its attempts while no other one was answered ends
    the call: the server is down. As long as it cannot be reached, later calls try once.

    Args:
        base_url: e.g. ``https://host/v1`` or ``http://127.0.0.1:8000/v1``.
        model: its name; empty: the only one that the server offers.
        concurrency: most conversations at the same time.
        timeout: seconds for one attempt.
        deadline: seconds for one call of :meth:`chat`, whatever happens.
        retries: attempts after the first.
        pause: seconds before the second attempt.
        rng: of the pauses' jitter.

    Attributes:
        model: the name of the model.
        lockstep: whether many answers should be waited for together (:class:`roleagent.agents.chat.models.ChatModel`).

    Raises:
        EndpointError: the URL is none, or the key cannot be one (see :class:`ChatServer` for where it comes from).
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
        pause: float = 1.0,
        rng: random.Random | None = None,
    ):
        for name, value in (("concurrency", concurrency), ("timeout", timeout), ("deadline", deadline)):
            if not value > 0:
                raise ValueError(f"{name} must be positive, not {value}")
        self.model = model
        self.concurrency, self.timeout, self.deadline = concurrency, timeout, deadline
        self.retries, self.pause = retries, pause
        self._server = ChatServer(base_url, idle=concurrency)
        self._rng = rng or random.Random()
        self._lock = threading.Lock()
        self._spent = Spending()
        self._resume = self._answered = -math.inf  # on the monotonic clock: when to ask again; when it last answered
        self._unreachable = self._warned = False

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self._server.url

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r}, {self.model!r})"

    def close(self) -> None:
        """Closes the connections; the next call opens new ones."""
        self._server.close()

    def models(self) -> list[str]:
        """The names of the models that the server offers.

        Raises:
            EndpointError: it does not say.
        """
        self._server.open()
        try:
            return self._server.models(min(self.timeout, 30.0))
        except (RefusedError, UnansweredError) as error:
            raise self._unusable(error) from None

    def check(self, temperature: float = 0.0) -> None:
        """Asks one short question, so that a wrong configuration is found before it matters.

        Raises:
            EndpointError: the server gives no answer, and why.
        """
        self._choose_model()
        until = time.monotonic() + self.deadline
        options = {"max_tokens": 16, "temperature": temperature}
        try:
            self._persist(
                [{"role": "user", "content": "Say yes."}], options, until, threading.Event(), min(self.retries, 2)
            )
        except (RefusedError, UnansweredError) as error:
            raise self._unusable(error) from None

    def chat(
        self, conversations: Sequence[Sequence[Message]], *, max_tokens: int, temperature: float
    ) -> list[Answer | None]:
        """The model's next message in each conversation, in order; None where none came.

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
        options = {"max_tokens": max_tokens, "temperature": temperature}
        errand = _Errand(conversations)
        retries = 0 if self._unreachable else self.retries
        workers = [
            threading.Thread(target=self._work, args=(errand, options, began + self.deadline, retries), daemon=True)
            for _ in range(min(self.concurrency, len(conversations)))
        ]
        errand.working = len(workers)
        for worker in workers:
            worker.start()
        try:
            errand.over.wait(self.deadline)  # and never longer, whatever a thread still waits for
        finally:
            errand.over.set()
            answers = list(errand.answers)
            missing = sum(answer is None or answer.finish_reason == OVERLONG for answer in answers)
            self._add(failures=missing, seconds=time.monotonic() - began)
        if errand.fault is not None:
            raise errand.fault
        if missing:
            why = errand.why or f"not done within {self.deadline:.0f} s"
            self.warn(f"{missing} of {len(answers)} questions stayed unanswered ({why})")
        return answers

    def warn(self, what: str) -> None:
        """Warns of the first problem with the server; later ones are only counted."""
        if not self._warned:
            self._warned = True
            warnings.warn(f"{self.url}: {what}; further cases are only counted", stacklevel=3)

    def settle(self) -> Spending:
        """The costs since the last call."""
        with self._lock:
            spent, self._spent = self._spent, Spending()
        return spent

    def _choose_model(self) -> None:
        self._server.open()
        if not self.model:
            offered = self.models()
            if len(offered) != 1:
                raise EndpointError(f"{self.url} offers {listed(offered)}: say which model to use")
            self.model = offered[0]

    def _unusable(self, error: Exception) -> EndpointError:
        reached = isinstance(error, RefusedError) or (isinstance(error, UnansweredError) and error.reached)
        return EndpointError(f"{self.url}: {error}{'' if reached else '; is it running, and the base URL right?'}")

    def _work(self, errand: _Errand, options: dict[str, Any], until: float, retries: int) -> None:
        """Answers conversations until there are no more: a thread's work."""
        try:
            while not errand.over.is_set():
                place, began = errand.waiting.get_nowait(), time.monotonic()
                try:
                    errand.answers[place] = self._persist(
                        errand.conversations[place], options, until, errand.over, retries
                    )
                except RefusedError as error:
                    errand.why = errand.why or str(error)
                    if isinstance(error, OverlongError):
                        errand.answers[place] = Answer("", OVERLONG, 0, 0, estimated=False)
                except UnansweredError as error:
                    errand.why = errand.why or str(error)
                    if self._answered < began:
                        self._unreachable = not error.reached
                        errand.over.set()
        except Empty:
            pass
        except BaseException as error:
            errand.fault = error
            errand.over.set()
        finally:
            with self._lock:
                errand.working -= 1
                if not errand.working:
                    errand.over.set()

    def _persist(
        self, messages: Sequence[Message], options: dict[str, Any], until: float, over: threading.Event, retries: int
    ) -> Answer:
        """An answer, from as many attempts as it takes and may.

        Raises:
            EndpointError, RefusedError: the server will not answer.
            UnansweredError: it did not.
        """
        failed = UnansweredError("the time was up before the question was put", reached=True)
        for attempt in range(retries + 1):
            nap = min(self.pause * 2 ** (attempt - 1), _LONGEST_PAUSE) * self._rng.uniform(0.5, 1.0) if attempt else 0.0
            now = time.monotonic()
            nap = max(nap, self._resume - now)  # when the server asks one thread to wait, it means all
            if now + nap >= until or (nap > 0 and over.wait(nap)):
                raise failed
            self._add(requests=1, retries=int(attempt > 0))
            try:
                seconds = min(self.timeout, until - time.monotonic())
                answer = self._server.complete(self.model, messages, options, max(seconds, 1e-3))
            except UnansweredError as error:
                failed = error
                self._resume = max(self._resume, time.monotonic() + error.pause) if error.pause else self._resume
                continue
            self._answered, self._unreachable = time.monotonic(), False
            self._add(
                cut=int(answer.finish_reason == "length"),
                prompt_tokens=answer.prompt_tokens,
                completion_tokens=answer.completion_tokens,
                estimated=int(answer.estimated),
            )
            return answer
        raise failed

    def _add(self, **spent: float) -> None:
        with self._lock:
            self._spent = replace(self._spent, **{name: getattr(self._spent, name) + n for name, n in spent.items()})


class _Errand:
    """One call's conversations, and how far they are."""

    def __init__(self, conversations: Sequence[Sequence[Message]]):
        self.conversations = conversations
        self.answers: list[Answer | None] = [None] * len(conversations)
        self.waiting: SimpleQueue[int] = SimpleQueue()
        for place in range(len(conversations)):
            self.waiting.put(place)
        self.over = threading.Event()  # set at the end: no new requests, no waiting
        self.working = 0  # threads
        self.why = ""  # the first one stayed unanswered
        self.fault: BaseException | None = None


__all__ = ["OVERLONG", "Answer", "Endpoint", "EndpointError", "Message", "OverlongError", "Spending"]

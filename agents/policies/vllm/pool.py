"""Several vLLM engines as one: requests are dealt to them, and one that is lost costs no reply."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from roleagent.agents.policies.hf import PolicyError
from roleagent.agents.policies.vllm.requests import SampleRequest
from roleagent.types import Completion


class LostError(PolicyError):
    """An engine does not answer, or has no weights: another one may."""


class Member(Protocol):
    """One engine of a pool.

    Attributes:
        kind: what messages call it.
        name: what no other member has.
        load: requests that are under way.
        lost: why it is left out; None: it takes requests.
    """

    kind: str
    name: str
    load: int
    lost: PolicyError | None

    @property
    def size(self) -> int:
        """Its accelerators."""
        ...

    def sample(self, part: Part, answers: Answers) -> None:
        """Begins to sample; the answers are put there, in the order of the part's requests, or the error."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """Requests of one key that go to the same member.

    Attributes:
        places: of the requests among those of the key.
    """

    key: int
    places: Sequence[int]
    requests: Sequence[SampleRequest]
    temperature: float


Answers = SimpleQueue[tuple["Part", Member, Sequence[Completion], PolicyError | None]]
M = TypeVar("M", bound=Member)


@dataclass(slots=True)
class _Asked:
    """What was submitted together, and its answers so far."""

    requests: Sequence[SampleRequest]
    temperature: float
    answers: dict[int, Completion]


class Pool(Generic[M]):
    """Half of an engine of :class:`~roleagent.agents.policies.vllm.policy.VLLMPolicy`: its sampling.

    A request goes to the member with the fewest requests per accelerator, and the next one of the same episode to the
    same member, which remembers the episode so far. What a lost member was asked goes to another one: the reply is the
    same, since a request holds the whole prompt and its seed.

    Args:
        members: at least one.
        first: the member that is preferred among equals.
    """

    def __init__(self, members: Sequence[M], first: int = 0):
        self._members, self._first = list(members), first % len(members)
        self._reset()

    def _reset(self) -> None:
        self._answers: Answers = SimpleQueue()
        self._asked: dict[int, _Asked] = {}
        self._home: dict[tuple[int, int], M] = {}  # of the requests of a key, by their place
        for member in self._members:
            member.load = 0

    def submit(self, key: int, requests: Sequence[SampleRequest], temperature: float) -> None:
        """Begins to sample one answer per request.

        Raises:
            PolicyError: all members are left out.
        """
        self._asked[key] = _Asked(requests, temperature, {})
        self._deal(key, range(len(requests)))

    def _deal(self, key: int, places: Iterable[int]) -> None:
        parts: dict[str, tuple[M, list[int]]] = {}
        for place in places:
            member = self._home.get((key, place))
            if member is None or member.lost:
                self._raise_if_none_is_left()
                turned = self._members[self._first :] + self._members[: self._first]
                member = self._home[key, place] = min(
                    (one for one in turned if not one.lost), key=lambda one: one.load / one.size
                )
            member.load += 1
            parts.setdefault(member.name, (member, []))[1].append(place)
        asked = self._asked[key]
        for member, part in parts.values():
            requests = [asked.requests[place] for place in part]
            member.sample(Part(key, part, requests, asked.temperature), self._answers)

    def wait(self) -> list[tuple[int, list[Completion]]]:
        """Waits until requests are answered that were submitted together.

        Raises:
            PolicyError: all members are left out, or one refuses a request.
        """
        while True:
            part, member, answers, error = self._answers.get()
            member.load -= len(part.places)
            if isinstance(error, LostError):
                self._leave_out(member, error)  # pyright: ignore[reportArgumentType] - the pool's own
                self._deal(part.key, part.places)
                continue
            if error is not None:
                raise error
            asked = self._asked[part.key]
            asked.answers.update(zip(part.places, answers, strict=True))
            if len(asked.answers) == len(asked.requests):
                del self._asked[part.key]
                return [(part.key, [asked.answers[place] for place in range(len(asked.requests))])]

    def cancel(self) -> None:
        """Forgets what was submitted."""
        self._reset()

    def _leave_out(self, member: M, error: PolicyError) -> None:
        if member.lost is None and len(self._members) > 1:
            print(f"a vLLM {member.kind} is left out until the next transfer of weights: {error}", file=sys.stderr)
        member.lost = error

    def _raise_if_none_is_left(self) -> None:
        if all(member.lost for member in self._members):
            raise PolicyError(str(self._members[-1].lost))

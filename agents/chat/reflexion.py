"""Reflexion (Shinn et al. 2023): retries a task with its own notes on earlier failures.

Of an attempt it knows what the agent saw and did, and whether it succeeded: the success signal is the one thing that an
agent in the world does not see, and the published method has it too. Rewards, scores, right answers and whatever the
world showed after the last command stay unknown to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from roleagent.agents.chat.plain import PlainAgent, without_thoughts
from roleagent.agents.chat.types import Message, OverlongError
from roleagent.agents.episode import Episode
from roleagent.failures.analyst_format import plain

MEMORY = 3  # lessons that stand in a prompt, as published
_LONGEST = 600  # characters of a lesson
_ROOMS = (24_000, 8_000, 2_000)  # characters of a record: what to try where the model's context is too short for more

_ASK = """\
You have tried a task in a world that you only know from text, and have failed. You will try the very same task again \
from its beginning. The record of your attempt follows. Find the first step that led you astray, and what would have \
been better. Then write a note to yourself for the next attempt, of two or three sentences: what not to do again, and \
what to do instead, with the names of the things and places involved. Write nothing but the note."""

_ENDS = {
    "lost": "Your last command ended the episode, and the task was not fulfilled.",
    "max_steps": "You ran out of steps, and the task was not fulfilled.",
    "context": "The attempt became too long for you to go on, and the task was not fulfilled.",
}


class Reflexion:
    """Up to ``trials`` attempts at a task, each with the lessons of those before it.

    ``trials`` of the record is their number, so one run has the success after 1, 2, … trials.

    Args:
        actor: who plays the attempts, e.g. :class:`~roleagent.agents.chat.react.ReAct`.
        trials: most attempts, ≥ 1; one attempt is the actor alone.
    """

    def __init__(self, actor: PlainAgent, trials: int = 3):
        if trials < 1:
            raise ValueError(f"trials must be at least 1, not {trials}")
        self.actor, self.trials = actor, trials

    async def play(self, episode: Episode) -> None:
        """Plays the task until it is won or the trials are used up."""
        lessons: list[str] = []
        while True:
            messages: list[Message] = []
            reason = ""
            try:
                await self.actor.attempt(episode, messages, lessons[-MEMORY:])
            except OverlongError:
                if episode.trials >= self.trials:
                    raise
                reason = "context"
            if episode.won or episode.trials >= self.trials:
                return
            lesson = await self._lesson(episode, messages, reason or episode.stop_reason, lessons[-MEMORY:])
            lessons += [lesson] if lesson else []

    async def _lesson(self, episode: Episode, messages: Sequence[Message], reason: str, lessons: Sequence[str]) -> str:
        """What the model makes of a failed attempt; ``""`` if nothing."""
        noted = "".join(f"\nWhat you had noted before it: {lesson}" for lesson in lessons)
        for room in _ROOMS:
            record = f"{record_of(messages[1:], room)}\n\n{_ENDS[reason]}{noted}\n\nNow write the note."
            try:
                answer = await episode.ask([{"role": "system", "content": _ASK}, {"role": "user", "content": record}])
            except OverlongError:
                continue
            return plain(without_thoughts(answer.text), _LONGEST)
        return ""


def record_of(messages: Sequence[Message], room: int) -> str:
    """A conversation as text for its own model: the first message, and as many of the last as fit.

    Args:
        room: most characters, if the first and the last message leave any.

    >>> talk = [("user", "A door."), ("assistant", "open door"), ("user", "It is locked."), ("assistant", "look")]
    >>> messages = [{"role": role, "content": text} for role, text in talk]
    >>> print(record_of(messages, 40))
    A door.
    (steps left out)
    It is locked.
    You: look
    """
    said = [f"{'You: ' if message['role'] == 'assistant' else ''}{message['content']}" for message in messages]
    start, left = len(said), room - len(said[0])
    while start > 1 and len(said[start - 1]) <= left:
        start -= 1
        left -= len(said[start])
    return "\n".join([said[0], *(["(steps left out)"] if start > 1 else []), *said[start:]])


__all__ = ["MEMORY", "Reflexion", "record_of"]

"""Agents that prompt a chat model for one command per turn: plain, ReAct (Yao et al. 2023) and Reflexion (Shinn et al.
2023).

An episode is one growing conversation: instructions, then observations and replies in turn. Where commands are listed,
only the newest observation has the list, so that a conversation stays short.

ReAct writes a thought before each action. Reflexion retries a task with its own notes on earlier failures. Of an
attempt it knows what the agent saw and did, and whether it succeeded: the success signal is the one thing that an agent
in the world does not see, and the published method has it too. Rewards, scores, right answers and whatever the world
showed after the last command stay unknown to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from roleagent.agents.chat.types import Message, OverlongError
from roleagent.agents.episode import Episode, play_episode
from roleagent.env_card import ExampleStep, Instructions
from roleagent.envs.wrappers.tags import MAX_COMMAND
from roleagent.failures.analyst_format import plain

SILENCE = "(nothing)"
"""What stands for an empty reply: some servers refuse empty messages."""


class PlainAgent:
    """Sees observations and possible commands, replies with a command: the baseline without reasoning.

    A reply without a command is answered once with what was expected; the second one in a row is played as the invalid
    command ``""``. Both are counted in ``episode.corrections``.

    Args:
        guide: the instructions of the environment.
        example: whether the guide's example is shown.
        listed: whether the possible commands are listed with an observation; by default where the environment
            recommends it.
    """

    form = "Reply with the command and nothing else."
    correction = "That was no command. Reply with the command and nothing else."
    label = ""
    """What stands in front of an observation."""

    def __init__(self, guide: Instructions, example: bool = False, listed: bool = True):
        self.guide, self.example, self.listed = guide, example, listed

    async def play(self, episode: Episode) -> None:
        """Plays the episode."""
        await self.attempt(episode, [])

    async def attempt(self, episode: Episode, messages: list[Message], lessons: Sequence[str] = ()) -> None:
        """Plays one trial.

        Args:
            messages: empty; they become its conversation.
            lessons: what was learned in earlier trials of the same task.
        """

        async def decide(episode: Episode) -> str:
            if messages:
                messages.append({"role": "user", "content": f"{self.label}{episode.observation}"})
            else:
                messages.extend(self.first_message(episode, lessons))
            return await self._command(episode, messages)

        await play_episode(episode, decide)

    def first_message(self, episode: Episode, lessons: Sequence[str] = ()) -> list[Message]:
        """The instructions and the first observation.

        Args:
            lessons: what was learned in earlier trials of the same task.
        """
        parts = [self.guide.rules, self.form]
        if self.example and self.guide.example:
            shown = "\n".join(map(self.shown, self.guide.example))
            parts.append(f"The beginning of an episode with another task, as an example:\n{shown}")
        if lessons:
            noted = "\n".join(f"- {lesson}" for lesson in lessons)
            parts.append(f"You have failed at this very task before. What you noted for the next attempt:\n{noted}")
        goal = str(episode.info.get("goal", ""))
        # Most environments name the task in their first observation.
        task = f"\n\nYour task is to: {goal}" if goal and goal not in episode.observation else ""
        return [
            {"role": "system", "content": "\n\n".join(parts)},
            {"role": "user", "content": f"{self.label}{episode.observation}{task}"},
        ]

    def read(self, reply: str, info: Mapping[str, Any]) -> str:
        """The command in a reply, ``""`` if there is none."""
        return read_command(reply, info.get("admissible_actions") or ())

    def shown(self, step: ExampleStep) -> str:
        """A step of an example."""
        return f"{step.observation}\nYour reply: {step.command}"

    def kept(self, reply: str) -> str:
        """The part of a reply that stays in the conversation."""
        return without_thoughts(reply)

    async def _command(self, episode: Episode, messages: list[Message]) -> str:
        for _ in range(2):
            answer = await episode.ask(self._with_commands(messages, episode.info))
            reply = self.kept(answer.text)
            messages.append({**answer.beside, "role": "assistant", "content": reply or SILENCE})
            if command := self.read(reply, episode.info):
                return command
            episode.corrections += 1
            messages.append({"role": "user", "content": self.correction})
        messages.pop()  # the environment answers next
        return ""

    def _with_commands(self, messages: Sequence[Message], info: Mapping[str, Any]) -> list[Message]:
        commands = [command for command in info.get("admissible_actions") or () if command != "help"]
        if not (self.listed or self.guide.listed) or not commands:
            return list(messages)
        *earlier, newest = messages
        shown = "\n".join((newest["content"], "", "Possible commands:", *commands))
        return [*earlier, {"role": newest["role"], "content": shown}]


def without_thoughts(reply: str) -> str:
    """A reply without the thoughts of a reasoning model; a thought that was cut off is removed as well.

    >>> without_thoughts("<think>A desk? No.</think> go to bed 1"), without_thoughts("look <think>or should")
    ('go to bed 1', 'look')
    """
    return re.split(r"<think(?:ing)?>", re.split(r"</think(?:ing)?>", reply)[-1])[0].strip()


def tidy(text: str, admissible: Sequence[str] = ()) -> str:
    """A command without the decoration that models add, spelled as in the list if only the case differs.

    >>> tidy("`Go to Desk 1`.", ["go to desk 1"]), tidy("**search[Emma, 1815]** to begin with"), tidy("> look")
    ('go to desk 1', 'search[Emma, 1815]', 'look')
    """
    text = re.sub(r"</?action>", "", text.strip())[:MAX_COMMAND].strip(" \t>*_`\"'“”")
    if called := re.match(r"(\w+)\s?\[(.*)\]", text):
        text = f"{called[1].lower()}[{called[2].strip()}]"
    else:
        text = " ".join(text.rstrip(".!").rstrip("*_`\"'”").split())
    worded = {command.lower(): command for command in admissible}
    return worded.get(text.lower(), text)


def read_command(reply: str, admissible: Sequence[str] = ()) -> str:
    """The command in a reply that should be nothing else: the first line that is one, else the first line.

    >>> read_command("Sure! Here it is:\\n\\n```\\nopen door\\n```", ["open door", "look"])
    'open door'
    >>> read_command("go to desk 1\\n"), read_command("")
    ('go to desk 1', '')
    """
    lines = [tidied for line in reply.splitlines() if (tidied := tidy(line, admissible))]
    known = (line for line in lines if line in admissible or re.fullmatch(r"\w+\[.+\]", line))
    return next(known, next(iter(lines), ""))


# Lists, quotes and emphasis stand around these words, numbers behind them; bounded, for replies may be pathological.
_HEADED = r"^[ \t>#*_`•-]{{0,12}}{}[ \t]{{0,4}}\d{{0,3}}[*_`]{{0,3}}[ \t]{{0,4}}[:：][*_]{{0,3}}(.*)$"
_ACTION = re.compile(_HEADED.format("action"), re.IGNORECASE | re.MULTILINE)
_IMAGINED = re.compile(_HEADED.format("observation"), re.IGNORECASE | re.MULTILINE)


class ReAct(PlainAgent):
    """Thinks in words before every command.

    The command is the last line ``Action: …`` of a reply. What a model imagines to come of it (``Observation: …`` and
    all that follows) is cut off. A reply without an action is answered once with what was expected, as in
    :class:`~roleagent.agents.prompting.plain.PlainAgent`.

    Args:
        guide: the instructions of the environment.
        example: whether the guide's example is shown, with its thoughts.
        listed: whether the possible commands are listed with an observation, even where the guide explains how
            commands are worded.
    """

    form = (
        "Each of your replies has two lines:\n"
        "Thought: what you make of the last observation, what is left to do, and what to do next\n"
        "Action: one command\n"
        "Then wait: you are told what comes of it."
    )
    correction = (
        'There is no command in your reply. Give it in a line that begins with "Action:", and nothing after it.'
    )
    label = "Observation: "

    def __init__(self, guide: Instructions, example: bool = True, listed: bool = False):
        super().__init__(guide, example, listed)

    def read(self, reply: str, info: Mapping[str, Any]) -> str:
        return read_action(reply, info.get("admissible_actions") or ())

    def shown(self, step: ExampleStep) -> str:
        return f"Observation: {step.observation}\nThought: {step.thought}\nAction: {step.command}"

    def kept(self, reply: str) -> str:
        return without_imagined(super().kept(reply))


def read_action(reply: str, admissible: Sequence[str] = ()) -> str:
    """The command in the last line ``Action: …``, or below it where that line has none; ``""`` if there is none.

    >>> read_action("Thought: Mugs are on desks.\\nAction: go to desk 1")
    'go to desk 1'
    >>> read_action("**Action 2:**\\n```\\nGo to desk 1.\\n```", ["go to desk 1"])
    'go to desk 1'
    >>> read_action("I had better go to desk 1.")
    ''
    """
    for found in reversed(list(_ACTION.finditer(reply))):
        lines = (tidy(line, admissible) for line in (found[1], *reply[found.end() :].splitlines()))
        if command := next(filter(None, lines), ""):
            return command
    return ""


def without_imagined(reply: str) -> str:
    """A reply up to the first observation that the model invented.

    >>> without_imagined("Action: look\\nObservation: You see gold.\\nAction: take gold")
    'Action: look'
    """
    action = _ACTION.search(reply)
    imagined = _IMAGINED.search(reply, action.end()) if action else None
    return reply[: imagined.start()].rstrip() if imagined else reply


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
        actor: who plays the attempts, e.g. :class:`~roleagent.agents.prompting.plain.ReAct`.
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

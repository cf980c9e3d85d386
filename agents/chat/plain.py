"""The plain prompting agent: it asks a model for one command per turn.

An episode is one growing conversation: instructions, then observations and replies in turn. Where commands are listed,
only the newest observation has the list, so that a conversation stays short.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from roleagent.agents.chat.types import Message
from roleagent.agents.episode import Episode, play_episode
from roleagent.env_spec import ExampleStep, Instructions
from roleagent.envs.wrappers.tags import MAX_COMMAND

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
            messages.append({"role": "assistant", "content": reply or SILENCE})
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


__all__ = ["PlainAgent", "read_command", "tidy", "without_thoughts"]

"""Scripted failures with any tools, one per failure mode. They need tasks that bring their calls."""

from __future__ import annotations

import re
from typing import Any

from roleagent.envs.failures.scripted_episode import Impossible, ScriptedEpisode, unreadable_reply
from roleagent.envs.tools.calls.command import answer_command, call_command, read_command
from roleagent.tools import Call


def _call(command: str) -> Call | None:
    """The first call of a command."""
    return next((call for call in read_command(command).calls if isinstance(call, Call)), None)


def _stop_at_a_call(episode: ScriptedEpisode) -> Call:
    """Plays to one of the expert's calls, while most of the turns are left.

    Raises:
        Impossible: the task brings no calls.
    """
    call = _call(episode.follow(lambda command: episode.left <= len(episode.turns) + 2 or episode.chance(0.5)))
    if call is None:
        raise Impossible
    return call


def _wrong_answers(episode: ScriptedEpisode) -> list[str]:
    """Words and numbers of the task and its results, and numbers near them."""
    texts = " ".join([episode.info["goal"], *(turn.observation for turn in episode.turns)])
    words = list(dict.fromkeys(re.findall(r"\w[\w.,-]*\w|\w", texts)))
    return [*words, *(str(int(word) + 1) for word in words if word.isdecimal() and len(word) < 9)]


def failed_call(episode: ScriptedEpisode) -> None:
    """Calls tools that do not exist, or leaves an argument out, until the turns are used up."""
    call = _stop_at_a_call(episode)
    episode.mark_failure()
    while True:
        if call.arguments and episode.chance(0.5):
            left_out = episode.pick(sorted(call.arguments))
            wrong = Call(call.name, {name: value for name, value in call.arguments.items() if name != left_out})
        else:
            wrong = Call(
                episode.pick((f"{call.name}s", f"get_{call.name}", call.name[:-1] or "x", "help")), call.arguments
            )
        episode.do(call_command([wrong]))


def repeated_call(episode: ScriptedEpisode) -> None:
    """Makes a call again and again, although it has its result."""
    command = call_command([_stop_at_a_call(episode)])
    episode.do(command)
    episode.mark_failure()
    while True:
        episode.do(command)


def premature_answer(episode: ScriptedEpisode) -> None:
    """Guesses at once."""
    if _call(episode.expert.act()) is None:
        raise Impossible
    episode.mark_failure()
    episode.do(answer_command(episode.pick(_wrong_answers(episode))))


def wrong_answer(episode: ScriptedEpisode) -> None:
    """Makes the calls, and then answers something else."""
    right = episode.follow(lambda command: _call(command) is None)
    if not episode.turns:
        raise Impossible
    episode.mark_failure()
    others = [command for command in map(answer_command, _wrong_answers(episode)) if command != right]
    episode.do(episode.pick(others))


def unfinished_task(episode: ScriptedEpisode) -> None:
    """Makes calls of other tasks until the turns are used up."""
    base: Any = episode.env.unwrapped
    episode.follow(lambda command: _call(command) is None or episode.chance(0.5))
    offered = {tool.name for tool in base.tools}
    others = episode.shuffled(base.task_split.task_ids)[:50]
    calls = [call for task_id in others for call in base.task(task_id).calls if call["name"] in offered]
    commands = list(dict.fromkeys(call_command([Call(call["name"], call.get("arguments", {}))]) for call in calls))
    if len(commands) < episode.left:
        raise Impossible
    episode.mark_failure(single=False)
    for command in commands:
        episode.do(command)


SCRIPTED_FAILURES = {
    "action_format_error": unreadable_reply(lambda command: read_command(command).answer is not None, spare=2),
    "failed_call": failed_call,
    "repeated_call": repeated_call,
    "premature_answer": premature_answer,
    "wrong_answer": wrong_answer,
    "unfinished_task": unfinished_task,
}

__all__ = ["SCRIPTED_FAILURES"]

"""Scripted failures in the office, one per failure mode."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from roleagent.envs.failures.scripted_episode import Impossible, ScriptedEpisode, unreadable_reply
from roleagent.envs.office.goals import DONE, command_of
from roleagent.envs.office.world import CURRENCIES, DAYS, HOURS, PERSON_FIELDS, ROOM_FIELDS, Office
from roleagent.envs.tools.calls.command import read_command
from roleagent.tools import Call


def _call(command: str) -> Call | None:
    calls = read_command(command).readable
    return calls[0] if calls else None


def _calls(command: str, *tools: str) -> bool:
    call = _call(command)
    return call is not None and call.name in tools


def _answers(command: str) -> bool:
    return _call(command) is None


def _do(episode: ScriptedEpisode, call: Call, **changed: Any) -> None:
    """Makes a call with some other arguments."""
    episode.do(command_of(Call(call.name, {**call.arguments, **changed})))


def _stop_at(episode: ScriptedEpisode, *tools: str, share: float = 0.5) -> Call:
    """Plays to one of the expert's calls of these tools.

    Raises:
        Impossible: the expert answers before it.
    """
    command = episode.follow(lambda one: _answers(one) or (_calls(one, *tools) and episode.chance(share)))
    call = _call(command)
    if call is None:
        raise Impossible
    return call


def _office(episode: ScriptedEpisode) -> Office:
    base: Any = episode.env.unwrapped
    return base._state["office"]


def _shown(episode: ScriptedEpisode, pattern: str) -> list[str]:
    """What the goal and the results have shown, in order."""
    texts = [episode.info["goal"], *(turn.observation for turn in episode.turns)]
    return list(dict.fromkeys(found for text in texts for found in re.findall(pattern, text)))


def _end(episode: ScriptedEpisode, answers: list[str]) -> None:
    """Answers with one of these, or ends the task as if it were done."""
    episode.do(command_of(episode.pick(answers or [DONE])))


def repeated_call(episode: ScriptedEpisode) -> None:
    """Makes a call again and again, although it has its result."""
    call = _stop_at(episode, "find", "detail", "free", "convert", "sum")
    _do(episode, call)
    episode.mark_failure()
    while True:
        _do(episode, call)


def refused_call(episode: ScriptedEpisode) -> None:
    """Calls a tool that does not exist, or leaves an argument out, or gives one of the wrong type."""
    call = _stop_at(episode, "find", "detail", "free", "book", "convert", "sum")
    names = ("lookup", "get", "search", "reserve", "exchange", "total", "detials", "fnd")
    episode.mark_failure()
    while episode.left > 1:
        arguments: Mapping[str, Any] = dict(call.arguments)
        kind = episode.rng.integers(3)
        left_out = episode.pick(sorted(arguments))
        if kind == 0:
            episode.do(command_of(Call(episode.pick(names), arguments)))
        elif kind == 1:
            episode.do(command_of(Call(call.name, {k: v for k, v in arguments.items() if k != left_out})))
        else:
            episode.do(command_of(Call(call.name, {**arguments, "note": episode.pick(names)})))
    _end(episode, [])


def invented_argument(episode: ScriptedEpisode) -> None:
    """Makes an id, a name or an amount up."""
    call = _stop_at(episode, "find", "detail", "free", "book", "convert")
    known, office = " ".join(_shown(episode, r".+")), _office(episode)
    numbers = [str(number) for number in range(10, 100) if str(number) not in re.findall(r"\d+", known)]
    episode.mark_failure()
    while episode.left > 1:
        number = episode.pick([one for one in numbers if f"p{one}" not in office.details])
        numbers.remove(number)
        if call.name == "find":
            first, last = (episode.pick([*office.ids]).split()[place] for place in (0, 1))
            name = f"{first} {last}"
            if name in known or name in office.ids:
                continue
            _do(episode, call, name=name)
        elif call.name == "convert":
            _do(episode, call, amount=f"{episode.pick(CURRENCIES)}{number}")
        else:
            _do(episode, call, id=f"{call.arguments['id'][0]}{number}")
        if episode.chance(0.4):
            break
    _end(episode, [text for text in (episode.observation,) if len(text) < 20 and text[-1:].isdigit()])


def wrong_lookup(episode: ScriptedEpisode) -> None:
    """Reads a wrong field, asks for the hours of a wrong day, or looks up a person with a similar name."""
    call = _stop_at(episode, "detail", "free", share=0.7)
    id = call.arguments["id"]
    others = [day for day in DAYS if day != call.arguments.get("day")]
    if call.name == "detail":
        fields = PERSON_FIELDS if id.startswith("p") else ROOM_FIELDS
        others = [field for field in (*fields, *fields, *PERSON_FIELDS) if field != call.arguments["field"]]
    name = "day" if call.name == "free" else "field"
    episode.mark_failure()
    for other in dict.fromkeys(episode.shuffled(others)):
        _do(episode, call, **{name: other})
        if episode.chance(0.6) or episode.left <= 1:
            break
    _end(episode, [text for text in (episode.observation,) if len(text) < 20])


def wrong_amount(episode: ScriptedEpisode) -> None:
    """Converts into another currency, converts only a part, or leaves a number out of the sum."""
    call = _stop_at(episode, "convert", "sum", share=0.7)
    episode.mark_failure()
    if call.name == "sum":
        numbers = list(call.arguments["numbers"])
        numbers.remove(episode.pick(numbers))
        _do(episode, call, numbers=numbers)
        [currency, *_] = _shown(episode, "|".join(CURRENCIES)) or CURRENCIES
        _end(episode, [f"{currency}{episode.observation}"])
    _do(episode, call, to=episode.pick([one for one in CURRENCIES if one != call.arguments["to"]]))
    _end(episode, [episode.observation])


def wrong_booking(episode: ScriptedEpisode) -> None:
    """Books a wrong hour, a wrong day, or another person from an earlier result."""
    call = _stop_at(episode, "book", share=1.0)
    office = _office(episode)
    others = [id for id in _shown(episode, r"\b[pr]\d+\b") if id != call.arguments["id"] and id in office.details]
    changes: list[dict[str, Any]] = [{"day": day} for day in DAYS if day != call.arguments["day"]]
    changes += [{"hour": hour} for hour in HOURS if hour != call.arguments["hour"]] + [{"id": id} for id in others * 5]
    episode.mark_failure()
    for changed in episode.shuffled(changes):
        one = {**call.arguments, **changed}
        if one["hour"] not in office.taken[one["id"], one["day"]]:
            _do(episode, call, **changed)
            break
    _end(episode, [])


def premature_answer(episode: ScriptedEpisode) -> None:
    """Answers although calls are still needed: with the last result, with a number from the task, or as if done."""
    _stop_at(episode, "find", "detail", "free", "book", "convert", "sum", share=0.4)
    seen = _shown(episode, r"[A-Z]{3}\d+|[pr]\d+|[\d-]+")
    episode.mark_failure()
    _end(episode, [*seen, "unknown"] if episode.chance(0.7) else [])


def misread_result(episode: ScriptedEpisode) -> None:
    """Makes all calls, and answers with an earlier result, with a part of the last one or without its currency."""
    command = episode.follow(_answers)
    right = read_command(command).answer
    if right == DONE or not episode.turns:
        raise Impossible
    numbers = re.findall(r"\d+", episode.observation)
    others = [text for text in (*_shown(episode, r"[A-Z]{3}\d+|[\d-]+"), *numbers) if text != right]
    episode.mark_failure()
    _end(episode, others)


def unfinished_task(episode: ScriptedEpisode) -> None:
    """Makes every call twice, so that the turns do not suffice."""
    episode.mark_failure(single=False)
    while True:
        command = episode.expert.act()
        if _calls(command, "book") or _answers(command):
            raise Impossible
        episode.do(command)
        episode.do(command)


SCRIPTED_FAILURES: dict[str, Callable[[ScriptedEpisode], None]] = {
    script.__name__: script
    for script in (
        unreadable_reply(lambda command: _answers(command) or _calls(command, "book"), spare=3),
        repeated_call,
        refused_call,
        invented_argument,
        wrong_lookup,
        wrong_amount,
        wrong_booking,
        premature_answer,
        misread_result,
        unfinished_task,
    )
}

__all__ = ["SCRIPTED_FAILURES"]

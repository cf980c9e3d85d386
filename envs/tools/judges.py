"""Judges: how right an episode of tool calls is, at its end.

A judge is a function of the task and the episode. It returns the reward term ``task`` in [0, 1], or several named
terms, of which ``task`` must be one. An episode that is cut off is judged as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from roleagent.envs.searchqa.scoring import Score
from roleagent.envs.searchqa.scoring import judge as compare
from roleagent.envs.tools.definition.load import load_module
from roleagent.envs.tools.tasks import ToolTask
from roleagent.options import shown
from roleagent.tools import Call


@dataclass(frozen=True, slots=True)
class Episode:
    """The episode that a judge scores.

    Attributes:
        answer: of the agent; None if it gave none.
        calls: every call that was run, in order. One that was refused is answered, and may be corrected.
        state: of the episode, as the tools have left it.
        malformed: replies that were malformed.
        steps: replies in all.
    """

    answer: str | None
    calls: tuple[Call, ...]
    state: Any
    malformed: int = 0
    steps: int = 0


Terms = Mapping[str, float]
Judge = Callable[[ToolTask, Episode], float | Terms]


def score_of(task: ToolTask, episode: Episode) -> Score:
    """Exact match, F1 and containment of the answer, as search QA scores them; 0 without an answer."""
    golden = task.answer if isinstance(task.answer, list | tuple) else [task.answer]
    texts = [str(one) for one in golden if isinstance(one, str | int | float) and not isinstance(one, bool)]
    if episode.answer is None or not texts:
        return Score()
    return Score(*map(max, *(_scored(episode.answer, text) for text in texts), Score()))


_FIGURE = re.compile(r"(?:(?<!\w)-)?\d+(?:[.,:/]\d+)*")


def _scored(answer: str, golden: str) -> Score:
    """As search QA, but for numbers: its normal form has no punctuation, so that 1.5 would be 15, and -5 be 5."""
    score, given, wanted = compare(answer, [golden]), *map(_figures, (answer, golden))
    if score.em and given != wanted:
        return Score()
    return score._replace(sub_em=score.sub_em * all(figure in given for figure in wanted))


def _figures(text: str) -> list[str]:
    """The figures in a text, as they are written, but for commas between thousands."""
    return [re.sub(r",(?=\d{3}\b)", "", one) for one in _FIGURE.findall(text.replace("\u2212", "-"))]


def exact_match(task: ToolTask, episode: Episode) -> float:
    """1 if the answer equals an accepted one, in normal form."""
    return score_of(task, episode).em


def f1(task: ToolTask, episode: Episode) -> float:
    """Token F1 with the best accepted answer, in [0, 1]."""
    return score_of(task, episode).f1


def sub_em(task: ToolTask, episode: Episode) -> float:
    """1 if the answer contains an accepted one. It cannot be called exact match."""
    return score_of(task, episode).sub_em


_NUMBER = re.compile(  # letters behind it are a unit
    r"(?<![\w.])[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3})?"
    r"(?![\u00b2\u00b3\u00b9\u2070-\u2089])(?=[^\W\d_]*(?!\w))"
)


def number(task: ToolTask, episode: Episode) -> float:
    """1 if the answer holds one number and it equals an accepted one, to a relative 1e-6.

    >>> number(ToolTask("a", "?", answer=1200), Episode("It is 1,200.00 km.", (), {}))
    1.0
    >>> number(ToolTask("a", "?", answer="5"), Episode("5 or 6", (), {}))
    0.0
    """
    golden = task.answer if isinstance(task.answer, list | tuple) else [task.answer]
    given = numbers(episode.answer or "")
    wanted = [value for one in golden for value in numbers(str(one))]
    return float(len(given) == 1 and any(math.isclose(given[0], value, rel_tol=1e-6) for value in wanted))


def numbers(text: str) -> list[float]:
    """The numbers in a text."""
    return [float(found.replace(",", "")) for found in _NUMBER.findall(text.replace("\u2212", "-"))]


def state(task: ToolTask, episode: Episode) -> float:
    """1 if every condition of ``answer`` holds in the episode's state: ``{"path.to.value": wanted}``.

    >>> state(ToolTask("a", "?", answer={"hall.9": "Mara"}), Episode(None, (), {"hall": {"9": "Mara"}}))
    1.0
    """
    conditions = task.answer if isinstance(task.answer, Mapping) else {}
    return float(bool(conditions) and all(_is(_at(episode.state, path), one) for path, one in conditions.items()))


_NOWHERE = object()


def _is(found: Any, wanted: Any) -> bool:
    return found == wanted and isinstance(found, bool) == isinstance(wanted, bool)


def _at(state: Any, path: str) -> Any:
    """What stands at a path; of keys with a dot in them the longest one that leads on."""
    if isinstance(state, Sequence) and not isinstance(state, str):
        step, _, rest = path.partition(".")
        within = step.isdecimal() and int(step) < len(state)
        return _NOWHERE if not within else _at(state[int(step)], rest) if rest else state[int(step)]
    steps = path.split(".") if isinstance(state, Mapping) else []
    for length in range(len(steps), 0, -1):
        if (key := ".".join(steps[:length])) in state:
            found = state[key] if length == len(steps) else _at(state[key], ".".join(steps[length:]))
            if found is not _NOWHERE:
                return found
    return _NOWHERE


def calls(task: ToolTask, episode: Episode) -> float:
    """1 if the calls are those of ``answer``, in any order (BFCL's rules for abstract syntax trees).

    ``answer`` is a list of ``{function: {parameter: [accepted values]}}``. ``""`` among the values marks a parameter
    that may be missing; an empty list of calls means that no call is right. Texts are compared without case, blanks and
    ``,./-_*^``.

    >>> wanted = [{"add": {"a": [1], "b": [2, ""]}}]
    >>> calls(ToolTask("x", "?", answer=wanted), Episode(None, (Call("add", {"a": 1}),), {}))
    1.0
    """
    wanted: list[Any] = list(task.answer or ())
    left = list(episode.calls)
    if len(left) != len(wanted):
        return 0.0
    for one in wanted:
        (name, accepted), *_ = one.items()
        fitting = next((call for call in left if call.name == name and fits(call.arguments, accepted)), None)
        if fitting is None:
            return 0.0
        left.remove(fitting)
    return 1.0


def fits(arguments: Mapping[str, Any], accepted: Mapping[str, Sequence[Any]]) -> bool:
    """Whether every argument is one of the accepted values, and none is missing that must be there."""
    if any(name not in accepted for name in arguments):
        return False
    for name, values in accepted.items():
        if name not in arguments:
            if not any(isinstance(value, str) and value == "" for value in values):
                return False
        elif not any(_same(arguments[name], value) for value in values):
            return False
    return True


_IGNORED = re.compile(r"[ ,./\-_*^]")


def plain_text(text: str) -> str:
    """A text in the form in which BFCL compares texts.

    >>> plain_text("April 1, 2024") == plain_text("april 1 2024")
    True
    """
    return _IGNORED.sub("", text).lower().replace("'", '"')


def listed(accepted: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The accepted values of an object's keys; one that is no list is the only value."""
    return {key: values if isinstance(values, list) else [values] for key, values in accepted.items()}


def _same(given: Any, wanted: Any) -> bool:
    """Whether a value is the accepted one; in objects each accepted value is a list again."""
    if isinstance(given, str) and isinstance(wanted, str):
        return plain_text(given) == plain_text(wanted)
    if isinstance(given, bool) or isinstance(wanted, bool):
        return given is wanted
    if isinstance(given, Mapping) and isinstance(wanted, Mapping):
        return fits(given, listed(wanted))
    if isinstance(given, list | tuple) and isinstance(wanted, list | tuple):
        return len(given) == len(wanted) and all(map(_same, given, wanted))
    return type(given) in (int, float, type(None)) and given == wanted


JUDGES: dict[str, Judge] = {one.__name__: one for one in (exact_match, f1, sub_em, number, state, calls)}
"""The judges by name."""


def check_answer(task: ToolTask, name: str) -> None:
    """Refuses a task whose answer a judge cannot use.

    Args:
        name: of the judge; one that is not ours is not asked.

    Raises:
        ValueError: one line.
    """
    if task.judge and task.judge not in JUDGES:  # a data file names no code
        raise ValueError(f"the task {task.id!r} has the judge {task.judge!r}; there are {', '.join(JUDGES)}")
    answer: Any = task.answer
    if name == "state" and not (isinstance(answer, Mapping) and answer):
        raise ValueError(
            f'the task {task.id!r} needs conditions as answer, {{"path.to.value": …}}, for the judge state'
        )
    if name == "calls" and not (isinstance(answer, list | tuple) and all(map(_is_accepted, answer))):
        form = '[{"function": {"parameter": [accepted values]}}]'
        raise ValueError(f"the task {task.id!r} needs calls as answer, {form}, for the judge calls")
    if name in ("exact_match", "f1", "sub_em", "number"):
        if answer in (None, "", [], ()):
            raise ValueError(f"the task {task.id!r} has no answer, which the judge {name} needs")
        kind = "a number" if name == "number" else "a text or a number"
        for one in answer if isinstance(answer, list | tuple) else [answer]:
            usable = isinstance(one, str | int | float) and not isinstance(one, bool)
            if not usable or (name == "number" and not numbers(str(one))):
                raise ValueError(f"the task {task.id!r} needs {kind} as answer for the judge {name}, not {shown(one)}")


def _is_accepted(call: Any) -> bool:
    parts = list(call.values()) if isinstance(call, Mapping) else []
    return len(parts) == 1 and isinstance(parts[0], Mapping) and all(isinstance(one, list) for one in parts[0].values())


def judge_of(judge: str | Judge) -> Judge:
    """A judge by its name, by ``module:function`` or ``file.py:function``, or the function itself.

    Raises:
        ValueError: there is no such judge.
    """
    if not isinstance(judge, str):
        if not callable(judge):
            raise ValueError(f"a judge is a name or a function, not {judge!r}")
        return judge
    if judge in JUDGES:
        return JUDGES[judge]
    place, colon, name = judge.rpartition(":")
    found: Any = getattr(load_module(place), name, None) if colon else None
    if not callable(found):
        raise ValueError(
            f"there is no judge {judge!r}: choose {', '.join(JUDGES)}, or name a function as module:function"
        )
    judge_function: Any = found
    return judge_function


def terms_of(judged: float | Terms) -> dict[str, float]:
    """A judge's result as reward terms.

    Raises:
        ValueError: it is neither a finite number nor terms with ``task``.
    """
    terms = dict(judged) if isinstance(judged, Mapping) else {"task": judged}
    if "task" not in terms or not all(isinstance(value, Real) and math.isfinite(value) for value in terms.values()):
        raise ValueError(f"a judge returns a finite number or terms with 'task', not {judged!r}")
    return {name: float(value) for name, value in terms.items()}


__all__ = [
    "JUDGES",
    "Episode",
    "Judge",
    "check_answer",
    "judge_of",
    "listed",
    "numbers",
    "plain_text",
    "score_of",
    "terms_of",
]

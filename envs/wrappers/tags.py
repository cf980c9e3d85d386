"""Converts a model's reply to a command: the only place that knows the reply format.

A reply holds one action, ``<action>go to desk 1</action>``, perhaps a thought before it, ``<think>…</think>``, and
perhaps predictions, ``<prediction h="1">…</prediction>``, in any order. ``<search>`` and ``<answer>`` are
actions too: ``<search>who wrote Emma</search>`` is the command ``search[who wrote Emma]``.

Where revisions are on, a reply may instead be a note (:mod:`roleagent.envs.wrappers.notes`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, Protocol, get_args

import gymnasium

from roleagent.env_card import step_limit
from roleagent.envs.wrappers.notes import REVISE, REVISED, after_note, note_error, note_of
from roleagent.envs.wrappers.predicted_state import default_horizon
from roleagent.spaces import Unicode, whole

Think = Literal["none", "optional", "required"]
COMMAND_TAGS = ("search", "answer")
MAX_COMMAND = 4096  # characters; a longer one is a model that does not stop


@dataclass(frozen=True, slots=True)
class Parsed:
    """A reply, taken apart.

    Attributes:
        command: what goes to the environment; ``""`` if the reply is malformed.
        predictions: texts for horizons 1..H, ``""`` where the reply has none.
        error: why the reply is malformed, in a few words; None if it is well-formed.
        is_note: whether the reply is a note; its ``command``, ``revise[…]``, goes to no environment.
    """

    command: str
    predictions: tuple[str, ...]
    error: str | None = None
    is_note: bool = field(default=False, repr=False)


@lru_cache
def _pattern(action_tag: str, revise: bool) -> re.Pattern[str]:
    names = "|".join(map(re.escape, (action_tag, "think", "prediction", *COMMAND_TAGS, *([REVISE] if revise else []))))
    return re.compile(rf"<(/?)({names})(?:\s{{1,4}}h\s?=\s?[\"']?(\d{{1,3}})[\"']?)?\s{{0,4}}>")


def parse(
    text: Any, *, horizon: int = 1, think: Think = "optional", action_tag: str = "action", revise: bool = False
) -> Parsed:
    """Takes a reply apart in one pass over its tags; never raises, whatever the text.

    What stands inside an open thought or prediction is plain text, tags and all. A text up to a ``</think>`` that was
    never opened is a thought as well: chat templates often open it in the prompt. An unfinished prediction after the
    action is an absent one, since replies are cut off at a length; of two predictions for one horizon the first counts.

    Args:
        text: the model's reply, with any text of a follow-up question appended.
        horizon: H; predictions further ahead are dropped.
        think: whether a thought is forbidden, allowed or demanded before the action.
        action_tag: name of the tag around the command.
        revise: whether a reply may be a note. A note is a thought itself and needs none before it.

    >>> parse('<think>Desks hold pens.</think><action> go to  desk 1 </action><prediction h="1">A pen.</prediction>')
    Parsed(command='go to desk 1', predictions=('A pen.',), error=None)
    >>> parse("<search>red mug</search>", horizon=0).command
    'search[red mug]'
    >>> parse("go to desk 1").error
    'no <action> block'
    >>> parse("<revise>I misread what I saw.</revise>", horizon=0, revise=True)
    Parsed(command='revise[I misread what I saw.]', predictions=(), error=None)
    """
    if not isinstance(text, str):
        return Parsed("", ("",) * horizon, f"the reply is not text but {type(text).__name__}")
    text = whole(text)  # a model's reply is shown again, sent and written down
    commands: list[tuple[str, str]] = []
    predicted: dict[int, str] = {}
    thoughts, errors = 0, []
    name, ahead, start = "", 1, 0  # the open block; no name: none is open
    for tag in _pattern(action_tag, revise).finditer(text):
        closing, tag_name = bool(tag[1]), tag[2]
        if not name and not closing:
            name, ahead, start = tag_name, int(tag[3] or 1), tag.end()
        elif closing and tag_name == "think" and name in ("", "think"):
            if not name:  # everything so far was thought aloud
                commands, predicted, errors = [], {}, []
            elif commands:
                errors.append("a <think> block after the action")
            thoughts, name = thoughts + 1, ""
        elif not name:
            if tag_name != "prediction":
                errors.append(f"</{tag_name}> without <{tag_name}>")
        elif closing and tag_name == name:
            content = text[start : tag.start()]
            if name == "prediction":  # a state may have several lines: only the ends are trimmed
                predicted.setdefault(ahead, content.strip())
            else:
                commands.append((name, _in_one_line(content)))
            name = ""
        elif name not in ("think", "prediction"):
            errors.append(f"<{'/' * closing}{tag_name}> inside <{name}>")
    if name and not (name == "prediction" and commands):
        errors.append(f"<{name}> is never closed")
    if not commands:
        errors.append(f"no <{action_tag}> block")
    elif len(commands) > 1:
        errors.append(f"{len(commands)} action blocks")
    elif not commands[0][1]:
        errors.append("the command is empty")
    elif len(commands[0][1]) > MAX_COMMAND:
        errors.append(f"a command of {len(commands[0][1])} characters")
    is_note = bool(commands) and commands[0][0] == REVISE
    if think == "required" and thoughts != 1 and not is_note:
        errors.append(f"{thoughts or 'no'} <think> block{'s' * (thoughts > 1)}")
    elif think == "none" and thoughts:
        errors.append("a <think> block")
    predictions = tuple(predicted.get(h, "") for h in range(1, horizon + 1))
    if errors:
        return Parsed("", predictions, errors[0])
    tag_name, command = commands[0]
    return Parsed(command if tag_name == action_tag else f"{tag_name}[{command}]", predictions, is_note=is_note)


def _in_one_line(command: str) -> str:
    """Blanks count only within brackets, where a command quotes what stands on a page.

    >>> _in_one_line(" go  to desk 1"), _in_one_line("click[ red  |  blue ]")
    ('go to desk 1', 'click[ red  |  blue ]')
    """
    verb, bracket, quoted = command.partition("[")
    return " ".join(verb.split()) + bracket + re.sub(r"\s+", _without_break, quoted.rstrip())


def _without_break(blanks: re.Match[str]) -> str:
    """A run of blanks as it is, or one blank if it breaks the line.

    The runs are found first: a pattern that looks for the break at once tries again from every blank of a run.
    """
    return " " if "\n" in blanks[0] or "\r" in blanks[0] else blanks[0]


COMMAND_FORM = "Each of your replies is one command, written as <action>command</action>."
"""The form of a reply, for prompts: that of :class:`Tags`."""
THOUGHTS = {
    "optional": "You may think first, between <think> and </think>.",
    "required": "Think first, between <think> and </think>.",
}
"""The prompt's instructions about thoughts."""


def prediction_forms(horizon: int) -> str:
    """How predictions are written, for prompts.

    >>> prediction_forms(2)
    '<prediction h="1">…</prediction> <prediction h="2">…</prediction>'
    """
    return " ".join(f'<prediction h="{h}">…</prediction>' for h in range(1, horizon + 1))


class ReplyReader(Protocol):
    """Reads and writes replies; the attribute ``reader`` of the outermost wrapper.

    Attributes:
        stops: closing tags that end a reply.
        tags: what a tokenizer from scratch has as tokens, besides the tags of predictions.
        form: the sentences of a prompt about the form of a reply; empty: the usual ones, about one command.
    """

    @property
    def stops(self) -> tuple[str, ...]: ...
    @property
    def tags(self) -> tuple[str, ...]: ...
    @property
    def form(self) -> str: ...

    def read(self, reply: Any) -> Parsed:
        """The command and the predictions of a reply. Never raises."""
        ...

    def write(self, command: str, literal: Callable[[str], str] = str) -> str:
        """The reply that a command is read from.

        Args:
            literal: applied to what stands between the tags, e.g.
                :meth:`~roleagent.agents.policies.protocol.Policy.literal`.
        """
        ...


@dataclass(frozen=True, slots=True)
class TagReader:
    """The reader of :class:`Tags`; see :func:`parse` for its attributes.

    >>> TagReader().write("look"), TagReader(horizon=0).read("<action>look</action>").command
    ('<action>look</action>', 'look')
    """

    think: Think = "optional"
    action_tag: str = "action"
    horizon: int = 1
    revise: bool = False

    @property
    def stops(self) -> tuple[str, ...]:
        return self.tags[1::2]

    @property
    def tags(self) -> tuple[str, ...]:
        names = (self.action_tag, *([REVISE] if self.revise else []))
        return tuple(tag for name in names for tag in (f"<{name}>", f"</{name}>"))

    @property
    def form(self) -> str:
        return ""

    def read(self, reply: Any) -> Parsed:
        return parse(reply, horizon=self.horizon, think=self.think, action_tag=self.action_tag, revise=self.revise)

    def write(self, command: str, literal: Callable[[str], str] = str) -> str:
        if self.revise and (note := note_of(command)) is not None:
            return f"<{REVISE}>{literal(note)}</{REVISE}>"
        return f"<{self.action_tag}>{literal(command)}</{self.action_tag}>"


def predictions_of(env: gymnasium.Env, horizon: int | None) -> tuple[bool, int]:
    """Whether an environment's actions hold predictions, and how many to read from a reply.

    Args:
        horizon: that many; None: as many as an action holds, else the default horizon.
    """
    parts = env.action_space.spaces if isinstance(env.action_space, gymnasium.spaces.Dict) else {}
    taken = parts.get("predictions") if "command" in parts else None
    if not isinstance(taken, gymnasium.spaces.Tuple):
        return False, default_horizon(step_limit(env) or 1) if horizon is None else horizon
    return True, len(taken) if horizon is None else horizon


class Tags(gymnasium.Wrapper, gymnasium.utils.RecordConstructorArgs):
    """Lets a model's raw reply be the action.

    The command goes to the environment, and with it the predictions where a
    :class:`~roleagent.envs.wrappers.PredictedState` further in takes them. A malformed reply is the invalid action
    ``""``, with the reason in ``info["format_error"]`` (None where all is well).

    A note is answered here with :data:`REVISED`: it is no step of the environment and takes none of its limit. Two in a
    row, or more than ``revisions``, are malformed.

    Args:
        env: any environment that takes a command.
        think: whether a ``<think>`` block is forbidden (``"none"``), ``"optional"`` or ``"required"``.
        action_tag: name of the tag around the command.
        horizon: predictions read from a reply; None: as many as the environment takes.
        revisions: most notes of an episode; 0: ``<revise>`` is ordinary text.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        think: Think = "optional",
        action_tag: str = "action",
        horizon: int | None = None,
        revisions: int = 0,
    ):
        gymnasium.utils.RecordConstructorArgs.__init__(
            self, think=think, action_tag=action_tag, horizon=horizon, revisions=revisions
        )
        gymnasium.Wrapper.__init__(self, env)
        if think not in get_args(Think):
            raise ValueError(f"think must be one of {', '.join(get_args(Think))}, not {think!r}")
        if not re.fullmatch(r"\w+", action_tag) or action_tag in ("think", "prediction", REVISE):
            raise ValueError(
                f"{action_tag!r} cannot be the action tag: it must be one word, not think, prediction or {REVISE}"
            )
        self.think: Think = think
        self.action_tag = action_tag
        self._predictions, self.horizon = predictions_of(env, horizon)
        self.revisions = revisions
        self._info: dict[str, Any] = {}
        self._notes, self._noted, self._over = 0, False, True
        self.action_space = Unicode()

    @property
    def reader(self) -> TagReader:
        """Reads and writes replies."""
        return TagReader(self.think, self.action_tag, self.horizon, self.revisions > 0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._over = True  # if the reset fails
        observation, info = self.env.reset(seed=seed, options=options)
        self._info, self._notes, self._noted, self._over = {**info, "format_error": None}, 0, False, False
        return observation, self._info

    def snapshot(self) -> tuple[Any, ...]:
        """The state of the episode (:class:`~roleagent.sharing.Restorable`), its notes included.

        Raises:
            NotImplementedError: the environment has no snapshots.
        """
        if not self.env.has_wrapper_attr("snapshot"):
            raise NotImplementedError(f"{self.env.unwrapped} has no snapshots: replay the commands")
        return self.env.get_wrapper_attr("snapshot")(), self._info, self._notes, self._noted, self._over

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Goes back to a snapshot."""
        inner, self._info, self._notes, self._noted, self._over = snapshot
        self.env.get_wrapper_attr("restore")(inner)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        parsed = self.reader.read(action)
        if parsed.is_note:
            error = note_error(self._notes, self._noted, self.revisions)
            if self._over:
                raise gymnasium.error.ResetNeeded("the episode is over or has not begun: call reset() before step()")
            if error is None:
                self._notes, self._noted, self._info = self._notes + 1, True, after_note(self._info)
                return REVISED, 0.0, False, False, {**self._info, "command": parsed.command}
            parsed = replace(parsed, command="", error=error, is_note=False)
        inner = {"command": parsed.command, "predictions": parsed.predictions} if self._predictions else parsed.command
        observation, reward, terminated, truncated, info = self.env.step(inner)
        self._info, self._noted = {**info, "format_error": parsed.error}, False
        self._over = bool(terminated or truncated)
        return observation, reward, terminated, truncated, self._info

"""From what a model says to what an environment understands: the only place that knows the reply format.

A reply holds one action, ``<action>go to desk 1</action>``, perhaps a thought before it, ``<think>…</think>``, and
perhaps predictions, ``<prediction h="1">…</prediction>``, in any order. ``<search>`` and ``<answer>`` are
actions too: ``<search>who wrote Emma</search>`` is the command ``search[who wrote Emma]``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol, get_args

import gymnasium

from roleagent.envs.wrappers.predicted_state import default_horizon, step_limit
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
    """

    command: str
    predictions: tuple[str, ...]
    error: str | None = None


@lru_cache
def _pattern(action_tag: str) -> re.Pattern[str]:
    names = "|".join(map(re.escape, (action_tag, "think", "prediction", *COMMAND_TAGS)))
    return re.compile(rf"<(/?)({names})(?:\s{{1,4}}h\s?=\s?[\"']?(\d{{1,3}})[\"']?)?\s{{0,4}}>")


def parse(text: Any, *, horizon: int = 1, think: Think = "optional", action_tag: str = "action") -> Parsed:
    """Takes a reply apart in one pass over its tags; never raises, whatever the text.

    What stands inside an open thought or prediction is plain text, tags and all. A text up to a ``</think>`` that was
    never opened is a thought as well: chat templates often open it in the prompt. An unfinished prediction after the
    action is an absent one, since replies are cut off at a length; of two predictions for one horizon the first counts.

    Args:
        text: the model's reply, with any text of a follow-up question appended.
        horizon: H; predictions further ahead are dropped.
        think: whether a thought is forbidden, allowed or demanded before the action.
        action_tag: name of the tag around the command.

    >>> parse('<think>Desks hold pens.</think><action> go to  desk 1 </action><prediction h="1">A pen.</prediction>')
    Parsed(command='go to desk 1', predictions=('A pen.',), error=None)
    >>> parse("<search>red mug</search>", horizon=0).command
    'search[red mug]'
    >>> parse("go to desk 1").error
    'no <action> block'
    """
    if not isinstance(text, str):
        return Parsed("", ("",) * horizon, f"the reply is not text but {type(text).__name__}")
    text = whole(text)  # what a model said is shown again, sent and written down
    commands: list[tuple[str, str]] = []
    predicted: dict[int, str] = {}
    thoughts, errors = 0, []
    name, ahead, start = "", 1, 0  # the open block; no name: none is open
    for tag in _pattern(action_tag).finditer(text):
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
    if think == "required" and thoughts != 1:
        errors.append(f"{thoughts or 'no'} <think> block{'s' * (thoughts > 1)}")
    elif think == "none" and thoughts:
        errors.append("a <think> block")
    predictions = tuple(predicted.get(h, "") for h in range(1, horizon + 1))
    if errors:
        return Parsed("", predictions, errors[0])
    tag_name, command = commands[0]
    return Parsed(command if tag_name == action_tag else f"{tag_name}[{command}]", predictions)


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
"""What a prompt says about thoughts."""


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

    @property
    def stops(self) -> tuple[str, ...]:
        return (f"</{self.action_tag}>",)

    @property
    def tags(self) -> tuple[str, ...]:
        return (f"<{self.action_tag}>", f"</{self.action_tag}>")

    @property
    def form(self) -> str:
        return ""

    def read(self, reply: Any) -> Parsed:
        return parse(reply, horizon=self.horizon, think=self.think, action_tag=self.action_tag)

    def write(self, command: str, literal: Callable[[str], str] = str) -> str:
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

    Args:
        env: any environment that takes a command.
        think: whether a ``<think>`` block is forbidden (``"none"``), ``"optional"`` or ``"required"``.
        action_tag: name of the tag around the command.
        horizon: predictions read from a reply; None: as many as the environment takes.
    """

    def __init__(
        self, env: gymnasium.Env, think: Think = "optional", action_tag: str = "action", horizon: int | None = None
    ):
        gymnasium.utils.RecordConstructorArgs.__init__(self, think=think, action_tag=action_tag, horizon=horizon)
        gymnasium.Wrapper.__init__(self, env)
        if think not in get_args(Think):
            raise ValueError(f"think must be one of {', '.join(get_args(Think))}, not {think!r}")
        if not re.fullmatch(r"\w+", action_tag) or action_tag in ("think", "prediction"):
            raise ValueError(f"{action_tag!r} cannot be the action tag: it must be one word, not think or prediction")
        self.think: Think = think
        self.action_tag = action_tag
        self._predictions, self.horizon = predictions_of(env, horizon)
        self.action_space = Unicode()

    @property
    def reader(self) -> TagReader:
        """Reads and writes replies."""
        return TagReader(self.think, self.action_tag, self.horizon)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, {**info, "format_error": None}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        parsed = self.reader.read(action)
        inner = {"command": parsed.command, "predictions": parsed.predictions} if self._predictions else parsed.command
        observation, reward, terminated, truncated, info = self.env.step(inner)
        return observation, reward, terminated, truncated, {**info, "format_error": parsed.error}

"""Rendering: an episode as prompts in tokens, per turn.

A :class:`Conversation` is one episode as the model reads it. Two styles, and a user's own (:func:`style_of`):

* ``transcript`` only grows: observation, reply, prediction, observation, … Its turns merge into one training segment
  and each turn costs only its new tokens. The default for small local policies.
* ``window`` writes a fresh prompt per step: task, the last steps, the current observation, the admissible commands
  (the published protocol).

Both begin with the environment's instructions (:class:`roleagent.env_card.Instructions`), so that a pretrained
model knows the commands. A policy without a chat template gets none: it is trained on the environment.

A :class:`Renderer` turns messages into tokens: by the tokenizer's chat template if it has one, else as plain lines. It
only appends to existing token ids; sampled tokens are never encoded again. Special tokens come from the renderer alone:
observations, commands and tools are encoded without recognizing any (:meth:`Renderer.literal`).

Where an environment has tools (``info["tools"]``), the chat template offers them in the first message. A transcript
gives the results of calls (``info["calls"]``) the template's own role for tools.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from roleagent.agents.analysts.prompts import PromptKind
from roleagent.agents.chat_renderer import ChatRenderer
from roleagent.agents.chat_template import Message, calls_in_words, with_tools
from roleagent.agents.policies.protocol import INSIDE, Policy
from roleagent.agents.policies.scratch_model import ANSWER_TOKENS, PREDICT, SIMULATE
from roleagent.agents.prompt_templates import NO_TEMPLATES, PromptTemplates
from roleagent.env_card import UNKNOWN, Instructions
from roleagent.imports import load_object
from roleagent.markers import map_texts
from roleagent.options import ConfigError
from roleagent.types import Completion

ToolSchema = Mapping[str, Any]
"""A tool as chat templates and OpenAI's protocol describe it: ``{"type": "function", "function": {…}}``."""


class Renderer(Protocol):
    """Turns messages into tokens.

    Attributes:
        explains: whether prompts contain instructions.
        opening: the tag that prompts leave open, such as ``<think>``; ``""`` where there is none.
        templates: a user's texts.
    """

    explains: bool
    templates: PromptTemplates

    @property
    def opening(self) -> str: ...

    def read(self, reply: Sequence[int]) -> str:
        """The text of a sampled reply, with what the prompt has opened."""
        ...

    def write(self, text: str) -> list[int]:
        """The tokens of a reply that is written, without an end token."""
        ...

    def literal(self, text: str) -> str:
        """A text from outside; special tokens in it are not recognized."""
        ...

    def first_message(self, text: str, tools: Sequence[ToolSchema] = ()) -> list[int]:
        """The first message, up to where the reply begins. Texts in ``tools`` are from outside."""
        ...

    def next_message(self, text: str, reply: Sequence[int]) -> list[int]:
        """The tokens between a sampled reply and the next one: the reply's end and the message ``text``."""
        ...

    def tool_results(self, texts: Sequence[str], reply: Sequence[int], names: Sequence[str] = ()) -> list[int]:
        """As :meth:`next_message`, with the results of the reply's calls, of tools of these names, for a message."""
        ...

    def instructions(self, horizon: int, think: str, rules: str, form: str) -> str:
        """The environment's rules and the reply format; empty if ``explains`` is False.

        Args:
            horizon: of predictions.
            think: whether replies contain thoughts.
            rules, form: of :class:`~roleagent.env_card.Instructions`.
        """
        ...

    def prediction_request(self, horizon: int) -> str:
        """x_pre: the prompt for the next states (paper, Eq. 2)."""
        ...

    def analyst_prompt(self, text: str, kind: PromptKind) -> list[int]:
        """A prompt of the environment role, up to where the answer begins. Special tokens in it are not recognized."""
        ...


class _Unexplained:
    """Renderers of models that are trained on the environment: their prompts have no instructions."""

    explains = False
    opening = ""
    templates = NO_TEMPLATES

    def instructions(self, horizon: int, think: str, rules: str, form: str) -> str:
        return ""

    def prediction_request(self, horizon: int) -> str:
        return PREDICT


class PlainRenderer(_Unexplained):
    """Plain lines, for models without a chat template. A prompt begins with the token that the tokenizer begins every
    text with, if it has one."""

    def __init__(self, policy: Policy):
        self._encode, self.literal, self.read = policy.encode, policy.literal, policy.decode
        bos = getattr(policy.tokenizer, "bos_token_id", None)
        self._begin = [bos] if bos is not None and policy.tokenizer.encode("")[:1] == [bos] else []

    def write(self, text: str) -> list[int]:
        return self._encode(text, INSIDE)

    def first_message(self, text: str, tools: Sequence[ToolSchema] = ()) -> list[int]:
        return [*self._begin, *self._encode(f"{text}\n")]

    def next_message(self, text: str, reply: Sequence[int]) -> list[int]:
        # The prediction request is one special token; an observation has its own line.
        return self._encode(text if text == PREDICT else f"\n{text}\n", INSIDE)

    def tool_results(self, texts: Sequence[str], reply: Sequence[int], names: Sequence[str] = ()) -> list[int]:
        return self.next_message("\n".join(texts), reply)

    def conversation(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], own: Callable[[Message], bool]
    ) -> list[int]:
        """As that of :class:`~roleagent.agents.chat_renderer.ChatRenderer`; a call is written in words."""
        said = [message if own(message) else map_texts(self.literal, message) for message in messages]
        if tools:
            said = with_tools(said, map_texts(self.literal, tools))
        lines = "".join(f"{message['content']}\n" for message in calls_in_words(said))
        return [*self._begin, *self._encode(lines)]

    def continuation(self, messages: Sequence[Message], reply: Sequence[int], names: Sequence[str] = ()) -> list[int]:
        """As that of :class:`~roleagent.agents.chat_renderer.ChatRenderer`."""
        return self.next_message("\n".join(self.literal(message["content"]) for message in messages), reply)

    def analyst_prompt(self, text: str, kind: PromptKind) -> list[int]:
        return [*self._begin, *self._encode(f"{self.literal(text)}\n{ANSWER_TOKENS.get(kind, SIMULATE)}")]


class TextRecorder(_Unexplained):
    """Records the texts of a conversation: training data for a new tokenizer."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def read(self, reply: Sequence[int]) -> str:
        return ""

    def write(self, text: str) -> list[int]:
        return self.first_message(text)

    def literal(self, text: str) -> str:
        return text

    def first_message(self, text: str, tools: Sequence[ToolSchema] = ()) -> list[int]:
        self.texts.append(text)
        return []

    def next_message(self, text: str, reply: Sequence[int]) -> list[int]:
        return self.first_message(text)

    def tool_results(self, texts: Sequence[str], reply: Sequence[int], names: Sequence[str] = ()) -> list[int]:
        return self.first_message("\n".join(texts))

    def analyst_prompt(self, text: str, kind: PromptKind) -> list[int]:
        return self.first_message(text)


def renderer_of(policy: Policy, thinks: bool = True, templates: PromptTemplates = NO_TEMPLATES) -> Renderer:
    """The renderer of a policy: its chat template if it has one, else plain lines.

    Args:
        policy: reads and writes tokens.
        thinks: whether replies may contain thoughts.
        templates: a user's texts.
    """
    has_template = getattr(policy.tokenizer, "chat_template", None)
    renderer: Renderer = ChatRenderer(policy, thinks) if has_template else PlainRenderer(policy)
    renderer.templates = templates
    return renderer


def prediction_prompt(renderer: Renderer, horizon: int, prompt: tuple[int, ...], action: Completion) -> tuple[int, ...]:
    """An action's prompt, the reply that was sampled from it, and x_pre."""
    question = renderer.next_message(renderer.prediction_request(horizon), action.token_ids)
    return (*prompt, *action.token_ids, *question)


def note_of(lessons: Sequence[str]) -> str:
    """The note of lessons of earlier failures; empty without any.

    >>> note_of(["Open the drawer first."])
    'Lessons from earlier failures:\\n- Open the drawer first.'
    """
    return "\n- ".join(("Lessons from earlier failures:", *lessons)) if lessons else ""


class Conversation(ABC):
    """One episode in tokens; the base of all styles. A shallow copy goes its own way.

    Attributes:
        grows: whether each prompt begins with the last one and its reply.

    Args:
        renderer: turns messages into tokens.
        horizon: steps that predictions look ahead; 0: no predictions.
        think: whether replies contain thoughts.
        observation, info: of ``reset``; ``info["tools"]`` are the tools that the environment offers.
        history: earlier steps in a prompt, of a window.
        guide: the environment's instructions, if the renderer explains.
        note: what stands behind the instructions of the next first message (:meth:`_first_message`), from outside.
    """

    grows: ClassVar[bool] = False
    _ids: tuple[int, ...]

    def __init__(
        self,
        renderer: Renderer,
        horizon: int,
        think: str,
        observation: str,
        info: Mapping[str, Any],
        history: int = 2,
        guide: Instructions = UNKNOWN,
        note: str = "",
    ):
        self.renderer, self.horizon, self.think, self.guide, self.note = renderer, horizon, think, guide, note
        self.tools: Sequence[ToolSchema] = info.get("tools", ())
        self.history, self._goal = history, info.get("goal", "")
        self._open(observation, info)

    @abstractmethod
    def _open(self, observation: str, info: Mapping[str, Any]) -> None:
        """Takes in what ``reset`` returned, and writes ``_ids``, the prompt of the first action."""

    def _first_message(self, text: str) -> tuple[int, ...]:
        """The instructions, the tools, the note, and a text from outside."""
        head = self.renderer.instructions(self.horizon, self.think, self.guide.rules, self.guide.form)
        outside = (self.renderer.literal(part) for part in (self.note, text) if part)
        text = "\n\n".join(part for part in (head, *outside) if part)
        return tuple(self.renderer.first_message(text, self.tools))

    def _text(self, name: str, observation: str, info: Mapping[str, Any], **more: str) -> str | None:
        """A turn by the user's template of that name; None without one."""
        commands = "\n".join(commands_of(info)[1:])
        return self.renderer.templates.fill(name, task=self._goal, observation=observation, commands=commands, **more)

    def action_prompt(self) -> tuple[int, ...]:
        """The whole prompt of the next action."""
        return self._ids

    def prediction_prompt(self, action: Completion) -> tuple[int, ...]:
        """:func:`prediction_prompt` behind the reply to the action prompt."""
        return prediction_prompt(self.renderer, self.horizon, self.action_prompt(), action)

    @abstractmethod
    def advance(
        self, stream: Sequence[int], last_reply: Sequence[int], action: str, observation: str, info: Mapping[str, Any]
    ) -> None:
        """Takes in a finished step.

        Args:
            stream: all tokens up to the end of the step's last reply (the prediction if there was one).
            last_reply: the tokens of that last reply.
            action: the command that was played.
            observation: what came back.
            info: the environment's report after it.
        """


def commands_of(info: Mapping[str, Any]) -> list[str]:
    """The lines that list the possible commands; none where the environment lists none.

    >>> commands_of({"admissible_actions": ["look", "help"]}), commands_of({})
    (['Commands:', 'look'], [])
    """
    commands = [command for command in info.get("admissible_actions") or () if command != "help"]
    return ["Commands:", *commands] if commands else []


class Transcript(Conversation):
    """The prompt that only grows. The possible commands are listed only where the instructions do not name them."""

    grows = True

    def _open(self, observation: str, info: Mapping[str, Any]) -> None:
        # Most environments name the task in their first observation.
        task = "" if self._goal in observation else f"Your task is to: {self._goal}"
        seen = "\n\n".join(part for part in (self._with_commands(observation, info), task) if part)
        self._ids = self._first_message(self._text("first_turn", observation, info) or seen)

    def _with_commands(self, observation: str, info: Mapping[str, Any]) -> str:
        listed = commands_of(info) if self.guide.listed and self.renderer.explains else []
        return "\n".join((observation, *listed))

    def advance(self, stream, last_reply, action, observation, info) -> None:
        literal = self.renderer.literal
        calls = info.get("calls", ()) if self.tools else ()
        if calls:
            results, names = ([literal(call[part]) for call in calls] for part in ("result", "name"))
            self._ids = (*stream, *self.renderer.tool_results(results, last_reply, names))
        else:
            text = self._text("later_turn", observation, info, history="", steps="")
            seen = literal(text or self._with_commands(observation, info))
            self._ids = (*stream, *self.renderer.next_message(seen, last_reply))


class Window(Conversation):
    """A fresh prompt per step: the task, the last ``history`` steps, the observation, the admissible commands."""

    def _open(self, observation: str, info: Mapping[str, Any]) -> None:
        self._steps: tuple[tuple[str, str], ...] = ()  # observation, and the command given on it
        self._write(observation, info)

    def _write(self, observation: str, info: Mapping[str, Any]) -> None:
        shown = self._steps[-self.history :] if self.history else []
        lines = [f"Your task is to: {self._goal}", f"Steps taken: {len(self._steps)}"]
        for before, command in shown:
            lines += [before, f"> {command}"]
        lines += [observation, *commands_of(info)]
        self._observation = observation
        past = "\n".join(line for before, command in shown for line in (before, f"> {command}"))
        name = "later_turn" if self._steps else "first_turn"
        text = self._text(name, observation, info, history=past, steps=str(len(self._steps)))
        self._ids = self._first_message(text or "\n".join(lines))

    def advance(self, stream, last_reply, action, observation, info) -> None:
        self._steps = (*self._steps, (self._observation, action))
        self._write(observation, info)


STYLES: dict[str, type[Conversation]] = {"transcript": Transcript, "window": Window}


def style_of(name: str) -> type[Conversation]:
    """The style ``prompt.style``: one of :data:`STYLES`, or a user's ``module:Class``.

    Raises:
        ConfigError: there is no such class, or it is no style.
    """
    if name in STYLES:
        return STYLES[name]
    style = load_object(name)
    if not (isinstance(style, type) and issubclass(style, Conversation)):
        raise ConfigError(f"prompt.style={name} is no class derived from roleagent.agents.rendering.Conversation")
    if missing := sorted(getattr(style, "__abstractmethods__", ())):
        raise ConfigError(f"prompt.style={name} has no {missing[0]} (docs/write_a_method.md)")
    return style

"""A tokenizer's chat template, and conversations in the form that it takes and shows.

Templates differ in what they accept: a system message, arguments of calls as objects or as text, several calls in one
message, a role for results. Some leave out tools, calls or results without an error. When a template is opened, a
conversation with a tool, a call and its result is rendered (:attr:`ChatTemplate.form`). What the template does not show
is written in words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property, partial
from typing import Any

from roleagent.envs.tools.formats import FORMATS, format_of
from roleagent.similarity import common_prefix
from roleagent.tools import Call

Message = Mapping[str, Any]
_ERRORS = (TypeError, ValueError, LookupError, AttributeError)
_HERMES = FORMATS["hermes"]
_MARK = re.compile(r"[<\[](/?)([A-Za-z][\w:]*)[>\]]")
_THOUGHT = re.compile(r"think|thought|reason", re.IGNORECASE)
_THOUGHT_PARTS = ("reasoning_content", "reasoning", "thinking")  # of a message; templates read one of them
_TODAY = date(2026, 1, 1)
"""For templates that print it: prompts of a resumed run, or of an evaluation on another day, are the same."""
_DIRECTIVES = (*"aAbBcdDeFhHIjmMnpStTuUVwWxXyYZ", "-d", "-m", "-H", "-I", "-M", "-S", "-y", "-j")
# Before a template, this macro takes the place of the function of that name, however it is called.
_NOW = "{%- macro strftime_now(format) -%}{{ format"
_NOW += "".join(f"|replace('%{one}', '{_TODAY.strftime(f'%{one}')}')" for one in _DIRECTIVES)
_NOW += " }}{%- endmacro %}{{ '' }}"


@dataclass(frozen=True, slots=True)
class Form:
    """What a template takes and shows.

    Attributes:
        system: whether a system message.
        tools: whether the argument ``tools``.
        calls: how calls are shown, with their results: the arguments as ``"object"`` or ``"text"``; ``""``: not at all.
        silence: the content of a message that has calls and no text.
        several: whether several calls in one message.
        results: whether results in the role of tools, behind a reply whose calls are in its text.
            :meth:`ChatTemplate.after_calls` has the others.
    """

    system: bool
    tools: bool
    calls: str = ""
    silence: str | None = ""
    several: bool = False
    results: bool = False


class ChatTemplate:
    """The chat template of a tokenizer.

    Args:
        tokenizer: has a chat template.
        thinks: whether replies may contain thoughts; otherwise a prompt closes the thought that the template opens.
    """

    _texts = _FIRST, _REPLY, _NEXT = "qzvFirst", "qzvReply", "qzvNext"
    _PONDER = "qzvPonder"

    def __init__(self, tokenizer: Any, thinks: bool = True):
        self._apply, self._no_thought = tokenizer.apply_chat_template, ""
        self._source, self._end = tokenizer.get_chat_template, tokenizer.eos_token or ""
        self._thought = self._marks_of_thoughts(tokenizer)
        if not thinks:  # Qwen3, GLM and others have this argument; templates ignore what they do not know
            self._apply = partial(self._apply, enable_thinking=False)
            if _THOUGHT.search(self.opening):
                self._no_thought = f"\n{_closing(self.opening)}\n\n"
                del self.opening  # closed from now on

    def raw(self, messages: Sequence[Message], tools: Sequence[Any] = (), prompt: bool = True) -> str:
        """What the template makes of messages as they are.

        Args:
            prompt: whether the beginning of a reply follows.

        Raises:
            ValueError: the template refuses them.
        """
        from jinja2 import TemplateError  # comes with transformers; agents without a local model do without both

        given: dict[str, Any] = {"tools": list(tools) or None, "add_generation_prompt": prompt}
        template = self._source(tools=given["tools"])
        try:
            text = self._apply(list(messages), chat_template=_NOW + template, tokenize=False, **given)
        except TemplateError as error:
            raise ValueError(str(error)) from error
        assert isinstance(text, str)
        return text + self._no_thought if prompt else text

    def render(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> str:
        """The prompt of a conversation, in the form that the template takes.

        Args:
            messages: the arguments of calls are objects.
            tools: that are offered.
        """
        form, said = self.form, list(messages)
        if tools and not form.tools:
            said, tools = with_tools(said, tools), ()
        if form.calls:
            said = _as_shown(said if form.several else _one_call_each(said), form)
        else:
            said = calls_in_words(said, form.results)
        return self.raw(joined(said if form.system else _without_system(said)), tools)

    @cached_property
    def form(self) -> Form:
        """What the template takes and shows."""
        system, user = {"role": "system", "content": "qzvSystem"}, {"role": "user", "content": self._FIRST}
        takes_system = self._shows([system, user], (), "qzvSystem", self._FIRST)
        head = [system, user] if takes_system else [user]
        offered, names = [_tool("qzvTool")], ("qzvTool", "qzvAbout", "qzvName")
        tools = all(self._shows(messages, offered, *names, self._FIRST) for messages in (head, [user]))
        offered = offered if tools else []
        for calls, silence in (("object", ""), ("object", None), ("text", ""), ("text", None)):
            if self._shows_calls(head, offered, calls, silence, 1):
                several = self._shows_calls(head, offered, calls, silence, 2)
                return Form(takes_system, tools, calls, silence, several, self._shows_results())
        # A template that prints any role has none for tools.
        return Form(takes_system, tools, results=tools and self._shows_results())

    def _shows_results(self) -> bool:
        texts = ("qzvResult0", "qzvResult1")
        try:
            rendered = self.raw([*self._example, *self.results(texts)])
        except _ERRORS:
            return False
        return all(text in rendered.partition(self._REPLY)[2] for text in texts)

    @cached_property
    def call_format(self) -> str | None:
        """The format of calls that the template writes; ``""``: it shows none, None: it is not one of ``FORMATS``."""
        if not self.form.calls:
            return ""
        call, asked = Call("qzvTool0", {"qzvName": "qzvValue0", "qzvCount": 3}), self._example[0]
        made = [{"id": "a", "function": {"name": call.name, "arguments": call.arguments}}]
        said = _as_shown([asked, {"role": "assistant", "content": "", "tool_calls": made}], self.form)
        replies = [said, [asked, {"role": "assistant", "content": "\u241f"}]]
        written, other = (self.raw(messages, prompt=False) for messages in replies)
        text = written[common_prefix(written, other) :].strip()
        for end in (self.turn_end.strip(), self._end):
            text = text.removesuffix(end)
        return format_of(text, call)

    def after_calls(self, names: Sequence[str], texts: Sequence[str], ends: Sequence[str]) -> str | None:
        """What follows the calls of a reply: their end, results in the role of tools, and the beginning of a reply.

        gpt-oss and Gemma 4 show results behind calls alone.

        Args:
            names: of the called tools.
            texts: of the results.
            ends: the tokens that end a reply.

        Returns:
            None where the template has no such form.
        """
        if not self.call_format:
            return None
        made = [{"id": f"{n:09}", "function": {"name": name, "arguments": {}}} for n, name in enumerate(names)]
        calls = {"role": "assistant", "content": "", "tool_calls": made if self.form.several else made[:1]}
        said = _as_shown([self._example[0], calls, *self.results(texts)], self.form)
        before, whole = self.raw(said[:2], prompt=False).rstrip(), self.raw(said)
        if closing := FORMATS[self.call_format].tags(())[-1:]:
            before = before.rpartition(closing[0])[0] + closing[0]
        for end in () if closing else (self.turn_end.strip(), *ends):
            before = before.removesuffix(end)
        return whole.removeprefix(before) if whole.startswith(before) else None

    @property
    def shows_turns(self) -> bool:
        """Whether the messages of user and assistant are shown."""
        return self._shows([*self._example, {"role": "user", "content": self._NEXT}], (), *self._texts)

    @staticmethod
    def results(texts: Sequence[str]) -> list[Message]:
        """Results of calls in the role of tools. Some templates want an id of nine letters."""
        return [{"role": "tool", "content": text, "tool_call_id": f"{n:09}"} for n, text in enumerate(texts)]

    @property
    def _example(self) -> list[Message]:
        return [{"role": "user", "content": self._FIRST}, {"role": "assistant", "content": self._REPLY}]

    def _shows(self, messages: Sequence[Message], tools: Sequence[Any], *texts: str) -> bool:
        try:
            rendered = self.raw(messages, tools)
        except _ERRORS:
            return False
        return all(text in rendered for text in texts)

    def _shows_calls(
        self, head: Sequence[Message], tools: Sequence[Any], calls: str, silence: str | None, count: int
    ) -> bool:
        """Whether a reply with so many calls and their results are shown, at the end and within a conversation."""
        names, values, results = ([f"qzv{kind}{n}" for n in range(count)] for kind in ("Tool", "Value", "Result"))
        made = [{"id": name, "function": {"name": name, "arguments": {"qzvName": value}}}
                for name, value in zip(names, values, strict=True)]  # fmt: skip
        found = [{"role": "tool", "tool_call_id": name, "content": text}
                 for name, text in zip(names, results, strict=True)]  # fmt: skip
        said: list[Message] = [*head, {"role": "assistant", "content": "", "tool_calls": made}, *found]
        said = _as_shown(said, Form(True, True, calls, silence))
        later = [{"role": "assistant", "content": self._REPLY}, {"role": "user", "content": self._NEXT}]
        wanted = (*names, *values, *results)
        if not self._shows(said, tools, *wanted) or not self._shows([*said, *later], tools, *wanted, self._NEXT):
            return False
        # Python's way to write an object, or JSON within JSON: the other kind of arguments is meant.
        return re.search(r"""'qzvName'|\\+"qzvName""", self.raw(said, tools)) is None

    @cached_property
    def turn_end(self) -> str:
        """The text between a reply and whatever follows it; ``""`` where the next message follows at once."""
        try:
            inner = self.raw([*self._example, {"role": "user", "content": self._NEXT}]).partition(self._REPLY)[2]
        except _ERRORS:
            return ""
        return inner[: common_prefix(self.last_end, inner)]

    @cached_property
    def last_end(self) -> str:
        """The text behind the last reply of a conversation; ``""`` without any."""
        try:
            return self.raw(self._example, prompt=False).partition(self._REPLY)[2]
        except _ERRORS:
            return ""

    @cached_property
    def opening(self) -> str:
        """The tag that a prompt leaves open, such as ``<think>``; ``""`` where there is none.

        A tag that is also open before the replies of a conversation's past belongs to the turn.
        """
        try:
            prompt = self.raw(self._example[:1]).partition(self._FIRST)[2]
            past = self.raw(self._example, prompt=False).partition(self._FIRST)[2].partition(self._REPLY)[0]
        except _ERRORS:
            return ""
        before = _open_marks(past)
        mine = [mark for mark in _open_marks(prompt) if mark not in before or _THOUGHT.search(mark)]
        return mine[-1] if mine else ""

    def _marks_of_thoughts(self, tokenizer: Any) -> tuple[str, str]:
        """What a reply has around its thought, such as gpt-oss's channel; ``""`` where that is a tag ``<think>``.

        Some templates show thoughts of calls alone, and some tokenizers come with a description of replies.
        """
        asked, said = self._example
        call = {"id": "a", "type": "function", "function": {"name": self._REPLY, "arguments": {}}}
        for message in (said, {**said, "content": "", "tool_calls": [call]}):
            thoughtful = {**message, **dict.fromkeys(_THOUGHT_PARTS, self._PONDER)}
            try:
                prompt = self.raw([asked])
                plain, whole = (self.raw([asked, one], prompt=False) for one in (message, thoughtful))
            except _ERRORS:
                continue
            begin, found, rest = whole.removeprefix(prompt).partition(self._PONDER)
            end, shown, _ = rest.partition(self._REPLY)
            end = end.removesuffix(plain.removeprefix(prompt).partition(self._REPLY)[0])
            if whole.startswith(prompt) and found and shown and begin.strip() and end.strip():
                return ("", "") if begin.strip() == "<think>" else (begin, end)
        fields = (getattr(tokenizer, "response_template", None) or {}).get("fields", {})
        field = next((fields[name] for name in _THOUGHT_PARTS if name in fields), {})
        begin, end = (_literal(field, name) for name in ("open", "close"))
        return (begin, end) if begin and end and begin.strip() != "<think>" else ("", "")

    @cached_property
    def _lead(self) -> str:
        """What stands between a prompt and the past reply to it: blanks, or the channel of replies."""
        try:
            prompt, past = self.raw(self._example[:1]), self.raw(self._example, prompt=False)
        except _ERRORS:
            return ""
        between, found, _ = past.removeprefix(prompt).partition(self._REPLY)
        return between if past.startswith(prompt) and found and not _THOUGHT.search(between) else ""

    def read(self, reply: str) -> str:
        """A sampled reply as a whole: with the tag that the prompt has opened. Thoughts are in ``<think>``.

        A thought that was cut off stays open, so that nothing in it is an action. An empty one is none.
        """
        if self._lead.strip():
            reply = reply.replace(self._lead, "", 1)
        if not _THOUGHT.search(self.opening):
            return self.opening + self._with_tags(reply)
        thought, closed, rest = reply.partition(_closing(self.opening))
        if closed and not thought.strip():
            return rest
        return f"<think>{thought}</think>{rest}" if closed else f"<think>{thought}"

    def _with_tags(self, reply: str) -> str:
        """The same reply with ``<think>`` around its thoughts. What precedes the end of one was thought as well."""
        begin, end = (mark.strip() for mark in self._thought)
        if not begin:
            return reply
        said, *thoughts = reply.split(begin)
        said = said.replace(end, "</think>")
        for thought in thoughts:
            inside, closed, rest = thought.partition(end)
            inside = re.sub(r"<(/?think)", r"‹\1", inside)  # a word of the thought
            said += f"<think>{inside}{'</think>' if closed else ''}{rest.replace(end, '</think>')}"
        return said

    def written(self, reply: str) -> str:
        """A whole reply as it follows the prompt; the inverse of :meth:`read`."""
        if not self.opening:
            thought, closed, rest = reply.partition("</think>")
            if not (closed and thought.startswith("<think>")):
                thought, rest = "", reply
            elif self._thought[0]:
                thought = thought.removeprefix("<think>").join(self._thought)
            else:
                thought += closed
            # A call has no channel of replies before it.
            lead = "" if self._lead.strip() and FORMATS["openai"].read(rest).calls else self._lead
            return f"{thought}{lead}{rest}" if lead.strip() else f"{lead}{thought}{rest}"
        begun = "<think>" if _THOUGHT.search(self.opening) else self.opening
        if reply.startswith(begun):
            return reply.removeprefix(begun).replace("</think>", _closing(self.opening), begun == "<think>")
        return f"\n{_closing(self.opening)}\n\n{reply}"


def _literal(field: Mapping[str, Any], name: str) -> str:
    """A mark of a description of replies, which has it as a text or as a simple pattern."""
    pattern = str(field.get(f"{name}_pattern", ""))
    text = str(field.get(name) or pattern.removesuffix(r"\s*").replace("\\", ""))
    return text if not pattern or re.fullmatch(pattern, text) else ""


def _tool(name: str) -> dict[str, Any]:
    described = {"type": "string", "description": "qzvAbout"}
    parameters = {"type": "object", "properties": {"qzvName": described}, "required": ["qzvName"]}
    return {"type": "function", "function": {"name": name, "description": "qzvAbout", "parameters": parameters}}


def _open_marks(text: str) -> list[str]:
    """The tags of a text that are not closed.

    >>> _open_marks("<a><think>no</think>[INST][/INST]<think>")
    ['<a>', '<think>']
    """
    marks: dict[str, str] = {}
    for found in _MARK.finditer(text):
        marks.pop(found[2], None)
        if not found[1]:
            marks[found[2]] = found[0]
    return list(marks.values())


def _closing(mark: str) -> str:
    """The closing tag of an opening one.

    >>> _closing("<think>"), _closing("[THINK]")
    ('</think>', '[/THINK]')
    """
    return f"{mark[0]}/{mark[1:]}"


def _as_shown(messages: Sequence[Message], form: Form) -> list[Message]:
    """The same conversation with ids of nine letters, as Mistral's templates want, and calls in the template's form.

    A result has the name of its tool, which some templates show.
    """
    said: list[Message] = []
    waiting: list[tuple[Any, dict[str, Any]]] = []  # calls without a result, by their own ids
    count = 0
    for message in messages:
        if message.get("tool_calls"):
            waiting = []
            for call in message["tool_calls"]:
                function = call["function"]
                if form.calls == "text":
                    function = {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}
                made = {"id": f"call{count:05}", "type": "function", "function": function}
                waiting.append((call.get("id"), made))
                count += 1
            calls = [made for _, made in waiting]
            message = {**message, "content": message["content"] or form.silence, "tool_calls": calls}
        elif message["role"] == "tool" and waiting:
            call = _taken(waiting, message)
            message = {**message, "tool_call_id": call["id"], "name": call["function"]["name"]}
        said.append(message)
    return said


def _one_call_each(messages: Sequence[Message]) -> list[Message]:
    """The same conversation with one call in a message, each before its result."""
    said: list[Message] = []
    waiting: list[tuple[Any, Message]] = []
    for message in messages:
        if message["role"] == "tool" and waiting:
            said += [_taken(waiting, message), message]
            continue
        calls = message.get("tool_calls") or ()
        waiting = [
            (call.get("id"), {**message, "content": "" if place else message["content"], "tool_calls": [call]})
            for place, call in enumerate(calls)
        ]
        said += [] if calls else [message]
    return said


def _taken(waiting: list[tuple[Any, Any]], result: Message) -> Any:
    """Takes out the call that a result answers: that of its id, else the first."""
    ids = [number for number, _ in waiting]
    number = result.get("tool_call_id")
    return waiting.pop(ids.index(number) if number in ids else 0)[1]


def calls_in_words(messages: Sequence[Message], results: bool = False) -> list[Message]:
    """The same conversation with calls in the texts of replies.

    Args:
        results: whether results keep the role of tools; otherwise they are the user's.
    """
    said: list[Message] = []
    for message in messages:
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        calls = _HERMES.write([Call(one["name"], one["arguments"]) for one in functions])
        role = "user" if message["role"] == "tool" and not results else message["role"]
        said.append({"role": role, "content": (message["content"] or "") + calls})
    return said


def tools_in_words(tools: Sequence[Mapping[str, Any]]) -> str:
    """Tools for a prompt, a line each."""
    return "\n".join(["Tools:", *(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)])


def with_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The same conversation, whose first message lists the tools and the form of a call."""
    first, *rest = messages
    text = f"{first['content']}\n\n{tools_in_words(tools)}\n\nA call is {_HERMES.form}"
    return [{**first, "content": text}, *rest]


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """The same conversation with the system message as a first message of the user."""
    return [{**one, "role": "user"} if one["role"] == "system" else one for one in messages]


def joined(messages: Sequence[Message]) -> list[Message]:
    """The same conversation in turns: neighboring messages of the user are one.

    >>> joined([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    [{'role': 'user', 'content': 'a\\n\\nb'}]
    """
    said: list[Message] = []
    for message in messages:
        if said and message["role"] == said[-1]["role"] == "user":
            said[-1] = {**said[-1], "content": f"{said[-1]['content']}\n\n{message['content']}"}
        else:
            said.append(message)
    return said


__all__ = ["ChatTemplate", "Form", "calls_in_words", "joined", "tools_in_words", "with_tools"]

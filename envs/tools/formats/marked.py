"""Calls between the marks of a family of models: a table, and one class that reads and writes.

The names are those of vLLM's tool parsers. In most families the marks are special tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roleagent.envs.tools.formats.base import Format, Reading
from roleagent.envs.tools.formats.json_text import LONGEST, kinds_of, read_json, typed_value
from roleagent.envs.tools.formats.python_calls import Python
from roleagent.envs.tools.formats.scan import ANSWER, Scanned
from roleagent.tools import Call, Tool

_BEGIN, _END = "<tool_call>", "</tool_call>"  # what all marks are read as
_NAME = re.compile(r"[\w./-]{1,256}")
_BLANKS = re.compile(r"\s*")
_LITERALS = {"True": "true", "False": "false", "None": "null"}  # Qwen's template writes Python's
_STRING = {"string"}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class JsonObject:
    """Arguments as a JSON object."""

    def read(self, text: str, schemas: Mapping[str, Any]) -> Any:
        return read_json(text)

    def write(self, arguments: Mapping[str, Any], literal: Callable[[str], str], escaped: Callable[[str], str]) -> str:
        return literal(escaped(_json(arguments)))


_OBJECT = JsonObject()


@dataclass(frozen=True)
class Parameters:
    """Arguments one by one: a text as it stands, anything else as JSON.

    Attributes:
        begin, middle, end: what stands before a name, between it and the value, and behind the value. ``{text}`` is
            ``true`` where the value is a text, else ``false``.
    """

    begin: str
    middle: str
    end: str

    def read(self, text: str, schemas: Mapping[str, Any]) -> dict[str, Any]:
        begin, end = self.begin.strip(), self.end.strip()
        middle_mark = re.escape(self.middle.strip()).replace(r"\{text\}", "(true|false)")
        divider = re.compile(middle_mark.replace("\\\n", r"\s*"))
        found: dict[str, Any] = {}
        at = _BLANKS.match(text).end()  # type: ignore[union-attr]
        while at < len(text):
            middle = divider.search(text, at)
            closed = text.find(end, middle.end()) if middle else -1
            if middle is None or closed < 0 or not text.startswith(begin, at):
                raise ValueError(f"an argument is {begin}…{end}")
            name, value = text[at + len(begin) : middle.start()].strip(), text[middle.end() : closed]
            if self.middle.endswith("\n"):  # the value has lines of its own
                value = value.removeprefix("\n").removesuffix("\n")
            if name in found:
                raise ValueError("an argument occurs twice")
            kinds = kinds_of(schemas.get(name))
            if middle.groups():
                kinds = _STRING if middle[1] == "true" else kinds - _STRING
            found[name] = typed_value(kinds, value if kinds == _STRING else _LITERALS.get(value, value))
            at = _BLANKS.match(text, closed + len(end)).end()  # type: ignore[union-attr]
        return found

    def write(self, arguments: Mapping[str, Any], literal: Callable[[str], str], escaped: Callable[[str], str]) -> str:
        written = []
        for name, value in arguments.items():
            middle = self.middle.replace("{text}", "true" if isinstance(value, str) else "false")
            text = value if isinstance(value, str) else escaped(_json(value))
            written.append(f"{self.begin}{literal(name)}{middle}{literal(text)}{self.end}")
        return "".join(written)


class GemmaObject:
    """Gemma 4's object: names without quotes, and texts between two marks."""

    _mark = '<|"|>'
    _key = re.compile(r"([{,]\s{0,99})([^\s{}\[\]:,\"]{1,256})\s{0,99}:")

    def read(self, text: str, schemas: Mapping[str, Any]) -> Any:
        parts = text.split(self._mark)
        if len(parts) % 2 == 0:
            raise ValueError(f"a text is {self._mark}…{self._mark}")
        # Every second part is a text. A name needs quotes where it stands in none.
        return read_json(
            "".join(_json(part) if n % 2 else self._key.sub(r'\1"\2":', part) for n, part in enumerate(parts))
        )

    def write(self, arguments: Mapping[str, Any], literal: Callable[[str], str], escaped: Callable[[str], str]) -> str:
        def written(value: Any) -> str:
            if isinstance(value, str):
                return f"{self._mark}{literal(value)}{self._mark}"
            if isinstance(value, Mapping):
                return f"{{{','.join(f'{literal(name)}:{written(value[name])}' for name in sorted(value))}}}"
            if isinstance(value, list | tuple):
                return f"[{','.join(map(written, value))}]"
            return _json(value)

        return written(arguments)


@dataclass(frozen=True)
class Marked(Format):
    """Calls between marks.

    Attributes:
        written: a call: ``{name}``, ``{arguments}``, and ``{number}``, which counts from 0.
        opening, middle, closing: patterns of the marks before the name, between it and the arguments, and at the end.
        arguments: how they are written.
        around: the marks around all calls.
        between: what stands between two calls.
        stop: the opening and the closing tag that ends a reply of one call.
        open_ended: whether a call without a closing mark ends where the next one or the reply does.
    """

    name: str
    written: str
    opening: str
    middle: str
    closing: str
    arguments: JsonObject | Parameters | GemmaObject = _OBJECT
    around: tuple[str, str] = ("", "")
    between: str = ""
    stop: tuple[str, ...] = (_BEGIN, _END)
    open_ended: bool = False

    @property
    def form(self) -> str:  # type: ignore[override]
        example = self.written.format(name="NAME", arguments=self.arguments.write({"KEY": "VALUE"}, str, str), number=0)
        return f"{self.around[0]}{example}{self.around[1]}"

    def tags(self, tools: Sequence[Tool]) -> tuple[str, ...]:
        return self.stop

    def names(self, tools: Sequence[Tool]) -> tuple[str, ...]:
        return ("tool_call",)

    def _read(self, text: str, tools: Sequence[Tool], plain: bool) -> Reading:
        """Reads every mark as that of one tag, which the scanner of all formats knows."""
        for mark in self.around:
            text = text.replace(mark.strip(), "") if mark else text
        if not self.open_ended:
            return super()._read(re.sub(self.closing, _END, re.sub(self.opening, _BEGIN, text)), tools, plain)
        first, *calls = re.split(self.opening, text)
        for call in calls:
            content, *rest = re.split(rf"{self.closing}|(?=</think>)", call, maxsplit=1)
            first += f"{_BEGIN}{content}{_END}{''.join(rest)}"
        return super()._read(first, tools, plain)

    def calls(self, found: Scanned, tools: Sequence[Tool], plain: bool) -> tuple[tuple[Call | str, ...], int]:
        schemas = {tool.name: tool.parameters.get("properties", {}) for tool in tools}
        calls: list[Call | str] = []
        for content in (content for name, content in found.blocks if name != ANSWER):
            try:
                calls.append(self._call(content, schemas))
            except ValueError as error:
                calls.append(f"malformed call: {error}")
        return tuple(calls), 0

    def _call(self, content: str, schemas: Mapping[str, Mapping[str, Any]]) -> Call:
        if len(content) > LONGEST:
            raise ValueError(f"{len(content):,} characters where {LONGEST:,} are the most")
        content = content.strip()
        name = _NAME.match(content)
        middle = re.compile(self.middle).match(content, name.end()) if name else None
        if name is None or middle is None:
            raise ValueError(f"a call is {self.form}")
        arguments = self.arguments.read(content[middle.end() :], schemas.get(name[0], {}))
        if not isinstance(arguments, dict):
            raise ValueError("the arguments are no object")
        return Call(name[0], arguments)

    def write(self, calls: Sequence[Call], tools: Sequence[Tool] = (), literal: Callable[[str], str] = str) -> str:
        def escaped(text: str) -> str:
            return self.escaped(text, tools)

        written = (
            self.written.format(
                name=literal(call.name), arguments=self.arguments.write(call.arguments, literal, escaped), number=number
            )
            for number, call in enumerate(calls)
        )
        return f"{self.around[0]}{self.between.join(written)}{self.around[1]}"


class Lfm2(Python):
    """``<|tool_call_start|>[name(key=value)]<|tool_call_end|>``: LFM2."""

    name = "lfm2"
    form = "<|tool_call_start|>[name(key=value)]<|tool_call_end|>"
    _marks = ("<|tool_call_start|>", "<|tool_call_end|>")

    def tags(self, tools: Sequence[Tool]) -> tuple[str, ...]:
        return self._marks

    def names(self, tools: Sequence[Tool]) -> tuple[str, ...]:
        return ("tool_call",)

    def _read(self, text: str, tools: Sequence[Tool], plain: bool) -> Reading:
        return super()._read(text.replace(self._marks[0], _BEGIN).replace(self._marks[1], _END), tools, plain)

    def calls(self, found: Scanned, tools: Sequence[Tool], plain: bool) -> tuple[tuple[Call | str, ...], int]:
        calls: list[Call | str] = []
        for content in (content for name, content in found.blocks if name != ANSWER):
            calls += super().calls(Scanned(outside=content), tools, False)[0]
        return tuple(calls), 0

    def write(self, calls: Sequence[Call], tools: Sequence[Tool] = (), literal: Callable[[str], str] = str) -> str:
        written = super().write(calls, tools, literal)
        return f"{self._marks[0]}{written if len(calls) > 1 else f'[{written}]'}{self._marks[1]}"


def _xml(name: str, around: str) -> Marked:
    tag = (f"<{around}>", f"</{around}>")
    return Marked(
        name,
        f"{tag[0]}\n<function={{name}}>\n{{arguments}}</function>\n{tag[1]}",
        rf"{tag[0]}\s{{0,9}}<function=",
        r"\s*>",
        rf"</function>\s{{0,9}}{tag[1]}",
        Parameters("<parameter=", ">\n", "\n</parameter>\n"),
        between="\n",
        stop=tag,
    )


_TABLE = (
    _xml("qwen3_coder", "tool_call"),  # Qwen3-Coder, Qwen3.5 and later, Nemotron 3
    _xml("seed_oss", "seed:tool_call"),
    Marked(
        "glm45",
        "<tool_call>{name}\n{arguments}</tool_call>",
        _BEGIN,
        r"(?=\s*(?:<arg_key>|$))",
        _END,
        Parameters("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
        between="\n",
    ),
    Marked(
        "minimax_m2",
        '<invoke name="{name}">\n{arguments}</invoke>\n',
        r"<invoke name=\"?",
        r"\"?>",
        "</invoke>",
        Parameters('<parameter name="', '">', "</parameter>\n"),
        ("<minimax:tool_call>\n", "</minimax:tool_call>"),
        stop=("<minimax:tool_call>", "</minimax:tool_call>"),
    ),
    Marked(
        "kimi_k2",
        "<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>",
        r"<\|tool_call_begin\|>\s{0,9}(?:functions\.)?",
        r"(?::\d{1,9})?\s*<\|tool_call_argument_begin\|>",
        r"<\|tool_call_end\|>",
        around=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        stop=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ),
    Marked(
        "deepseek_v3",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        r"\s*```json\s",
        r"\s```<｜tool▁call▁end｜>",
        around=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        between="\n",
        stop=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    Marked(
        "deepseek_v31",
        "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        around=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        stop=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    *(
        Marked(
            name,
            '<｜DSML｜invoke name="{name}">\n{arguments}</｜DSML｜invoke>\n',
            '<｜DSML｜invoke name="',
            '">',
            "</｜DSML｜invoke>",
            Parameters('<｜DSML｜parameter name="', '" string="{text}">', "</｜DSML｜parameter>\n"),
            (f"<｜DSML｜{around}>\n", f"</｜DSML｜{around}>"),
            stop=(f"<｜DSML｜{around}>", f"</｜DSML｜{around}>"),
        )
        for name, around in (("deepseek_v32", "function_calls"), ("deepseek_v4", "tool_calls"))
    ),
    Marked(
        "openai",  # gpt-oss; the tool stands before the channel or in it
        " to=functions.{name}<|channel|>commentary json<|message|>{arguments}<|call|>",
        r"(?:<\|channel\|>(?:commentary|analysis))?\s{0,9}to=functions\.",
        r"\s*(?:<\|channel\|>(?:commentary|analysis))?\s*(?:<\|constrain\|>)?(?:json)?\s*<\|message\|>",
        r"<\|call\|>",
        stop=(),
        open_ended=True,  # its end ends the reply
    ),
    Marked(
        "gemma4",
        "<|tool_call>call:{name}{arguments}<tool_call|>",
        r"<\|tool_call>call:",
        r"(?=\s*\{)",
        r"<tool_call\|>",
        GemmaObject(),
        stop=("<|tool_call>", "<tool_call|>"),
    ),
    Marked(
        "mistral",
        "[TOOL_CALLS]{name}[ARGS]{arguments}",
        r"\[TOOL_CALLS\]",
        r"(?:\[CALL_ID\]\w{1,99})?\[ARGS\]",
        r"(?!)",
        stop=(),
        open_ended=True,
    ),
    Lfm2(),
)

MARKED: dict[str, Format] = {one.name: one for one in _TABLE}

__all__ = ["MARKED"]

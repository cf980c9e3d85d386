"""Calls as Python expressions, read by :mod:`ast`: the answers of BFCL and API-Bank."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from roleagent.envs.tools.formats.base import Format, Malformed
from roleagent.envs.tools.formats.json_text import DEEPEST, LONGEST
from roleagent.envs.tools.formats.scan import ANSWER, Scanned
from roleagent.tools import Call, Tool

_STRING = r"'(?:\\.|[^'\\\n])*'?|\"(?:\\.|[^\"\\\n])*\"?"  # an open one ends with its line: each letter is read once
_BRACKET = re.compile(rf"{_STRING}|[\[{{(]|[\]}})]", re.DOTALL)
_LOOKS_LIKE_CALL = re.compile(r"\[?\s{0,99}[A-Za-z_][\w.]{0,99}\(")


class Python(Format):
    """``name(key=value, …)`` or a list of such, with literals only."""

    name = "python"
    form = "name(key=value, …)"

    def calls(self, found: Scanned, tools: Sequence[Tool], plain: bool) -> tuple[tuple[Call | str, ...], int]:
        text = found.outside.strip()
        answered = any(name == ANSWER for name, _ in found.blocks)
        if not _LOOKS_LIKE_CALL.match(text):
            if text and not (plain or answered):
                raise Malformed(f"the reply is no {self.form}")
            return (), 0
        try:
            tree = _expression(text)
        except ValueError as error:
            raise Malformed(f"malformed call: {error}") from None
        nodes = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
        return tuple(map(_python_call, nodes)), 0

    def write(self, calls: Sequence[Call], tools: Sequence[Tool] = (), literal: Callable[[str], str] = str) -> str:
        written = [
            f"{call.name}({', '.join(f'{name}={_written(value)}' for name, value in call.arguments.items())})"
            for call in calls
        ]
        return literal(self.escaped(written[0] if len(written) == 1 else f"[{', '.join(written)}]", tools))


def _written(value: Any) -> str:
    """A JSON value as a Python literal. Texts stand in double quotes, as a model sees them in most code."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_written(key)}: {_written(one)}' for key, one in value.items())}}}"
    return repr(value)


def _expression(text: str) -> ast.expr:
    """A Python expression.

    Raises:
        ValueError: it is none, too long or too deep.
    """
    if len(text) > LONGEST:
        raise ValueError(f"{len(text):,} characters where {LONGEST:,} are the most")
    depth = 0
    for found in _BRACKET.finditer(text):
        depth += {"[": 1, "{": 1, "(": 1, "]": -1, "}": -1, ")": -1}.get(found[0], 0)
        if depth > DEEPEST:
            raise ValueError(f"nested deeper than {DEEPEST} levels")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in texts
            return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"no Python expression: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError, OverflowError):
        raise ValueError("no Python expression that can be read") from None


def _python_call(node: ast.expr) -> Call | str:
    try:
        if not isinstance(node, ast.Call):
            raise ValueError("a call is name(key=value, …)")
        name = _dotted(node.func)
        if node.args or any(keyword.arg is None for keyword in node.keywords):
            raise ValueError(f"{name}: every argument needs its name, key=value")
        if len({keyword.arg for keyword in node.keywords}) < len(node.keywords):
            raise ValueError(f"{name}: an argument occurs twice")
        return Call(name, {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords})
    except ValueError as error:
        return f"malformed call: {error}"


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise ValueError("a call begins with a name")
    return ".".join([node.id, *reversed(parts)])


def _literal(node: ast.expr) -> Any:
    """The value of a literal, as JSON has it."""
    if isinstance(node, ast.Constant) and (node.value is None or type(node.value) in (str, int, bool)):
        return node.value
    if isinstance(node, ast.Constant) and isinstance(node.value, float) and abs(node.value) < float("inf"):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = _literal(node.operand)
        if type(value) in (int, float):
            return -value
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(one) for one in node.elts]
    if isinstance(node, ast.Dict):
        keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
        if not all(isinstance(key, str) for key in keys) or len(set(keys)) < len(keys):
            raise ValueError("the keys of an object are different texts")
        return dict(zip(keys, map(_literal, node.values), strict=True))
    raise ValueError("arguments are literals: texts, numbers, True, False, None, lists and objects")


__all__ = ["Python"]

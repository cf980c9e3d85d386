"""Two tools and their tasks, to try an environment with: a calculator and a converter of distances."""

from __future__ import annotations

import ast
import operator
from functools import cache
from typing import Any, Literal

from roleagent.envs.tools.definition.function_tool import tool
from roleagent.envs.tools.tasks import Tasks, open_tasks
from roleagent.tools import ToolError

EXAMPLES = "roleagent.envs.tools.examples"
_OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}


@tool
def calculate(expression: str) -> float:
    """Calculates an arithmetic expression.

    Args:
        expression: numbers, brackets and the signs + - * /.
    """
    try:
        if len(expression) > 200:
            raise ToolError("the expression is longer than 200 characters")
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise ToolError(f"{expression!r} is no arithmetic expression") from error
    except ZeroDivisionError as error:
        raise ToolError("a division by zero") from error


def _value(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.operand))
    raise ValueError("no arithmetic")


@tool
def convert(amount: float, unit: Literal["km", "mile"]) -> float:
    """Converts a distance to meters.

    Args:
        amount: how much.
        unit: of the amount.
    """
    if amount < 0:
        raise ToolError("a distance cannot be negative")
    return amount * {"km": 1000.0, "mile": 1609.344}[unit]


def tasks() -> list[dict[str, Any]]:
    """Sixty questions: distances for ``convert`` and products for ``calculate``."""
    rows = []
    for number in range(2, 32):
        unit = ("km", "mile")[number % 2]
        question, terms = f"How many meters are {number} {unit}?", f"{number} * {number + 17}"
        steps = [("convert", {"amount": number, "unit": unit}), ("calculate", {"expression": terms})]
        answers = (convert(number, unit), calculate(terms))
        for (name, arguments), prompt, answer in zip(steps, (question, f"What is {terms}?"), answers, strict=True):
            row = {"id": f"{name}-{number}", "prompt": prompt, "answer": answer, "type": name, "judge": "number"}
            rows.append(row | {"calls": [{"name": name, "arguments": arguments}]})
    return rows


@cache
def example_tasks() -> Tasks:
    """These tasks, for the environment that is made without any."""
    return open_tasks(tasks(), "RoleAgent/ToolEnv-v0")

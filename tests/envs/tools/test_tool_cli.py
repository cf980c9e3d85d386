"""``roleagent tools``: schemas as a model sees them, and one call."""

import json

import pytest

from roleagent.cli import main

TOOLS = '''
from roleagent.envs.tools import ToolError, tool

@tool
def note(text: str, state: dict) -> str:
    """Notes a text."""
    if not text:
        raise ToolError("nothing to note")
    state.setdefault("notes", []).append(text)
    return "noted"
'''


@pytest.fixture
def tools(tmp_path):
    path = tmp_path / "my_tools.py"
    path.write_text(TOOLS, encoding="utf-8")
    return str(path)


def test_show_prints_what_a_model_sees(tools, capsys):
    assert main(["tools", "show", tools]) == 0
    [shown] = json.loads(capsys.readouterr().out)
    assert shown["type"] == "function" and list(shown["function"]["parameters"]["properties"]) == ["text"]


@pytest.mark.parametrize(
    ("arguments", "status", "out", "err"),
    [
        (["note", '{"text": "x"}', "--state", '{"notes": ["w"]}'], 0, 'noted\nstate: {"notes": ["w", "x"]}\n', ""),
        (["note", '{"text": ""}'], 1, "", "nothing to note\n"),
        (["note"], 1, "", "note was not called: text is missing\n"),
        (["nota", "{}"], 1, "", "there is no tool 'nota'; did you mean note?\n"),
        (["note", "{"], 2, "", "roleagent tools call: arguments: no JSON ("),
        (["note", "[]"], 2, "", "roleagent tools call: arguments must be a JSON object, not []"),
    ],
)
def test_call_prints_what_an_agent_reads(tools, capsys, arguments, status, out, err):
    assert main(["tools", "call", tools, *arguments]) == status
    printed = capsys.readouterr()
    assert printed.out == out and printed.err.startswith(err) and bool(printed.err) == bool(err)


def test_what_cannot_be_shown_is_one_line(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(TOOLS.replace("text: str", "text"), encoding="utf-8")
    assert main(["tools", "show", str(path)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("roleagent tools show: ") and "mine.py" in line and "the parameter text" in line

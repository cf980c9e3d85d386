"""Formats of tool calls: what is written is read again, what is malformed is refused, and nothing raises."""

import json
from typing import Any

import pytest
from programs import load

from roleagent.envs.tools import Call, tool
from roleagent.envs.tools.formats import FORMATS

hostile = load("benchmarks/parts/hostile_replies")


@tool
def search(query: str) -> str:
    """Searches."""
    return query


@tool
def move(x: float, y: float) -> str:
    """Moves."""
    return ""


TOOLS = (search, move)
A, B = Call("search", {"query": 'a <b>\n"c"'}), Call("move", {"x": -1.5, "y": 2})


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("calls", [(A,), (B,), (A, B)])
def test_what_is_written_is_read_again(name, calls):
    text = FORMATS[name].write(calls, TOOLS)
    for thought in ("", "<think>I might <tool_call>3</tool_call> or <answer>no</answer></think>"):
        found = FORMATS[name].read(thought + text if name != "native" else text, TOOLS)
        assert [(call.name, call.arguments) for call in found.calls] == [(c.name, c.arguments) for c in calls]
        assert found.error is None and found.answer is None and found.repaired == 0


@tool
def look(at: str | None = None) -> str:
    """Looks."""
    return ""


@tool
def put(thing: Any = 0) -> str:
    """Puts."""
    return ""


@pytest.mark.parametrize(
    ("called", "arguments", "text"),
    [
        (look, {"at": "hello"}, "hello"),
        (look, {"at": "1815"}, "1815"),
        (look, {"at": None}, "null"),
        (look, {"at": "null"}, '"null"'),
        (look, {"at": " </look>"}, '" \\u003c/look>"'),
        (look, {"at": ""}, '""'),
        (look, {}, ""),
        (put, {"thing": 5}, "5"),
        (put, {"thing": "5"}, '"5"'),
        (put, {"thing": "a mug"}, "a mug"),
        (put, {"thing": ["</put>"]}, '["\\u003c/put>"]'),
        (put, {}, ""),
    ],
)
def test_a_tag_holds_the_only_argument(called, arguments, text):
    written = FORMATS["tags"].write([Call(called.name, arguments)], [called])
    assert written == f"<{called.name}>{text}</{called.name}>"
    assert FORMATS["tags"].read(written, [called]).calls == (Call(called.name, arguments),)


ONE = '{"name": "search", "arguments": {"query": "a"}}'
TAGGED = f"<tool_call>{ONE}</tool_call>"
QWEN = "\n<function=search>\n<parameter=query>\na\n</parameter>\n</function>\n"
ARGUMENTS = '{"query": "a"}'
LLAMA = '{"name": "f", "parameters": {}}'
LITERALS = "arguments are literals: texts, numbers, True, False, None, lists and objects"


LONG = "16,392 characters where 16,384 are the most"


def deep(levels):
    """A list in a list in a list …"""
    value = []
    for _ in range(levels):
        value = [value]
    return value


def message(**function):
    return {"content": None, "tool_calls": [{"id": "7", "function": function}]}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("hermes", TAGGED, ["search"]),
        ("hermes", f"the prompt opened it {TAGGED}</think>{TAGGED}", ["search"]),  # nothing inside a thought is run
        ("hermes", f"<think>{TAGGED}", "<think> is never closed"),
        ("hermes", f"<tool_call>{ONE}", "<tool_call> is never closed"),  # no answer, whatever stands there
        ("hermes", f"{TAGGED}<answer>x</answer>", "calls and an answer in one reply"),
        ("hermes", "<answer>x</answer><answer>y</answer>", "2 answers in one reply"),
        ("hermes", "<answer> </answer>", "the answer is empty"),
        ("hermes", f"{TAGGED}<think>late</think>", "a <think> block after the call or answer"),
        ("hermes", "<answer>a <tool_call> b</answer>", "a <tool_call> b"),
        ("hermes", TAGGED * 65, "65 calls in one reply"),
        ("hermes", None, "the reply is not text but NoneType"),
        ("json", f"[{ONE}, {ONE}]", ["search", "search"]),
        ("json", f"```json\n{ONE}\n```", ["search"]),
        ("json", f"Sure: {ONE}", "malformed call: no JSON at character 1: Expecting value"),
        ("llama3", f"<|python_tag|>{LLAMA}; {LLAMA}<|eom_id|>", ["f", "f"]),
        ("llama3", ONE, ["search"]),
        ("python", "[a.b(x=-1, y=[True, None]), c()]", ["a.b", "c"]),
        ("python", "f(1)", ["malformed call: f: every argument needs its name, key=value"]),
        ("python", "f(x=g())", [f"malformed call: {LITERALS}"]),
        ("python", "f(x={1: 2})", ["malformed call: the keys of an object are different texts"]),
        ("python", "f(x=" + "[" * 40 + "]" * 40 + ")", "malformed call: nested deeper than 32 levels"),
        ("python", "f(x=1, x=2)", ["malformed call: f: an argument occurs twice"]),
        ("tags", '<search>who?</search><move>{"x": 1, "y": 2}</move>', ["search", "move"]),
        ("tags", "<move>1</move>", ["malformed call: the arguments of move are a JSON object"]),
        ("native", message(name="f", arguments="{}"), ["f"]),
        ("native", message(name="f", arguments={"x": deep(40)}), ["malformed call: nested deeper than 32 levels"]),
        ("native", message(name="f", arguments={"x": deep(20_000)}), ["malformed call: nested deeper than 32 levels"]),
        ("native", message(name="f", arguments={"x": "x" * 16384}), [f"malformed call: {LONG}"]),
        (
            "native",
            '{"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1, "a": 2}}}]}',
            "a key occurs twice",
        ),
        ("native", '{"tool_calls": [{"function": {"name": "f", "arguments": {"a": NaN}}}]}', "NaN is no JSON"),
        ("native", message(name="f", arguments="3"), ['malformed call: "arguments" is no object']),
        ("native", message(), ['malformed call: "name" is missing']),
        ("native", "<answer>x</answer>", "x"),
        ("qwen3_coder", f"<tool_call>{QWEN}</tool_call>", ["search"]),
        ("qwen3_coder", f"<think><tool_call>{QWEN}</tool_call></think><tool_call>{QWEN}</tool_call>", ["search"]),
        ("qwen3_coder", f"<tool_call>{QWEN}", "<tool_call> is never closed"),
        ("glm45", "<tool_call>search<arg_key>query</arg_key><arg_value>a</arg_value></tool_call>", ["search"]),
        ("openai", f"<|channel|>commentary to=functions.search <|constrain|>json<|message|>{ARGUMENTS}", ["search"]),
        ("openai", f" to=functions.search<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>", ["search"]),
        ("openai", f"<think>or to=functions.x</think> to=functions.search<|message|>{ARGUMENTS}<|call|>", ["search"]),
        ("gemma4", '<|tool_call>call:search{query:<|"|>a:{b<|"|>}<tool_call|>', ["search"]),
        ("kimi_k2", f"<|tool_call_begin|>search:0<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|>", ["search"]),
        ("mistral", f"[TOOL_CALLS]search[ARGS]{ARGUMENTS}[TOOL_CALLS]f[ARGS]{{}}", ["search", "f"]),
    ],
)
def test_replies(name, text, expected):
    found = FORMATS[name].read(text, TOOLS)
    given = [call if isinstance(call, str) else call.name for call in found.calls]
    assert (given if isinstance(expected, list) else found.error or found.answer) == expected


NO_ARGUMENTS = ("{}", '{"arguments": {}}', '{"arguments": null}', '{"arguments": ""}', '{"parameters": {}}')


@pytest.mark.parametrize("name", ["hermes", "json", "llama3", "native"])
@pytest.mark.parametrize("given", [*NO_ARGUMENTS, '{"parameters": {"a": 1}}', '{"parameters": "{\\"a\\": 1}"}'])
def test_a_call_without_arguments_runs_and_one_with_them_never_runs_empty(name, given):
    """Models leave them out, or use the name of another format (ollama PR 17328)."""
    call = json.dumps({"name": "f", **json.loads(given)})
    message = json.dumps(
        {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": json.loads(call)}]}
    )
    reply = {"hermes": f"<tool_call>{call}</tool_call>", "native": message}.get(name, call)
    [found] = FORMATS[name].read(reply, TOOLS).calls
    assert (found.name, found.arguments) == ("f", {} if given in NO_ARGUMENTS else {"a": 1})


@pytest.mark.parametrize(
    ("inside", "why"),
    [
        ("3", "a call is an object, not a number"),  # legacy: TypeError, and the rollout ended
        ('{"arguments": {}}', '"name" is missing'),
        ('{"name": 3, "arguments": {}}', '"name" is no text'),
        ('{"name": "f", "args": {"a": 1}}', '"arguments" is missing, and "args" is not read'),
        ('{"name": "f", "arguments": {}, "parameters": {"a": 1}}', '"arguments" and "parameters" are both given'),
        ('{"name": "f", "parameters": 3}', '"parameters" is no object'),
        ('{"name": "f", "arguments": [1]}', '"arguments" is no object'),  # v0.1.0: a list became {}
        ('{"name": "f", "arguments": {"a": 1, "a": 2}}', "a key occurs twice"),
        ('{"name": "f", "arguments": {"a": NaN}}', "NaN is no JSON"),
        ('{"name": "f", "arguments": {"a": 1e999}}', "1e999 is no finite number"),
        ('{"name": "f", "arguments": {"a": ' + "[" * 40 + "]" * 40 + "}}", "nested deeper than 32 levels"),
        ('{"name": "f", "arguments": {"a": "' + "x" * 16384 + '"}}', "16,421 characters where 16,384 are the most"),
        (f"{ONE}{ONE}", "no single JSON value"),
        ("{'name': 'f'}", "no JSON at character 2: Expecting property name enclosed in double quotes"),
    ],
)
def test_a_malformed_call_is_answered_and_its_neighbor_read(inside, why):
    found = FORMATS["hermes"].read(f"<tool_call>{inside}</tool_call>{TAGGED}", TOOLS)
    assert found.calls[0] == f"malformed call: {why}" and found.calls[1].name == "search" and found.error is None


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("random", "changed", "seed"), [(1500, 300, 0), pytest.param(100_000, 20_000, 1, marks=pytest.mark.long)]
)
def test_hostile_replies_never_raise(name, random, changed, seed):
    """Nothing raises, a call that is reported as run was run, and results hold no markers."""
    found = hostile.play(name, hostile.replies(name, random, changed, seed))
    assert (found.replies, found.raised, found.false_runs, found.injected) == (random + changed, 0, 0, 0)
    assert found.well_formed > 50 and found.reported > 10  # the calls among them are played

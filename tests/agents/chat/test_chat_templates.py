"""Chat templates with tools: a transcript is what the template makes of the whole conversation."""

import json
import random
import re
from pathlib import Path
from typing import Literal, TypedDict

import pytest
from tiny import Script, around, llama3_tokenizer, qwen2_tokenizer

from roleagent.agents.chat_renderer import ChatRenderer
from roleagent.agents.rendering import STYLES
from roleagent.agents.rollout import Rollout
from roleagent.config.settings import PromptConfig, RolloutConfig
from roleagent.env_card import Instructions
from roleagent.envs.pool import EnvPool
from roleagent.envs.tools import ToolEnv, tool
from roleagent.envs.wrappers import ToolTags

TEMPLATES = Path(__file__).parents[2] / "templates"
FORMATS = {"qwen2_5": "hermes", "qwen3": "hermes", "llama3_1": "llama3"}
KINDS = tuple(FORMATS)
FIND = {"name": "find", "description": 'Findet "Räume": <b>alle</b>.'}
TOOLS = [
    {
        "type": "function",
        "function": {**FIND, "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}},
    },
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object"}}},
]
PIECES = ("You see egg, potato.", '{"a": ["x"]}', "é☀", "\n", "  ", '"', "\\n", "'", "<b>", "12 345", "\t", "a\n\nb")
MARKS = ("<|im_end|>", "<|im_start|>user\n", "<|eot_id|>", "<tool_call>", "</think>", "<|start_header_id|>")
GUIDE = Instructions("Help.", form="Then reply with <answer>…</answer>.")


def policy_of(kind):
    text = (TEMPLATES / f"{kind}.jinja").read_text(encoding="utf-8")
    words = llama3_tokenizer(text) if kind == "llama3_1" else qwen2_tokenizer(text)
    policy = around(words, 16384)
    policy.kind = kind
    return policy


@pytest.fixture(scope="module", params=KINDS)
def policy(request):
    return policy_of(request.param)


def written(policy, calls):
    """Calls as the template writes them in an assistant's message, and this message."""
    message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": c} for c in calls]}
    render, asked = policy.tokenizer.apply_chat_template, [{"role": "user", "content": "x"}]
    before = render(asked, tokenize=False, add_generation_prompt=True)
    after = render([*asked, message, {"role": "tool", "content": ""}], tokenize=False)
    assert after.startswith(before)
    return after.removeprefix(before).partition(policy.tokenizer.eos_token)[0], message


def conversations(policy, rng, results):
    """Transcripts of tool calls: after each turn the transcript's tokens and the messages so far."""
    first = "".join(rng.choices(PIECES, k=3)) + "?"
    transcript = STYLES["transcript"](ChatRenderer(policy), 0, "optional", first, {"tools": TOOLS}, 0, GUIDE)
    head = transcript.renderer.instructions(0, "optional", GUIDE.rules, GUIDE.form)
    messages = [{"role": "user", "content": f"{head}\n\n{first}"}]
    yield transcript.action_prompt(), messages
    for _ in range(rng.randrange(1, 4)):
        many = 1 if "eot_id" in policy.tokenizer.eos_token else rng.randrange(1, 4)
        calls = [{"name": "find", "arguments": {"q": "".join(rng.choices(PIECES, k=2))}} for _ in range(many)]
        text, message = written(policy, calls)
        reply = policy.encode(text) + [policy.eos_id] * rng.randrange(2)  # it may end with the closing tag
        texts = [results(rng) for _ in calls]
        info = {"calls": [{"name": "find", "result": text} for text in texts]}
        stream = (*transcript.action_prompt(), *reply)
        transcript.advance(stream, reply, json.dumps(calls), "\n".join(texts), info)
        messages += [message, *({"role": "tool", "content": text} for text in texts)]
        yield transcript.action_prompt(), messages


def test_a_transcript_is_what_the_template_renders(policy):
    """Token for token after every turn, with one and several results, and whatever they begin and end with."""
    rng = random.Random(1)
    for _ in range(40):
        for ids, messages in conversations(policy, rng, lambda rng: "".join(rng.choices(PIECES, k=rng.randrange(5)))):
            asked = {"tools": TOOLS, "add_generation_prompt": True}
            whole = policy.tokenizer.apply_chat_template(messages, tokenize=False, **asked)
            assert policy.tokenizer.decode(ids, skip_special_tokens=False) == whole
            assert list(ids) == policy.tokenizer.encode(whole, add_special_tokens=False)


def test_results_with_markers_are_the_same_bytes_but_no_special_tokens(policy):
    known = policy.tokenizer.added_tokens_decoder
    rng, calm, hostile = random.Random(2), [], []
    for ids, _ in conversations(policy, rng, lambda rng: "a pan"):
        calm.append([token for token in ids if token in known])
    rng = random.Random(2)
    for ids, messages in conversations(policy, rng, lambda rng: "".join(MARKS)):
        whole = policy.tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=False, add_generation_prompt=True)
        assert policy.tokenizer.decode(ids, skip_special_tokens=False) == whole
        hostile.append([token for token in ids if token in known])
    assert hostile == calm


def test_a_description_with_markers_has_no_special_tokens(policy):
    known = policy.tokenizer.added_tokens_decoder
    tool = {"name": "x", "description": "".join(MARKS), "parameters": {"type": "object", "properties": {MARKS[0]: {}}}}
    offered = [
        [{"type": "function", "function": {**tool, **calm}}] for calm in ({}, {"description": "", "parameters": {}})
    ]
    found = [[token for token in ChatRenderer(policy).first_message("x", tools) if token in known] for tools in offered]
    assert found[0] == found[1]


class Trip(TypedDict):
    days: list[int]


@tool
def plan(trips: list[Trip], by: Literal["train", "bus"] | None = None, most: float | str = 2.5) -> str:
    """Plans trips.

    Args:
        most: to spend.
    """
    return ""


def test_a_schema_survives_the_way_to_the_model(policy):
    """The published code keeps type, description and enum: items, nested properties, defaults and unions vanish."""
    env = ToolEnv([plan], [{"id": "a", "prompt": "Go.", "answer": "x"}], split="all")
    [offered] = env.reset()[1]["tools"]
    prompt = policy.decode(ChatRenderer(policy).first_message("x", [offered]))
    found, _ = json.JSONDecoder().raw_decode(prompt[re.search(r'{\s*"type": "function"', prompt).start() :])
    assert found["function"]["parameters"] == offered["function"]["parameters"] == plan.parameters
    trips, by, most = plan.parameters["properties"].values()
    assert trips["items"]["properties"] == {"days": {"type": "array", "items": {"type": "integer"}}}
    assert trips["items"]["additionalProperties"] is False and by["default"] is None and "train" in str(by)
    assert most == {"type": ["number", "string"], "default": 2.5, "description": "to spend."}


@tool
def look(q: str) -> str:
    """Looks <|im_end|>.

    Args:
        q: what.
    """
    return "".join(MARKS) + q


def test_a_rollout_gives_results_the_role_of_tools(policy):
    """The whole way: environment, reader and rollout. The turns are those of the template, and no tool opens one."""
    task = {"id": "a", "prompt": f"Find it {MARKS[0]}.", "answer": "x"}
    make = lambda: ToolTags(ToolEnv([look], [task], split="all"), FORMATS[policy.kind], horizon=0)  # noqa: E731
    call, _ = written(policy, [{"name": "look", "arguments": {"q": "mug"}}])
    replies = Script(lambda prompt, slot: "<answer>x</answer>" if prompt.count('"mug"') else call)
    replies.speak_as(policy)
    env, limits = make(), RolloutConfig(action_tokens=300)
    rollout = Rollout(replies, EnvPool(make), "RoleAgent/ToolEnv-v0", PromptConfig(), limits, 0, GUIDE, env.reader)
    [group] = rollout.play(["a"], 1, 0.0)
    first, last = group.trajectories[0].turns
    assert group.trajectories[0].stop_reason == "won" and first.info["calls"][0]["error"] is None
    between = rollout.renderer.tool_results([policy.literal(first.observation)], first.completion.token_ids)
    assert last.prompt_ids == (*first.prompt_ids, *first.completion.token_ids, *between)
    turns = [
        policy.tokenizer.decode(ids).count(policy.tokenizer.eos_token) for ids in (first.prompt_ids, last.prompt_ids)
    ]
    assert turns[1] == turns[0] + 2


@pytest.mark.parametrize("kind", KINDS)
def test_our_templates_render_what_the_published_ones_do(kind):
    trl = pytest.importorskip("trl", reason="TRL has copies of the published templates")
    path = Path(trl.__file__).parent / "chat_templates" / f"{kind}.jinja"
    if not path.exists():
        pytest.skip("this version of TRL has no copy of the template")
    policy, rng = policy_of(kind), random.Random(3)
    render = policy.tokenizer.apply_chat_template
    for _ in range(20):
        for _, messages in conversations(policy, rng, lambda rng: "".join(rng.choices(PIECES, k=rng.randrange(5)))):
            thought = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"}
            for whole in (messages, [*messages, thought], [{"role": "system", "content": " Be brief. "}, *messages]):
                for tools in (None, TOOLS):
                    published = render(whole, tools=tools, tokenize=False, chat_template=path.read_text())
                    assert render(whole, tools=tools, tokenize=False) == published

"""Chat templates that refuse or leave out tools, calls, results or system messages, and those that open a thought."""

import importlib.util
import json
import re
from pathlib import Path

import gymnasium
import pytest
from tiny import Script, around, qwen2_tokenizer
from transformers import AddedToken

from roleagent.agents.chat.models import PolicyChatModel
from roleagent.agents.chat.types import Prompt
from roleagent.agents.chat_renderer import ChatRenderer
from roleagent.agents.chat_template import ChatTemplate
from roleagent.agents.policies.hf import PolicyError
from roleagent.agents.prompting.plain import without_thoughts
from roleagent.agents.rollout import Rollout
from roleagent.config.settings import PromptConfig, RolloutConfig
from roleagent.envs.pool import EnvPool
from roleagent.envs.tools import ToolEnv, tool
from roleagent.envs.tools.formats import FORMATS
from roleagent.envs.wrappers import PredictedState, ToolTags, read_replies
from roleagent.envs.wrappers.tags import TagReader
from roleagent.tools import Call

START, END = "<|im_start|>", "<|im_end|>"
BEGIN = f"{{% if add_generation_prompt %}}{START}assistant\n{{% endif %}}"
TURN = f"{START}{{{{ m.role }}}}\n{{{{ m.content }}}}{END}\n"
CALLS = "{% for c in m.tool_calls %}<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"
ALTERNATE = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}" + TURN + "{% endfor %}" + BEGIN
)
ANY_ROLE = "{% for m in messages %}" + TURN + "{% endfor %}" + BEGIN
KNOWN = "{% if m.role in ('system', 'user', 'assistant') %}"
KNOWN_ROLES = "{% for m in messages %}" + KNOWN + TURN + "{% endif %}{% endfor %}" + BEGIN
LONG_IDS = (
    "{% for m in messages %}{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('ids') }}"
    "{% endif %}{% endfor %}{% if m.role == 'tool' and m.tool_call_id | length != 9 %}{{ raise_exception('ids') }}"
    "{% endif %}{% if m.role == 'user' and loop.index0 < 2 %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}"
    f"{START}{{{{ m.role }}}}\n{{{{ m.content }}}}{CALLS}{END}\n{{% endfor %}}" + BEGIN
)
ONE_CALL = LONG_IDS.replace(
    "{% for m in messages %}",
    "{% for m in messages %}{% if m.tool_calls | length > 1 %}{{ raise_exception('single calls') }}{% endif %}",
    1,
)
TEXT_ARGUMENTS = (
    "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}{% for c in m.tool_calls %}"
    f"{START}call\n{{{{ c.function.name + ' ' + c.function.arguments }}}}{END}\n{{% endfor %}}{{% else %}}"
    f"{TURN}{{% endif %}}{{% endfor %}}{BEGIN}"
)
THINKS = ANY_ROLE.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
NO_THOUGHT = "<think>\n\n</think>\n\n"
OFFERS = ANY_ROLE.replace(
    "assistant\n{% endif %}", f"assistant\n{{% if enable_thinking is false %}}{NO_THOUGHT}{{% endif %}}{{% endif %}}"
)
TEMPLATES = {
    "alternate": ALTERNATE,
    "any role": ANY_ROLE,
    "known roles": KNOWN_ROLES,
    "long ids": LONG_IDS,
    "one call": ONE_CALL,
    "text arguments": TEXT_ARGUMENTS,
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Finds rooms.",
            "parameters": {"type": "object", "properties": {"near": {"type": "string"}}},
        },
    }
]


WRITTEN = {
    "qwen3_instruct_2507": "hermes",
    "qwen3_5_think": "qwen3_coder",
    "nemotron_3_nano": "qwen3_coder",
    "gptoss": "openai",
    "gemma4_v5": "gemma4",
    "glm4moe": "glm45",
    "deepseekv3": "deepseek_v3",
    "lfm2_2_5": "lfm2",
    "llama3_2": "llama3",
    "muse_glimmer": None,
    "gemma3": "",
    "phi3_5": "",
}
"""Templates that come with TRL, and their formats of calls."""


def template_of(name):
    found = importlib.util.find_spec("trl") or pytest.skip("TRL has the templates")
    return (Path(found.origin).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def policy_of(template, context=4096):
    return around(qwen2_tokenizer(template), context)


def call(number, near):
    return {"id": number, "function": {"name": "find", "arguments": json.dumps({"near": near})}}


@pytest.mark.parametrize(("name", "format"), WRITTEN.items())
def test_calls_are_read_in_the_format_that_the_template_writes(name, format):
    assert ChatTemplate(qwen2_tokenizer(template_of(name))).call_format == format


@pytest.mark.parametrize(
    ("name", "eos", "ends"), [("gptoss", "<|return|>", 1), ("cohere2", "<|END_OF_TURN_TOKEN|>", 2)]
)
def test_a_reply_that_ends_its_turn_is_followed_by_no_second_end(name, eos, ends):
    """gpt-oss ends a conversation in one way and earlier replies in another, Command R7B a turn with two marks."""
    template = template_of(name)
    tokenizer = qwen2_tokenizer(template)
    marks = sorted({*re.findall(r"<\|[A-Za-z_]+\|>", template), eos})
    tokenizer.add_tokens([AddedToken(mark, special=True) for mark in marks])
    tokenizer.eos_token = eos
    policy = around(tokenizer, 4096)
    assert len(policy.end_ids) == ends
    for token in policy.end_ids:
        following = tokenizer.decode(ChatRenderer(policy).next_message("Obs", [5, token]))
        if tokenizer.convert_ids_to_tokens(token) == eos:
            assert following.startswith("<|start|>user" if name == "gptoss" else "<|START_OF_TURN_TOKEN|><|USER")


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_prompting_agent_sees_tools_calls_and_results_with_every_template(kind):
    """One and several calls, a malformed reply, and ids that are reused, missing or short."""
    policy = policy_of(TEMPLATES[kind])
    messages = [
        {"role": "system", "content": "Rules."},
        {"role": "user", "content": "Which room?"},
        {"role": "assistant", "content": "", "tool_calls": [call("a", "sea"), call("b", "hill")]},
        {"role": "tool", "tool_call_id": "a", "content": "Room One"},
        {"role": "tool", "tool_call_id": "b", "content": "Room Two"},
        {"role": "assistant", "content": "Hm."},
        {"role": "user", "content": "That is malformed."},
        {"role": "assistant", "content": "", "tool_calls": [call("a", "lake")]},
        {"role": "tool", "tool_call_id": "a", "content": "Room Three"},
    ]
    for count in (2, 5, 7, 9):
        text = policy.tokenizer.decode(PolicyChatModel(policy).prompt(Prompt(messages[:count], TOOLS)))
        later = ["sea", "hill", "Room One", "Room Two", "Hm.", "malformed", "lake", "Room Three"][
            : (count - 1) // 2 * 2
        ]
        shown = ["Rules.", "find", "Finds rooms.", "near", "Which room?", *later]
        assert all(one in text for one in shown), text
        places = [text.rindex(one) for one in later]
        assert places == sorted(places) or kind == "one call"
        assert text.endswith("assistant\n")
        assert "'near'" not in text and '\\"near' not in text, "arguments are JSON, once"


@tool
def look(near: str) -> str:
    """Looks for rooms.

    Args:
        near: what.
    """
    return f"Room {near}"


@pytest.mark.parametrize("kind", TEMPLATES)
@pytest.mark.parametrize("style", ["transcript", "window"])
def test_a_rollout_sees_tools_and_results_with_every_template(kind, style):
    policy = policy_of(TEMPLATES[kind])
    task = {"id": "a", "prompt": "Which room?", "answer": "x"}
    make = lambda: ToolTags(ToolEnv([look], [task], split="all"), horizon=0)  # noqa: E731
    said = iter(['<tool_call>{"name": "look", "arguments": {"near": "sea"}}</tool_call>', "<answer>x</answer>"])
    replies = Script(lambda prompt, slot: next(said))
    replies.speak_as(policy)
    limits, prompt = RolloutConfig(action_tokens=300), PromptConfig(style=style)
    rollout = Rollout(replies, EnvPool(make), "RoleAgent/ToolEnv-v0", prompt, limits, 0, reader=make().reader)
    [group] = rollout.play(["a"], 1, 0.0)
    assert group.trajectories[0].stop_reason == "won"
    first, last = replies.prompts
    assert all(text in first for text in ("look", "Looks for rooms.", "near", "Which room?"))
    assert "Room sea" in last and last.endswith("assistant\n")


@pytest.mark.parametrize(("name", "cut"), [("gptoss", 0), ("gptoss", 1), ("gemma4_v5", 0), ("qwen3_5_nothink", 0)])
def test_results_of_calls_are_the_tools_as_the_template_has_them(name, cut):
    """gpt-oss refuses results that stand behind no call, and Gemma 4 leaves them out."""
    words = qwen2_tokenizer(template_of(name))
    words.add_tokens([AddedToken(mark, special=True) for mark in ("<|call|>", "<tool_call|>")])
    policy, template = around(words, 4096), ChatTemplate(words)
    policy.end_ids = policy.end_ids | {policy.single_token("<|call|>")}
    renderer, call = ChatRenderer(policy), Call("look", {"near": "sea"})
    reply = renderer.write(FORMATS[template.call_format].write([call]))
    reply = reply[: len(reply) - cut]
    texts = [renderer.literal("Room <|call|> lake")]
    ids = [*renderer.first_message("Which room?"), *reply, *renderer.tool_results(texts, reply, ["look"])]
    made = [{"function": {"name": call.name, "arguments": call.arguments}}]
    said = [{"role": "user", "content": "Which room?"}, {"role": "assistant", "content": "", "tool_calls": made}]
    whole = template.render([*said, {"role": "tool", "content": "Room <|call|> lake"}])
    assert words.decode(ids, skip_special_tokens=False) == whole
    assert "user" not in whole.partition("lake")[0].rpartition("sea")[2] or "<tool_response>" in whole
    assert ids.count(policy.single_token("<|call|>")) == (name == "gptoss")


@pytest.mark.parametrize("template", ["{{ messages[0].content[0].text }}", "{{ raise_exception('no') }}", "x"])
def test_a_template_that_shows_no_conversation_is_refused_in_one_line(template):
    policy = policy_of(template)
    with pytest.raises(PolicyError, match="does not show the messages"):
        PolicyChatModel(policy)
    with pytest.raises(ValueError, match=r"chat template (refuses|rewrites)"):
        ChatRenderer(policy)


# --- thoughts that the template opens ---------------------------------------------------------------------------------

CUT = "the reply must be written as <action>look</action>, and <tool_call>{}</tool_call>, but first"
CLOSED = f"{CUT} I look.</think>\n\n<action>go to stove</action>"


@pytest.mark.parametrize("mark", ["<think>", "<thinking>", "<seed:think>", "[THINK]"])
def test_a_reply_that_was_cut_within_its_thought_is_no_action(mark):
    closing = f"{mark[0]}/{mark[1:]}"
    renderer = ChatRenderer(policy_of(THINKS.replace("<think>", mark)))
    encode, reader = renderer._policy.encode, TagReader(horizon=0)
    cut = renderer.read(encode(CUT))
    assert reader.read(cut).command == "" and without_thoughts(cut) == ""
    whole = renderer.read(encode(CLOSED.replace("</think>", closing)))
    assert reader.read(whole).command == "go to stove" and without_thoughts(whole).endswith("</action>")
    assert renderer.opening == mark


def test_a_call_that_the_template_opens_is_read_and_written():
    renderer = ChatRenderer(policy_of(THINKS.replace("<think>", "<tool_call>")))
    policy, reader = renderer._policy, ToolTags(ToolEnv([look], [{"id": "a", "prompt": "x", "answer": "x"}])).reader
    written = '<tool_call>{"name": "look", "arguments": {"near": "sea"}}</tool_call>'
    ids = renderer.write(written)
    assert policy.decode(ids) == written.removeprefix("<tool_call>") and renderer.read(ids) == written
    assert reader.read(renderer.read(ids)).error is None
    assert reader.read(renderer.read(ids[:-1])).error == "<tool_call> is never closed"


def test_written_replies_close_the_thought_that_the_template_opened():
    """Demonstrations would teach to act within a thought, and be read as malformed where they begin an episode."""
    renderer = ChatRenderer(policy_of(THINKS))
    ids = renderer.write("<action>look</action>")
    assert renderer._policy.decode(ids) == "\n</think>\n\n<action>look</action>"
    assert renderer.read(ids).strip() == "<action>look</action>"
    thought = "<think>A desk.</think><action>look</action>"
    assert renderer._policy.decode(renderer.write(thought)) == thought.removeprefix("<think>")
    assert renderer.read(renderer.write(thought)) == thought


@pytest.mark.parametrize("predictions", ["followup", "detached"])
def test_a_rollout_plays_no_action_of_a_thought(predictions):
    """Also with thoughts before the predictions."""
    policy = policy_of(THINKS)

    def reply(prompt, slot):
        if "Write down" in prompt.rsplit(START, 2)[1]:
            return 'So.</think><prediction h="1">x</prediction>'
        return CUT if prompt.count(START) < 3 else CLOSED

    replies = Script(reply)
    replies.speak_as(policy)
    make = lambda: read_replies(PredictedState(gymnasium.make("RoleAgent/Toy-v0", max_steps=2), 1))  # noqa: E731
    prompt = PromptConfig(predictions=predictions, think="optional")
    limits = RolloutConfig(action_tokens=200, prediction_tokens=80)
    rollout = Rollout(replies, EnvPool(make), "RoleAgent/Toy-v0", prompt, limits, 1)
    [group] = rollout.play(["bring-egg-table-1"], 1, 0.0)
    first, second = group.trajectories[0].turns
    assert first.info["format_error"] in ("<think> is never closed", "no <action> block") and not first.action
    assert second.info["format_error"] is None and second.action == "go to stove"
    assert [turn.prediction.texts for turn in (first, second)] == [("x",), ("x",)]


@pytest.mark.parametrize("template", [THINKS, OFFERS], ids=["opens a thought", "can do without"])
@pytest.mark.parametrize("style", ["transcript", "window"])
def test_without_thoughts_every_prompt_closes_the_thought_and_the_reply_is_an_action(template, style):
    policy = policy_of(template)

    def reply(prompt, slot):
        command = "<action>go to stove</action>"
        return (
            command if prompt.endswith(NO_THOUGHT) else f"{'' if template == THINKS else '<think>'}Hm.</think>{command}"
        )

    replies = Script(reply)
    replies.speak_as(policy)
    make = lambda: read_replies(gymnasium.make("RoleAgent/Toy-v0", max_steps=2), "none")  # noqa: E731
    limits, prompt = RolloutConfig(action_tokens=200), PromptConfig(style=style, think="none")
    rollout = Rollout(replies, EnvPool(make), "RoleAgent/Toy-v0", prompt, limits, 0)
    [group] = rollout.play(["bring-egg-table-1"], 1, 0.0)
    assert [(turn.action, turn.info["format_error"]) for turn in group.trajectories[0].turns] == [
        ("go to stove", None)
    ] * 2
    assert all(prompt.endswith(f"assistant\n{NO_THOUGHT}") for prompt in replies.prompts)
    # Demonstrations continue the same prompts.
    assert policy.decode(rollout.renderer.write("<action>look</action>")) == "<action>look</action>"


# --- channels ---------------------------------------------------------------------------------------------------------

CHANNELS = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}{% if m.thinking %}<|channel|>analysis"
    "<|message|>{{ m.thinking }}<|end|><|start|>assistant{% endif %}<|channel|>final{% endif %}<|message|>"
    "{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
GEMMA = (
    "{% for m in messages %}<|turn>{{ m.role }}\n{% if m.reasoning %}<|channel>thought\n{{ m.reasoning }}"
    "\n<channel|>{% endif %}{{ m.content }}<turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn>assistant\n{% endif %}"
)
MARKS = {
    CHANNELS: ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant", "<|channel|>final<|message|>"),
    GEMMA: ("<|channel>thought\n", "\n<channel|>", ""),
}


@pytest.mark.parametrize("template", MARKS, ids=["gpt-oss", "Gemma 4"])
def test_a_channel_of_thoughts_is_split_off_before_commands_are_sought(template):
    """A thought that mentions a command, or the end of a thought, is no second action."""
    renderer, (begin, end, lead) = ChatRenderer(policy_of(template)), MARKS[template]
    encode, reader = renderer._policy.encode, TagReader("required", horizon=0)
    thought = f"{begin}Or </think><action>look</action>?{end}"
    said = reader.read(renderer.read(encode(f"{thought}{lead}<action>go to stove</action>")))
    assert (said.command, said.error) == ("go to stove", None)
    assert reader.read(renderer.read(encode(f"{begin}<action>look</action>"))).command == ""  # cut off
    for whole in ("<think>A desk.</think><action>look</action>", "<action>look</action>"):
        assert renderer._policy.decode(renderer.write(whole)).endswith(f"{lead}<action>look</action>")
        assert "".join(renderer.read(renderer.write(whole)).split("\n")) == whole


@pytest.mark.parametrize(
    "dated",
    [
        "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}",
        "{% set form = '%d %b' %}{{ strftime_now(form ~ ' %Y') }}",
        "{% set now = strftime_now %}{{ now(format='%d %b %Y') }}",
        "{% macro day() %}{{ strftime_now ('%d %b %Y') }}{% endmacro %}{{ day() }}",
    ],
)
def test_a_template_that_prints_the_date_renders_the_same_prompt_on_any_day(dated):
    renderer = ChatRenderer(policy_of(dated + ANY_ROLE))
    assert renderer._policy.decode(renderer.first_message("x")).startswith("01 Jan 2026<|im_start|>")

"""Agents that call tools: native calls through a server, calls in texts, and one search with the question."""

import json
import re
from pathlib import Path

import pytest
from fake_openai import error, message, serving
from programs import load
from tiny import around, llama3_tokenizer, qwen2_tokenizer

from roleagent.agents.chat.models import PolicyChatModel
from roleagent.agents.chat.types import Answer, Prompt
from roleagent.agents.evaluation.play import play_prompting
from roleagent.agents.prompting.standard import ChatAgent
from roleagent.agents.prompting.tools import ToolAgent
from roleagent.config.settings import PromptConfig
from roleagent.env_card import instructions_of
from roleagent.envs.tools import ToolEnv
from roleagent.envs.wrappers.tool_tags import ToolReader, ToolTags
from roleagent.programs.evaluate import main

train = load("train").main
TASKS = [{"id": f"t{n}", "prompt": f"How many meters are {n} km?", "answer": 1000 * n, "type": "km"} for n in (1, 2, 3)]
TRANSCRIPT = ("--set", "prompt.style=transcript")
OPTIONS = {"tools": "roleagent.envs.tools.examples", "tasks": TASKS, "judge": "number", "split": "all"}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    for name in ("ROLEAGENT_API_KEY", "OPENAI_API_KEY", "SEARCHQA_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def native(name, arguments, number):
    call = {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}
    return message(None, "tool_calls", tool_calls=[call])


def solver(body, number):
    """Converts with the tool, first with a wrong unit, and says what it returned."""
    talk = body["messages"]
    task = next(one["content"] for one in reversed(talk) if one["role"] == "user")
    results = [one for one in talk if one["role"] == "tool"]
    amount = int(re.search(r"(\d+) km", task)[1]) if "km" in task else 0
    if not amount:
        return "yes"
    if not results:
        return native("convert", json.dumps({"amount": amount, "unit": "miles"}), f"bad_{amount}")
    if len(results) == 1:
        assert "'miles' is not one of" in results[0]["content"] and results[0]["tool_call_id"] == f"bad_{amount}"
        return native("convert", json.dumps({"amount": amount, "unit": "km"}), f"good_{amount}")
    return f"<answer>{results[-1]['content']}</answer>"


def evaluated(capsys, *arguments):
    assert main([str(one) for one in arguments]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize(
    "agent", [("--agent", "plain"), (*TRANSCRIPT, "--set", "prompt.tool_format=native"), TRANSCRIPT]
)
def test_evaluate_plays_with_native_calls(here, capsys, agent):
    """By the agent ``plain``, and by the prompts of training in a server's own format and in that of a local model."""
    (here / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in TASKS))
    tools = ("--env-arg", f"tools={OPTIONS['tools']}", "--env-arg", "tasks=tasks.jsonl", "--env-arg", "judge=number")
    with serving(solver) as fake:
        where = (*agent, "--base-url", fake.url, "--env", "RoleAgent/ToolEnv-v0", "--split", "all")
        result = evaluated(capsys, *where, *tools)
    assert (result["success"], result["n"], result["steps"]) == (1.0, 3, 3.0)
    offered = [body["tools"] for body in fake.asked if "tools" in body]
    assert [tool["function"]["name"] for tool in offered[0]] == ["calculate", "convert"] and len(offered) == 9
    last = max((body["messages"] for body in fake.asked), key=len)
    ids = [call["id"] for one in last for call in one.get("tool_calls", ())]
    assert ids == [one["tool_call_id"] for one in last if one["role"] == "tool"] and ids[0].startswith("bad_")


EVERY_AGENT = pytest.mark.parametrize(
    "agent", [("--agent", "plain"), (*TRANSCRIPT, "--set", "prompt.tool_format=native")], ids=["plain", "native"]
)


def evaluated_with(reply, here, capsys, agent):
    """The result of the three tasks with a server, and the bodies of its requests."""
    (here / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in TASKS))
    tools = ("--env-arg", f"tools={OPTIONS['tools']}", "--env-arg", "tasks=tasks.jsonl", "--env-arg", "judge=number")
    with serving(reply) as fake:
        where = (*agent, "--base-url", fake.url, "--env", "RoleAgent/ToolEnv-v0", "--split", "all")
        return evaluated(capsys, *where, *tools), fake.asked


@EVERY_AGENT
@pytest.mark.parametrize("name", ["functions.convert", "convert me", "x" * 100, "wandle/um", "换算"])
def test_a_call_by_a_name_that_no_server_takes_fails_alone(here, capsys, agent, name):
    """It is unknown, and the next request of the same conversation passes (pydantic-ai 4585)."""

    def reply(body, number):
        results = [one["content"] for one in body["messages"] if one["role"] == "tool"]
        if len(results) != 1:
            return solver(body, number)
        assert name[:20] in results[0] and "convert" in results[0]
        amount = re.search(r"(\d+) km", str(body["messages"]))[1]
        return native("convert", json.dumps({"amount": int(amount), "unit": "km"}), f"good_{amount}")

    def misnamed(body, number):
        answer = reply(body, number)
        if '"bad_' in json.dumps(answer):
            answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] = name
        return answer

    result, _ = evaluated_with(misnamed, here, capsys, agent)
    assert (result["success"], result["n"], result["errors"]) == (1.0, 3, 0)


@EVERY_AGENT
def test_what_a_server_sent_with_its_message_goes_back_with_it(here, capsys, agent):
    """DeepSeek wants its reasoning, Gemini the signature of its calls (qwen-code 3578)."""

    def reply(body, number):
        for said in body["messages"]:
            signed = [call.get("extra_content") for call in said.get("tool_calls", ())]
            if signed and (
                signed != [{"google": {"thought_signature": "c2ln"}}] or said.get("reasoning_content") != "Hm."
            ):
                return error(400, "The `reasoning_content` in the thinking mode must be passed back to the API.")
        answer = solver(body, number)
        if isinstance(answer, dict):
            said = answer["choices"][0]["message"]
            said |= {"reasoning_content": "Hm.", "refusal": None}
            said["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": "c2ln"}}
        return answer

    result, asked = evaluated_with(reply, here, capsys, agent)
    assert (result["success"], result["n"], result["errors"]) == (1.0, 3, 0)
    assert not any("refusal" in said for body in asked for said in body["messages"]), "nothing was refused"


class Model:
    """Answers in turn; keeps the prompts."""

    lockstep, concurrency = True, 4

    def __init__(self, *answers):
        self.answers, self.prompts = iter(answers), []

    def chat(self, conversations, **options):
        self.prompts += conversations
        return [Answer(*found) if isinstance(found, tuple) else found for found in (next(self.answers),)]


def said(text, *calls):
    return Answer(text, "stop", 1, 1, False, tuple(calls))


def call(name, arguments, **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def play(*answers, **options):
    model = Model(*answers)
    agent = ToolAgent(instructions_of(ToolEnv(**OPTIONS)), **options)
    [(_, result)] = play_prompting(agent, model, lambda: ToolEnv(**OPTIONS), ["t2"])
    return result, model.prompts


@pytest.mark.parametrize(
    "reply",
    [
        said('<tool_call>{"name": "convert", "arguments": {"amount": 2, "unit": "km"}}</tool_call>'),
        said("I convert.", call("convert", '{"amount": 2, "unit": "km"}')),
        said("", call("convert", {"amount": 2, "unit": "km"}, id="x1")),
    ],
)
def test_calls_of_a_text_and_of_a_server_are_the_same(reply):
    result, prompts = play(reply, said("<think>Easy.</think>2000"))
    assert result.won and result.steps == 2 and result.corrections == 0
    *_, made, answered = prompts[1]
    assert answered == {"role": "tool", "tool_call_id": made["tool_calls"][0]["id"], "content": "2000.0"}
    assert json.loads(made["tool_calls"][0]["function"]["arguments"]) == {"amount": 2, "unit": "km"}


@pytest.mark.parametrize("ids", [("", "", ""), (None, 3, "  "), ("call_0",) * 3, ("call00000", None, "call00000")])
@pytest.mark.parametrize("agent", [("--agent", "plain"), (*TRANSCRIPT, "--set", "prompt.tool_format=native")])
def test_ids_that_a_server_repeats_or_leaves_out_become_ids_of_their_own(here, capsys, agent, ids):
    """Within a reply and over a conversation, which a real server refuses otherwise."""

    def reply(body, number):
        if sum(one["role"] == "assistant" for one in body["messages"]) == 2:
            return "<answer>2000</answer>"
        made = [call("convert", '{"amount": 2, "unit": "km"}', id=one) for one in ids]
        return message(None, "tool_calls", tool_calls=made)

    (here / "tasks.jsonl").write_text(json.dumps(TASKS[1]))
    given = {"tools": OPTIONS["tools"], "tasks": "tasks.jsonl", "judge": "number", "max_calls": 3}
    with serving(reply) as fake:
        where = ("--base-url", fake.url, "--env", "RoleAgent/ToolEnv-v0", "--split", "all")
        options = [part for name, value in given.items() for part in ("--env-arg", f"{name}={value}")]
        assert evaluated(capsys, *agent, *where, *options)["success"] == 1.0
    last = fake.asked[-1]["messages"]
    made = [one["id"] for turn in last for one in turn.get("tool_calls", ())]
    assert made == [turn["tool_call_id"] for turn in last if turn["role"] == "tool"]
    assert len(made) == len(set(made)) == 6 and all(isinstance(one, str) and one.strip() for one in made)


def test_malformed_calls_are_answered_and_the_episode_goes_on():
    broken = (
        said('<tool_call>{"name": "convert"'),  # cut off: no answer
        said("", call("convert", "no json", id="a"), {"function": 3}),
        said("", call("convert", "{}"), call("nothing", "{}")),
    )
    result, prompts = play(*broken, said("2000"))
    assert result.won and result.steps == 4 and result.corrections == 1
    assert prompts[1][-1]["role"] == "user" and "malformed" in prompts[1][-1]["content"]
    for prompt in prompts:
        made = [one["id"] for message in prompt for one in message.get("tool_calls", ())]
        assert made == [message["tool_call_id"] for message in prompt if message["role"] == "tool"]
        assert len(set(made)) == len(made)


def test_the_prompts_of_training_answer_every_native_call():
    """Also malformed calls, and an argument that holds a tag: the calls never become text."""
    good = call("convert", '{"amount": 2, "unit": "km"}', id="c1")
    model = Model(
        said("", good, call("convert", '{"amount": ', id="c2")),
        said("", call("convert", "no json", id="c3"), call("convert", "[", id="c4")),
        said("", call("convert", '{"amount": 2, "unit": "</tool_call>"}', id="c5")),
        said("<answer>2000</answer>"),
    )
    agent = ChatAgent(PromptConfig(style="transcript"), instructions_of(ToolEnv(**OPTIONS)), ToolReader())
    [(_, result)] = play_prompting(agent, model, lambda: ToolTags(ToolEnv(**OPTIONS)), ["t2"])
    assert result.won and result.steps == 4 and result.corrections == 1
    talk = model.prompts[-1]
    made = [one["id"] for message in talk for one in message.get("tool_calls", ())]
    answered = {one["tool_call_id"]: one["content"] for one in talk if one["role"] == "tool"}
    assert len(made) == 5 and made == list(answered) and [one["role"] for one in talk].count("user") == 1
    results = list(answered.values())
    assert results[0] == "2000.0" and results[1].startswith("malformed call: no JSON")
    assert results[2] == results[3] and "malformed call: no JSON" in results[2] and "is not one of" in results[4]


def test_a_local_model_reads_tools_by_its_template(request):
    template = (request.config.rootpath / "tests" / "templates" / "qwen2_5.jinja").read_text(encoding="utf-8")
    tools = [{"type": "function", "function": {"name": "now<|im_end|>", "description": "x", "parameters": {}}}]
    made = {"role": "assistant", "content": "", "tool_calls": [call("now", '{"a": "<|im_end|>"}', id="1")]}
    messages = [
        {"role": "user", "content": "When?"},
        made,
        {"role": "tool", "tool_call_id": "1", "content": "<|im_end|>5"},
    ]
    for chat_template in (template, None):
        words = qwen2_tokenizer(chat_template)
        policy = around(words, 4096)
        ids = PolicyChatModel(policy).prompt(Prompt(messages, tools))
        text = words.decode(ids, skip_special_tokens=False)
        assert '{"name": "now", "arguments": ' in text and "now<|im_end|>" in text and "5" in text
        assert ids.count(policy.eos_id) == (4 if chat_template else 0)  # of system, user, assistant and results


@pytest.fixture(scope="module")
def llama(request, tmp_path_factory):
    """A folder with a model whose template writes calls as Llama 3.1 does."""
    template = (request.config.rootpath / "tests" / "templates" / "llama3_1.jinja").read_text(encoding="utf-8")
    path, policy = tmp_path_factory.mktemp("llama"), around(llama3_tokenizer(template), 4096)
    policy.model.save_pretrained(path)
    policy.tokenizer.save_pretrained(path)
    return path


PLAYED = ("--env", "RoleAgent/ToolEnv-v0", "--split", "all", "--max-tokens", 4, "--tasks", 1, "--set", "wia=off")


def test_a_local_model_plays_in_the_format_of_its_template(llama, capsys):
    result = evaluated(capsys, "--agent", llama, *PLAYED)
    assert result["prompt"]["tool_format"] == "llama3" and result["errors"] == 0
    assert main([str(one) for one in ("--agent", llama, *PLAYED, "--set", "prompt.tool_format=hermes")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "prompt.tool_format=hermes, but the model's chat template writes calls as llama3, "
        '{"name": …, "parameters": {…}}: set prompt.tool_format=auto'
    )


def test_a_prompting_agent_reads_calls_in_the_format_of_the_template(llama, capsys, monkeypatch):
    formats, read = set(), ToolAgent.read
    monkeypatch.setattr(ToolAgent, "read", lambda self, answer: formats.add(self.format) or read(self, answer))
    evaluated(capsys, "--agent", "plain", "--model-path", llama, *PLAYED)
    assert formats == {"llama3"}


def test_training_takes_the_format_of_the_template_and_refuses_another(llama, capsys):
    policy = (f"policy.path={llama}", "policy.context=2048", "rollout.action_tokens=4", "wia=off", "aiw=off")
    short = (
        "warmstart.episodes=0",
        "train.iterations=1",
        "rollout.num_groups=1",
        "rollout.group_size=2",
        "env.eval_tasks=1",
    )
    options = ("env.id=RoleAgent/ToolEnv-v0", "run_dir=run", *policy, *short)
    assert train(["prompt.tool_format=python", *options]) == 2
    assert "writes calls as llama3" in capsys.readouterr().err and not Path("run").exists()
    assert train(options) == 0
    assert "calls of tools: llama3 (as in the chat template)" in capsys.readouterr().out


def test_rag_searches_once_and_answers(capsys):
    def reply(body, number):
        assert number < 2 or "<information>" in body["messages"][-1]["content"]
        return "<answer>nobody knows</answer>"

    with serving(reply) as fake:
        where = ("--agent", "rag", "--base-url", fake.url, "--env", "RoleAgent/SearchQA-v0", "--split", "test")
        result = evaluated(capsys, *where, "--tasks", 5)
    assert result["steps"] == 2.0 and result["n"] == 5 and result["errors"] == 0
    assert len([body for body in fake.asked if len(body["messages"]) == 2]) == 5

"""``evaluate.py`` with a model behind it: servers in fair weather and foul, Hugging Face folders, prompting agents."""

import json
import re
import time

import gymnasium
import numpy as np
import pytest
from fake_openai import KEY, MODEL, disturbed, error, message, serving, slowly
from programs import load, start
from tiny import qwen

from roleagent.agents.chat.endpoint import Endpoint
from roleagent.agents.evaluation.baselines import build_agent
from roleagent.agents.policies import hf
from roleagent.tasks.split import first_tasks

evaluate = load("evaluate")
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TOY = ("--env", "RoleAgent/Toy-v0", "--split", "valid", "--tasks", 12)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder to work in, a key, and no patience."""

    class Hasty(Endpoint):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options, retries=2)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("ROLEAGENT_API_KEY", raising=False)
    monkeypatch.setattr(evaluate, "Endpoint", Hasty)
    return tmp_path


def measure(capsys, *arguments):
    assert evaluate.main([str(argument) for argument in arguments]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def complaint(capsys, *arguments):
    capsys.readouterr()
    assert evaluate.main([str(argument) for argument in arguments]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("evaluate.py: ") and KEY not in line
    return line


@pytest.fixture(scope="module")
def knowing():
    """A reply that knows by heart what the expert did at each step of the first tasks, and says it in tags."""
    env = gymnasium.make("RoleAgent/Toy-v0", split="valid")
    expert, known = build_agent("expert", env, np.random.default_rng(0)), {}
    for task_id in first_tasks(env, 12).task_ids:
        observation, info = env.reset(options={"task_id": task_id})
        expert.reset(observation, info)
        commands, done = known.setdefault(info["goal"], []), False
        while not done:
            commands.append(expert.act(observation, info))
            observation, _, terminated, truncated, info = env.step(commands[-1])
            done = terminated or truncated

    def reply(body, number):
        said = body["messages"][-1]["content"]
        if not (goal := re.search(r"Your task is to: (.*)", said)):
            return "yes"  # whether anybody is there
        time.sleep(0.002)
        step = int(re.search(r"Steps taken: (\d+)", said)[1])
        text = f"<think>Hm.</think><action>{known[goal[1].rstrip('.')][step]}</action>"
        return message(text, usage=(100, 10))

    return reply


# --- servers ----------------------------------------------------------------------------------------------------------


def test_a_server_plays_by_the_standard_prompts_whatever_the_weather(here, capsys, knowing):
    weather = disturbed(knowing, error(429, "slow down", {"Retry-After": "0.01"}), error(503), "drop")
    with serving(weather, key=KEY) as fake:
        arguments = ("--base-url", fake.url, *TOY, "--repeats", 2, "--prices", 1, 10, "--concurrency", 6)
        result = measure(capsys, *arguments)
        assert (result["n"], result["tasks"], result["errors"]) == (24, 12, 0)
        assert result["success"] > 0.9
        assert 1 < fake.most <= 6
        usage, answers = result["usage"], round(24 * result["steps"])
        assert (usage["answers"], usage["prompt_tokens"], usage["completion_tokens"]) == (
            answers,
            100 * answers,
            10 * answers,
        )
        assert usage["cost"] == pytest.approx(answers * (100 * 1 + 10 * 10) / 1e6)
        assert usage["seconds_per_answer"] > 0
        assert result["agent"] == {"name": MODEL, "plays": "prompts", "model": MODEL, "url": fake.url}
        assert all(KEY not in path.read_text() for path in (here / "evaluations").iterdir())
        path = here / result["records"]
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:-4]) + lines[-4][:30])  # four episodes are lost
        asked = len(fake.asked)
        again = measure(capsys, *arguments)
        steps = sum(json.loads(line)["steps"] for line in lines[-4:])
        assert len(fake.asked) - asked == steps + 2  # and whether it is there, twice
        same = ("success", "by_type", "repeats", "steps", "n")
        assert {name: again[name] for name in same} == {name: result[name] for name in same}
        arguments = [1 if word == 2 else word for word in arguments]
        once = measure(capsys, *arguments)  # of the two repeats that are there
        assert once["usage"]["answers"] == round(12 * once["steps"])


@pytest.mark.parametrize(("keeps", "style"), [(True, "transcript"), (False, "transcript"), (False, "window")])
def test_a_server_whose_template_drops_thoughts_is_named(capsys, keeps, style):
    """As the templates of Qwen3 and DeepSeek-R1; a window has no thoughts that could be dropped."""

    def reply(body, number):
        *earlier, newest = body["messages"]
        texts = [one["content"] if keeps else re.sub(r"<think>.*?</think>", "", one["content"]) for one in earlier]
        prompt = sum(len(text) // 4 + 5 for text in (*texts, newest["content"]))
        text = f"<think>{'I may have to open the fridge. ' * 20}</think><action>look</action>"
        return message(text, usage=(prompt, len(text) // 4 + 1))

    with serving(reply, key=KEY) as fake:
        options = ("--base-url", fake.url, *TOY[:-1], 2, "--set", f"prompt.style={style}")
        assert evaluate.main([str(option) for option in options]) == 0
    shown = capsys.readouterr()
    usage = json.loads(shown.out.splitlines()[-1])["usage"]
    dropped = not keeps and style == "transcript"
    assert (usage["dropped_thoughts"] > 0) == dropped
    assert ("chat template dropped earlier thoughts" in " ".join(shown.out.split())) == dropped


def test_what_stays_unanswered_is_tried_again_by_the_same_command(here, capsys, knowing):
    refused = "put a hot"  # of a goal; the instructions say "hot", too

    def reply(body, number):
        hard = refused and refused in body["messages"][-1]["content"]
        return error(400, "I cannot") if hard else knowing(body, number)

    with serving(reply, key=KEY) as fake:
        arguments = ("--base-url", fake.url, "--model", MODEL, *TOY, "--out", "records.jsonl")
        first = measure(capsys, *arguments)
        assert first["errors"] > 0 and first["n"] == 12 - first["errors"]
        assert "heat" not in first["by_type"]  # in no rate
        refused = ""
        second = measure(capsys, *arguments)
        assert (second["errors"], second["n"]) == (0, 12)
        assert second["success"] > 0.9
        assert len((here / "records.jsonl").read_text().splitlines()) == 1 + 12 + first["errors"]


def test_a_killed_evaluation_loses_only_what_was_being_played(here, capsys):
    with serving(slowly(0.01, "<action>look</action>"), key=KEY) as fake:
        arguments = ("--base-url", fake.url, *TOY[:4], "--tasks", 24, "--concurrency", 4, "--out", "records.jsonl")
        process, path = start("evaluate", *arguments, cwd=here), here / "records.jsonl"
        while not path.exists() or path.read_text().count("\n") < 5:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.02)
        process.kill()
        process.communicate()
        kept, asked = path.read_text(), len(fake.asked)
        whole = kept[: kept.rindex("\n") + 1]
        result = measure(capsys, *arguments)
        assert path.read_text().startswith(whole)
        left = 24 - (whole.count("\n") - 1)
        assert (result["n"], result["steps"]) == (24, 15.0)
        assert 0 < left < 24 and len(fake.asked) - asked == 15 * left + 2


# --- folders ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[None, TEMPLATE], ids=["plain", "chat template"])
def folder(request, tmp_path_factory):
    """A model as Hugging Face keeps it."""
    path = tmp_path_factory.mktemp("models") / "small"
    policy = qwen(context=2048, chat_template=request.param)
    policy.model.save_pretrained(path)
    policy.tokenizer.save_pretrained(path)
    return path


SHORT = ("--env-arg", "max_steps=2", "--max-tokens", 8, "--temperature", 1, "--batch", 3)


@pytest.mark.parametrize("agent", [None, "plain"])
def test_a_model_of_hugging_face_plays_and_goes_on(here, capsys, folder, agent):
    who = ("--agent", folder) if agent is None else ("--agent", agent, "--model-path", folder)
    arguments = (*who, *TOY, "--tasks", 5, *SHORT, "--repeats", 2, "--out", "records.jsonl")
    first = measure(capsys, *arguments)
    assert (first["n"], first["tasks"]) == (10, 5)
    assert first["agent"]["model"] == str(folder) and len(first["agent"]["weights"]) == 16
    whole = (here / "records.jsonl").read_text()
    lines = whole.splitlines(keepends=True)
    (here / "records.jsonl").write_text("".join(lines[:7]) + lines[7][:9])
    assert measure(capsys, *arguments) == first
    assert (here / "records.jsonl").read_text() == whole


class NoHub:
    def model_info(self, name, timeout):
        raise ConnectionError("Name or service not known")


@pytest.mark.parametrize("agent", ["nobody/nothing", "./nothing", "-nothing-/."])
def test_a_model_that_is_nowhere_is_one_line_at_once(capsys, monkeypatch, agent):
    monkeypatch.setattr(hf, "HfApi", NoHub)
    monkeypatch.setattr(
        hf.AutoTokenizer, "from_pretrained", lambda *_, **__: pytest.fail("transformers goes on trying")
    )
    line = complaint(capsys, f"--model-path={agent}", *TOY)
    assert f"cannot load a causal language model from {agent}" in line

"""What a training run with tools needs: demonstrations, a configuration, and one line for what is wrong with files."""

import json
import re

import gymnasium
import numpy as np
import pytest

from roleagent.agents.builders import EnvSplit
from roleagent.config import ConfigError, load
from roleagent.env_card import make_expert
from roleagent.envs.tools.calls.command import answer_command, call_command
from roleagent.envs.tools.expert import GIVEN_UP
from roleagent.learners.run.display import Display
from roleagent.learners.run.folder import read_config
from roleagent.learners.run.launch import open_run, size_warm_start
from roleagent.learners.sft.demonstrations import Demonstration, Step, check_reply_lengths
from roleagent.tools import Call
from roleagent.types import Task

PLAN = [{"name": "convert", "arguments": {"amount": number, "unit": "km"}} for number in (1, 2)]
TASKS = [
    {"id": "a", "prompt": "How far?", "answer": 2000, "calls": PLAN},
    {"id": "b", "prompt": "And now?", "answer": 1},
]


def make(tasks):
    arguments = {"tools": "roleagent.envs.tools.examples", "tasks": tasks, "judge": "number", "split": "all"}
    return gymnasium.make("RoleAgent/ToolEnv-v0", **arguments)


def test_the_expert_makes_the_calls_of_the_task_and_repeats_what_was_not_played():
    env = make(TASKS)
    expert = make_expert(env, np.random.default_rng(0))
    text, info = env.reset(options={"task_id": "a"})
    expert.reset(info["goal"], text)
    slip, played, rewards = call_command([Call("convert", {"amount": -1, "unit": "km"})]), [], []
    for command in (slip, None, None, None):
        played.append(command or expert.act())
        text, reward, *_ = env.step(played[-1])
        expert.observe(played[-1], text)
        rewards.append(reward)
    assert played[1:] == list(env.unwrapped.walkthrough()) and rewards == [0.0, 0.0, 0.0, 1.0]
    text, info = env.reset(options={"task_id": "b"})
    expert.reset(info["goal"], text)
    assert expert.given_up and expert.act() == answer_command(GIVEN_UP)


def test_tasks_without_calls_have_no_expert():
    with pytest.raises(ValueError, match=r"no task of the split 'all' brings calls"):
        make_expert(make(TASKS[1:]), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("tools", "tasks", "problem"),
    [
        ("{folder}/broken.py", "{folder}/tasks.jsonl", "cannot import the tools of {folder}/broken.py: SyntaxError: "),
        ("{folder}/none.py", "{folder}/tasks.jsonl", "there is no file {folder}/none.py"),
        ("roleagent.envs.tools.examples", "{folder}/tasks.jsonl", "{folder}/tasks.jsonl, line 2: no JSON"),
        ("mcp:no-such-server --now", "{folder}/tasks.jsonl", "MCP server 'no-such-server --now': the server does not"),
    ],
)
def test_what_cannot_be_used_is_one_line_before_anything_is_played(tools, tasks, problem, tmp_path):
    if tools.startswith("mcp:"):
        pytest.importorskip("mcp", reason="needs the extra [mcp]")
    (tmp_path / "broken.py").write_text("def go(:")
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "prompt": "Go."}\n{')
    options = [f"env.kwargs.tools={tools}", f"env.kwargs.tasks={tasks}", "env.id=RoleAgent/ToolEnv-v0"]
    with pytest.raises(ConfigError) as error:
        EnvSplit.open(load("configs/default.yaml", [one.format(folder=tmp_path) for one in options]), "train")
    expected = f"cannot make the environment RoleAgent/ToolEnv-v0: {problem.format(folder=tmp_path)}"
    assert str(error.value).startswith(expected) and "\n" not in str(error.value)


def test_replies_that_the_policy_could_not_finish_are_refused():
    class Letters:
        literal, encode = staticmethod(str), staticmethod(list)

    split = EnvSplit.open(load(overrides=["env.id=RoleAgent/ToolEnv-v0", "rollout.action_tokens=40"]), "train")
    plans = [answer_command("5"), call_command([Call("convert", {"amount": 1, "unit": "km"})])]
    short, long = (
        Demonstration(Task("RoleAgent/ToolEnv-v0", "a"), "", {}, (Step(plan, True, "", {}),)) for plan in plans
    )
    warnings: list[str] = []
    check_reply_lengths(split, Letters(), [short, short], warnings.append)
    assert not warnings
    check_reply_lengths(split, Letters(), [short, long], warnings.append)
    assert re.match(r"1 of 2 demonstrations .* rollout.action_tokens=40: the longest has \d+", *warnings)
    with pytest.raises(ConfigError, match=r"2 of 3 demonstrations .* rollout.action_tokens=40: the longest has \d+"):
        check_reply_lengths(split, Letters(), [short, long, long], warnings.append)


def split_of(tmp_path, count, *overrides):
    """A split of ``count`` tasks, each of which one call solves."""
    calls = [[{"name": "convert", "arguments": {"amount": n, "unit": "km"}}] for n in range(count)]
    rows = [{"id": f"t{n}", "prompt": f"Is {n} far?", "answer": 1000 * n, "calls": calls[n]} for n in range(count)]
    (tmp_path / f"{count}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    kwargs = (f"env.kwargs.tasks={tmp_path}/{count}.jsonl", "env.kwargs.tools=roleagent.envs.tools.examples")
    given = ["env.id=RoleAgent/ToolEnv-v0", "env.train_split=all", "env.kwargs.judge=number", *kwargs, *overrides]
    return EnvSplit.open(load(overrides=given), "all")


def test_a_warm_start_is_sized_by_its_tasks(tmp_path):
    said = []
    sizes = ("warmstart.episodes=2000", "warmstart.rounds=12", "warmstart.round_episodes=600")
    given = split_of(tmp_path, 46, *sizes, f"run_dir={tmp_path}/run")
    few = size_warm_start(given, said.append)
    assert (few.config.warmstart.episodes, few.config.warmstart.round_episodes) == (400, 120)
    assert said == ["the warm start fits 46 tasks: 400 demonstrations and 12 rounds of 120 episodes"]
    assert size_warm_start(few, said.append).config == few.config
    for resume in (False, True):  # the folder keeps what was asked for, which an experiment compares
        with open_run(given.config, few, Display("", quiet=True), resume) as run:
            assert run.config == few.config and read_config(run.folder.path) == given.config
    many = split_of(tmp_path, 400, *sizes)
    assert size_warm_start(many, said.append).config == many.config and len(said) == 1

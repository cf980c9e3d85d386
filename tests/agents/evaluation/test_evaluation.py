"""Measuring: the sums by hand, files that outlive a kill, and the real ``evaluate.py``."""

import json
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import gymnasium
import pytest
import yaml
from programs import load, run
from tiny import qwen

from roleagent.agents.builders import EnvSplit
from roleagent.agents.evaluation.header import _files
from roleagent.agents.evaluation.play import play_agents
from roleagent.agents.evaluation.records import Attempt, Record, RecordFile
from roleagent.agents.evaluation.single_step import expert_steps, single_step
from roleagent.agents.evaluation.statistics import result_rows, summarize
from roleagent.agents.evaluation.transcripts import read_transcripts
from roleagent.config import from_dict, to_dict
from roleagent.config import load as load_config
from roleagent.envs.pool import EnvPool
from roleagent.tasks.split import TaskSplit, wilson
from roleagent.types import ACTION, Completion

evaluate = load("evaluate")
HEADER = {"protocol": 1, "agent": "somebody"}
SPLIT = TaskSplit("RoleAgent/Toy-v0", "train", ("a", "b", "c"))


def record(task_id, won=True, kind="heat", steps=4, prediction=None, reason=None):
    return Record(task_id, kind, won, float(won), steps, reason or ("won" if won else "max_steps"), prediction)


# --- sums -------------------------------------------------------------------------------------------------------------


def test_the_summary_by_hand():
    records = [
        record("a", True, "heat", 4, 0.5),
        record("b", False, "heat", 10, 0.7),
        record("c", True, "cool", 6),
        Record.failed("d", "cool", "RuntimeError: crashed"),
    ]
    summary = summarize(records)
    assert (summary["n"], summary["errors"]) == (3, 1)
    assert summary["success"] == summary["reward"] == pytest.approx(2 / 3)
    assert summary["interval"] == pytest.approx(wilson(2, 3))
    assert summary["steps"] == pytest.approx(20 / 3)
    assert summary["prediction"] == pytest.approx(0.6)  # over the episodes that made any
    assert list(summary["by_type"]) == ["cool", "heat"]
    cool = summary["by_type"]["cool"]
    assert (cool["n"], cool["tasks"], cool["success"], cool["steps"]) == (1, 1, 1.0, 6.0)
    assert cool["interval"] == pytest.approx(wilson(1, 1))
    assert summary["by_type"]["heat"]["success"] == 0.5
    assert summary["macro"] == 0.75  # every type counts the same


def test_a_measure_of_one_environment_of_several_says_nothing_of_the_others():
    """An episode of its own without the measure, such as one that crashed, counts 0."""
    scores = [{"score": 1.0}, {}, {}]
    kinds = ("craft/plank", "craft/plank", "toy/heat")
    records = [replace(record(str(n), kind=kinds[n]), metrics=own) for n, own in enumerate(scores)]
    summary = summarize(records)
    assert summary["metrics"]["score"]["mean"] == summary["by_type"]["craft"]["metrics"]["score"]["mean"] == 0.5
    assert summary["by_type"]["toy"]["metrics"] == {}
    rows = {row[0]: row[-1] for row in result_rows({"x": summary}, details=True)}
    assert (rows["all"], rows["craft"], rows["toy"]) == ("50.0", "50.0", "–")
    alone = summarize([replace(record("a", kind=kind), metrics=own) for kind, own in zip("ab", scores, strict=False)])
    assert alone["by_type"]["b"]["metrics"]["score"]["mean"] == 0.0


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_is_written_by_one_process_and_not_left_empty(tmp_path):
    path = tmp_path / "deep" / "records.jsonl"
    with RecordFile.alone(path, HEADER) as file:
        with pytest.raises(BlockingIOError, match="another process is writing"), RecordFile.alone(path, HEADER):
            pass
        file.append(record("a"))
    with RecordFile.alone(path, HEADER) as again:
        assert again.records == [record("a")]
    with pytest.raises(ZeroDivisionError), RecordFile.alone(tmp_path / "none.jsonl", HEADER):
        raise ZeroDivisionError
    assert not (tmp_path / "none.jsonl").exists()


def test_what_has_no_outcome_is_missing_until_it_has(tmp_path):
    file = RecordFile(tmp_path / "records.jsonl", HEADER)
    for entry in (record("a"), Record.failed("b", "heat", "no answer"), record("c")):
        file.append(entry)
    assert file.missing(SPLIT, repeats=2) == [(0, "b"), (1, "a"), (1, "b"), (1, "c")]
    file.append(record("b", won=False))
    again = RecordFile(file.path, HEADER)
    assert again.missing(SPLIT) == [] and len(again.written) == 4
    assert sorted(entry.task_id for entry in again.records if entry.sound) == ["a", "b", "c"]


def test_a_file_of_another_evaluation_is_refused(tmp_path):
    path = tmp_path / "records.jsonl"
    RecordFile(path, HEADER).append(record("a"))
    with pytest.raises(ValueError, match=r"another evaluation \(agent, seed differ\).*--out"):
        RecordFile(path, {"protocol": 1, "agent": "somebody else", "seed": 3})


def test_a_header_knows_the_files_of_a_user_by_their_content(tmp_path):
    program, texts, tools = (tmp_path / name for name in ("agent.py", "texts.yaml", "tools.py"))
    for file in (program, texts, tools):
        file.write_text("a")
    options = [f"agent.command=python {program} --fast", f"prompt.templates={texts}"]
    config = load_config(overrides=[*options, f"env.kwargs={{judge: '{tools}:reward', tasks: [one]}}"])
    split = SimpleNamespace(config=config, environments={"": SimpleNamespace(config=config)})
    found = _files(split)["files"]
    assert {*found} == {str(program), str(texts), str(tools)}
    for file in (program, texts, tools):
        file.write_text("b")
        assert _files(split)["files"][str(file)] != found[str(file)], "another agent, prompt or judge"
    assert _files(EnvSplit.open(load_config("configs/toy.yaml"), "valid")) == {}


@pytest.mark.parametrize("content", ["hello\n", '{"protocol": 1, "agent": "somebody"}\n{"task": 3}\n', "{}"])
def test_what_is_no_record_file_is_left_alone(tmp_path, content):
    path = tmp_path / "records.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match="not an evaluation file"):
        RecordFile(path, HEADER)
    assert path.read_text() == content


# --- agents -----------------------------------------------------------------------------------------------------------


class Walker:
    """An agent of somebody else's."""

    def reset(self, observation, info):
        self.steps = 0

    def act(self, observation, info):
        self.steps += 1
        return info["admissible_actions"][0] if self.steps > 1 else "gibberish"


@pytest.fixture
def toy():
    return gymnasium.make("RoleAgent/Toy-v0", split="valid")


def played_by(agent, env, tasks):
    return list(play_agents(lambda: agent, EnvPool(lambda: env), [Attempt(0, task) for task in tasks]))


def test_a_world_that_fails_is_reported_and_an_agent_that_fails_is_named(toy):
    tasks = toy.unwrapped.task_split.task_ids[:3]
    step, calls = toy.unwrapped.step, []

    def crash(action):
        calls.append(action)
        if len(calls) == 20:
            raise RuntimeError("no more\nkitchens")
        return step(action)

    toy.unwrapped.step = crash
    found = played_by(Walker(), toy, tasks)
    assert [entry.stop_reason for entry in found] == ["max_steps", "error", "max_steps"]
    assert found[1].error.startswith("RuntimeError: no more kitchens")
    broken = Walker()
    broken.act = None
    with pytest.raises(ValueError, match="agent Walker raised TypeError: 'NoneType' object is not callable"):
        played_by(broken, toy, tasks)


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in, and generated games."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What a training run leaves behind, as far as ``evaluate.py`` looks."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    checkpoint = folder / "checkpoints" / "step-500003"
    policy = qwen(context=512)
    policy.model.save_pretrained(checkpoint / "policy")
    policy.tokenizer.save_pretrained(checkpoint / "policy")
    (checkpoint / "state.json").write_text("{}")
    short = ["env.kwargs.max_steps=3", "rollout.action_tokens=6", "rollout.prediction_tokens=6", "rollout.eval_batch=4"]
    config = load_config(overrides=["env.id=RoleAgent/Toy-v0", "env.eval_split=valid", "policy.context=512", *short])
    (folder / "config.yaml").write_text(yaml.safe_dump(to_dict(config)))
    return folder


def measure(capsys, *arguments):
    """The result of a successful command: its last line."""
    assert evaluate.main([str(argument) for argument in arguments]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def complaint(capsys, *arguments):
    capsys.readouterr()
    assert evaluate.main([str(argument) for argument in arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("evaluate.py: ")
    return line


def halve(path):
    """Leaves the header, half of the records, and half a line."""
    lines = path.read_text().splitlines(keepends=True)
    half = 1 + (len(lines) - 1) // 2
    path.write_text("".join(lines[:half]) + lines[half][:10])
    return "".join(lines)


TOY = ("--env", "RoleAgent/Toy-v0", "--split", "valid", "--tasks", 12)


def test_the_command_itself(here):
    """In a process of its own, in another folder than the project, with an agent that lies there."""
    (here / "mine.py").write_text(
        "class Agent:\n"
        "    def reset(self, observation, info): pass\n"
        "    def act(self, observation, info): return 'look'\n"
    )
    arguments = ("--env", "RoleAgent/ALFWorld-v0", "--split", "valid_seen", "--env-arg", "size=small", "--tasks", 6)
    status, out, err = run("evaluate", *arguments, "--agent", "mine:Agent", cwd=here)
    assert status == 0, err
    result = json.loads(out.splitlines()[-1])
    assert (result["success"], result["n"], result["tasks"]) == (0.0, 6, 6)
    assert "all" in out and "%" in out
    assert len((here / result["records"]).read_text().splitlines()) == 7


def test_an_agent_that_gives_no_command_is_an_error_and_no_failure(here, capsys, monkeypatch):
    monkeypatch.syspath_prepend(here)
    (here / "silent.py").write_text(
        "class Agent:\n    def reset(self, observation, info): pass\n    def act(self, observation, info): 'look'\n"
    )
    line = complaint(capsys, *TOY, "--agent", "silent:Agent")
    assert line.endswith("act() of the agent Agent returned None, not a text")


SHOP = ("--env", "RoleAgent/WebShop-v0", "--split", "test", "--tasks", 2)


@pytest.mark.parametrize(
    ("where", "body", "said"),
    [
        (TOY, "return", "the function own_{n}:play returned None, not a text"),
        (TOY, "return info['nothing']", "the function own_{n}:play raised KeyError: 'nothing' ({here}/own_{n}.py:3)"),
        (
            TOY,
            "return random.choice([])",
            "IndexError: Cannot choose from an empty sequence ({here}/own_{n}.py:3)",
        ),
        (
            SHOP,
            "return info['admissible_actions'][0]",
            "info['admissible_actions'] is empty here, where commands are",
        ),
    ],
)
def test_an_error_of_an_agent_names_it_and_the_place(here, capsys, monkeypatch, where, body, said):
    monkeypatch.syspath_prepend(here)
    number = abs(hash(body))
    (here / f"own_{number}.py").write_text(f"import random\ndef play(observation, info):\n    {body}\n")
    line = complaint(capsys, *where, "--agent", f"own_{number}:play")
    assert said.format(n=number, here=here) in line


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("<action>{}</action>", "take the tags away"),
        ("<command> {} </command> I look around.", "take the tags away"),
        ("```\\n{}\\n```", "take the Markdown fence away"),
        ('"{}"', "take the quotes away"),
        ("`{}`", "take the quotes away"),
        ('{{"command": "{}"}}', "take the JSON away"),
        ("Action: {}", "take the label away"),
        ("{} quickly", None),
    ],
)
def test_commands_in_tags_or_quotes_are_named_after_the_first_episodes(here, capsys, monkeypatch, reply, said):
    """The environment understands none of them, and the result alone would not say why."""
    monkeypatch.syspath_prepend(here)
    name = f"wrapped_{abs(hash(reply))}"
    (here / f"{name}.py").write_text(f"def play(observation, info):\n    return '{reply.format('go to fridge')}'\n")
    assert evaluate.main([str(one) for one in (*TOY, "--agent", f"{name}:play")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    if said is None:
        assert "bare command" not in shown
    else:
        assert shown.count(f"{said} and return the bare command, 'go to fridge'") == 1


WAITING = """
import threading, time
import numpy as np
from roleagent.agents.evaluation.baselines import RandomAgent

class Agent(RandomAgent):
    acting, most, threads = 0, 0, set()
    lock = threading.Lock()
    {attribute}

    def __init__(self, seed=0):
        super().__init__(np.random.default_rng(seed))
        self.made = threading.get_ident()

    def reset(self, observation, info):
        self.task = info["task_id"]

    def act(self, observation, info):
        assert info["task_id"] == self.task and threading.get_ident() == self.made
        with self.lock:
            Agent.acting += 1
            Agent.most = max(Agent.most, Agent.acting)
            Agent.threads.add(self.made)
        time.sleep(0.01)
        Agent.acting -= 1
        return super().act(observation, info)
"""


@pytest.mark.parametrize(
    ("attribute", "options", "threads"), [("", (), 4), ("thread_safe = False", (), 1), ("", ("--concurrency", "1"), 1)]
)
def test_agents_of_ones_own_act_side_by_side_unless_they_are_not_safe(here, capsys, attribute, options, threads):
    module = f"waiting_{threads}{len(options)}"
    (here / f"{module}.py").write_text(WAITING.format(attribute=attribute))
    where = ("--env", "RoleAgent/Toy-v0", "--split", "valid", "--tasks", "12", "--agent-arg", "seed=3")
    command = [*where, "--agent", f"{module}:Agent", "--concurrency", "4", *options, "--out", "x.jsonl"]
    assert evaluate.main(command) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    agent = sys.modules[module].Agent
    assert (result["n"], result["errors"], len(agent.threads)) == (12, 0, threads)
    assert (agent.most > 1) == (threads > 1)


def test_options_that_would_change_nothing_are_refused(here, capsys):
    assert "no option 'trials'" in complaint(capsys, *TOY, "--agent", "random", "--agent-arg", "trials=2")
    assert "named agent" in complaint(capsys, *TOY, "--model-path", here, "--agent-arg", "example=off")
    assert "names one of a run" in complaint(capsys, *TOY, "--agent", "random", "--checkpoint", "step-000003")


@pytest.mark.parametrize("agent", ["random", "expert"])
def test_an_interrupted_evaluation_ends_as_if_it_had_not_been(here, capsys, agent):
    first = measure(capsys, *TOY, "--agent", agent)
    path = here / first["records"]
    assert path.parent.name == "evaluations"
    whole = halve(path)
    assert measure(capsys, *TOY, "--agent", agent) == first
    assert path.read_text() == whole
    assert measure(capsys, *TOY, "--agent", agent) == first  # complete: nothing is played


def test_every_repeat_has_seeds_of_its_own(here, capsys):
    """Which no other seed has: the same episodes twice would be two seeds. A later command may ask for more repeats of
    the same file."""

    def courses(path, repeat=0):
        rows = [json.loads(line) for line in (here / path).read_text().splitlines()[1:]]
        return [(row["task_id"], row["steps"], row["metrics"]) for row in rows if row["repeat"] == repeat]

    shop = ("--env", "RoleAgent/WebShop-v0", "--split", "test", "--tasks", 12, "--agent", "random")
    once = measure(capsys, *shop, "--out", "records.jsonl")
    assert once["repeats"] is None
    thrice = measure(capsys, *shop, "--out", "records.jsonl", "--repeats", 3)
    assert (thrice["n"], thrice["tasks"], len(thrice["repeats"]["success"])) == (36, 12, 3)
    other = measure(capsys, *shop, "--seed", 1, "--repeats", 2)["records"]
    played = [courses("records.jsonl", repeat) for repeat in range(3)] + [courses(other, repeat) for repeat in range(2)]
    assert all(one != another for place, one in enumerate(played) for another in played[:place])
    assert thrice["repeats"]["success"][0] == once["success"]
    assert measure(capsys, *shop, "--out", "records.jsonl") == once  # asked for one, told of one


def test_a_run_folder_brings_its_environment_and_its_checkpoint(here, capsys, trained):
    result = measure(capsys, "--agent", trained, "--tasks", 10, "--temperature", 1, "--out", "records.jsonl")
    assert (result["env_id"], result["split"], result["tasks"]) == ("RoleAgent/Toy-v0", "valid", 10)
    assert (result["agent"]["checkpoint"], result["kwargs"]) == ("step-500003", {"max_steps": 3})
    assert (result["steps"], result["prediction"]) == (3.0, 0.0)
    whole = halve(here / "records.jsonl")
    again = measure(capsys, "--agent", trained, "--tasks", 10, "--temperature", 1, "--out", "records.jsonl")
    assert again == result and (here / "records.jsonl").read_text() == whole


def test_an_evaluation_without_predictions_plays_the_same_episodes(here, capsys, trained):
    def played(option):
        found = measure(capsys, "--agent", trained, "--tasks", 4, "--out", f"{option}.jsonl", "--set", option)
        turns = [turn for episode in read_transcripts(here / f"{option}.jsonl") for turn in episode["turns"]]
        return found["prediction"], [[token for token in turn["tokens"] if token[1] == ACTION] for turn in turns]

    with_predictions, without = played("rollout.eval_predictions=on"), played("rollout.eval_predictions=off")
    assert (with_predictions[0], without[0]) == (0.0, None)
    assert len(without[1]) == 12 and all(without[1]) and with_predictions[1] == without[1]
    kept = ("--set", "prompt.predictions=followup", "--set", "rollout.eval_predictions=off")
    assert "change the play" in complaint(capsys, "--agent", trained, *kept)


@pytest.mark.parametrize("damage", ["no checkpoint", "half the weights", "damaged configuration"])
def test_a_damaged_run_is_one_line(here, capsys, trained, damage):
    copy = here / "run"
    shutil.copytree(trained, copy)
    weights = copy / "checkpoints" / "step-500003" / "policy" / "model.safetensors"
    if damage == "no checkpoint":
        shutil.rmtree(copy / "checkpoints")
    elif damage == "half the weights":
        weights.write_bytes(weights.read_bytes()[:5000])
    else:
        (copy / "config.yaml").write_text("env: [")
    line = complaint(capsys, "--agent", copy)
    assert str(copy) in line
    assert {"no checkpoint": "no checkpoint yet", "half the weights": "cannot be read"}.get(
        damage, "is damaged"
    ) in line


# --- single steps -----------------------------------------------------------------------------------------------------


class Copyist:
    """A policy of bytes. It says the expert's command on the prompts that it was shown, and else nothing of use."""

    version, context_length, eos_id, end_ids = 0, 1 << 20, 256, frozenset({256})
    tokenizer = SimpleNamespace(chat_template=None)

    def __init__(self):
        self.known = {}

    def encode(self, text, after=""):
        return list(text.encode())

    def decode(self, token_ids):
        return bytes(token for token in token_ids if token != self.eos_id).decode("utf-8", "replace")

    def literal(self, text):
        return text

    def single_token(self, text):
        return None

    def reseed(self, seed):
        pass

    def clear_cache(self):
        pass

    def generate(self, requests, temperature):
        said = [f"<action>{self.known.get(request.prompt_ids, 'look')}</action>" for request in requests]
        return [Completion(tuple(self.encode(text)), (0.0,) * len(text), "stop") for text in said]


@pytest.mark.parametrize(
    ("env", "split"),
    [
        ({"id": "RoleAgent/Toy-v0"}, "valid"),
        ({"id": "RoleAgent/ALFWorld-v0", "kwargs": {"data_dir": "generated", "size": "tiny"}}, "valid_unseen"),
    ],
)
@pytest.mark.parametrize("style", ["transcript", "window"])
def test_a_single_step_is_right_if_it_is_the_experts_after_the_experts_history(env, split, style):
    tree = {"env": {**env, "eval_split": split}, "prompt": {"style": style}, "wia": False, "policy": {"context": 4096}}
    env_split = EnvSplit.open(from_dict(tree), split, 6)
    policy, task_ids = Copyist(), env_split.task_split.task_ids
    own = [expert_steps(env_split, policy, task_id, 3) for task_id in task_ids]
    assert all(len(steps) > 2 for steps in own)
    for steps in own:  # the prompts are those of an episode in which the expert's replies were sampled
        replies = [tuple(policy.encode(f"<action>{step.command}</action>")) for step in steps]
        opening = [Completion(reply, (0.0,) * len(reply), "stop") for reply in replies]
        [group] = env_split.rollout(policy).play([steps[0].task_id], 1, 1.0, openings=[opening])
        assert group.trajectories[0].success
        assert [turn.prompt_ids for turn in group.trajectories[0].turns] == [step.prompt_ids for step in steps]
    for share in (0, 1):
        policy.known = {step.prompt_ids: step.command for steps in own for step in steps} if share else {}
        found = single_step(env_split, policy, 3)
        assert (found["accuracy"], found["tasks"], found["left_out"]) == (share, 6, 0)
        assert found["steps"] == sum(map(len, own)) and "success" not in found
    del policy.known[own[0][1].prompt_ids]  # one mistake does not change the history of what follows
    found = single_step(env_split, policy, 3)
    assert found["accuracy"] == pytest.approx(1 - 1 / found["steps"]) and found["interval"][0] < found["accuracy"]


def test_the_prompt_of_an_episode_earns_nothing():
    """GenEnv's published code scores the prompt with the reply: an answer that a prompt shows counts as given there."""
    tree = {"env": {"id": "RoleAgent/Toy-v0"}, "wia": False, "policy": {"context": 4096}}
    env_split, policy = EnvSplit.open(from_dict(tree), "train", 1), Copyist()
    policy.literal = lambda text: f"{text} <action>{winning}</action>"  # every prompt shows how to win
    policy.generate = lambda requests, temperature: [Completion((), (), "stop") for _ in requests]
    [task_id] = env_split.task_split.task_ids
    env_split.base.reset(options={"task_id": task_id})
    for winning in env_split.base.unwrapped.walkthrough():
        [group] = env_split.rollout(policy).play([task_id], 1, 1.0)
        [trajectory] = group.trajectories
        assert f"<action>{winning}</action>" in policy.decode(trajectory.turns[0].prompt_ids)
        assert not any(turn.action for turn in trajectory.turns) and trajectory.outcome == 0

"""One run in several environments: shares, prompts and tools of each, curriculum, evaluation, resume, refusals."""

import gzip
import itertools
import json
import re
from collections import Counter
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from programs import TOY_RUN, load
from tiny import qwen

from roleagent.agents.builders import EnvSplit
from roleagent.cli import main as roleagent
from roleagent.config import ConfigError, from_dict
from roleagent.config import load as load_config
from roleagent.curricula.archive import mode_counts
from roleagent.curricula.library import FailureLibrary
from roleagent.curricula.mixed_sampler import MixedSampler
from roleagent.learners.dealing import RankSampler
from roleagent.learners.distillation import ExpertPlan
from roleagent.learners.rewards import Rewards
from roleagent.learners.rl import dynamic_sampling, filter_groups
from roleagent.learners.run.ranks import Ranks
from roleagent.learners.sft.demonstrations import collect_demonstrations
from roleagent.random_streams import random_stream
from roleagent.reports.data.load_run import load_run
from roleagent.types import Completion, Group, Task, Trajectory, Turn

differences = load("benchmarks/parts/run_differences").differences
train, evaluate = load("train"), load("evaluate")

TOY = {"id": "RoleAgent/Toy-v0", "eval_split": "valid", "eval_tasks": 3, "kwargs": {"max_steps": 12}}
CRAFT = {"id": "RoleAgent/TextCraft-v0", "name": "craft", "eval_split": "valid", "eval_tasks": 3}
CRAFT["kwargs"] = {"data_dir": "generated", "max_depth": 1, "max_steps": 8}
TOOLS = {"id": "RoleAgent/ToolEnv-v0"}
OFFICE = {"id": "RoleAgent/Office-v0", "eval_split": "test", "eval_tasks": 3, "kwargs": {"max_steps": 6}}
CONFIGS = {"toy": TOY, "craft": CRAFT, "office": OFFICE}
SEVERAL = {
    **TOY_RUN,
    "env": [{**TOY, "share": 0.5}, {**CRAFT, "share": 0.25}, {**OFFICE, "share": 0.25}],
    "policy": {**TOY_RUN["policy"], "vocabulary": 900, "context": 1024},
    "warmstart": {**TOY_RUN["warmstart"], "episodes": 16, "epochs": 2, "rounds": 1, "round_episodes": 4},
    "rollout": {"num_groups": 4, "group_size": 2, "action_tokens": 24, "prediction_tokens": 8},
    "curriculum": {"analyst": "rule"},
}


def configured(folder, **more):
    path = folder / "several.yaml"
    path.write_text(yaml.safe_dump({**SEVERAL, **more}))
    return ["--config", str(path)]


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    return configured(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module")
def whole(arguments, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert train.main([*arguments, f"run_dir={folder}"]) == 0
    return folder


def episodes(folder, iteration):
    with gzip.open(folder / f"trajectories/iteration-{iteration:06d}.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def test_tasks_are_drawn_by_share_and_groups_are_of_one_environment(whole):
    for iteration in (1, 2):
        played = episodes(whole, iteration)
        groups = {group: {one["task_id"] for one in played if one["group"] == group} for group in range(4)}
        assert all(len(tasks) == 1 for tasks in groups.values())
        names = Counter(task.partition("/")[0] for tasks in groups.values() for task in tasks)
        assert names == {"toy": 2, "craft": 1, "office": 1}


def test_success_is_reported_for_each_environment_and_in_all(whole):
    after = json.loads((whole / "after.json").read_text())
    assert after["n"] == 9
    for name in ("toy", "craft", "office"):
        own = [one["won"] for one in after["records"] if one["task_id"].startswith(f"{name}/")]
        found = after["by_type"][name]
        assert (found["n"], found["success"]) == (3, sum(own) / 3)
        low, high = found["interval"]
        assert low <= found["success"] <= high
    shown = load_run(whole)
    assert {"toy", "craft", "office"} <= shown["success_by_type"]["values"].keys()  # a panel of the report each
    assert {"toy", "craft", "office"} <= shown["gain"]["by_type"].keys()
    assert shown["env_id"] == "toy+craft+office"


def test_the_library_knows_the_environment_of_a_failure_and_leads_to_tasks_of_the_same(whole):
    library = FailureLibrary(whole / "failures.db", read_only=True)
    found = {count.env_id for count in mode_counts(library)}
    assert {"RoleAgent/Toy-v0", "RoleAgent/TextCraft-v0", "RoleAgent/Office-v0"} >= found
    assert len(found) > 1
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["stage"] == "train"][-1]
    each = [last[f"curriculum_failures/{name}"] for name in ("toy", "craft", "office")]
    assert last["curriculum_failures"] == sum(each) > 0


def test_a_resumed_run_ends_in_the_same_bits(whole, arguments, tmp_path):
    first = tmp_path / "first"
    assert train.main([*arguments, f"run_dir={first}", "train.iterations=1"]) == 0
    (first / "after.json").unlink()
    assert train.main([*arguments, f"run_dir={first}", "--resume"]) == 0
    assert not differences(whole, first)


def test_each_environment_has_the_prompts_the_tools_and_the_replies_that_it_has_alone():
    config = from_dict(SEVERAL)
    several, policy = EnvSplit.training(config), qwen(context=4096)
    rollout = several.rollout(policy)
    for name, part in several.parts.items():
        alone = EnvSplit.training(
            from_dict({**SEVERAL, "env": {k: v for k, v in CONFIGS[name].items() if k != "name"}})
        )
        task_id = alone.task_split.task_ids[0]
        [group] = alone.rollout(policy).play([task_id], 1, 1.0)
        [same] = rollout.play([f"{name}/{task_id}"], 1, 1.0)
        [one], [other] = group.trajectories, same.trajectories
        assert other.turns[0].prompt_ids == one.turns[0].prompt_ids
        assert other.task.env_id == one.task.env_id and other.task.goal == one.task.goal
        assert (part.horizon, part.reader) == (alone.horizon, alone.reader)
        assert rollout.of(f"{name}/{task_id}").action_stops == alone.rollout(policy).action_stops


def test_an_expert_is_evaluated_over_several_and_an_interrupted_evaluation_goes_on(arguments, tmp_path, capsys):
    out = tmp_path / "oracle.jsonl"
    longer = [f"--set=env.{n}.kwargs.max_steps=30" for n in range(3)]
    command = [*arguments, "--agent", "expert", "--out", str(out), *longer]
    assert evaluate.main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["success"] == 1.0 and result["by_type"]["office"]["n"] == 3
    assert set(result["environments"]) == set(CONFIGS)
    lines = out.read_text().splitlines(keepends=True)
    assert Counter(json.loads(line)["task_id"].partition("/")[0] for line in lines[1:]) == dict.fromkeys(CONFIGS, 3)
    out.write_text("".join(lines[:-2]))
    assert evaluate.main(command) == 0
    assert sorted(out.read_text().splitlines()) == sorted("".join(lines).splitlines())


def test_an_agent_that_one_of_them_refuses_plays_none(arguments, tmp_path, capsys, monkeypatch):
    monkeypatch.delattr("roleagent.envs.textcraft.env.TextCraftEnv.walkthrough")
    out = tmp_path / "oracle.jsonl"
    assert evaluate.main([*arguments, "--agent", "oracle", "--out", str(out)]) == 2
    assert "offers no oracle" in capsys.readouterr().err
    assert not out.exists() or len(out.read_text().splitlines()) == 1


def test_a_run_is_evaluated_over_its_environments(whole, tmp_path, capsys):
    assert evaluate.main(["--agent", str(whole), "--out", str(tmp_path / "run.jsonl"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    after = json.loads((whole / "after.json").read_text())
    assert [result["by_type"][name]["success"] for name in CONFIGS] == [
        after["by_type"][name]["success"] for name in CONFIGS
    ]


def test_tasks_of_a_run_are_of_one_environment_that_is_named(whole, capsys):
    assert roleagent(["tasks", "propose", str(whole)]) != 0
    assert "has several environments" in capsys.readouterr().err.strip()
    assert roleagent(["tasks", "propose", "RoleAgent/Toy-v0", "--count", "1"]) == 0


def test_one_of_them_is_named_by_its_id_and_keeps_its_arguments(arguments, tmp_path, capsys):
    out = tmp_path / "one.jsonl"
    assert evaluate.main([*arguments, "--env", CRAFT["id"], "--agent", "expert", "--out", str(out)]) == 0
    header, *records = map(json.loads, out.read_text().splitlines())
    assert header["kwargs"] == CRAFT["kwargs"] and len(records) == 3
    assert all(one["task_id"] in EnvSplit.held_out(from_dict(SEVERAL)).parts["craft"].task_split for one in records)


def test_what_a_file_over_a_list_means_is_clear(arguments, tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump({"base": arguments[1], "env": {"eval_tasks": 3}}))
    with pytest.raises(ConfigError, match="env is a list in the base of"):
        load_config(own)
    pair = [{**TOY, "name": name, "share": 0.5} for name in ("easy", "hard")]
    twice = configured(tmp_path, env=pair)[1]
    with pytest.raises(ConfigError, match="as easy, hard: an id names none of them"):
        load_config(twice, ["env.id=RoleAgent/Toy-v0"])


def test_a_share_of_demonstrations_names_a_type_as_the_tables_show_it():
    config = from_dict({**SEVERAL, "warmstart": {"episodes": 24, "shares": {"toy/heat": 0, "egg": 0.5}}})
    said, part = [], EnvSplit.training(config).parts["toy"]
    display = SimpleNamespace(stage=print, advance=print, say=said.append)
    found = collect_demonstrations(part, np.random.default_rng(0), display)
    assert len(found) == 24 and {one.task.task_type for one in found} == {"bring", "clean", "cool"}
    assert len(said) == 1 and "tasks of RoleAgent/Toy-v0 is of egg" in said[0]


class Numbered:
    """A sampler of tasks 0, 1, …"""

    def __init__(self):
        self.numbers = itertools.count()

    def sample(self, n):
        return [f"{next(self.numbers)}" for _ in range(n)]


def group_of(task_id, *outcomes):
    task, reply = Task("", task_id, task_type=task_id.partition("/")[0]), Completion((1,), (0.0,), "stop")
    turns = [Turn((0,), reply, "look", "text", "s", None, {"task": outcome}) for outcome in outcomes]
    return Group(task, tuple(Trajectory(task, (one,), True, False, "won") for one in turns))


def test_a_solved_environment_keeps_its_share_of_what_is_trained_on(monkeypatch):
    """Its replaced and filtered groups went to the others."""
    config = from_dict({**SEVERAL, "rollout": {"dynamic_sampling_rounds": 2, "keep_groups": 0.5}})
    method = SimpleNamespace(compares_outcomes=True, estimator=SimpleNamespace(rewards=Rewards({"task": 1.0})))
    run = SimpleNamespace(config=config, ranks=Ranks(0, 1), method=method, timer=None, inner=print)
    run.progress = SimpleNamespace(sampler=None)
    sampler = MixedSampler({name: Numbered() for name in CONFIGS}, {"toy": 0.5, "craft": 0.25, "office": 0.25})

    def play(ranks, rollout, task_ids, *rest):
        return [group_of(one, *((1, 1) if one.startswith("toy/") else (0, 1))) for one in task_ids]

    monkeypatch.setattr("roleagent.learners.rl.play_groups", play)
    groups = play(None, None, sampler.sample(8))
    kept, replaced = dynamic_sampling(run, None, RankSampler(run, sampler, None), groups)
    assert Counter(one.task.task_type for one in kept) == {"toy": 4, "craft": 2, "office": 2}
    assert [one.task.task_type for one in replaced] == ["toy"] * 8
    assert len({one.task.task_id for one in (*kept, *replaced)}) == 16
    kept, left_out = filter_groups(run, kept)
    assert Counter(one.task.task_type for one in kept) == {"toy": 2, "craft": 1, "office": 1} and len(left_out) == 4


def test_counts_of_all_environments_are_sums():
    """Requests, their tokens and their price, too."""
    own = {"endpoint_requests": 4.0, "endpoint_cost": 0.5, "analysis_tokens": 400.0, "entropy": 2.0}
    samplers = {name: SimpleNamespace(metrics=lambda: own) for name in ("toy", "craft")}
    found = MixedSampler(samplers, {"toy": 0.5, "craft": 0.5}).metrics()
    assert {name: found[name] / value for name, value in own.items()} == {**dict.fromkeys(own, 2.0), "entropy": 1.0}


def test_tasks_are_written_for_the_environments_that_have_a_grammar(tmp_path):
    genenv = {"genenv": True, "simulator": {"kind": "table", "shares": [1.0, 0.0]}, "aiw": False}
    env = [{**TOY, "share": 0.5}, {**TOOLS, "share": 0.5}]
    folder, smaller = tmp_path / "run", {"warmstart": {**SEVERAL["warmstart"], "rounds": 0}}
    assert (
        train.main([*configured(tmp_path, env=env, **genenv, **smaller), f"run_dir={folder}", "train.iterations=1"])
        == 0
    )
    with gzip.open(folder / "tasks/iteration-000001.jsonl.gz", "rt") as file:
        fresh = [one["task_id"] for one in map(json.loads, file) if one["event"] == "fresh"]
    listed = EnvSplit.training(from_dict({**SEVERAL, "env": env})).task_split.task_ids
    assert fresh and all(task_id.startswith("toy/") and task_id not in listed for task_id in fresh)
    others = [one["task_id"] for one in episodes(folder, 1) if one["task_id"] not in fresh]
    assert set(others) <= set(listed) and any(task_id.startswith("toolenv/") for task_id in others)


@pytest.mark.slow
def test_agent_r_searches_and_imitates_in_all_of_them(tmp_path):
    few = {"shares": {"bring": 0.05, "heat": 0, "cool": 0, "clean": 0}}  # learned by heart
    env = [{**TOY, "share": 0.5, "kwargs": few}, {**CRAFT, "share": 0.5}]
    search = {"tasks": 8, "num_children": 4, "simulations": 3, "expert_prefix": 0.8}
    revision = {"iterations": 1, "epochs": [1], "judge": "random", "splice": "searched"}
    options = {"method": "agent_r", "env": env, "options": {"search": search, "revision": revision}}
    sizes = {"hidden_size": 64, "heads": 4, "kv_heads": 4, "mlp_size": 128}
    options["policy"] = {**SEVERAL["policy"], **sizes}
    warm = {"warmstart": {"episodes": 80, "epochs": 6, "batch_tokens": 800, "lr": 1e-2}}
    folder = tmp_path / "run"
    assert train.main([*configured(tmp_path, **options, **warm), f"run_dir={folder}"]) == 0
    tasks = json.loads((folder / "revision/iteration-001/tasks.json").read_text())["tasks"]
    assert Counter(task.partition("/")[0] for task in tasks) == {"toy": 4, "craft": 4}
    counters = json.loads((folder / "result.json").read_text())["counters"]
    assert counters["trees"] == 8 and not counters.get("failed_trees") and counters["examples_good"] > 0


@pytest.mark.parametrize(
    ("env", "more", "reason"),
    [
        (
            [{**TOY, "share": 0.5}, {**CRAFT, "share": 0.4}],
            {},
            "shares of the environments must sum to 1, not 0.5 + 0.4",
        ),
        ([{**TOY, "share": -0.5}, {**CRAFT, "share": 1.5}], {}, "env.0.share must be above 0, not -0.5"),
        ([TOY, TOY], {}, "two environments are called toy"),
        ([TOY, {**CRAFT, "name": "a/b"}], {}, "the name of an environment has letters"),
        ([], {}, "env is an empty list"),
        ([TOY, {"id": "RoleAgent/Nothing-v0"}], {}, "there is no environment 'RoleAgent/Nothing-v0'"),
        ([TOY, OFFICE], {"method": "agent_r"}, "the environment office of env: calls of tools have no <revise> notes"),
        (
            [TOY, OFFICE],
            {"method": "agent_r", "prompt": {"revisions": "action"}},
            "by the command wait, and a reply in RoleAgent/Office-v0 is a call of a tool",
        ),
        (
            [TOOLS, {**TOOLS, "name": "b", "kwargs": {"max_step": 3}}],
            {},
            "the environment b of env: RoleAgent/ToolEnv-v0 has no argument kwargs.max_step",
        ),
        ([OFFICE, TOY], {"warmstart": {"episodes": 0}}, "a policy from scratch needs a warm start"),
        (
            [TOOLS, {**TOOLS, "name": "b"}],
            {"genenv": True, "simulator": {"kind": "table"}},
            "tasks of toolenv+b are free text",
        ),
        ([TOY, CRAFT], {"genenv": True, "simulator": {"kind": "model"}}, "and toy and craft have a task grammar"),
    ],
)
def test_what_cannot_work_is_one_line_before_anything_is_built(env, more, reason, tmp_path, capsys):
    folder = tmp_path / "run"
    assert train.main([*configured(tmp_path, env=env, **more), f"run_dir={folder}"]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert reason in said
    assert not folder.exists()


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("env.5.share=0.3", "env has no place 5: it lists 3 environments, from env.0 to env.2"),
        ("env.craft.share=0.5", "env is a list: name the place of craft, env.1.share"),
        ("env.office.share=0.5", "env is a list: name the place of office, env.2.share"),
        ("env.eval_tasks=2", "such as env.0.eval_tasks"),
        ("env.1.split=test", "did you mean one of env.1.train_split, env.1.eval_split?"),
        ("env.1.eval_task=2", "did you mean 'env.1.eval_tasks'?"),
    ],
)
def test_a_hint_about_one_of_several_environments_leads_to_what_works(arguments, option, hint):
    with pytest.raises(ConfigError, match=re.escape(hint)):
        load_config(arguments[1], [option])


def test_a_share_of_one_environments_type_is_not_the_others():
    """They searched for tasks of that type, and said that there are none."""
    config = from_dict({**SEVERAL, "warmstart": {"shares": {"toy/heat": 0.5, "*-4-*": 0.1}}})
    assert config.environments["toy"].warmstart.shares == {"heat": 0.5, "*-4-*": 0.1}
    assert config.environments["office"].warmstart.shares == {"*-4-*": 0.1}


def test_an_experts_plan_is_written_as_each_environment_reads_it():
    split = EnvSplit.training(from_dict(SEVERAL))
    plan = ExpertPlan(split, partial(random_stream, 0))
    for name, form in (("toy", "\ngo to "), ("office", '<tool_call>{"name": ')):
        task_id = next(one for one in split.task_split.task_ids if one.startswith(f"{name}/"))
        assert form in plan(None, Group(Task("", task_id), ()))


def test_two_environments_of_one_class_are_two_in_the_library(tmp_path):
    env = [{**TOY, "share": 0.5}, {**TOY, "name": "slow", "share": 0.5, "kwargs": {"max_steps": 4}}]
    several = EnvSplit.training(from_dict({**SEVERAL, "env": env}))
    ids = [part.task_split.env_id for part in several.parts.values()]
    assert ids == ["toy:RoleAgent/Toy-v0", "slow:RoleAgent/Toy-v0"]
    assert {part.horizon for part in several.parts.values()} == {1}

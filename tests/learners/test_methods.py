"""Every method through the real trainer: two iterations in the toy kitchen, resumed, and on two ranks."""

import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from programs import ROOT, SMALL, cut_short, episodes_of, load, metrics, overrides, run_both
from safetensors.torch import load_file

from roleagent.config import METHODS, ConfigError, method_class
from roleagent.config import load as load_config
from roleagent.learners.advantages import Advantages
from roleagent.learners.loss import checked_loss
from roleagent.learners.method import method_of
from roleagent.learners.run.conflicts import check_learning
from roleagent.learners.run.folder import read_config
from roleagent.learners.sft.imitation import CHUNK
from roleagent.reports.data.load_run import load_run
from roleagent.types import Completion, Group, Task, Trajectory, Turn

TREE = SMALL | {
    "warmstart": {"episodes": 0},
    "curriculum": {"analyst": "rule"},
    "rollout": {"num_groups": 2, "group_size": 4, "eval_batch": 2, "action_tokens": 24, "prediction_tokens": 8},
    "optim": {"minibatches": 1},  # a group whose episodes are alike makes no step of its own
    "train": {"iterations": 2, "keep_checkpoints": 9},
    # A policy that solves nothing is told apart by how badly it speaks, and by every token of it: hardly ever alike.
    "estimator": {
        "rewards": {"invalid_action": -0.3, "format_error": -0.2, "overlong": -0.1},
        "overlong_buffer": 1.0,
    },
    "env": SMALL["env"] | {"kwargs": {"max_steps": 3}},
}
train = load("train")


OWN = """
from dataclasses import dataclass
from roleagent.learners.genenv.method import GenEnv
from roleagent.learners.method import DAPO, GRPO, Method
from roleagent.learners.sft.imitation import imitate


class BestOf(Method):
    @dataclass(frozen=True)
    class Options:
        worth: float = 1.0  # of the best episodes

    settings = {"loss": {"kl": 0.0}}

    def advantages(self, group):
        outcomes = [self.estimator.rewards.outcome(trajectory) for trajectory in group.trajectories]
        best = [self.options.worth * (outcome == max(outcomes) > min(outcomes)) for outcome in outcomes]
        return [[value] * len(t.turns) for value, t in zip(best, group.trajectories, strict=True)]

    def after(self, iteration):
        return {"seen_groups": float(len(iteration.groups))}

    def add_counters(self, counters, metrics):
        counters["seen_groups"] = counters.get("seen_groups", 0.0) + metrics["seen_groups"]

    def idle(self, counters):
        return [f"{counters['seen_groups']:.0f} groups were seen"]


def loss(tokens, options):
    return -(tokens.weights * tokens.advantages * tokens.logprobs).sum(), {}


class Baseline(Method):
    settings = {"loss": {"kl": 0.0}}
    compares_outcomes = False

    def setup(self, run, split, learner, actor):
        self.total, self.count = 0.0, 0

    def advantages(self, group):
        mean = self.total / max(1, self.count)
        outcomes = [self.estimator.rewards.outcome(trajectory) for trajectory in group.trajectories]
        return [[value - mean] * len(t.turns) for value, t in zip(outcomes, group.trajectories, strict=True)]

    def after(self, iteration):
        for one in iteration.groups:
            for trajectory in one.group.trajectories:
                self.total, self.count = self.total + self.estimator.rewards.outcome(trajectory), self.count + 1
        return {"seen_episodes": float(self.count)}

    def state_dict(self):
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state):
        self.total, self.count = state["total"], state["count"]


class Unkeepable(Baseline):
    def state_dict(self):
        return {"rewards": self.estimator}


class Again(Method):
    stage = "again"
    label = "a second look"

    def needs_demonstrations(self):
        return True

    def training(self, start):
        start.run.enter(self.stage)
        start.run.save(imitate(start.run, start.policy, start.segments, epochs=60.0))


class Nameless(Again):
    stage = "train"


class Forgetful(Method):
    def needs_reference(self):
        return False


class Mixed(GenEnv, DAPO):
    settings = {"loss": {"clip_high": 0.3}}


class Crowded(GRPO):
    def setup(self, run, split, learner, actor):
        learner.beside["policy"] = learner


class Unfinished(Method):
    @dataclass
    class Options:
        worth: float


class World(Method):
    reads_world = True


number = 3
"""


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    """All options of a run but its method and folder; from the weights of a short warm start."""
    folder = tmp_path_factory.mktemp("start")
    config = str(ROOT / "configs" / "toy.yaml")
    shown = {"episodes": 24, "epochs": 4.0, "optimizer": "muon", "failures": 0.0}
    first = SMALL | {"warmstart": shown, "train": {"iterations": 0}, "aiw": False, "seed": 2}
    assert train.main(["--config", config, f"run_dir={folder}/run", *overrides(first)]) == 0
    [start] = sorted((folder / "run" / "checkpoints").glob("step-5*"))
    tree = TREE | {"policy": {"path": str(start / "policy"), "context": 2048}}
    return ["--config", config, *overrides(tree)]


@pytest.mark.parametrize("method", [name for name in METHODS if method_class(name).reinforces])
def test_it_trains_two_iterations(method, arguments, tmp_path):
    given = [f"method={method}", *(["distill.teacher=self", "distill.hint=lesson"] if method == "distill" else [])]
    assert train.main([*arguments, *given, f"run_dir={tmp_path}/run"]) == 0
    one, two = metrics(tmp_path / "run", "train")
    for row in (one, two):
        assert row["grad_norm"] > 0 and row["reward_invalid_action"] > 0
        # The policy that samples and the one that learns have the same weights when an iteration begins.
        assert 0 <= row["mismatch"] <= row["mismatch_max"] < 0.01
        assert row["importance"] == pytest.approx(1, abs=0.01)
        assert ("value_loss" in row) == (method == "ppo")
        assert (row["replaced_groups"] > 0) == (method == "dapo")
    episodes = episodes_of(tmp_path / "run", 1)
    assert len(episodes) == 4 * (2 + one["replaced_groups"])
    assert any(turn["advantage"] for episode in episodes for turn in episode["turns"])


def test_ppo_goes_on_with_its_critic(arguments, tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    options = [*arguments, "method=ppo", "optim.epochs=2"]
    assert train.main([*options, f"run_dir={whole}"]) == 0
    cut_short(shutil.copytree(whole, resumed), 500002)
    assert train.main([*options, f"run_dir={resumed}", "--resume"]) == 0
    assert metrics(resumed, "train") == metrics(whole, "train")
    states = []
    for folder in (whole, resumed):
        [path] = (folder / "checkpoints" / "step-500002" / "learner" / "critic").rglob("*model_states.pt")
        states.append(torch.load(path, weights_only=False)["module"])
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(value.abs().max() > 0 for name, value in states[0].items() if name.startswith("head"))


@pytest.mark.slow
def test_two_ranks_agree_on_what_replaces_their_dead_groups(arguments, tmp_path):
    folder = tmp_path / "run"
    done = run_both(*arguments, "method=dapo", "rollout.num_groups=3", f"run_dir={folder}")
    assert [status for status, _, _ in done] == [0, 0], done
    failures = 0
    for number, row in enumerate(metrics(folder, "train"), start=1):
        episodes, groups = episodes_of(folder, number), {}
        for episode in episodes:
            groups.setdefault(episode["group"], []).append(episode)
        assert all(len(group) == 4 and len({e["task_id"] for e in group}) == 1 for group in groups.values())
        dead = [place for place, group in groups.items() if len({episode["reward"] for episode in group}) == 1]
        # Those that were replaced come last; three groups, and two draws at most in place of the dead among them.
        assert len(groups) == 3 + row["replaced_groups"] and 0 < row["replaced_groups"] <= 2 * 3
        assert set(range(3, len(groups))) <= set(dead)
        assert row["zero_variance_groups"] == len(dead)
        failures += sum(episode["stop_reason"] != "won" for episode in episodes)
        assert row["curriculum_failures"] == failures


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's module in the working directory."""
    (tmp_path / "own_methods.py").write_text(OWN)
    (tmp_path / "broken_methods.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("own_methods", None)


def test_a_method_of_a_users_file_trains(arguments, own, tmp_path, capsys):
    options = ["method=own_methods:BestOf", "options.worth=2", "loss.function=own_methods:loss", "wia=off", "aiw=off"]
    command = [*arguments, *options, "estimator.rewards={}", f"run_dir={tmp_path}/run"]
    assert train.main(command) == 0
    values = {turn["advantage_estimate"] for row in episodes_of(tmp_path / "run", 1) for turn in row["turns"]}
    assert values <= {0.0, 2.0}
    rows = metrics(tmp_path / "run", "train")
    assert [row["seen_groups"] for row in rows] == [2, 2]
    assert "warning: 4 groups were seen" in capsys.readouterr().out
    # A report of the run loads no user's code; the run itself continues with it.
    sys.modules.pop("own_methods", None)
    shown = read_config(tmp_path / "run")
    assert shown.method == "own_methods:BestOf" and shown.options == {"worth": 2.0} and "own_methods" not in sys.modules
    assert train.main([*command, "train.iterations=3", "--resume"]) == 0
    assert len(metrics(tmp_path / "run", "train")) == 3


def test_a_users_method_resumes_with_its_state(arguments, own, tmp_path, capsys):
    """A mean over all episodes would begin again at 0, and the run learn something else."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    options = [*arguments, "method=own_methods:Baseline", "wia=off", "aiw=off", "train.iterations=3"]
    assert train.main([*options, f"run_dir={whole}"]) == 0
    cut_short(shutil.copytree(whole, resumed), 500002, 500003)
    assert train.main([*options, f"run_dir={resumed}", "--resume"]) == 0
    assert metrics(resumed, "train") == metrics(whole, "train")
    assert [row["seen_episodes"] for row in metrics(whole, "train")] == [8, 16, 24]
    file = "checkpoints/step-500003/policy/model.safetensors"
    once, again = load_file(whole / file), load_file(resumed / file)
    assert all(torch.equal(once[name], again[name]) for name in once)
    assert train.main([*options, "method=own_methods:Unkeepable", f"run_dir={tmp_path}/other"]) == 2
    assert "the state_dict of method=own_methods:Unkeepable must hold numbers" in capsys.readouterr().err


def test_a_users_method_of_another_kind_resumes_and_is_reported(arguments, own, tmp_path):
    """Its steps have a name that this project does not know."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    options = [*arguments, "method=own_methods:Again", "warmstart.episodes=6", "env.kwargs.max_steps=20"]
    assert train.main([*options, f"run_dir={whole}"]) == 0
    rows = metrics(whole, "again")
    assert rows[-1]["step"] > CHUNK
    cut_short(shutil.copytree(whole, resumed), 500000 + rows[-1]["step"])
    assert train.main([*options, f"run_dir={resumed}", "--resume"]) == 0
    assert metrics(resumed, "again") == rows
    shown = load_run(resumed)
    assert (shown["state"], shown["seconds"] > 0) == ("finished", True)


def test_a_model_beside_the_policy_has_a_name_of_its_own(arguments, own, tmp_path, capsys):
    assert train.main([*arguments, "method=own_methods:Crowded", f"run_dir={tmp_path}/run"]) == 2
    assert "and 'policy' cannot be that: take letters" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("given", ["loss.kl=0.1", "distill.teacher=self"])
def test_what_reads_the_start_is_refused_without_it(given, arguments, own, tmp_path, capsys):
    """The policy would have been compared with itself."""
    given = ["loss.kl=0", "distill.hint=lesson", given]
    assert train.main([*arguments, "method=own_methods:Forgetful", *given, f"run_dir={tmp_path}/run"]) == 2
    assert "which method=own_methods:Forgetful does not keep" in capsys.readouterr().err.splitlines()[-1]


def test_a_method_has_the_settings_of_its_base_classes(own):
    """GenEnv has settings, and would have hidden those of the method that it is mixed with."""
    config = load_config(overrides=["method=own_methods:Mixed", "loss.clip_low=0.1"])
    assert config.genenv and config.loss.aggregation == "token" and config.rollout.dynamic_sampling_rounds == 2
    assert (config.loss.clip_low, config.loss.clip_high) == (0.1, 0.3)


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["method=grop"], "or module:Class, not 'grop'; did you mean 'grpo'?"),
        (["method=no_such_module:Best"], "cannot load 'no_such_module:Best'"),
        (["method=math:pi"], "method=math:pi is no method: derive a class from roleagent.learners.method.Method"),
        (["method=fractions:Fraction"], "method=fractions:Fraction is no method: derive a class from"),
        (["method=[a]"], "method must be one of role_agent"),
        (["method=own_methods:Unfinished"], "method=own_methods:Unfinished: the option worth needs a default"),
        (["method=broken_methods:Any"], "cannot load 'broken_methods:Any': ZeroDivisionError: division by zero ("),
        (["loss.function=json:dumps"], "loss.function=json:dumps is no function of (tokens, options)"),
        (
            ["method=own_methods:Nameless"],
            "method=own_methods:Nameless: what it does in training needs a name in the log",
        ),
        (["method=own_methods:World", "prompt.style=window"], "set prompt.style=transcript"),
        (
            ["method=own_methods:BestOf", "options.wroth=1"],
            "unknown key 'options.wroth'; did you mean 'options.",
        ),
        (["method=own_methods:BestOf", "options.worth=much"], "options.worth must be of type float, not 'much'"),
        (["options.worth=1"], "unknown key 'options.worth'"),
        (["loss.function=own_methods:number"], "loss.function=own_methods:number is no function of (tokens, options)"),
        (["prompt.think=required"], "prompt.think=required refuses replies without a thought, and demonstrations have"),
        (["train.shuffle=process"], "to which estimator.rewards gives no weight"),
        (["train.shuffle=success_rates"], "a control of a simulator that learns: set genenv=on"),
        (["genenv=on", "simulator.kind=base", "train.shuffle=success_rates"], "set genenv=on and simulator.kind to"),
        (["method=grpo", "rollout.group_size=1"], "method=grpo compares the episodes of a group: set rollout.group_s"),
    ],
)
def test_a_wrong_method_is_one_line(overrides, words, own):
    with pytest.raises(ConfigError) as caught:
        check_learning(load_config(overrides=overrides))
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "returned",
    [
        lambda tokens: 1.0,
        lambda tokens: (1.0, {}),
        lambda tokens: (tokens.logprobs, {}),
        lambda tokens: (tokens.logprobs.sum().detach(), {}),
        lambda tokens: (tokens.logprobs.sum(), {"mean": 1.0}),
    ],
)
def test_a_loss_that_returns_something_else_is_refused(returned):
    """A number, or a tensor without a gradient, would train nothing, and say nothing."""
    values = torch.zeros(2, requires_grad=True)
    tokens = SimpleNamespace(logprobs=values, weights=torch.ones(2))
    assert checked_loss((values.sum(), {"sum": torch.ones(())}), tokens)
    with pytest.raises(ValueError, match="a loss must return a scalar tensor with a gradient"):
        checked_loss(returned(tokens), tokens)


@pytest.mark.parametrize("rows", [[[1.0]], [[float("nan")] * 2], "no", None, [1.0, 2.0]])
def test_advantages_of_another_shape_are_refused(rows, own):
    method = method_of(load_config(overrides=["method=grpo"]))
    group = two_turns()
    for found in (rows, Advantages(rows)):
        method.advantages = lambda _, found=found: found
        with pytest.raises(ValueError, match="method=grpo must be one list per trajectory"):
            method.estimate(group)
    method.advantages = lambda _: np.array([[1, 2]])
    assert method.estimate(group).values == [[1.0, 2.0]] and method.estimate(group).outcome is None


def two_turns():
    turn = Turn((0,), Completion((1,), (-0.5,), "stop"), "look", "text", "s", None, {"task": 0.0})
    task = Task("RoleAgent/Toy-v0", "boil-egg-1")
    return Group(task, (Trajectory(task, (turn, turn), True, False, "lost"),))

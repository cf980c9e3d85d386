"""What a person gets wrong on the command lines is one clear line, at once, and leaves nothing behind."""

import dataclasses
import math
import re
import sys
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from programs import ROOT, load, status

from roleagent.cli import main as roleagent
from roleagent.config import Config, ConfigError, from_dict
from roleagent.curricula.library import FailureLibrary

train, evaluate = load("train"), load("evaluate")
TRAIN = ["--config", str(ROOT / "configs" / "toy.yaml"), "run_dir={new}"]
BIG = "9" * 5000
TINY = ["warmstart.episodes=2", "warmstart.rounds=0", "warmstart.epochs=1", "env.eval_tasks=1", "train.iterations=0"]
SEARCHQA = "env.id=RoleAgent/SearchQA-v0"
NOBODY = "http://127.0.0.1:9"  # where no service is
PLAY = ["--env", "RoleAgent/Toy-v0", "--split", "valid", "--tasks", "1", "--agent", "expert", "--out", "{new}"]


@pytest.fixture
def places(tmp_path):
    """Paths of each kind, by name."""
    found = {name: tmp_path / name for name in ("new", "file", "empty", "folder", "list", "binary", "run")}
    found["file"].write_text("nothing of the kind\n")
    found["list"].write_text("- 1\n")
    found["binary"].write_bytes(b"\xff\xfe\0")
    found["empty"].touch()
    found["folder"].mkdir()
    found["run"].mkdir()
    (found["run"] / "config.yaml").touch()
    return found


@pytest.fixture
def library(places):
    FailureLibrary(f"sqlite:///{places['folder']}/failures.db").close()
    return places | {"library": places["folder"] / "failures.db"}


def placed(text, places):
    return re.sub(r"\{(\w+)\}", lambda found: str(places.get(found[1], found[0])), text)


def said(main, arguments, places, capsys):
    """The one line that a program ends with."""
    capsys.readouterr()  # what it took to get here
    ended = status(main, [placed(argument, places) for argument in arguments])
    lines = capsys.readouterr().err.splitlines()
    assert ended == 2 and len(lines) == 1, lines
    assert not places["new"].exists()  # in the way of the next attempt
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config", "{new}"], "cannot read the configuration {new}"),
        (["--config", "{file}"], "{file} must hold keys and values, not a str"),
        (["--config", "{binary}"], "cannot read the configuration {binary}"),
        (
            ["curriculum.analyst=modle"],
            "curriculum.analyst must be one of model, rule, endpoint, replay, text, types, frozen or module:Class",
        ),
        (["curriculum.analyst=nomod:Nobody"], "cannot load 'nomod:Nobody'"),
        (["env.kwargs.view=foo"], "env.kwargs.view must be one of tools, fine, not 'foo'"),
        (["env.id=Toy"], "there is no environment 'Toy'; did you mean RoleAgent/Toy-v0?"),
        (["--agent", "no-such-program x"], "there is no program no-such-program that can be started"),
        (["rollout.group_size=1"], "compares the episodes of a group: set rollout.group_size to at least 2"),
        (["curriculum.epsilon=2"], "curriculum.epsilon"),
        (
            ["method=agent_r", "options.revision.judge=step"],
            "options.revision.judge=step needs a model that follows instructions",
        ),
        (["method=agent_r", "options.revision.replay=1"], "options.revision.replay"),
        (["warmstart.epochs=0"], "warmstart.epochs"),
        (["curriculum.library=zzz"], "cannot open the failure library zzz"),
        (["curriculum.library=sqlite:///{folder}"], "it is a folder"),
        (["env.train_split=trian"], "unknown split 'trian' of RoleAgent/Toy-v0; there are train, valid"),
        (["env.kwargs.max_steps=0"], "max_steps must be at least 1, not 0"),
        (["env.kwargs.sise=3"], "RoleAgent/Toy-v0 has no argument env.kwargs.sise; there are split, max_steps"),
        (["env.id=RoleAgent/ALFWorld-v0", "env.kwargs.data_dir={new}"], "point data_dir or ALFWORLD_DATA"),
        (["policy.path={folder}"], "cannot load a causal language model from {folder}: the folder has no config.json"),
        (["policy.path={new}"], "cannot load a causal language model from {new}: there is no such folder"),
        (["warmstart.episodes=0"], "a policy from scratch needs a warm start"),
        (["--resume"], "{new} holds no run to resume; start it without --resume"),
        (["--resume", "run_dir={run}"], "config.yaml is damaged"),
        (["run_dir={run}"], "{run} holds a run already: go on with --resume"),
        (["estimator.rewards={task: .nan}"], "estimator.rewards.task must be a finite number, not nan"),
        (["estimator.rewards={1: 1}"], "estimator.rewards must have names as keys, not 1"),
        (["deepspeed.extra={a: [{b: .inf}]}"], "deepspeed.extra.a.0.b must be a finite number, not inf"),
        (["deepspeed.extra={zero_optimization: 5}"], "DeepSpeed refuses deepspeed.extra:"),
        (["rollout.num_groups=99999", "rollout.group_size=99"], "make more than 1000000 episodes"),
        (["rollout.action_tokens=768"], "rollout.action_tokens=768 leaves no room for a prompt in policy.context=768"),
        (["prompt.horizon=65"], "predictions of 65 steps do not fit into rollout.prediction_tokens=64"),
        (["policy.hidden_size=7"], "policy.heads must divide policy.hidden_size, but 4 does not divide 7"),
        (["policy.hidden_size=12"], "must be even, for rotary positions, not 12 / 4"),
        (["policy.kv_heads=5"], "policy.kv_heads must divide policy.heads, but 5 does not divide 4"),
        (["policy.hidden_size=1048576", "policy.layers=1024"], "but this machine has a memory of"),
        ([SEARCHQA, "env.kwargs={data_dir: generated, retriever: 5}"], "'5' is no encoder"),
        ([SEARCHQA, f"env.kwargs={{data_dir: generated, retriever: '{NOBODY}'}}"], f"{NOBODY}: Connection refused"),
        (["env.id=nomod:X-v0"], "No module named 'nomod'; before the colon stands the module that registers it"),
        ([*TINY, "warmstart.shares={bring: 0, heat: 0, cool: 0, clean: 0}"], "the expert won only 0 of"),
        (["run_dir=" + "a" * 5000], "(File name too long): name another with run_dir=…"),
        (["run_dir={file}"], "cannot create the folder {file} (File exists): name another with run_dir=…"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_training(arguments, words, places, capsys):
    assert placed(words, places) in said(train.main, [*TRAIN, *arguments], places, capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no agent: give --agent"),
        (["--agent", "{folder}"], "neither a run folder (no config.yaml) nor a model (no config.json)"),
        (["--run", "{run}"], "config.yaml is damaged"),
        (["--base-url", "zzz"], "'zzz' is no URL of a chat server"),
        (["--agent", "json:Nope"], "module 'json' has no attribute 'Nope'"),
        (["--agent", "json:JSONDecoder"], "is not an agent: it must be a class with reset(observation, info) and act("),
        (["--agent", "react"], "the agent react needs a model"),
        (
            [*PLAY, "--env", "RoleAgent/Tay-v0"],
            "'RoleAgent/Tay-v0'; did you mean RoleAgent/Toy-v0?",
        ),
        ([*PLAY, "--split", "train", "--env-arg", "shares=a"], "shares must be of type mapping, not 'a'"),
        ([*PLAY, "--tasks", BIG], "… is more than 2147483647"),
        ([*PLAY, "--out", ""], "'' is empty: name a file"),
        ([*PLAY, "--out", "/"], "'/' is a folder: name a file"),
        ([*PLAY, "--temperature", "nan"], "'nan' is not a number of at least 0"),
        ([*PLAY, "--out", "{file}"], "{file} is not an evaluation file"),
        (["compare", "{file}"], "name two record files"),
        (["compare", "{file}", "{empty}"], "{file} is not an evaluation file"),
        (["compare", "{new}", "{new}"], "no record file {new}"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_evaluation(arguments, words, places, capsys):
    assert placed(words, places).casefold() in said(evaluate.main, arguments, places, capsys).casefold()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plya", "Toy"], "did you mean play?"),
        (["games", "--out", "x", "--split", "valid_sen"], "did you mean valid_seen?"),
        (["failures", "export", "{library}", "--out", "/"], "'/' is a folder: name a file"),
        (["failures", "list", "{library}", "--limit", BIG], "… is more than 2147483647"),
        (["failures", "list", "{file}"], "{file}"),
        (["failures", "lst", "{folder}"], "list, show"),
        (["export", "{folder}", "--out", ""], "the name of a folder is empty"),
        (["export", "{folder}", "--out", "{file}"], "is a file: name a folder"),
        (["index", "serve", "--index", "{new}"], "{new}"),
        (["index", "build", "--corpus", "{empty}", "--out", "{new}"], "{empty}"),
        (["searchqa", "generate", "--out", "{new}", "--people", "1"], "16 to"),
        (["webshop", "generate", "--out", "{file}"], "is a file: name a folder"),
        (["webshop", "build", "--data", "{new}"], "{new}"),
        (["webshop", "serve", "--port", "99999999"], "port"),
        (["serve", "RoleAgent/Toy-v0", "--port", "99999"], "port"),
        (["play", "Toy", "--env-arg", "shares=a"], "shares must be of type mapping, not 'a'"),
        (["play", "CartPole-v1"], "CartPole-v1 has no task_split"),
        (["report", "{new}"], "{new}"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_verbs(arguments, words, library, capsys):
    assert placed(words, library) in said(roleagent, arguments, library, capsys)


def numbers(options, prefix=()):
    for name, kind in get_type_hints(options).items():
        kind = get_args(kind)[0] if name == "env" else kind  # or a list of several
        if dataclasses.is_dataclass(kind):
            yield from numbers(kind, (*prefix, name))
        elif kind in (int, float) and get_origin(kind) is not Literal:
            yield (*prefix, name)


@pytest.mark.parametrize("path", [*numbers(Config)], ids=".".join)
def test_no_number_is_infinite_or_beyond_all_bounds(path):
    for value in (math.inf, -math.inf, math.nan, -1, 10**10):
        tree = value
        for name in reversed(path):
            tree = {name: tree}
        with pytest.raises(ConfigError, match=f"^{'.'.join(path)} must be "):
            from_dict(tree)


def test_a_module_may_register_the_environment(tmp_path, monkeypatch, capsys):
    (tmp_path / "countdown_here.py").write_text(
        "import gymnasium\n"
        "from roleagent.envs.toy.env import ToyKitchen\n"
        "class Countdown(ToyKitchen):\n"
        "    def __init__(self, split='train', length: int = 3):\n"
        "        super().__init__(split, length)\n"
        "gymnasium.register('Here/Countdown-v0', entry_point=Countdown)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("countdown_here", None)
    arguments = ["--env", "countdown_here:Here/Countdown-v0", "--split", "valid", "--agent", "random", "--tasks", "1"]
    out = tmp_path / "out.jsonl"
    assert evaluate.main([*arguments, "--env-arg", "length=2", "--out", str(out)]) == 0
    capsys.readouterr()
    assert evaluate.main([*arguments, "--env-arg", "length=a", "--out", str(tmp_path / "other")]) == 2
    assert "env.kwargs.length must be of type int, not 'a'" in capsys.readouterr().err


def test_an_environment_without_what_a_run_needs_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "bare_here.py").write_text(
        "import dataclasses, gymnasium\n"
        "from roleagent.envs.toy.env import ToyKitchen\n"
        "class Odd(gymnasium.Env):\n"
        "    def __init__(self, split='train'): pass\n"
        "class Broken(ToyKitchen):\n"
        "    def __init__(self, split='train'): raise KeyError('data')\n"
        "class Alone(ToyKitchen):\n"
        "    def __init__(self, split='train'):\n"
        "        super().__init__(split)\n"
        "        self.task_split = dataclasses.replace(self.task_split, env_id='Here/Alone-v0')\n"
        "for kind in (Odd, Broken, Alone):\n"
        "    gymnasium.register(f'Here/{kind.__name__}-v0', entry_point=kind)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("bare_here", None)
    refusals = {"Odd": "has no task_split", "Broken": "KeyError: 'data'", "Alone": "has no expert to imitate"}
    for name, words in refusals.items():
        assert train.main([*TRAIN, f"env.id=bare_here:Here/{name}-v0", f"run_dir={tmp_path / 'run'}"]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert words in line and not (tmp_path / "run").exists()


def test_a_refused_run_leaves_what_was_in_its_folder(places):
    refused = [*TRAIN[:2], *TINY, "warmstart.shares={bring: 0, heat: 0, cool: 0, clean: 0}"]
    for name in ("folder", "run"):
        (places[name] / "config.yaml").unlink(missing_ok=True)
    (places["run"] / "notes").touch()
    for name in ("folder", "run"):
        assert train.main([*refused, f"run_dir={places[name]}"]) == 2
    assert (places["run"] / "notes").exists()
    assert not places["folder"].exists()


@pytest.mark.parametrize("program", ["train", "evaluate"])
def test_a_gguf_file_is_refused_with_the_way_to_convert_it(program, tmp_path, places, capsys):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    own = [*TRAIN, *TINY, f"policy.path={tmp_path / 'model.gguf'}"]
    asked = ["--agent", "react", "--model-path", str(tmp_path / "model.gguf"), *PLAY[:6], *PLAY[-2:]]
    arguments, main = (own, train.main) if program == "train" else (asked, evaluate.main)
    assert "convert the file with convert_gguf.py of docs/pretrained.md" in said(main, arguments, places, capsys)

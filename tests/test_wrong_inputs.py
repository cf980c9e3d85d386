"""What a person gets wrong on the command lines of train.py and evaluate.py is one clear line, at once."""

import pytest
from programs import ROOT, load

train, evaluate = load("train"), load("evaluate")
TRAIN = ["--config", str(ROOT / "configs" / "toy.yaml"), "run_dir={new}"]
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


def said(main, arguments, places, capsys):
    """The one line that a program ends with."""
    try:
        status = main([argument.format(**places) for argument in arguments])
    except SystemExit as ended:
        status = ended.code
    lines = capsys.readouterr().err.splitlines()
    assert status == 2 and len(lines) == 1, lines
    assert not places["new"].exists()  # in the way of the next attempt
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config", "{new}"], "cannot read the configuration {new}"),
        (["--config", "{folder}"], "Is a directory"),
        (["--config", "{file}"], "{file} must hold keys and values, not a str"),
        (["--config", "{list}"], "{list} must hold keys and values, not a list"),
        (["--config", "{binary}"], "cannot read the configuration {binary}"),
        (["method=gigop"], "did you mean 'gigpo'?"),
        (["optim.rl=1"], "unknown key 'optim.rl'; did you mean 'optim.lr'?"),
        (["optim.lr=-1"], "optim.lr must be at least 0, not -1"),
        (["optim.lr=fast"], "optim.lr must be of type float, not 'fast'"),
        (["train.iterations=-1"], "train.iterations must be at least 0, not -1"),
        (["train.iterations=1.5"], "train.iterations must be of type int, not 1.5"),
        (["seed=-1"], "seed must be at least 0, not -1"),
        (["rollout.group_size=0"], "rollout.group_size must be at least 1, not 0"),
        (["rollout.action_tokens=0"], "rollout.action_tokens must be at least 1, not 0"),
        (["rollout.eval_temperature=-2"], "rollout.eval_temperature must be at least 0, not -2"),
        (["env.eval_tasks=-1"], "env.eval_tasks must be at least 0, not -1"),
        (["prompt.horizon=-1"], "prompt.horizon must be at least 0, not -1"),
        (["policy.heads=0"], "policy.heads must be at least 1, not 0"),
        (["curriculum.endpoint.concurrency=0"], "curriculum.endpoint.concurrency must be at least 1, not 0"),
        (["curriculum.analyst=modle"], "curriculum.analyst must be one of model, rule, endpoint"),
        (["curriculum.library=zzz"], "cannot open the failure library zzz"),
        (["curriculum.library=sqlite:///{folder}"], "it is a folder"),
        (["env.id=RoleAgent/Tay-v0"], "Did you mean: `Toy`?"),
        (["env.train_split=trian"], "unknown split 'trian' of RoleAgent/Toy-v0; there are train, valid"),
        (["env.kwargs.max_steps=0"], "max_steps must be at least 1, not 0"),
        (["env.kwargs.sise=3"], "unexpected keyword argument 'sise'"),
        (
            ["env.id=RoleAgent/ALFWorld-v0", "env.kwargs.data_dir={new}"],
            "point data_dir or ALFWORLD_DATA at the folder",
        ),
        (["env.id=RoleAgent/WebShop-v0", "env.kwargs.data_dir={folder}"], "no items_shuffle*.json in {folder}"),
        (["policy.path={folder}"], "cannot load a causal language model from {folder}: the folder has no config.json"),
        (["policy.path={new}"], "cannot load a causal language model from {new}: there is no such folder"),
        (["warmstart.episodes=0"], "a policy from scratch needs a warm start"),
        (["zzz"], "'zzz' is not of the form key=value"),
        (["wia=maybe"], "wia must be of type bool, not 'maybe'"),
        (["--resume"], "{new} holds no run to resume; start it without --resume"),
        (["--resume", "run_dir={file}"], "{file} holds no run to resume"),
        (["--resume", "run_dir={run}"], "config.yaml is damaged"),
        (["run_dir={run}"], "{run} holds a run already: go on with --resume"),
        (["run_dir={file}"], "there can be no folder {file} (File exists): name another with run_dir=…"),
        (["run_dir={file}/run"], "there can be no folder {file}/run (Not a directory)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_training(arguments, words, places, capsys):
    assert words.format(**places) in said(train.main, [*TRAIN, *arguments], places, capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "who is to play?"),
        (["--agent", "zzz"], "no agent 'zzz'"),
        (["--agent", "{folder}"], "no run folder (it has no config.yaml) and no model (it has no config.json)"),
        (["--agent", "{new}/x"], "there is no such directory"),
        (["--run", "{new}"], "{new} is no run folder: it has no config.yaml"),
        (["--run", "{run}"], "config.yaml is damaged"),
        (["--model-path", "{folder}"], "the folder has no config.json"),
        (["--base-url", "zzz"], "'zzz' is no URL of a chat server"),
        (["--agent", "mod:Class"], "No module named 'mod'"),
        (["--agent", "json:Nope"], "module 'json' has no attribute 'Nope'"),
        (["--agent", "react"], "the agent react needs a model"),
        ([*PLAY, "--env", "RoleAgent/Tay-v0"], "Did you mean: `Toy`?"),
        ([*PLAY, "--split", "zzz"], "there are train, valid"),
        ([*PLAY, "--env-arg", "zzz"], "'zzz' is not of the form key=value"),
        ([*PLAY, "--env-arg", "max_steps=-1"], "max_steps must be at least 1, not -1"),
        ([*PLAY, "--tasks", "0"], "'0' is not a whole number from 1 on"),
        ([*PLAY, "--repeats", "-1"], "'-1' is not a whole number from 1 on"),
        ([*PLAY, "--seed", "-1"], "'-1' is not a whole number from 0 on"),
        ([*PLAY, "--temperature", "nan"], "'nan' is not a number from 0 on"),
        ([*PLAY, "--config", "{list}"], "{list} must hold keys and values, not a list"),
        ([*PLAY, "--set", "prompt.think=maybe"], "prompt.think must be one of none, optional, required"),
        ([*PLAY, "--set", "prompt.horizon=-1"], "prompt.horizon must be at least 0, not -1"),
        ([*PLAY, "--out", "{folder}"], "{folder}"),
        ([*PLAY, "--out", "{file}"], "{file} is no evaluation file"),
        ([*PLAY, "--out", "{file}/x"], "{file}"),
        ([*PLAY, "--prices", "-1", "2"], "'-1' is not a number from 0 on"),
        (["compare", "{file}"], "name two record files"),
        (["compare", "{file}", "{empty}"], "{file} is no evaluation file"),
        (["compare", "{new}", "{new}"], "no record file {new}"),
        (["compare", "{folder}", "{folder}"], "{folder} has no after.json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_evaluation(arguments, words, places, capsys):
    assert words.format(**places).casefold() in said(evaluate.main, arguments, places, capsys).casefold()

"""What a run says at its end: a table that fits a terminal, the curve on held-out tasks, what each stage brought."""

from dataclasses import asdict
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from rich.console import Console

from roleagent.agents.episode import Ask, Batch
from roleagent.agents.evaluation.records import Record
from roleagent.agents.evaluation.statistics import summarize
from roleagent.config import ConfigError, load
from roleagent.learners.method import method_of
from roleagent.learners.run import evaluation
from roleagent.learners.run.checkpoints import Progress
from roleagent.learners.run.display import Display
from roleagent.learners.run.launch import exit_status
from roleagent.learners.run.run import Run
from roleagent.learners.sft.method import SFT

TYPES = ("look_at_obj_in_light", "pick_clean_then_place_in_recep")
SPLIT = {"env_id": "RoleAgent/ALFWorld-v0", "split": "valid_unseen", "tasks": 40, "digest": "0123456789abcdef"}


def measured(won, tasks=40):
    """An evaluation in which the first ``won`` tasks are won."""
    records = [
        Record(f"t{n}", TYPES[n % 2], n < won, float(n < won), 9, "won" if n < won else "lost") for n in range(tasks)
    ]
    return {"task_split": SPLIT, **summarize(records), "records": [asdict(record) for record in records]}


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "logged_iterations", lambda run: [])
    monkeypatch.setattr(evaluation, "not_learning", lambda history, config: "no sign of learning")
    between = {"iteration-000010.json": measured(16, 20), "iteration-000020.json": measured(18, 20)}
    for name in between:
        (tmp_path / name).touch()
    display = Display("a run")
    display.console = Console(width=80, record=True, highlight=False, markup=False)
    config = load(overrides=["train.evaluate_tasks=20"])
    folder = SimpleNamespace(path=tmp_path, read_json=between.get)
    return SimpleNamespace(
        display=display, config=config, method=method_of(config), folder=folder, progress=SimpleNamespace(step=30)
    )


def shown(run, **found):
    evaluation.show(run, found, {"gain": evaluation.gain(found["before"], found["after"])})
    return run.display.console.export_text().splitlines()


def test_the_end_of_a_run_fits_a_terminal_and_says_what_each_stage_brought(run):
    lines = shown(run, before=measured(20), after=measured(38))
    assert all(len(line) <= 80 for line in lines if "run folder" not in line) and not any("…" in line for line in lines)
    assert [line.split() for line in lines if line.strip().startswith(("all", TYPES[1]))] == [
        ["all", "40", "50.0%", "95.0%"],
        [TYPES[1], "20", "50.0%", "95.0%"],
    ]
    assert lines[-2] == "imitation      50.0% greedy (35% to 65%)"
    assert lines[-1].startswith("reinforcement  +45.0 points greedy (+29 to +6")
    assert not any("no sign of learning" in line for line in lines)
    # The curve is of the twenty tasks that every evaluation has, all of which are won in the end.
    [axis] = [line.split() for line in lines if line.split()[:1] == ["0"]]
    assert axis == ["0", "30"]
    assert evaluation.held_out_curve(run, {"before": measured(15), "after": measured(40)}) == [
        (0, 0.75),
        (10, 0.8),
        (20, 0.9),
        (30, 1.0),
    ]


def test_an_evaluation_whose_every_episode_failed_is_no_result(run, monkeypatch):
    """It would be a success of 0 % over no tasks, and the run would train on."""
    records = [Record("t0", "", False, 0.0, 0, "error", error="no program there")]
    monkeypatch.setattr(evaluation, "_known", lambda *_: None)
    monkeypatch.setattr(evaluation, "evaluation_lessons", lambda *_: None)
    monkeypatch.setattr(evaluation, "evaluate_policy", lambda *_: records)
    run.ranks = SimpleNamespace(once=lambda made: made(), share=list, collect=list)
    run.own_stream = lambda name: np.random.default_rng()
    split = MagicMock()
    split.task_split.task_ids = ["t0"]
    with pytest.raises(ConfigError, match="'before' failed, the first with: no program"):
        evaluation.evaluate_split(run, split, MagicMock(), "before")


def test_an_error_of_the_users_own_code_says_where_it_was_raised(capsys):
    """A method's ValueError was one line without a place."""

    def own(asked):
        return np.zeros(3) + np.zeros(len(asked))

    batch = Batch(own)
    for slot in range(4):
        batch.submit(slot, Ask("x"))
    with pytest.raises(ValueError, match="broadcast") as raised:
        batch.wait()
    assert exit_status(raised.value, "train") == 2
    assert f"(ValueError in {__file__}:" in capsys.readouterr().err
    with pytest.raises(ConfigError) as raised:
        load(overrides=["method=none"])
    assert exit_status(raised.value, "train") == 2
    assert __file__ not in capsys.readouterr().err


def test_only_a_run_that_is_there_is_to_be_continued(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    for error, status in ((KeyboardInterrupt(), 130), (OSError("the disk is full"), 1)):
        assert exit_status(error, "train", tmp_path / "run") == status
        assert "--resume" not in capsys.readouterr().err
    (tmp_path / "run" / "config.yaml").touch()
    assert exit_status(KeyboardInterrupt(), "train", tmp_path / "run") == 130
    assert capsys.readouterr().err == f"train: stopped; continue with --resume {tmp_path / 'run'}\n"


def test_a_run_without_a_gain_is_warned_of_and_told_where_to_look(run):
    lines = " ".join(shown(run, before=measured(20), after=measured(20)))
    assert f"no sign of learning; roleagent doctor {run.folder.path} looks for the cause" in lines.replace("\n", "")


def test_stages_have_their_own_names(run):
    run.method = SFT(run.config)
    assert shown(run, before=measured(20), after=measured(30))[-1].startswith("imitation      +25.0 points greedy")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ((), ["warmstart.lr=0.01", "optim.lr=0.0005"]),
        (("method=ppo", "warmstart.episodes=0"), ["optim.lr=0.0005", "critic.lr=0.0005"]),
        (("method=sft", "warmstart.lr=1e-4"), []),
    ],
)
def test_rates_of_a_policy_from_scratch_are_named(options, named):
    config = load(overrides=list(options))
    run = SimpleNamespace(config=config, method=method_of(config), progress=Progress())
    assert [*Run._high_rates(run)] == named

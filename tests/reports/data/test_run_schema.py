"""What a run writes down of its episodes, and the data that is read from its folder in whatever state it is."""

import gzip
import json
import os
import shutil
from collections import Counter

import numpy as np
import pytest
import yaml
from failures import TOY
from hypothesis import given
from hypothesis import strategies as st
from programs import ROOT, TOY_POLICY, adds_up, load, overrides
from tiny import qwen, tokenizer

from roleagent import config as configuration
from roleagent.agents.evaluation.comparison import EvalRecords, compare
from roleagent.cli import main as roleagent
from roleagent.curricula.library import FailureLibrary
from roleagent.files import Lock, at_work
from roleagent.learners.batch import segments_of
from roleagent.learners.run.trajectory_log import token_texts, tokens_of
from roleagent.reports.data.load_run import load_episodes, load_run
from roleagent.reports.data.load_trajectories import RunDataError, TrajectoryReader
from roleagent.types import Completion, Prediction, Task, Trajectory, Turn

train = load("train")
# Two kinds of task, of which it learns one by heart: some groups win, some lose, some differ.
KITCHEN = {"max_steps": 10, "shares": {"heat": 0.01, "cool": 0.0, "clean": 0.0, "bring": 0.02}}
TREE = {
    "seed": 1,
    "env": {"eval_split": "train", "eval_tasks": 2},
    "policy": TOY_POLICY | {"hidden_size": 48, "mlp_size": 96, "context": 1024},
    "warmstart": {"episodes": 24, "epochs": 9.0, "batch_tokens": 1024, "failures": 0.0},
    "curriculum": {"analyst": "rule"},
    "rollout": {"num_groups": 3, "group_size": 4, "action_tokens": 12, "prediction_tokens": 32},
    "prompt": {"horizon": 2},
    "estimator": {"alpha": 0.5, "rewards": {"format_error": -0.1, "invalid_action": -0.05, "turn": -0.01}},
    "train": {"iterations": 3, "evaluate_every": 2},
}


ODD = "a?b=1#c%20[d]*'e&f"
"""The name of a run's folder: what URLs and patterns read in their own way."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / ODD
    options = [f"run_dir={folder}", f"env.kwargs={json.dumps(KITCHEN)}", *overrides(TREE)]
    assert train.main(["--config", str(ROOT / "configs" / "toy.yaml"), *options]) == 0
    return folder


@pytest.fixture
def run(finished, tmp_path):
    """A copy, to do as one likes with."""
    return shutil.copytree(finished, tmp_path / ODD)


def test_a_runs_folder_may_have_any_name(run, capsys):
    """Its library lies in it, and every command finds what is in it."""
    assert (run / "failures.db").is_file() and [path.name for path in run.parent.iterdir()] == [ODD]
    for source in (run, run / "failures.db"):
        assert roleagent(["failures", "list", str(source)]) == 0
        assert "bring" in capsys.readouterr().out
    assert roleagent(["report", str(run), "--out", str(run / "report.html")]) == 0
    assert load_run(run)["modes"]["step"]


def turns_of(cards):
    return [turn for card in cards for turn in card["turns"]]


# --- what is written down ---------------------------------------------------------------------------------------------


def test_the_credit_of_every_turn_adds_up(finished):
    cards = [card for iteration in TrajectoryReader(finished).files for card in load_episodes(finished, iteration)]
    assert len(cards) == 36
    for card in cards:
        adds_up(card, 0.95, alpha=0.5)
    named = Counter(name for turn in turns_of(cards) for name in turn["reward"])
    assert set(named) == {"task", "format_error", "invalid_action", "turn"}  # every term occurs
    assert any(turn["advantage"] for turn in turns_of(cards))
    for group in {(card["iteration"], card["group"]) for card in cards}:
        turns = turns_of([card for card in cards if (card["iteration"], card["group"]) == group])
        sizes = Counter(turn["state_group"] for turn in turns)
        assert all(turn["state_group_size"] == sizes[turn["state_group"]] for turn in turns)


def test_failures_carry_their_analysis_and_tasks_their_reason(finished):
    cards = [card for iteration in TrajectoryReader(finished).files for card in load_episodes(finished, iteration)]
    assert {card["won"] for card in cards} == {True, False}
    assert all((card["analysis"] is None) == card["won"] for card in cards)
    filed = FailureLibrary(finished / "failures.db", read_only=True)
    reported = Counter((card["iteration"], card["analysis"]["mode"]) for card in cards if card["analysis"])
    assert reported == {(row["iteration"], row["mode"]): row["failures"] for row in filed.growth()}
    because = {(c["iteration"], c["task_id"], c["chosen_because"], c["chosen_reason"]) for c in cards}
    assert {because for _, _, because, _ in because if because}
    for iteration, task_id, mode, reason in because:
        if mode is not None:
            chosen = [r for r in filed.retrievals(chosen_task_id=task_id) if r.iteration < iteration]
            assert (chosen[-1].mode, chosen[-1].reason) == (mode, reason)


def exchange(prompt, action, question=None, answer=None):
    """A turn from token ids."""
    said = Completion(tuple(action), tuple(-0.1 * (1 + i) for i in range(len(action))), "stop")
    prediction = None
    if question is not None:
        completion = Completion(tuple(answer), (-0.7,) * len(answer), "stop")
        prediction = Prediction((*prompt, *action, *question), completion, ("?",))
    return Turn(tuple(prompt), said, "look", "", prediction=prediction)


@pytest.mark.parametrize("options", [["loss.prediction_credit=advantage"], ["loss.prediction_credit=none"]], ids=str)
@pytest.mark.parametrize("goes_on", [True, False])
def test_the_tokens_are_those_that_are_trained(options, goes_on):
    """The same (token, mask, log-probability) as in the segments, whether prompts go on or begin anew."""
    policy = qwen()
    text = [policy.encode(words) for words in ("You arrive at cupboard 1.", "go to table", "what", "egg, potato")]
    first = exchange(*text)
    stream = [*first.prediction.prompt_ids, *text[3]] if goes_on else []
    episode = Trajectory(
        Task(TOY, "t"), (first, exchange([*stream, *text[0]], text[1], text[2], text[3])), True, False, ""
    )
    config = configuration.load(overrides=options)
    reported = tokens_of(episode, policy, config)
    read = "".join(piece for turn in reported for piece, _, _ in turn)
    assert read == 2 * "You arrive at cupboard 1.go to tablewhategg, potato"
    segments = segments_of(episode, [1.0, 1.0], train_predictions=config.loss.prediction_credit != "none")
    trained = [
        (kind, round(logprob, 4))
        for segment in segments
        for kind, logprob in zip(segment.token_kind, segment.sampler_logprobs, strict=True)
        if kind
    ]
    assert [(kind, logprob) for turn in reported for _, kind, logprob in turn if kind] == trained


TOKENIZER = tokenizer()


def decode(ids):
    return TOKENIZER.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


@given(st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=30), st.integers(0, 3))
def test_pieces_are_the_text_whatever_the_tokens(ids, before):
    assert "".join(token_texts(ids, decode)) == decode(ids)
    assert len(token_texts(ids[before:], decode, ids[:before])) == len(ids[before:])


# --- what is read -----------------------------------------------------------------------------------------------------


def test_the_data_of_a_finished_run(finished):
    data = load_run(finished)
    json.dumps(data, allow_nan=False)
    assert (data["state"], data["steps"], data["notes"]) == ("finished", (3, 3), [])
    assert (data["method"], data["env_id"], data["seed"]) == ("role_agent", TOY, 1)
    assert data["episodes_recorded"] == len(data["episodes"]) == 36
    assert list(data["evaluations"]) == ["before", "iteration-000002", "after"]
    assert "records" not in data["evaluations"]["after"]
    assert {"estimator.alpha", "prompt.horizon", "seed"} <= set(data["differing"]) <= set(data["config"])
    assert "loss.kl" not in data["differing"] and "run_dir" not in data["differing"]
    for name in ("warmstart", "training", "success_by_type", "time", "modes", "mode_failures"):
        curve = data[name]
        assert curve["values"] and all(len(column) == len(curve["step"]) for column in curve["values"].values()), name
    won = Counter(card["task_type"] for card in data["episodes"] if card["iteration"] == 1 and card["won"])
    all_of = Counter(card["task_type"] for card in data["episodes"] if card["iteration"] == 1)
    reported = {name: column[0] for name, column in data["success_by_type"]["values"].items() if column[0] is not None}
    assert reported == pytest.approx({name: won[name] / count for name, count in all_of.items()})
    seconds = zip(*data["time"]["values"].values(), strict=True)
    assert sum(map(sum, seconds)) == pytest.approx(data["seconds"])
    assert data["imitation_seconds"] > 0
    failures = sum(sum(column) for column in data["mode_failures"]["values"].values())
    assert failures == sum(not card["won"] for card in data["episodes"]) == data["counters"]["curriculum_failures"]


def forget(run, *names):
    for name in names:
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_a_run_says_what_it_is_doing(run):
    log = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    lock = Lock(run)
    os.utime(run / ".lock", (1, 1))  # when it began
    assert at_work(run) and load_run(run)["state"] == "finished"
    forget(run, "result.json", "after.json")
    assert load_run(run)["state"] == "measuring"
    forget(run, "checkpoints/step-500003")
    (run / "metrics.jsonl").write_text("".join(log[:-2]) + log[-2][:40])  # the second iteration is being written
    data = load_run(run)
    assert (data["state"], data["steps"]) == ("training", (1, 3))
    assert data["evaluations"].keys() == {"before", "iteration-000002"}
    (run / "metrics.jsonl").write_text(log[0])
    forget(run, "before.json", "iteration-000002.json", "trajectories", "failures.db")
    assert load_run(run)["state"] == "measuring"
    forget(run, "checkpoints")
    data = load_run(run)
    assert (data["state"], data["steps"], data["episodes"], data["modes"]["step"]) == ("warm start", (0, 3), [], [])
    lock.release()
    assert not at_work(run) and load_run(run)["state"] == "stopped"
    (run / ".lock").write_text("999999999 on nowhere")
    assert at_work(run)  # another machine's, who knows


def test_the_gain_is_that_of_the_same_tasks(run):
    """As evaluate.py compares the two files; without records nobody knows."""
    names = [f"{name}.json" for name in ("before", "after")]
    before, after = ([EvalRecords.read(run / name)] for name in names)
    wanted = compare(after, before, np.random.default_rng(0))
    gain = load_run(run)["gain"]
    assert gain["until"] == "after" and gain["by_type"].keys() == wanted["by_type"].keys()
    for name in ("difference", "interval", "tasks"):
        assert gain["all"][name] == wanted["success"][name]
    for name, found in (("only_last", "only_first"), ("only_before", "only_second")):
        assert gain["all"][name] == wanted["success"][found]
    summary = json.loads((run / "after.json").read_text())
    (run / "after.json").write_text(json.dumps({**summary, "records": [{"task": "of another version"}]}))
    assert load_run(run)["gain"] is None
    forget(run, "after.json", "iteration-000002.json")
    assert load_run(run)["gain"] is None


def test_a_report_of_several_evaluations_is_named_after_none_of_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for agent in ("random", "expert"):
        words = [
            "--env",
            "RoleAgent/Toy-v0",
            "--split",
            "valid",
            "--tasks",
            "2",
            "--agent",
            agent,
            "--out",
            f"{agent}.jsonl",
        ]
        assert load("evaluate").main(words) == 0
    assert roleagent(["report", "expert.jsonl"]) == 0 and (tmp_path / "expert.html").exists()
    (tmp_path / "expert.html").unlink()
    assert roleagent(["report", "expert.jsonl", "random.jsonl"]) == 0
    assert [path.name for path in tmp_path.glob("*.html")] == ["report.html"]


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garble(path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], "{]\n", *lines[1:]]))


@pytest.mark.parametrize(
    ("name", "spoil", "words"),
    [
        ("config.yaml", lambda path: path.unlink(), "is no run folder"),
        ("config.yaml", lambda path: path.write_text("a: [1"), "config.yaml is damaged"),
        ("metrics.jsonl", garble, "metrics.jsonl is damaged in line 2"),
        ("trajectories/iteration-000003.jsonl.gz", cut, "iteration-000003.jsonl.gz is damaged"),
        (
            "trajectories/iteration-000003.jsonl.gz",
            lambda path: path.write_bytes(gzip.compress(b'{"group": 0, "reward": 1, "turns": [{}]}\n')),
            "lacks 'task_id'",
        ),
        (
            "trajectories/iteration-000003.jsonl.gz",
            lambda path: path.write_bytes(gzip.compress(b'["no episode"]\n')),
            "iteration-000003.jsonl.gz is damaged",
        ),
    ],
)
def test_damage_is_one_clear_line(run, capsys, name, spoil, words):
    spoil(run / name)
    with pytest.raises(RunDataError, match=words):
        load_run(run)
    assert roleagent(["report", str(run)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("roleagent report: ") and words in line
    assert not (run / "report.html").exists()


def test_what_a_report_can_do_without_is_only_noted(run):
    cut(run / "after.json")
    for path in run.glob("failures.db*"):  # its log as well
        path.write_text("no library")
    (run / "config.yaml").write_text((run / "config.yaml").read_text() + "of_another_version: 1\n")
    data = load_run(run)
    assert len(data["notes"]) == 3 and "after" not in data["evaluations"]
    assert len(data["episodes"]) == 36 and data["modes"]["values"] == {}


# --- the choice of episodes -------------------------------------------------------------------------------------------


@pytest.fixture
def long(tmp_path):
    """Thirty iterations of ten groups of four; the third one of each differs, and one failed in a rare way."""
    folder = tmp_path / "long"
    (folder / "trajectories").mkdir(parents=True)
    for iteration in range(1, 31):
        lines = []
        for group in range(10):
            for member in range(4):
                won = group == 2 and member == 0
                mode = "rare" if (iteration, group) == (7, 5) else "loop"
                line = {"group": group, "task_id": "t", "goal": "g", "stop_reason": "won" if won else "lost"}
                line |= {"reward": float(won), "initial_observation": "x", "turns": []}
                lines.append(line | {"analysis": None if won else {"mode": mode}})
        packed = gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode())
        (folder / "trajectories" / f"iteration-{iteration:06d}.jsonl.gz").write_bytes(packed)
    return TrajectoryReader(folder)


@pytest.mark.parametrize("most", [4, 17, 48, 150])
def test_a_choice_is_of_whole_groups_spread_over_the_run(long, most):
    cards = long.select(most, {"loop": 30, "rare": 7})
    groups = Counter((card["iteration"], card["group"]) for card in cards)
    assert set(groups.values()) == {4} and most - 4 < len(cards) <= most
    iterations = {iteration for iteration, _ in groups}
    assert 30 in iterations and all((iteration, 2) in groups for iteration in iterations - {7})
    if most >= 17:
        assert 1 in iterations and (7, 5) in groups
    if most >= 48:
        assert max(np.diff(sorted(iterations))) <= 30 / 4 + 1
    assert [card["id"] for card in cards] == sorted(
        (card["id"] for card in cards), key=lambda id: [*map(int, id.split("/"))]
    )


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_report_is_written_whole_beside_the_run(run, tmp_path, capsys):
    assert roleagent(["report", str(run), "--episodes", "9"]) == 0
    said = capsys.readouterr().out
    assert "finished, 3 of 3 iterations, 8 of 36 episodes" in said and str(run / "report.html") in said
    assert (run / "report.html").read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")
    out = tmp_path / "both.html"
    assert roleagent(["report", str(run), str(run), "--out", str(out)]) == 0 and out.exists()
    assert len(capsys.readouterr().out.splitlines()) == 2  # the same run is shown once
    stray, other = tmp_path / "notes.txt", shutil.copytree(run, tmp_path / "again" / ODD)
    stray.touch()
    assert roleagent(["report", str(stray), str(tmp_path / "again"), str(run), str(other)]) == 0
    shown = capsys.readouterr()
    assert [line.split(":")[0] for line in shown.out.splitlines()[:2]] == [f"{tmp_path.name}/{ODD}", f"again/{ODD}"]
    left_out = [line for line in shown.err.splitlines() if "left out" in line]
    assert len(left_out) == 2 and str(stray) in left_out[0] and (run / "report.html").exists()
    assert roleagent(["report", str(stray)]) == roleagent(["report", str(run), str(tmp_path / "typo")]) == 2
    assert roleagent(["report", str(run), "--out", str(tmp_path / "nowhere" / "x.html")]) == 2
    assert "--out" in capsys.readouterr().err


def test_the_report_of_agent_r_counts_its_iterations_and_trees(tmp_path, capsys):
    tree = configuration.to_dict(configuration.load(None, ["method=agent_r", "options.revision.iterations=3"]))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    rows = [{"stage": "revise", "step": step, "loss": 0.5} for step in range(1, 25)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "revision").mkdir()
    for number in (1, 2):
        (tmp_path / f"revision/iteration-{number:03d}.json").write_text(json.dumps({"trees": 48}))
        (tmp_path / f"revision/after-{number:03d}.json").write_text(json.dumps({"success": 0.5}))
    assert roleagent(["report", str(tmp_path)]) == 0
    assert "2 of 3 iterations, 96 trees" in capsys.readouterr().out
    data = load_run(tmp_path)
    assert data["steps"] == (2, 3) and [*data["evaluations"]] == ["after-001", "after-002"]

"""The real ``train.py``: a whole run in seconds, killed, resumed, and starved of disk."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest
from programs import cut_short, episodes_of, load, metrics, run, start

train = load("train")


@pytest.fixture
def copy(finished, tmp_path):
    """A run that ended after its first iteration, to do as one likes with."""
    folder = tmp_path / "copy"
    cut_short(shutil.copytree(finished[0], folder), 500002, 500003)
    (folder / "iteration-000002.json").unlink()
    return folder


def test_a_run_leaves_everything_it_promises(finished):
    folder, out = finished
    result = json.loads((folder / "result.json").read_text())
    assert result["gain"] == pytest.approx(result["after"] - result["before"])
    low, high = result["gain_interval"]
    assert low <= result["gain"] <= high
    *_, imitation, reinforcement = out.splitlines()
    assert imitation.split()[:2] == ["imitation", f"{result['before']:.1%}"]
    assert reinforcement.split()[:3] == ["reinforcement", f"{100 * result['gain']:+.1f}", "points"]
    for name in ("before", "after"):
        measured = json.loads((folder / f"{name}.json").read_text())
        assert measured["n"] == measured["task_split"]["tasks"] == len(measured["records"]) == 4
        assert measured["success"] == result[name]
    assert sorted(path.name for path in (folder / "trajectories").iterdir()) == [
        f"iteration-00000{number}.jsonl.gz" for number in (1, 2, 3)
    ]
    assert list((folder / "tensorboard").iterdir())
    episodes = episodes_of(folder, 1)
    assert len(episodes) == 9
    assert {len(turn["predictions"]) for turn in episodes[0]["turns"]} == {1}


def test_speeds_are_those_of_whole_parts(finished):
    rows = [json.loads(line) for line in (finished[0] / "metrics.jsonl").read_text().splitlines()]
    for row in (row for row in rows if row["stage"] == "train"):
        playing = sum(row[f"{part}_seconds"] for part in ("generation", "prediction", "environment", "scoring"))
        sampled = row["action_tokens"] + row["prediction_tokens"]
        assert row["tokens_per_second"] == pytest.approx(sampled / playing)
        assert 0 < row["update_tflop_per_second"] < 10 and "mfu" not in row  # whose peak of a CPU nobody knows


def test_every_mechanism_did_something(finished):
    counters = json.loads((finished[0] / "result.json").read_text())["counters"]
    known = ("predictions_scored", "imitated_tokens", "returns_modulated")
    for name in (*known, "curriculum_failures", "curriculum_from_curriculum"):
        assert counters[name] > 0, (name, counters)
    for row in metrics(finished[0], "train"):
        assert {"prediction_correlation", "prediction_information", "failure_recall"} <= set(row)
    # Three groups of three that end alike three times: the watchdog says so of a run this small. It learns its tasks by
    # heart, and is measured on them. Its tokenizer has few words, and some commands are longer than a reply.
    expected = ("zero variance", "are also in env.train_split", "rollout.action_tokens=16")
    warnings = [line for line in finished[1].splitlines() if "warning" in line and not any(e in line for e in expected)]
    assert not warnings
    assert counters["curriculum_self_retrievals_total"] == 0
    assert counters["curriculum_reflections_fallback"] < counters["curriculum_failures"]  # the policy analyses itself


def kill_when(path, *arguments):
    process = start("train", *arguments)
    try:
        while not path.exists():
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.mark.long
def test_more_imitation_goes_on_where_it_was_killed(finished, config, tmp_path, capsys):
    """The control is bounded by trained tokens, and its updates are numbered through."""
    start = finished[0] / "checkpoints" / "step-500000" / "policy"
    folder = tmp_path / "sft"
    options = ["warmstart.epochs=0.05", "warmstart.batch_tokens=100", "method=sft", f"policy.path={start}"]
    arguments = [str(argument) for argument in ("--config", config, f"run_dir={folder}", *options, "--resume")]
    kill_when(folder / "checkpoints" / "step-500050", *arguments[:-1], "train.tokens=1000000")
    assert not (folder / "result.json").exists()

    def resume(tokens):
        assert train.main([*arguments, f"train.tokens={tokens}"]) == 0
        done = re.search(r"resuming from \S+ \(sft, step (\d+)\)", capsys.readouterr().out)[1]
        last = json.loads((sorted((folder / "checkpoints").glob("step-*"))[-1] / "state.json").read_text())
        assert json.loads((folder / "after.json").read_text())["policy_version"] == last["step"]
        steps = [row["step"] for row in metrics(folder, "sft")]
        assert steps == list(range(10, last["step"] + 1, 10))
        return int(done), last

    done, last = resume(1)  # spent before the kill
    assert last["step"] == done >= 50
    spent = 10 * sum(row["action_tokens"] for row in metrics(folder, "sft"))  # about: every tenth update has a row
    done, longer = resume(3 * round(spent))
    assert longer["step"] > done
    done, twice = resume(6 * round(spent))
    assert done == longer["step"] and abs(twice["step"] - 2 * done) <= 2


def test_a_finished_run_goes_on_for_longer_and_is_measured_again(copy, config):
    (copy / "after.json").write_text((copy / "before.json").read_text())
    assert train.main(["--config", str(config), f"run_dir={copy}", "--resume", "train.iterations=2"]) == 0
    assert [row["step"] for row in metrics(copy, "train")] == [1, 2]
    assert json.loads((copy / "after.json").read_text())["policy_version"] == 4
    assert json.loads((copy / "before.json").read_text())["policy_version"] == 0


@pytest.mark.slow
def test_a_disk_that_fills_up_during_a_checkpoint_costs_only_that_checkpoint(copy, config):
    """No file of the child may grow beyond the limit: writing fails just as on a full disk, in the middle."""
    last = copy / "checkpoints" / "step-500001"
    limit = int((last / "policy" / "model.safetensors").stat().st_size * 1.5)  # of the optimizer
    before = {path: path.read_bytes() for path in last.rglob("*") if path.is_file()}
    status, _, err = run(
        "train",
        *("--config", config, f"run_dir={copy}", "--resume"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert status != 0
    assert err.splitlines()[-1].startswith("train.py: cannot write the checkpoint")
    assert f"the last good one is {last}" in err
    assert "Traceback" not in err
    assert {path: path.read_bytes() for path in last.rglob("*") if path.is_file()} == before
    assert sorted(path.name for path in last.parent.iterdir())[-1] == "step-500001"
    assert train.main(["--config", str(config), f"run_dir={copy}", "--resume"]) == 0
    assert (copy / "result.json").exists()


@pytest.mark.slow
def test_a_disk_that_is_full_already_is_one_line(copy, config):
    status, _, err = run(
        "train",
        *("--config", config, f"run_dir={copy}", "--resume"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048)),
    )
    assert status == 1
    assert err.splitlines()[-1].startswith("train.py: ")
    assert "--resume" in err.splitlines()[-1]
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["wia=off", "train.shuffle=advantages"],
        ["aiw=off", "loss.prediction_credit=own"],
        ["prompt.style=window", "policy.context=2048"],
        ["prompt.predictions=inline", "loss.prediction_credit=advantage"],
        ["prompt.predictions=followup", "loss.prediction_credit=advantage"],
        ["policy.dtype=bfloat16", "loss.kl=0", "loss.prediction_credit=none"],
        ["method=sft", "train.tokens=400", "warmstart.episodes=4"],
    ],
    ids=" ".join,
)
def test_every_variant_goes_through_an_iteration(finished, config, tmp_path, overrides):
    start = finished[0] / "checkpoints" / "step-500000" / "policy"
    folder = tmp_path / "run"
    arguments = ["warmstart.episodes=0", f"policy.path={start}", f"run_dir={folder}", "train.iterations=1"]
    arguments += ["rollout.num_groups=6"]  # of fewer it happens that all end alike, and nothing is learned
    assert train.main(["--config", str(config), *arguments, *overrides]) == 0
    rows = metrics(folder, "train")
    if "method=sft" in overrides:
        assert rows == [] and json.loads((folder / "after.json").read_text())["policy_version"] > 0
        return
    [row] = rows
    assert row["tokens"] > 0 and row["grad_norm"] > 0
    # The warm start teaches detached predictions: asked for in the same reply, this policy may give none.
    assert (row["predictions_scored"] + row["predictions_absent"] == 0) == ("wia=off" in overrides)
    assert ("imitated_tokens" in row) == (not any("prediction_credit" in option for option in overrides))
    assert ("curriculum_failures" in row) == ("aiw=off" not in overrides)
    assert (folder / "failures.db").exists() == ("aiw=off" not in overrides)


@pytest.mark.long
def test_what_is_learned_does_not_depend_on_what_else_runs(config, tmp_path):
    """The same seed, once alone and once beside programs that use every core: the same bits."""
    options = ("warmstart.epochs=1", "warmstart.rounds=1", "warmstart.round_episodes=8", "train.iterations=1")

    def weights(name):
        status, shown, errors = run("train", "--config", config, f"run_dir={tmp_path / name}", *options)
        assert status == 0, errors
        [saved] = (tmp_path / name / "checkpoints").glob("step-500001/policy/model.safetensors")
        return saved.read_bytes(), shown

    alone, shown = weights("alone")
    # From its first seconds the run says how long it will take, in all and by stage.
    assert re.search(r"about .+ in all on this machine: warmstart .+, train .+, evaluate after .+", shown)
    assert re.search(r"warmstart \d+/\d+, .+ left, .+ to the end of the run", shown)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        assert weights("beside")[0] == alone
    finally:
        for process in busy:
            process.kill()
            process.wait()

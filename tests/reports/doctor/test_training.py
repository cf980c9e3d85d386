"""``roleagent doctor RUN``: recorded runs are named by their cause, and by no other.

``recorded/NAME.json.gz`` holds the files of a real run by name, without checkpoints and episodes. The runs play
ALFWorld's tiny rooms. All but ``weak`` and ``strong`` begin with a policy that wins 76 % greedily.
"""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from roleagent.cli import main
from roleagent.reports.doctor.training import diagnose

RECORDED = Path(__file__).parent / "recorded"
CAUSES = {  # of each run: the problems, and the options that are advised
    "healthy": ((), ()),
    "rate_high": (("rate too high",), ("optim.lr=0.002",)),
    "rate_mid": (("rate too high",), ("optim.lr=0.0004",)),
    "rate_low": (("rate too low",), ("optim.lr=1e-06",)),
    "penalties": (("penalties",), ("estimator.rewards.invalid_action=-0.1",)),
    "cut": (("cut replies",), ("rollout.action_tokens=10",)),
    "cold": (("temperature low",), ("rollout.temperature=1",)),
    "hot": (("temperature high",), ("rollout.temperature=1",)),
    "weak": (("start too weak",), ("warmstart.rounds=2",)),
    "strong": (("start too strong",), ("env.train_split",)),
    "crowd": (("predictions",), ("loss.imitated_turns=1",)),
    "flat": (("unknown cause",), ("optim.lr",)),
    "forgets": (("forgetting",), ("optim.lr=6e-06", "loss.kl")),
    "one_way": (("forgetting",), ("optim.lr=4e-06",)),
}


def unpack(name, folder):
    """Writes a recorded run as a run folder."""
    folder.mkdir(parents=True)
    for file, content in json.loads(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes())).items():
        (folder / file).write_text(content)
    return folder


def log_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def write_log(run, rows):
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def problems(run):
    return [finding.name for finding in diagnose(run) if finding.grade == "problem" and finding.name != "gain"]


def test_every_recorded_run_has_its_causes():
    assert {path.name.partition(".")[0] for path in RECORDED.iterdir()} == set(CAUSES)


@pytest.mark.parametrize("name", CAUSES)
def test_a_recorded_run_is_named_by_its_cause_and_by_no_other(name, tmp_path):
    causes, options = CAUSES[name]
    run = unpack(name, tmp_path / name)
    found = diagnose(run)
    assert tuple(problems(run)) == causes
    advised = " ".join(finding.advice for finding in found if finding.name in causes)
    assert all(option in advised for option in options)


@pytest.mark.parametrize("name", ["rate_low", "penalties", "cut", "hot", "weak", "crowd"])
def test_a_run_that_was_killed_is_named_by_the_same_cause(name, tmp_path):
    """Without the last evaluation, and with half of a line in the log."""
    run = unpack(name, tmp_path / name)
    (run / "after.json").unlink()
    (run / "result.json").unlink()
    with (run / "metrics.jsonl").open("a") as log:
        log.write('{"stage": "train", "st')
    assert tuple(problems(run)) == CAUSES[name][0]


def test_the_whole_run_is_judged_and_not_its_last_iteration(tmp_path):
    """A healthy last iteration of a run with too low a rate does not clear it, nor a bad one accuse a healthy run."""
    low, good = unpack("rate_low", tmp_path / "low"), unpack("healthy", tmp_path / "good")
    of_low, of_good = log_of(low), log_of(good)
    write_log(low, [*of_low[:-1], {**of_low[-1], "clip_fraction": 0.02}])
    write_log(good, [*of_good[:-1], {**of_good[-1], "clip_fraction": 0.6, "entropy": 0.001, "mismatch": 0.3}])
    assert problems(low) == ["rate too low"]
    assert problems(good) == []


def test_an_iteration_of_one_update_says_nothing_about_the_rate(tmp_path):
    """A minibatch without variance makes no update, and before the first one the policy has not moved."""
    low = unpack("rate_low", tmp_path / "low")
    write_log(low, [{**row, "optimizer_steps": 1.0} for row in log_of(low)])
    assert "rate too low" not in problems(low)


@pytest.mark.parametrize(
    ("figures", "cause"),
    [
        ({"mismatch": 0.4}, "mismatch"),
        ({"mismatch": 0.4, "staleness": 2.0}, "stale weights"),
        ({"mismatch": 0.4, "staleness": 2.0, "sync_mismatch": 0.4}, "mismatch"),
        ({"clip_fraction": 0.3}, "rate too high"),
        ({"format_errors": 900.0}, "format"),
        ({"zero_variance_groups": 8.0, "groups": 10.0, "replaced_groups": 0.0, "success": 0.5}, "zero variance"),
        ({"invalid_action_share": 0.9}, "invalid actions"),
        ({"crashed_episodes": 30.0}, "failed episodes"),
        ({"context_share": 0.4}, "short context"),
        ({"agent_crashed": 20.0, "agent_timeout": 20.0}, "agent program"),
    ],
)
def test_causes_without_a_recorded_run(figures, cause, tmp_path):
    """The figures of a run that did not learn, with some replaced."""
    run = unpack("flat", tmp_path / "run")
    write_log(run, [{**row, **figures} for row in log_of(run)])
    assert problems(run) == [cause]


def test_held_out_tasks_are_compared_with_the_same_tasks_and_the_same_time(tmp_path):
    """The evaluations between have fewer tasks, and one before training says nothing about its end."""
    run = unpack("forgets", tmp_path / "run")
    before = json.loads((run / "before.json").read_text())
    lost = [record for record in before["records"] if not record["won"]]
    (run / "iteration-000005.json").write_text(json.dumps({**before, "records": lost}))
    assert "forgetting" not in problems(run)  # none of these tasks was solved before
    run = unpack("flat", tmp_path / "flat")
    (run / "after.json").unlink()
    write_log(run, [{**row, "success": 0.95} for row in log_of(run)])
    assert "held-out tasks" not in problems(run)


def test_a_run_that_was_resumed_is_not_judged_by_its_earlier_end(tmp_path):
    run = unpack("healthy", tmp_path / "run")
    (run / "checkpoints" / "step-500040").mkdir(parents=True)
    (run / "checkpoints" / "step-500040" / "state.json").write_text('{"stage": "train", "step": 40}')
    worse = [{**row, "step": 40 + row["step"], "success": 0.02} for row in log_of(run)[:20]]
    write_log(run, [*log_of(run), *worse])
    assert not any(finding.name == "gain" for finding in diagnose(run))


def test_success_in_training_alone_is_named(tmp_path):
    run = unpack("flat", tmp_path / "run")
    after = json.loads((run / "after.json").read_text())
    (run / "after.json").write_text(json.dumps({**after, "success": 0.2}))
    assert "held-out tasks" in problems(run)


def test_what_a_person_sees(tmp_path, monkeypatch, capsys):
    """One line a finding within 80 columns, what to change, and the status."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    sick, healthy = unpack("penalties", Path("sick")), unpack("healthy", Path("healthy"))
    assert main(["doctor", str(sick)]) == 1
    shown = capsys.readouterr().out
    assert "PROBLEM  penalties" in shown and "→ estimator.rewards.invalid_action=-0.1" in shown
    assert max(map(len, shown.splitlines()[:-1])) <= 80
    assert main(["doctor", str(healthy)]) == 0
    shown = capsys.readouterr().out
    assert "ok       gain" in shown and "No problem found." in shown and "PROBLEM" not in shown
    assert main(["doctor", str(sick), str(healthy), "--json"]) == 1
    reported = json.loads(capsys.readouterr().out)
    assert not reported["works"]
    assert {finding["section"] for finding in reported["findings"]} == {"sick", "healthy"}


def test_bad_input_is_one_line(tmp_path, capsys):
    assert main(["doctor", str(tmp_path / "none")]) == 2
    assert "is no run folder" in capsys.readouterr().err
    run = unpack("flat", tmp_path / "run")
    (run / "metrics.jsonl").write_text("no JSON\n")
    assert main(["doctor", str(run)]) == 2
    assert "is damaged in line 1" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["doctor", str(run), "--quick"])
    assert ended.value.code == 2


def test_a_run_before_its_first_iteration_is_no_problem(tmp_path):
    run = unpack("flat", tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    [finding] = diagnose(run)
    assert (finding.grade, finding.name) == ("note", "iterations")


def test_no_torch_is_needed(tmp_path):
    run = unpack("rate_high", tmp_path / "run")
    program = "import sys; from roleagent.cli import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program, "doctor", str(run)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""benchmarks/gpu_learn.sh: what fails is visible, and left out or repeated; ``--cpu`` runs the steps themselves."""

import json
import os
import subprocess
import sys
import time

import pytest
from programs import ROOT, load

gpu_learn = load("benchmarks/parts/gpu_learn")
GAMES = [f"game-{number}" for number in range(8)]
SPLIT = {"env_id": "Some/Env-v0", "split": "train", "tasks": len(GAMES), "digest": "d"}


def outcomes(wins):
    return [
        {"task_id": game, "task_type": "heat", "won": n < wins, "reward": 0.0, "steps": 3, "stop_reason": "won"}
        for n, game in enumerate(GAMES)
    ]


def evaluated(run, **wins):
    """An arm with evaluations, whose names are those of the files."""
    run.mkdir(parents=True)
    for name, count in wins.items():
        content = {"task_split": SPLIT, "records": outcomes(count)}
        (run / f"{name.replace('_', '-')}.json").write_text(json.dumps(content))
    (run / "metrics.jsonl").write_text('{"stage": "train", "seconds": 2.0}\n{"stage": "tra')


def played(path, count, wins=8):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"protocol": 1, **SPLIT}, *outcomes(wins)[:count]]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_an_arm_that_ended_early_and_an_evaluation_that_was_cut_off_are_left_out_alone(tmp_path):
    runs, final = tmp_path / "runs", tmp_path / "final" / "20"
    evaluated(runs / "arm-grpo-0", before=2, iteration_10=3, iteration_20=4, iteration_30=5)
    evaluated(runs / "arm-grpo-1", before=2, iteration_10=3)
    evaluated(runs / "arm-gigpo-0", before=2, iteration_10=3, iteration_20=6)
    evaluated(runs / "arm-gigpo-1")
    evaluated(runs / "arm-role_agent-0", before=2)
    for name, count, wins in [("start", 8, 2), ("arm-gigpo-0", 8, 8), ("arm-grpo-0", 5, 5), ("arm-grpo-1", 0, 0)]:
        played(final / f"{name}-train.jsonl", count, wins)
    during, again = gpu_learn.table(tmp_path).split("\n\nIteration 20 on train")
    assert during.startswith("Iteration 20, ")
    assert "| gigpo | 1 | 8 | 25.0% | 75.0% | +50.0 " in during and "| grpo | 1 | 8 | 25.0% | 50.0% | +25.0 " in during
    assert during.endswith(
        "of the start: arm-gigpo-1 (1 iterations), arm-grpo-1 (1 iterations), arm-role_agent-0 (1 iterations)."
    )
    assert "| gigpo | 1 | 8 | 25.0% | 100.0% | +75.0 " in again and "| grpo |" not in again
    assert "arm-grpo-0 (1 iterations), arm-grpo-1" in again


def learn_at(folder, monkeypatch, **done):
    """The steps as on a GPU, after those that are done."""
    monkeypatch.setenv("MINUTES", "10")
    learn = gpu_learn.Learn("cuda", folder)
    learn.done |= {"start": {"policy": "p"}, "sampler": {"backend": "local"}, "screen": {"rate": "1e-5"}, **done}
    return learn


def test_a_failed_step_is_repeated_with_those_after_it(tmp_path, monkeypatch):
    def failing():
        raise gpu_learn.Failed("no room")

    begun = gpu_learn.Learn("cpu", tmp_path)
    begun.step("start", dict)
    with pytest.raises(gpu_learn.Failed):
        begun.step("arms", failing)
    begun = gpu_learn.Learn("cpu", tmp_path)
    assert [*begun.done] == ["start"]
    begun.step("arms", lambda: {"passed": False})
    begun.step("last", dict)
    begun = gpu_learn.Learn("cpu", tmp_path)
    begun.step("arms", dict)
    assert [*gpu_learn.Learn("cpu", tmp_path).done] == ["start", "arms"]  # what `last` played is older


def test_an_archive_that_a_kill_came_before_is_written_by_the_next_command(tmp_path):
    gpu_learn.Learn("cpu", tmp_path).step("start", dict)
    [archive] = tmp_path.glob("*.tar.xz")
    archive.unlink()
    begun = gpu_learn.Learn("cpu", tmp_path)
    begun.step("start", dict)
    begun.step("arms", dict)
    assert archive.exists() and [path.name for path in sorted(tmp_path.glob("*.tar.xz"))][1:] == ["01-arms.tar.xz"]


def test_an_arm_that_is_out_of_memory_starts_again_with_the_time_that_is_left(tmp_path, monkeypatch):
    learn, starts = learn_at(tmp_path, monkeypatch, seeds={"seeds": [0, 1]}), []
    text = f"CUDA out of memory. {'Tried to allocate. ' * 30}"

    def train(name, *options):
        given = dict(option.split("=", 1) for option in options)
        starts.append((name, given))
        fails = name == "arm-grpo-1" or ([one for one, _ in starts].count("arm-grpo-0") < 2 and name == "arm-grpo-0")
        (tmp_path / f"{name}.log").write_text(text if fails else "")
        return subprocess.Popen([sys.executable, "-c", f"import sys; sys.exit({fails:d})"])

    monkeypatch.setattr(learn, "train", train)
    begun = time.time()
    found = learn.arms()
    assert found["status"] == {"arm-gigpo-0": 0, "arm-grpo-0": 0, "arm-gigpo-1": 0, "arm-grpo-1": 1}
    assert not found["passed"] and sorted(found["out_of_memory"]) == ["arm-grpo-0", "arm-grpo-1"]
    first, second = (given for name, given in starts if name == "arm-grpo-0")
    assert first["optim.micro_batch_tokens"] == "4096" and second["optim.micro_batch_tokens"] == "1024"
    left = 60 * (10 - gpu_learn.RESERVE)
    assert left - (time.time() - begun) - 2 <= int(second["train.stop_after"][:-1]) < left


def test_arms_that_all_end_with_errors_are_no_result(tmp_path, monkeypatch):
    learn = learn_at(tmp_path, monkeypatch, seeds={"seeds": [0]})

    def train(name, *options):
        (tmp_path / f"{name}.log").write_text("no games there")
        return subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(2)"])

    monkeypatch.setattr(learn, "train", train)
    with pytest.raises(gpu_learn.Failed, match="no games there"):
        learn.arms()


def test_without_an_update_that_compares_it_vllm_does_not_sample(tmp_path, monkeypatch):
    learn = learn_at(tmp_path, monkeypatch)
    monkeypatch.setattr(gpu_learn.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0))
    monkeypatch.setattr(learn, "together", lambda starts: {"sampler": 0})
    evaluated(tmp_path / "runs" / "sampler")
    found = learn.sampler()
    assert found["backend"] == "local" and "no update" in found["reason"]


def test_the_command_shows_a_failure_and_repeats_it(tmp_path):
    python, folder = tmp_path / "python", tmp_path / "folder"
    python.write_text(
        """#!/bin/sh
if [ -e "$3/results.jsonl" ]; then passed=true; else passed=false; fi
echo "no games" && echo "{\\"step\\": \\"all\\", \\"passed\\": $passed}" >>"$3/results.jsonl"
"""
    )
    python.chmod(0o755)

    def called():
        return subprocess.run(
            ["bash", "benchmarks/gpu_learn.sh", "--cpu", str(folder)],
            cwd=ROOT,
            env={**os.environ, "PYTHON": str(python), "WAIT": "60"},
            capture_output=True,
            text=True,
        )

    first, second = called(), called()
    assert first.returncode == 1 and first.stdout == 'RESULT {"step": "all", "passed": false}\n'
    assert "no games" in first.stderr
    assert second.returncode == 0 and second.stdout.endswith('RESULT {"step": "all", "passed": true}\n')

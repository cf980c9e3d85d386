"""benchmarks/gpu_learn.sh: what fails is visible, and left out or repeated; ``--cpu`` runs the steps themselves."""

import json
import os
import subprocess
import sys
import tarfile
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


def test_rows_are_paired_by_seed_and_what_is_left_out_is_named(tmp_path):
    runs, final = tmp_path / "runs", tmp_path / "final" / "20"
    evaluated(runs / "arm-grpo-0", before=2, iteration_10=3, iteration_20=4, iteration_30=5, iteration_40=8)
    evaluated(runs / "arm-grpo-1", before=2, iteration_10=3, iteration_20=6)
    evaluated(runs / "arm-gigpo-0", before=2, iteration_10=3, iteration_20=6, iteration_30=7)
    evaluated(runs / "arm-gigpo-1", before=2, iteration_10=3, iteration_20=4)
    evaluated(runs / "arm-gigpo-2", before=2, iteration_40=8)
    evaluated(runs / "arm-role_agent-0", before=2)
    evaluated(runs / "arm-role_agent-1")
    for name, count, wins in [("start", 8, 2), ("arm-gigpo-0", 8, 8), ("arm-gigpo-1", 8, 0), ("arm-grpo-0", 8, 6)]:
        played(final / f"{name}-train.jsonl", count, wins)
    played(final / "arm-grpo-1-train.jsonl", 5, 5)  # cut off
    (tmp_path / "gpu-use.log").write_text("80\n90\n[N/A]\n")
    text = gpu_learn.table(tmp_path)
    both, rest = text.split("Iteration 30, ")
    first, again = rest.split("Iteration 20 on train, ")
    assert both.startswith("Iteration 20, the same seeds and games of every method (seeds 0, 1):")
    assert "| gigpo | 25.0 | 62.5 " in both and "| grpo | 25.0 | 62.5 " in both and "8/2 |" not in both
    assert "Left out, without an evaluation beyond the start: role_agent." in both
    assert "so they are left out: arm-gigpo-2." in both
    assert first.startswith("the same seeds and games of every method (seed 0):")
    assert "| gigpo | 25.0 | 87.5 " in first and "| grpo | 25.0 | 62.5 " in first and "| 3/0 |" in first
    assert "| grpo-0 | 40 | 100.0 " in first and "| role_agent-1 | – |" in first
    assert "once more (seed 0):" in again and "| gigpo | 25.0 | 100.0 " in again and "| grpo | 25.0 | 75.0 " in again
    assert max(map(len, text.splitlines())) <= 80
    assert "GPU use while the arms ran: 85 % (2 samples)." in text


def test_where_no_seed_has_every_method_nothing_is_compared(tmp_path):
    evaluated(tmp_path / "runs" / "arm-grpo-0", before=2, iteration_10=3)
    evaluated(tmp_path / "runs" / "arm-gigpo-1", before=2, iteration_10=3)
    text = gpu_learn.table(tmp_path)
    assert (
        text.startswith("At no iteration beyond the start") and "| method |" not in text and "| grpo-0 | 10 |" in text
    )


ARM = """
import pathlib, shutil, sys, tarfile, time
folder = pathlib.Path(sys.argv[1])
(folder / "runs/arm-grpo-0/iteration-10.json").write_text(sys.argv[2])
for _ in range(300):
    time.sleep(0.1)
    try:
        with tarfile.open(folder / "00-arms.tar.xz") as archive:
            archive.getmember("runs/arm-grpo-0/iteration-10.json")
            sys.exit(archive.extractall(folder / "unpacked", filter="data"))
    except (OSError, KeyError):
        pass
sys.exit("it is not in the archive")
"""


def test_what_an_arm_has_is_in_the_archive_while_it_runs(tmp_path):
    learn, content = gpu_learn.Learn("cpu", tmp_path), json.dumps({"task_split": SPLIT, "records": outcomes(5)})
    evaluated(tmp_path / "runs" / "arm-grpo-0", before=2)
    command = [sys.executable, "-c", ARM, str(tmp_path), content]
    found = learn.step("arms", lambda: learn.together({"arm-grpo-0": lambda: subprocess.Popen(command)}))
    assert found["arm-grpo-0"] == 0
    assert "| grpo-0 | 10 | 62.5 " in gpu_learn.table(tmp_path / "unpacked") == (tmp_path / "table.md").read_text()


def learn_at(folder, monkeypatch, **done):
    """The steps as on a GPU, after those that are done."""
    monkeypatch.setenv("MINUTES", "10")
    learn = gpu_learn.Learn("cuda", folder)
    learn.done |= {"start": {"policy": "p"}, "sampler": {"backend": "local"}, "screen": {"rate": "1e-5"}, **done}
    if "seeds" in done:
        learn.done["seeds"] = {"iterations": 1000, **done["seeds"]}
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


def test_what_hangs_is_killed_and_what_waits_does_not_begin(tmp_path, monkeypatch):
    learn, again = learn_at(tmp_path, monkeypatch), []
    starts = {"sampler": lambda: subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])}
    assert learn.together(starts, lambda name: not again.append(name), minutes=0.01) == {"sampler": -9}
    assert again == ["sampler"]


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
    assert first["optim.micro_batch_tokens"] == "2048" and second["optim.micro_batch_tokens"] == "1024"
    left = 60 * (10 - gpu_learn.RESERVE - 1)
    assert left - (time.time() - begun) - 2 <= int(second["train.stop_after"][:-1]) < left


def test_arms_that_all_end_with_errors_are_no_result(tmp_path, monkeypatch):
    learn = learn_at(tmp_path, monkeypatch, seeds={"seeds": [0]})

    def train(name, *options):
        (tmp_path / f"{name}.log").write_text("no games there")
        return subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(2)"])

    monkeypatch.setattr(learn, "train", train)
    with pytest.raises(gpu_learn.Failed, match="no games there"):
        learn.arms()


def test_less_than_18_minutes_play_one_seed_and_20_iterations(tmp_path, monkeypatch):
    (tmp_path / "begun").write_text(str(time.time() - 60 * 11.5))
    assert gpu_learn.Learn("cuda", tmp_path).seeds()["seeds"] == [0, 1]
    (tmp_path / "begun").write_text(str(time.time() - 60 * 12.5))
    learn = learn_at(tmp_path, monkeypatch)
    assert learn.seeds() == {"seeds": [0], "iterations": 20}
    given = []
    monkeypatch.setattr(learn, "train", lambda name, *options: given.append(options) or ended())
    learn.done["seeds"] = learn.seeds()
    learn.arms()
    assert len(given) == 2 and all("train.iterations=20" in options for options in given)


def ended(status=0):
    return subprocess.Popen([sys.executable, "-c", f"import sys; sys.exit({status})"])


@pytest.mark.parametrize(
    ("first", "second", "taken", "warned"),
    [
        (0.5, None, "start", False),
        (0.02, 0.4, "start-more", False),
        (0.02, 0.02, "start", True),
        (0.7, 0.05, "start", True),
        (0.9, 0.8, "start-less", True),
        (0.1, "failed", "start", True),
    ],
)
def test_a_start_out_of_range_is_tried_once_more_and_named(tmp_path, monkeypatch, first, second, taken, warned):
    learn, shares = gpu_learn.Learn("cpu", tmp_path), [first, second]

    def train(name, *options):
        run, share = tmp_path / "runs" / name, shares.pop(0)
        (run / "checkpoints" / "step-1").mkdir(parents=True)
        for kind in ("before", "before-sampled"):
            (run / f"{kind}.json").write_text(json.dumps({"success": share}))
        return ended(int(share == "failed"))

    monkeypatch.setattr(learn, "train", train)
    found = learn.step("start", learn.warm_start)
    assert found["run"] == taken and ("out_of_range" in found) == warned
    evaluated(tmp_path / "runs" / "arm-grpo-0", before=2, iteration_10=3)
    assert gpu_learn.table(tmp_path).startswith("NOTE: the start wins ") == warned


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "vLLM is not there"), ("raise ImportError('lib_C.so: no such symbol')\n", "lib_C.so: no such symbol")],
)
def test_vllm_that_arrives_late_is_found_by_the_next_command(tmp_path, monkeypatch, content, said):
    (tmp_path / "begun").write_text(str(time.time() - 600))
    package = tmp_path / "packages" / "vllm"
    package.mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(package.parent), prepend=os.pathsep)
    if content is not None:
        (package / "__init__.py").write_text(content)
    else:
        package.rmdir()
    learn = gpu_learn.Learn("cuda", tmp_path)
    learn.step("start", lambda: {"policy": "p"})
    found = learn.step("sampler", learn.sampler)
    assert found["backend"] == "local" and said in found["reason"]
    with tarfile.open(tmp_path / "01-sampler.tar.xz") as archive:
        assert (said if content else "No module named").encode() in archive.extractfile("vllm.log").read()
    (tmp_path / "runs" / "rate-1e-5").mkdir()
    learn.step("screen", dict)
    assert [*gpu_learn.Learn("cuda", tmp_path).done] == ["start"]
    evaluated(tmp_path / "runs" / "rate-1e-5")  # it has trained
    assert [*gpu_learn.Learn("cuda", tmp_path).done] == ["start", "sampler", "screen"]


def test_engines_that_do_not_start_in_processes_of_their_own_start_within_the_run(tmp_path, monkeypatch):
    learn, tried = learn_at(tmp_path, monkeypatch), []
    monkeypatch.setattr(learn, "without_vllm", lambda: "")

    def train(name, *options):
        tried.extend(option for option in options if option.startswith("vllm.engines="))
        (tmp_path / "sampler.log").write_text("no handle of CUDA's")
        if len(tried) > 1:
            (tmp_path / "runs" / name).mkdir()
            row = {"stage": "train", "mismatch": 0.01}
            (tmp_path / "runs" / name / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        return ended(int(len(tried) == 1))

    monkeypatch.setattr(learn, "train", train)
    found = learn.sampler()
    assert tried == ["vllm.engines=2", "vllm.engines=0"] and (found["backend"], found["engines"]) == ("vllm", 0)


def test_the_last_evaluations_play_with_the_sampler_of_the_arms(tmp_path, monkeypatch):
    learn, commands = learn_at(tmp_path, monkeypatch, sampler={"backend": "vllm", "engines": 2}), {}
    for name in ("arm-grpo-0-10", "arm-grpo-1-10", "arm-gigpo-1-10"):
        (tmp_path / "kept" / name).mkdir(parents=True)
    monkeypatch.setattr(learn, "start", lambda name, *command: commands.update({name: command}) or ended())
    assert learn.last()["seeds"] == ["1"]
    names = ("arm-gigpo-1", "arm-grpo-1", "start")
    assert sorted(commands) == sorted(f"last-{name}-{split}" for name in names for split in gpu_learn.SPLITS)
    assert all({"rollout.backend=vllm", "vllm.engines=0"} <= {*command} for command in commands.values())


def test_without_an_update_that_compares_it_vllm_does_not_sample(tmp_path, monkeypatch):
    learn = learn_at(tmp_path, monkeypatch)
    monkeypatch.setattr(learn, "without_vllm", lambda: "")
    monkeypatch.setattr(learn, "together", lambda starts, minutes: {"sampler": 0})
    evaluated(tmp_path / "runs" / "sampler")
    found = learn.sampler()
    assert found["backend"] == "local" and "no update" in found["reason"]


@pytest.fixture
def command(tmp_path):
    """Calls the command with a stand-in for Python, a script of the shell; its third argument is the folder."""

    def called(script, **variables):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}")
        python.chmod(0o755)
        return subprocess.run(
            ["bash", "benchmarks/gpu_learn.sh", "--cpu", str(tmp_path / "folder")],
            cwd=ROOT,
            env={**os.environ, "PYTHON": str(python), "WAIT": "60", **variables},
            capture_output=True,
            text=True,
        )

    return called


def test_the_command_shows_a_failure_and_repeats_it(command):
    script = """
if [ -e "$3/results.jsonl" ]; then passed=true; else passed=false; fi
echo "no games" && echo "{\\"step\\": \\"all\\", \\"passed\\": $passed}" >>"$3/results.jsonl"
"""
    first, second = command(script), command(script)
    assert first.returncode == 1 and first.stdout == 'RESULT {"step": "all", "passed": false}\n'
    assert "no games" in first.stderr
    assert second.returncode == 0 and second.stdout.endswith('RESULT {"step": "all", "passed": true}\n')


def test_a_command_that_ends_before_the_steps_says_so_and_brings_what_is_there(command, tmp_path):
    script = 'echo one >"$3/04-arms.tar.xz"; echo "| arm |" >"$3/table.md"; exec 9>"$3/.lock"; flock 9; exec sleep 8'
    found = command(script, WAIT="3", OUT=str(tmp_path / "out"))
    assert found.returncode == 75 and "still running: the same command continues" in found.stderr
    assert found.stdout.count("| arm |") == 1
    assert (tmp_path / "out" / "04-arms.tar.xz").read_text() == "one\n"


@pytest.mark.parametrize("name", ["gpu_learn", "gpu_smoke"])
def test_help_needs_no_gpu(name):
    found = subprocess.run(["bash", f"{name}.sh", "--help"], cwd=ROOT / "benchmarks", capture_output=True, text=True)
    assert found.returncode == 0 and not found.stderr
    assert f"benchmarks/{name}.sh --cpu" in found.stdout and "PYTHON" in found.stdout and "set -e" not in found.stdout

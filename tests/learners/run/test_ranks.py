"""One run in two processes: the same updates, one set of files, and an end for all when one of them is refused."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml
from programs import TOY_RUN, episodes_of, load, metrics, run_both, start_both

from roleagent.learners.run.ranks import Ranks, dealt_back, portable

train = load("train")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "toy.yaml"
    path.write_text(yaml.safe_dump(TOY_RUN))
    return path


@pytest.fixture(scope="module")
def alone(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "alone"
    assert train.main(["--config", str(config), f"run_dir={folder}"]) == 0
    return folder


@pytest.fixture(scope="module")
def both(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "both"
    said = run_both("--config", config, f"run_dir={folder}")
    assert [status for status, _, _ in said] == [0, 0], said
    return folder, said


def files(folder):
    names = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(name) for name in names if "tensorboard" not in name.parts and "-" not in name.suffix)


@pytest.mark.slow
def test_one_rank_speaks_and_writes(alone, both):
    folder, ((_, out, _), (_, silent, _)) = both
    assert out.splitlines()[-1].startswith("reinforcement ") and (folder / "result.json").exists()
    assert "success" not in silent and str(folder) not in silent
    assert files(folder) == files(alone)
    assert len(list((folder / "tensorboard").iterdir())) == 1
    expected, found = (json.loads((one / "before.json").read_text())["records"] for one in (alone, folder))
    assert [record["task_id"] for record in found] == [record["task_id"] for record in expected]


@pytest.mark.slow
def test_imitation_takes_the_same_steps_in_any_number_of_processes(alone, both):
    one, two = (metrics(folder, "warmstart") for folder in (alone, both[0]))
    assert len(one) == len(two) > 1
    for expected, found in zip(one, two, strict=True):
        assert found.pop("stage") == expected.pop("stage")
        assert found == pytest.approx(expected, rel=1e-3)
    assert one[-1]["loss"] < one[0]["loss"]


@pytest.mark.slow
def test_the_ranks_share_an_iteration_of_whole_groups(both):
    rows = metrics(both[0], "train")
    assert [row["step"] for row in rows] == [1, 2]
    assert [row["curriculum_sampled"] for row in rows] == [3, 6]
    for number, row in enumerate(rows, start=1):
        episodes = episodes_of(both[0], number)
        assert [episode["group"] for episode in episodes] == [0, 0, 1, 1, 2, 2]
        assert len({(episode["group"], episode["task_id"]) for episode in episodes}) == 3
        assert len({episode["task_id"] for episode in episodes}) == 3  # no two ranks played the same
        assert row["turns"] == pytest.approx(sum(len(episode["turns"]) for episode in episodes) / 6)
        assert row["action_tokens"] > 0 and row["tokens"] > 0 and row["logprob_gap"] < 0.1


@pytest.mark.long
def test_killed_and_resumed_both_end_as_if_nothing_had_happened(config, both, tmp_path):
    folder = tmp_path / "killed"
    arguments = ("--config", config, f"run_dir={folder}")
    processes = start_both(*arguments)
    while not (folder / "checkpoints" / "step-500001").exists():
        assert all(process.poll() is None for process in processes)
        time.sleep(0.002)
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert [status for status, _, _ in run_both(*arguments, "--resume")] == [0, 0]
    assert metrics(folder) == metrics(both[0])
    assert json.loads((folder / "after.json").read_text()) == json.loads((both[0] / "after.json").read_text())


@pytest.mark.slow
def test_what_one_rank_refuses_ends_all(config, both):
    for rank, (status, _, err) in enumerate(run_both("--config", config, f"run_dir={both[0]}")):
        assert status == 2
        [line] = [line for line in err.splitlines() if "holds a run already" in line]
        assert line.startswith("train.py: " if not rank else "train.py, rank 1: ")


@pytest.mark.long
def test_a_run_goes_on_with_another_number_of_processes(config, both, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(both[0], folder)
    assert train.main(["--config", str(config), f"run_dir={folder}", "--resume", "train.iterations=3"]) == 0
    assert [row["step"] for row in metrics(folder, "train")] == [1, 2, 3]
    said = run_both("--config", config, f"run_dir={folder}", "--resume", "train.iterations=4")
    assert [status for status, _, _ in said] == [0, 0], said
    assert [row["step"] for row in metrics(folder, "train")] == [1, 2, 3, 4]


class Intricate(Exception):
    def __init__(self, code, reason):
        super().__init__(f"{reason} ({code})")


@pytest.mark.slow
def test_a_run_begins_where_another_library_has_founded_a_group(config, tmp_path):
    """As vLLM has in a process that evaluated with it."""
    program = (
        "import sys, torch.distributed as dist\n"
        "from roleagent.programs.train import main\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    inherited = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"}
    options = ["--config", str(config), f"run_dir={tmp_path / 'run'}", "train.iterations=0"]
    done = subprocess.run([sys.executable, "-c", program, *options], capture_output=True, text=True, env=inherited)
    assert done.returncode == 0, done.stderr


def test_an_error_that_cannot_travel_is_told_by_another():
    own = ValueError("plain")
    assert portable(own) is own
    reported = portable(Intricate(7, "odd"))
    assert str(pickle.loads(pickle.dumps(reported))) == "Intricate: odd (7)"


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_what_was_dealt_comes_back_in_order(size):
    items = list(range(5))
    shares = [Ranks(rank, size).share(items) for rank in range(size)]
    assert dealt_back(shares) == items
    assert max(map(len, shares)) - min(map(len, shares)) <= 1

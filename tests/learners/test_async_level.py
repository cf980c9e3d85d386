"""``rollout.async_level=1``: the next episodes are played during the update, by weights of one update before."""

import copy
import gzip
import json
import os
import shutil
import threading

import pytest
from programs import ROOT, metrics, run

from roleagent.agents.policies.hf import HFPolicy
from roleagent.config import ConfigError, load
from roleagent.learners.run.conflicts import check_learning

BESIDE = "rollout.backend=test_async_level:Beside"


class Beside(HFPolicy):
    """A sampler beside the learner: it has a copy of the model, and its own thread may use it at any time."""

    def __init__(self, config, policy):
        super().__init__(copy.deepcopy(policy.model), policy.tokenizer, policy.generator, policy.context_length)

    def sync(self, weights, version):
        self.model.load_state_dict(dict(weights.weights()), strict=False)
        self.clear_cache()
        self.version = version

    def offload(self):
        assert all(thread.name != "rollout" for thread in threading.enumerate()), "episodes are under way"
        super().offload()


class Broken(Beside):
    """It fails in the second batch, which is played ahead."""

    def generate(self, requests, temperature):
        if threading.current_thread().name == "rollout":
            raise OSError("the server is gone")
        return super().generate(requests, temperature)


class Deaf(Beside):
    """Weights never arrive."""

    def sync(self, weights, version):
        dict(weights.weights())
        self.version = version


@pytest.fixture
def arguments(config, finished, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "tests"), str(ROOT / "tests" / "learners")]))
    start = finished[0] / "checkpoints" / "step-500000" / "policy"
    options = [
        f"policy.path={start}",
        "warmstart.episodes=0",
        "curriculum.analyst=rule",
        "rollout.async_level=1",
        BESIDE,
    ]
    return ["--config", config, f"run_dir={tmp_path / 'run'}", *options], tmp_path / "run"


def played(folder, iteration):
    """The tasks of an iteration."""
    with gzip.open(folder / "trajectories" / f"iteration-{iteration:06}.jsonl.gz", "rt") as lines:
        return [json.loads(line)["task_id"] for line in lines]


@pytest.mark.long
def test_every_batch_but_the_first_is_one_update_old(arguments):
    given, folder = arguments
    status, _, err = run("train", *given)
    assert status == 0, err
    rows = metrics(folder, "train")
    assert rows[0]["staleness"] == 0 and len(rows) == 3
    assert all(row["staleness"] > 0 for row in rows[1:]) and len({row["staleness"] for row in rows[1:]}) == 1
    assert all(row["sync_mismatch"] < 1e-5 for row in rows)
    assert rows[0]["mismatch"] < 1e-4 < rows[1]["mismatch"]  # what the correction works with
    tasks = played(folder, 3)
    shutil.rmtree(max((folder / "checkpoints").iterdir()))  # as if it had been killed in the third iteration
    status, _, err = run("train", *given, "--resume")
    assert status == 0, err
    assert played(folder, 3) == tasks  # they were drawn before the second one was learned
    status, _, err = run("train", *given, "--resume", "train.iterations=4")
    assert status == 0, err
    assert metrics(folder, "train")[-1]["staleness"] == 0  # what was played ahead ended with the run


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_sampler_that_never_receives_weights_is_named(arguments, ahead):
    given, folder = arguments
    options = [f"rollout.async_level={ahead}", "rollout.backend=test_async_level:Deaf", "train.iterations=5"]
    status, out, err = run("train", *given, *options)
    assert status == 0 and "the sampler does not have the learner's weights" in " ".join(out.split()), err
    assert "mismatch" in metrics(folder, "train")[-1]["alarms"]


@pytest.mark.slow
def test_a_sampler_that_fails_ahead_ends_the_run_in_one_line(arguments):
    given, _ = arguments
    status, _, err = run("train", *given, "rollout.backend=test_async_level:Broken")
    assert status == 1 and "the server is gone" in err and "--resume" in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "needs another process: set vllm.engines or vllm.url"),
        (["rollout.backend=vllm"], "needs another process: set vllm.engines or vllm.url"),
        ([BESIDE, "rollout.dynamic_sampling_rounds=1"], "set one of them to 0"),
        ([BESIDE, "genenv=on"], "set rollout.async_level=0"),
        ([BESIDE, "loss.importance_cap=0"], "nothing corrects for them: set loss.importance_cap"),
    ],
)
def test_what_cannot_be_played_ahead_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        check_learning(load(overrides=["rollout.async_level=1", *options]))
    check_learning(
        load(overrides=["rollout.async_level=1", BESIDE, "loss.importance_cap=0", "loss.old_logprobs=sampler"])
    )

"""Killed at any moment and resumed, a run ends in the same bits; and what of it can be taken elsewhere."""

import contextlib
import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from programs import load, run
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from roleagent import config
from roleagent.agents.policies.hf import HFPolicy
from roleagent.cli import main as roleagent
from roleagent.files import CHECKSUMS, Lock, damage, make_whole, replace_checked, write_checksums
from roleagent.learners.run import evaluation
from roleagent.learners.run.checkpoints import Checkpoints
from roleagent.learners.run.folder import RunFolder, read_config

differences = load("benchmarks/parts/run_differences").differences
train = load("train")

# A moment of each kind of work, none of which has a checkpoint of its own: of three iterations the second has one.
MOMENTS = (
    "warmstart/20/backward/0",
    "warmstart/145/sampling/2",  # in the first round of corrections, of which nothing is kept yet
    "warmstart/160/backward/0",  # in the second, which began after the last checkpoint; the first is kept
    "train/1/trajectories/0",  # the failures are filed already, and no checkpoint knows of them
    "train/2/checkpoint: flush/1",  # all is there but the name
    "train/2/checkpoint: clear away/1",  # the new one is there, and one too many
    "train/2/rollout/30",
    "train/2/update/1",
    "train/3/evaluation/2",
)
SMALLER = (
    *("train.iterations=3", "train.evaluate_every=2", "warmstart.epochs=5", "train.keep_checkpoints=2"),
    "rollout.temperature=1.3",  # some episodes of each iteration fail
)


@pytest.fixture(scope="module")
def whole(finished, tmp_path_factory):
    folder = shutil.copytree(finished[0], tmp_path_factory.mktemp("undisturbed") / "whole")
    for checkpoint in sorted((folder / "checkpoints").iterdir())[:-2]:
        shutil.rmtree(checkpoint)
    return folder


@pytest.fixture
def own(whole, config, tmp_path):
    """A copy of it, to do as one likes with, and the arguments that resume it."""
    folder = shutil.copytree(whole, tmp_path / "run")
    return folder, ["--config", str(config), f"run_dir={folder}", "train.keep_checkpoints=2", "--resume"]


@pytest.mark.long
def test_killed_in_every_kind_of_work_it_ends_as_if_nothing_had_happened(tmp_path):
    at = [argument for moment in MOMENTS for argument in ("--at", moment)]
    status, reported, errors = run("benchmarks/kills", *at, "--out", tmp_path, *SMALLER)
    assert status in (0, 1), errors
    result = json.loads(reported.splitlines()[-1].removeprefix("RESULT "))
    assert result["kills"] == len(MOMENTS) and result["equal"], reported
    assert tuple((tmp_path / "killed.kills").read_text().splitlines()) == MOMENTS
    # It had something to lose.
    whole = tmp_path / "whole"
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["stage"] == "train"]
    assert [row["step"] for row in trained] == [1, 2, 3]
    assert all(row["grad_norm"] > 0 for row in trained)
    filed = [row["curriculum_failures"] for row in trained]  # so far
    assert 0 < filed[0] < filed[1] < filed[2]
    assert trained[-1]["curriculum_reflections_fallback"] < filed[-1]
    assert {path.name for path in (whole / "checkpoints").iterdir()} == {"step-500002", "step-500003"}
    assert (whole / "iteration-000002.json").exists()


def test_a_finished_run_says_so_and_trains_no_more(own, whole, capsys):
    folder, arguments = own
    assert train.main([*arguments, "--json"]) == 0
    *said, result = capsys.readouterr().out.splitlines()
    assert any("is finished; increase train.iterations" in line for line in said)
    assert said[-2].startswith("imitation ")  # what it ended with is shown again
    assert json.loads(result) == json.loads((folder / "result.json").read_text())
    assert differences(whole, folder) == []


def test_two_processes_never_share_a_run(own, capsys):
    folder, arguments = own
    lock = Lock(folder)
    assert train.main(arguments) == 2
    assert "is at work in" in capsys.readouterr().err
    lock.release()
    assert train.main(arguments) == 0
    Lock(folder).release()  # a run that has ended lets go


def test_what_a_kill_left_unfinished_is_no_checkpoint(own):
    folder, arguments = own
    checkpoints = folder / "checkpoints"
    (checkpoints / "step-500004.partial").mkdir()
    shutil.copytree(checkpoints / "step-500002", checkpoints / "step-500001")  # the kill came before it was dropped
    assert Checkpoints(checkpoints).latest().name == "step-500003"
    assert train.main(arguments) == 0
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step-500002", "step-500003"]


def test_without_its_reference_a_run_does_not_go_on(own, capsys):
    folder, arguments = own
    shutil.rmtree(folder / "reference")
    assert train.main([*arguments, "train.iterations=4"]) == 2
    assert "reference is missing" in capsys.readouterr().err


def test_checkpoints_by_minutes_follow_the_clock_and_end_the_run(own):
    folder, arguments = own
    assert train.main([*arguments, "train.iterations=5", "train.checkpoint_every=60m"]) == 0
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-500003", "step-500005"]


def refusal(capsys, arguments):
    capsys.readouterr()
    assert train.main([*arguments, "train.iterations=4"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("file", ["policy/model.safetensors", "learner/state/mp_rank_00_model_states.pt", "state.json"])
def test_one_flipped_bit_of_a_checkpoint_is_found(own, capsys, file):
    folder, arguments = own
    last, before = (folder / "checkpoints" / name for name in ("step-500003", "step-500002"))
    flip(last / file)
    line = refusal(capsys, arguments)
    assert f"the checkpoint {last} cannot be read ({file} is damaged)" in line
    assert f"the newest whole one is {before}; remove that folder" in line


def test_the_newest_whole_checkpoint_is_named(own, capsys):
    folder, arguments = own
    steps = [folder / "checkpoints" / f"step-50000{number}" for number in (1, 2, 3)]
    shutil.copytree(steps[1], steps[0])
    flip(steps[2] / "learner" / "state" / "mp_rank_00_model_states.pt")
    (steps[1] / "policy" / "config.json").unlink()
    assert f"the newest whole one is {steps[0]}; remove step-500002, step-500003" in refusal(capsys, arguments)
    flip(steps[0] / "state.json")
    assert "no other one is whole; start a new run" in refusal(capsys, arguments)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[]", "does not say how far"),
        ('{"stage": "train", "step": "3"}', "step must be of type int, not '3'"),
        ('{"stage": "dreaming", "step": 3}', "stage must be one of"),
        ('{"stage": "train", "step": 3, "sampler": []}', "sampler and method must be objects"),
    ],
)
def test_a_state_that_cannot_be_is_one_line(own, capsys, content, reason):
    """Of an older version's checkpoint, which has no checksums."""
    folder, arguments = own
    last = folder / "checkpoints" / "step-500003"
    (last / CHECKSUMS).unlink()
    (last / "state.json").write_text(content)
    line = refusal(capsys, arguments)
    assert f"the checkpoint {last} cannot be read" in line and reason in line and "step-500002" in line


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[]", "it holds no object"),
        ('{"stage": "train", "step": "2"}', "step must be a whole number"),
        ('{"stage": "train", "step": 2, "seconds": "x"}', "'seconds' must be a number"),
        ('{"stage": "train", "st', "it is not JSON"),
    ],
)
def test_a_damaged_log_is_one_line_and_nothing_is_removed(own, capsys, line, reason):
    folder, arguments = own
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines()
    lines[-2] = line
    path.write_text("\n".join(lines) + "\n")
    before = sorted(folder.rglob("*"))
    said = refusal(capsys, arguments)
    assert f"{path}, line {len(lines) - 1}, is damaged ({reason}" in said
    assert sorted(folder.rglob("*")) == before


def test_a_kill_between_a_file_and_its_checksum_leaves_both_whole(tmp_path, monkeypatch):
    (tmp_path / "state.json").write_text("old")
    write_checksums(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(
            "pathlib.Path.replace", lambda own, other: 1 / 0 if other.name == "state.json" else own.rename(other)
        )
        with pytest.raises(ZeroDivisionError):
            replace_checked(tmp_path, "state.json", "new")
    assert (tmp_path / "state.json").read_text() == "old" and damage(tmp_path) == ""
    replace_checked(tmp_path, "state.json", "new")
    assert (tmp_path / "state.json").read_text() == "new" and damage(tmp_path) == ""
    flip(tmp_path / "state.json")
    assert damage(tmp_path) == "state.json is damaged"
    (tmp_path / CHECKSUMS).write_text("")
    assert damage(tmp_path) == "checksums is damaged"


@pytest.mark.parametrize(
    ("option", "free"),
    [
        ("optim.micro_batch_tokens=512", True),  # out of memory
        ("vllm.url=http://elsewhere:1", True),
        ("endpoint.url=http://elsewhere:1", True),
        ("agent.timeout=300", True),
        ("rollout.num_groups=4", False),
    ],
)
def test_what_may_be_otherwise_when_a_run_goes_on(tmp_path, option, free):
    RunFolder(tmp_path / "run", config.load(), resume=False)
    with contextlib.nullcontext() if free else pytest.raises(config.ConfigError, match=option.partition("=")[0]):
        RunFolder(tmp_path / "run", config.load(overrides=[option]), resume=True)
    kept = config.load(overrides=[option] if free else [])
    assert read_config(tmp_path / "run") == kept, "--resume RUN alone continues with it"


def test_a_teacher_behind_a_server_may_have_another_address_when_a_run_goes_on(tmp_path):
    first, second, other = (
        config.load(overrides=[f"distill.teacher={teacher}"]) for teacher in ("http://a/v1", "http://b/v1", "runs/b")
    )
    RunFolder(tmp_path / "run", first, resume=False)
    RunFolder(tmp_path / "run", second, resume=True)
    with pytest.raises(config.ConfigError, match=r"distill\.teacher"):
        RunFolder(tmp_path / "run", other, resume=True)


def test_an_evaluation_is_taken_for_another_on_the_same_tasks_alone(tmp_path):
    progress = SimpleNamespace(step=1)
    run = SimpleNamespace(folder=RunFolder(tmp_path / "run", config.load(), resume=False), progress=progress)
    held_out, suite = (SimpleNamespace(manifest=lambda name=name: {"split": name}) for name in ("valid", "train"))
    before = {"policy_version": 0, "task_split": {"split": "valid"}}
    run.folder.write_json("before.json", before)
    policy = SimpleNamespace(version=0)  # no group has had variance yet
    assert evaluation._known(run, held_out, policy, "iteration-000001", "") == before
    assert evaluation._known(run, suite, policy, "suite-000001", "") is None


def test_a_resumed_run_removes_its_later_evaluations_and_no_suite_of_the_user(tmp_path):
    folder = RunFolder(tmp_path / "run", config.load(), resume=False)
    for name in ("suite-000000.json", "suite-000040.json", "suite-40.json", "suite-first.json"):
        folder.write_json(name, {})
    folder.rewind("train", 0)
    assert sorted(path.name for path in folder.path.glob("suite*")) == [
        "suite-000000.json",
        "suite-40.json",
        "suite-first.json",
    ]
    folder.rewind("warmstart", 5)
    assert not (folder.path / "suite-000000.json").exists()


def test_what_cannot_be_written_whole_leaves_nothing_behind(tmp_path):
    def fill(folder):
        folder.mkdir()
        (folder / "half").write_text("x")
        raise SafetensorError("no space left")

    with pytest.raises(OSError, match="no space left"):
        make_whole(tmp_path / "made", fill)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_exported_policy_is_the_same_to_plain_transformers(whole, tmp_path, capsys, dtype):
    out = tmp_path / "policy"
    assert roleagent(["export", str(whole), "--out", str(out), "--dtype", dtype]) == 0
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert str(model.dtype) == f"torch.{dtype}"
    own = HFPolicy.from_path(whole / "checkpoints" / "step-500003" / "policy", torch.Generator(), dtype)
    text = '[SEP] On the desk 12, you see a mug 1.\n> <action>go to desk 12</action><prediction h="1">ok</prediction>'
    ids = own.encode(text)
    plain = PreTrainedTokenizerFast(tokenizer_file=str(out / "tokenizer.json"))
    assert tokenizer.encode(text, add_special_tokens=False) == ids == plain.encode(text, add_special_tokens=False)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (own.eos_id, own.tokenizer.pad_token_id)
    with torch.no_grad():
        assert torch.equal(model(torch.tensor([ids])).logits, own.model(torch.tensor([ids])).logits)
    assert roleagent(["export", str(whole), "--out", str(out)]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_any_checkpoint_can_be_exported_and_others_are_refused(whole, tmp_path, capsys):
    run_dir = str(whole)
    assert roleagent(["export", run_dir, "--out", str(tmp_path / "policy"), "--checkpoint", "500002"]) == 0
    assert "step-500002" in capsys.readouterr().out
    success = json.loads((whole / "iteration-000002.json").read_text())["success"]
    assert f"| {success:.1%} (95 % interval" in (tmp_path / "policy" / "README.md").read_text()
    assert roleagent(["export", run_dir, "--out", str(tmp_path / "other"), "--checkpoint", "7"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "no checkpoint step-000007; it has step-500002, step-500003" in line
    assert roleagent(["export", str(tmp_path), "--out", str(tmp_path / "other")]) == 2
    assert "no run folder" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()

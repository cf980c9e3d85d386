"""Lessons of earlier failures in the prompts of a run: in training and evaluation, exact when resumed and forked."""

import json
import shutil

import pytest
import yaml
from programs import TOY_RUN, episodes_of, load, metrics, overrides, run

from roleagent.config import ConfigError
from roleagent.config import load as configuration
from roleagent.learners.run.conflicts import check_learning
from roleagent.learners.run.forks import fork

differences = load("benchmarks/parts/run_differences").differences
train = load("train")
ON = ["curriculum.analyst=rule", "wia=off", "rollout.temperature=1.3", "train.iterations=3", "train.evaluate_every=1"]


@pytest.fixture(scope="module")
def shuffled(tmp_path_factory):
    """A run whose prompts hold shuffled lessons, the arm that draws most."""
    folder = tmp_path_factory.mktemp("runs") / "shuffled"
    toy = folder.with_name("toy.yaml")
    toy.write_text(yaml.safe_dump(TOY_RUN))
    options = [*ON, "lessons.show=shuffled", "lessons.share=0.8", f"run_dir={folder}"]
    status, _, err = run("train", "--config", toy, *options)
    assert status == 0, err
    return folder


def lessons_in(folder, iteration):
    return [episode.get("lessons", []) for episode in episodes_of(folder, iteration)]


def test_episodes_read_what_earlier_iterations_failed_for(shuffled):
    assert not any(lessons_in(shuffled, 1))  # nothing has failed yet
    earlier = {e["analysis"]["lesson"] for n in (1, 2) for e in episodes_of(shuffled, n) if e["analysis"]}
    read = lessons_in(shuffled, 3)
    assert any(read) and {lesson for one in read for lesson in one} <= earlier
    assert all(one == read[place - place % 2] for place, one in enumerate(read))  # a group reads the same
    row = metrics(shuffled, "train")[-1]
    assert row["lessons_share"] == sum(map(bool, read)) / len(read)
    tokens = [t for e in episodes_of(shuffled, 3) for t in e["turns"] if t.get("tokens")]
    texts = ["".join(piece for piece, *_ in turn["tokens"]) for turn in tokens]
    assert any("Lessons from earlier failures" in text for text in texts) == any(
        e.get("lessons") for e in episodes_of(shuffled, 3) if e["turns"][0].get("tokens")
    )


def test_a_resumed_run_and_an_unchanged_fork_read_the_same(shuffled, tmp_path):
    cut = tmp_path / "cut"
    shutil.copytree(shuffled, cut)
    for checkpoint in sorted((cut / "checkpoints").iterdir())[-1:]:  # killed in the last iteration, its failures filed
        shutil.rmtree(checkpoint)
    for name in ("after.json", "result.json"):
        (cut / name).unlink()
    fork(shuffled, 1, [], tmp_path / "fork")
    for folder in (cut, tmp_path / "fork"):
        status, _, err = run("train", "--resume", folder)
        assert status == 0, err
        assert [line for line in differences(shuffled, folder) if "in one of them only" not in line] == []


def test_lessons_can_begin_in_a_fork(shuffled, tmp_path):
    fork(shuffled, 2, ["lessons.show=retrieved", "lessons.share=1"], tmp_path / "fork")
    assert train.main(["--resume", str(tmp_path / "fork")]) == 0
    assert all(lessons_in(tmp_path / "fork", 3)) and not all(lessons_in(shuffled, 3))


def test_an_evaluation_reads_the_library_of_the_checkpoint_and_changes_nothing(shuffled, tmp_path, capsys):
    evaluate = load("evaluate")
    held = {path: path.read_bytes() for path in shuffled.iterdir() if path.is_file() and "db-" not in path.name}

    def lessons(name, *arguments):
        out = tmp_path / f"{name}.jsonl"
        assert evaluate.main(["--agent", str(shuffled), "--out", str(out), *arguments]) == 0, capsys.readouterr().err
        header = json.loads(out.read_text().splitlines()[0])
        lines = (tmp_path / f"{name}.transcripts.ndjson").read_text().splitlines()
        return header.get("lessons"), [json.loads(line).get("lessons", []) for line in lines]

    header, read = lessons("own")
    assert header["show"] == "shuffled" and any(read)
    identity = shuffled / "identity"
    identity.write_text("drawn for a tracker")
    early, at_start = lessons("start", "--checkpoint", "step-500000")
    identity.unlink()
    assert early is None and not any(at_start)  # as in the run itself
    assert lessons("none", "--set", "lessons.show=none") == (None, [[]] * len(read))
    given, others = lessons("given", "--lessons", str(shuffled / "failures.db"), "--set", "lessons.show=retrieved")
    assert given["library"] == header["library"] and all(others)
    assert held == {path: path.read_bytes() for path in held}


def test_in_training_only(shuffled, tmp_path):
    """What evaluations measure is then the policy without lessons."""
    fork(shuffled, 2, ["lessons.evaluate=off"], tmp_path / "fork")
    assert train.main(["--resume", str(tmp_path / "fork")]) == 0
    assert lessons_in(tmp_path / "fork", 3) == lessons_in(shuffled, 3)
    rows = [json.loads((folder / "after.json").read_text()) for folder in (shuffled, tmp_path / "fork")]
    assert rows[0]["policy_version"] == rows[1]["policy_version"] and rows[0]["records"] != rows[1]["records"]


@pytest.mark.parametrize(
    "options, message",
    [
        (["aiw=off"], "aiw=off keeps none"),
        (["curriculum.analyst=replay"], "curriculum.analyst=replay reads no failures"),
        (["method=agent_r", "aiw=on"], "not with method=agent_r"),
        (["agent.command=python agent.py"], "agent.command writes its own"),
    ],
)
def test_lessons_that_nobody_writes_or_reads_are_refused(options, message):
    config = configuration(overrides=[*overrides(TOY_RUN), "lessons.show=retrieved", *options])
    with pytest.raises(ConfigError, match=message):
        check_learning(config)
    with pytest.raises(ConfigError, match=r"lessons\.tokens must be at least 1"):
        configuration(overrides=["lessons.show=retrieved", "lessons.tokens=0"])

"""A sampler beside the learner plays whatever a run or an evaluation plays, with the weights of that moment."""

import json
from typing import ClassVar

import pytest
import yaml
from programs import TOY_RUN, load
from test_async_level import Beside

from roleagent.agents.policies.hf import HFPolicy

BACKEND = "rollout.backend=test_beside:Counting"


class Counting(Beside):
    """It counts what it samples with each weights that it receives."""

    sampled: ClassVar[list[int]] = []

    def sync(self, weights, version):
        super().sync(weights, version)
        self.sampled.append(0)

    def generate(self, requests, temperature):
        self.sampled[-1] += len(requests)
        return super().generate(requests, temperature)


@pytest.fixture
def players(monkeypatch):
    """The classes of the policies that sampled."""
    found, generate = [], HFPolicy.generate

    def kept(self, requests, temperature):
        found.append(type(self))
        return generate(self, requests, temperature)

    monkeypatch.setattr(HFPolicy, "generate", kept)
    Counting.sampled.clear()
    return found


def test_it_plays_the_rounds_of_the_warm_start_and_the_evaluations(players, tmp_path, capsys):
    config, folder = tmp_path / "toy.yaml", tmp_path / "run"
    rounds = {"warmstart": TOY_RUN["warmstart"] | {"rounds": 2, "round_episodes": 4, "epochs": 1}}
    config.write_text(yaml.safe_dump(TOY_RUN | rounds))
    assert load("train").main(["--config", str(config), f"run_dir={folder}", "train.iterations=0", BACKEND]) == 0
    opened, first, second, evaluation, learner = Counting.sampled
    assert learner == 0 < min(first, second, evaluation) and set(players) == {Counting}
    assert opened == 8  # replies that are compared with the model
    assert len(list((folder / "corrections").iterdir())) == 2

    players.clear()
    evaluate = load("evaluate")
    assert evaluate.main(["--agent", "expert", "--env", "RoleAgent/Toy-v0", "--set", BACKEND]) != 0
    assert "samples for a local policy" in capsys.readouterr().err
    arguments = ["--agent", str(folder), "--tasks", "4", "--no-transcripts", "--out"]
    assert evaluate.main([*arguments, str(tmp_path / "own.jsonl")]) == 0
    assert Counting not in players
    assert evaluate.main([*arguments, str(tmp_path / "beside.jsonl"), "--set", BACKEND]) == 0
    assert Counting in players and len(Counting.sampled) == 6
    own, beside = ((tmp_path / f"{name}.jsonl").read_text().splitlines() for name in ("own", "beside"))
    assert "sampler" not in json.loads(own[0]) and json.loads(beside[0])["sampler"] == "test_beside:Counting"
    assert len(own) == 5 and beside[1:] == own[1:]

"""Options that change what of the episodes is played and trained on, or look at it: one short run has them all on."""

import pytest
import yaml
from programs import TOY_RUN, episodes_of, metrics, run

from roleagent.config import ConfigError
from roleagent.config import load as configuration
from roleagent.learners.run.launch import check_learning

ON = ["wia=off", "aiw=off", "train.iterations=3", "rollout.temperature=1.3", "rollout.turns=[2,5]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    (path / "toy.yaml").write_text(yaml.safe_dump(TOY_RUN))
    status, _, err = run("train", "--config", path / "toy.yaml", *ON, f"run_dir={path}/run")
    assert status == 0, err
    return path / "run"


def test_training_episodes_have_fewer_turns_first(folder):
    rows = metrics(folder, "train")
    assert [row["turn_limit"] for row in rows] == [2, 2, 5]
    for iteration, row in enumerate(rows, start=1):
        played = [(len(e["turns"]), e["stop_reason"]) for e in episodes_of(folder, iteration)]
        assert max(played)[0] == row["turn_limit"]
        cut = [stop for turns, stop in played if turns == row["turn_limit"] and stop == "max_steps"]
        assert row["turn_limit_share"] == pytest.approx(len(cut) / len(played)) and cut


def test_a_limit_for_the_loop_does_not_go_with_an_agent_program():
    with pytest.raises(ConfigError, match="limit an agent program"):
        check_learning(configuration(overrides=["wia=off", "rollout.turns=[4]", "agent.command=python agent.py"]))

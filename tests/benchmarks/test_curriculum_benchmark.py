"""The comparison with and without the curriculum: its arithmetic by hand, and both runs from one start."""

import pytest
import yaml
from programs import ROOT, load, result_of, run

from roleagent.experiments.figures import Course, Point

SMALL = {
    "base": str(ROOT / "configs" / "toy_rare.yaml"),
    "env": {"eval_tasks": 8},
    "policy": {"hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 1, "mlp_size": 32},
    "warmstart": {"episodes": 12, "batch_tokens": 1000},
    "rollout": {"num_groups": 3, "group_size": 2, "action_tokens": 16},
    "train": {"iterations": 2, "evaluate_every": 1},
}


@pytest.fixture(scope="module")
def benchmark():
    return load("benchmarks/curriculum")


def test_steps_to_a_threshold():
    points = [Point(*row) for row in ((0, 0.1), (1000, 0.2), (2000, 0.6), (3000, 0.4))]
    course = Course(tuple(points))
    assert course.steps_to(0.5) == (pytest.approx(1750), True)
    assert course.steps_to(0.05) == (1.0, True)
    assert course.steps_to(0.7) == (3000, False)
    assert course.mean == pytest.approx((150 + 400 + 500) / 3000)


def test_the_ratio_is_a_geometric_mean(benchmark):
    def reaches(steps):
        rare = Course((Point(0, 0.0), Point(2 * steps, 1.0)))
        return benchmark.Learnt(rare, 1.0, 0.5)

    result = benchmark.report([(reaches(1000), reaches(500)), (reaches(800), reaches(100))], 0.5, "cool")
    assert result["steps_ratio"] == 0.25 and result["steps"] == [[1000, 500], [800, 100]]
    assert result["interval"][0] < 0.25 < result["interval"][1]
    assert result["reached"] == {"uniform": 2, "curriculum": 2}


@pytest.mark.slow
def test_both_runs_go_on_from_one_start(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(SMALL))
    options = ("--seeds", 1, "--config", file, "--out", tmp_path / "out")
    status, shown, errors = run("benchmarks/curriculum", *options)
    assert status == 0, errors
    assert result_of(shown)["seeds"] == 1
    starts = [tmp_path / "out" / folder / "before.json" for folder in ("seed0", "seed0-curriculum")]
    assert starts[0].read_text() == starts[1].read_text()
    aiw = [yaml.safe_load((path.parent / "config.yaml").read_text())["aiw"] for path in starts]
    assert aiw == [False, True]
    again = run("benchmarks/curriculum", *options)
    assert again[0] == 0 and "roleagent train" not in again[1]  # nothing is trained twice

"""Statistics against known values and against chance itself; two evaluations beside each other."""

import csv
import json
from dataclasses import asdict

import numpy as np
import pytest
from programs import load

from roleagent.agents.evaluation.comparison import EvalRecords, compare
from roleagent.agents.evaluation.records import Record, RecordFile
from roleagent.agents.evaluation.statistics import difference, rate, spread, spread_difference, summarize
from roleagent.config import load as load_config
from roleagent.config import to_dict
from roleagent.reports.eval_display import comparison_rows
from roleagent.tasks.split import TaskSplit, wilson

evaluate = load("evaluate")
# Student's own sleep data, whose tests stand in the documentation of R's t.test.
SLEEP = (
    [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0],
    [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4],
)

# --- sums -------------------------------------------------------------------------------------------------------------


def test_the_sleep_data_come_out_as_in_the_books():
    assert spread_difference(*SLEEP) == pytest.approx((-1.58, -3.365483, 0.205483), abs=1e-4)  # Welch
    assert spread(np.subtract(*SLEEP)) == pytest.approx((-1.58, -2.459886, -0.700114), abs=1e-4)  # paired
    assert spread([0.1 + 0.2, 0.3]) is None and spread_difference([1.0, 1.0], [3.0, 3.0]) is None  # no spread
    assert spread([1.0]) is None and spread_difference([1.0], [1.0, 2.0]) is None


def test_repeats_of_a_task_are_not_new_tasks():
    once = [1, 0, 1, 1, 0, 1, 0, 0, 1, 1]
    tasks = np.arange(10)
    assert rate(once, tasks) == (0.6, *wilson(6, 10))
    alike = rate(np.repeat(once, 5), np.repeat(tasks, 5))  # five times the same: nothing new
    assert alike == pytest.approx((0.6, *wilson(6, 10)))
    mixed = rate(np.tile(once, 5), np.repeat(tasks, 5))  # unlike within a task: as good as other tasks
    assert mixed == pytest.approx((0.6, *wilson(30, 50)))
    assert rate([1] * 50, np.repeat(tasks, 5)) == pytest.approx((1.0, *wilson(10, 10)))
    assert rate([1] * 9 + [0], [0] * 10) == pytest.approx((0.9, *wilson(0.9, 1)))  # of other tasks nothing is known


def test_the_interval_holds_what_it_promises():
    """95 of 100 intervals hold the truth although tasks differ; where every episode counts as a task, far fewer do."""
    rng, hits, naive, draws = np.random.default_rng(0), 0, 0, 600
    for _ in range(draws):
        chance = rng.beta(0.6, 0.4, size=60)
        won = (rng.random((60, 5)) < chance[:, None]).astype(float)
        found = rate(won.ravel(), np.repeat(np.arange(60), 5))
        low, high = wilson(won.sum(), won.size)
        hits += found.low <= 0.6 <= found.high
        naive += low <= 0.6 <= high
    assert 0.92 < hits / draws < 0.98
    assert naive / draws < 0.85


@pytest.mark.parametrize("values", [[-1.0] * 20 + [0.0] * 150 + [1.0] * 40, list(np.linspace(-1, 1.4, 210))])
def test_the_bootstrap_finds_the_normal_interval_where_it_holds(values):
    """Few different values and many: both ways to draw."""
    found = difference(values, np.random.default_rng(0))
    half = 1.96 * np.std(values) / len(values) ** 0.5
    assert found.value == pytest.approx(np.mean(values))
    assert found[1:] == pytest.approx((np.mean(values) - half, np.mean(values) + half), abs=0.12 * half)


# --- comparisons ------------------------------------------------------------------------------------------------------

SPLIT = TaskSplit("RoleAgent/Toy-v0", "valid", ("a", "b", "c", "d"))


def measured(path, wins, task_split=SPLIT, repeats=1, temperature=0.0, more=(), **header):
    """A record file in which the tasks named in ``wins`` (one string of tasks per repeat) are won."""
    head = {"protocol": 2, **task_split.manifest(), "kwargs": {"max_steps": 15}, "temperature": temperature, **header}
    file = RecordFile(path, head)
    for repeat, won in enumerate(wins):
        for task_id in task_split.task_ids:
            kind, steps = ("heat" if task_id in "ab" else "cool"), 4 if task_id in won else 15
            end = "won" if task_id in won else "max_steps"
            metrics = {"score": 1.0 if task_id in won else 0.5, **dict.fromkeys(more, 0.5)}
            file.append(Record(task_id, kind, task_id in won, 0.0, steps, end, repeat=repeat, metrics=metrics))
    return path


def compared(first, second, seed=0):
    return compare(
        [EvalRecords.read(p) for p in first], [EvalRecords.read(p) for p in second], np.random.default_rng(seed)
    )


def test_a_comparison_by_hand(tmp_path):
    """The sign is that of the first side."""
    found = compared([measured(tmp_path / "a", ["bcd"])], [measured(tmp_path / "b", ["ab"])])
    cell = found["success"]
    assert (cell["first"], cell["second"], cell["difference"]) == (0.75, 0.5, 0.25)
    assert (cell["only_first"], cell["only_second"], cell["p"]) == (2, 1, 1.0)
    assert cell["interval"][0] < 0 < cell["interval"][1]
    assert found["difference"] == "first minus second"
    assert found["by_type"]["cool"]["difference"] == 1.0
    assert found["by_type"]["heat"]["difference"] == -0.5
    assert found["metrics"]["score"]["difference"] == pytest.approx(0.125)
    assert found["steps"]["difference"] == pytest.approx(-11 / 4)
    assert (found["left_out"], found["seeds"], found["differs"]) == (0, None, {})
    assert [row[0] for row in comparison_rows(found)] == ["all", "cool", "heat", "score ×100", "steps"]


def test_a_measure_of_one_side_only_is_no_difference(tmp_path, capsys):
    """A judge scored one of two files: 0.5 against nothing, and not against 0."""
    files = [measured(tmp_path / "a", ["bcd"], more=["judge"]), measured(tmp_path / "b", ["ab"])]
    assert set(compared(files[:1], files[1:])["metrics"]) == {"score"}
    assert set(compared(files[:1], files[:1])["metrics"]) == {"judge", "score"}
    assert evaluate.main(["table", "--row", "both", *map(str, files), "--format", "csv"]) == 0
    assert "score" in (table := capsys.readouterr().out) and "judge" not in table


def test_a_measure_of_one_environment_is_compared_over_its_tasks(tmp_path):
    """Tasks of the others counted 0: a score of 0.72 was shown as 0.36, and its difference halved."""
    split, files = TaskSplit("several", "valid", ("shop/a", "shop/b", "toy/a", "toy/b")), []
    for name, score in (("first", 0.75), ("second", 0.5)):
        file = RecordFile(tmp_path / name, {"protocol": 2, **split.manifest(), "temperature": 0.0})
        for task_id in split.task_ids:
            kind, metrics = ("shop/buy", {"score": score}) if task_id.startswith("shop") else ("toy/heat", {})
            file.append(Record(task_id, kind, True, 1.0, 4, "won", metrics=metrics))
        files.append(tmp_path / name)
    found = compared(files[:1], files[1:])["metrics"]["score"]
    assert (found["tasks"], found["first"], found["second"], found["difference"]) == (2, 0.75, 0.5, 0.25)


def test_repeats_and_seeds_are_taken_together_within_a_task(tmp_path):
    first = [measured(tmp_path / f"a{n}", wins) for n, wins in enumerate((["a", "ab"], ["a", ""]))]
    second = [measured(tmp_path / f"b{n}", wins) for n, wins in enumerate((["ab"], ["abcd"], ["abc"]))]
    found = compared(second, first)
    assert "p" not in found["success"]  # McNemar knows one episode per task
    assert found["success"]["first"] == pytest.approx((1 + 1 + 2 / 3 + 1 / 3) / 4)
    assert found["success"]["second"] == pytest.approx((3 / 4 + 1 / 4) / 4)
    assert found["seeds"]["first"] == [0.5, 1.0, 0.75] and found["seeds"]["second"] == [0.375, 0.125]
    assert found["seeds"]["difference"] == pytest.approx(0.5) and not found["seeds"]["paired"]


def test_an_episode_without_an_outcome_is_no_gain(tmp_path):
    """Seed 0 wins all and seed 1 nothing, on both sides; without seed 1 task a would be won always on one of them."""
    sides = [[measured(tmp_path / f"{side}{n}", [won]) for n, won in enumerate(("abcd", ""))] for side in "xy"]
    lines = sides[0][1].read_text().splitlines()
    sides[0][1].write_text("\n".join([lines[0], lines[1].replace('"max_steps"', '"error"'), *lines[2:]]) + "\n")
    found = compared(*sides)
    assert found["success"]["difference"] == 0.0 and found["left_out"] == 1
    with pytest.raises(ValueError, match="is named twice"):  # a second seed that is none
        compared(sides[0][:1] * 2, sides[1])


def test_rare_series_of_wins_have_wide_intervals():
    """Four of 20 tasks are won in 4 of 8 episodes: that no task is won eight times says less than for four times."""
    chances, often = np.zeros(20), 8
    chances[:4] = 0.5
    records = [
        Record(str(task), "", won < chance * often, 0.0, 1, "", repeat=won)
        for task, chance in enumerate(chances)
        for won in range(often)
    ]
    highs = {row["k"]: row["pass^k"]["interval"][1] for row in summarize(records)["at_k"]}
    assert highs[4] == pytest.approx(wilson(4 / 70 / 20 * 40, 40)[1])  # 160 episodes hold 40 fours
    rng, hits, draws = np.random.default_rng(0), 0, 300
    for _ in range(draws):
        won = rng.random((20, 8)) < rng.beta(1, 3, size=(20, 1))
        drawn = [
            Record(str(task), "", bool(won[task, n]), 0.0, 1, "", repeat=n) for task in range(20) for n in range(8)
        ]
        low, high = next(row["pass^k"]["interval"] for row in summarize(drawn)["at_k"] if row["k"] == 4)
        hits += low <= 24 / 840 <= high  # E[p⁴] of Beta(1, 3): 1·2·3·4 / (4·5·6·7)
    assert hits / draws > 0.93


def test_pass_at_k_is_of_one_policy_and_over_tasks(tmp_path, capsys):
    """Task a is always won, b in 2 of 4 episodes, c in 1, d never; seeds that win other tasks do not add up."""
    path = measured(tmp_path / "a.jsonl", ["ab", "abc", "a", "a"], agent={"name": "mine"})
    rows = summarize(EvalRecords.read(path).records)["at_k"]
    assert [row["k"] for row in rows] == [1, 2, 4]
    assert rows[0]["pass@k"] == rows[0]["pass^k"]
    assert rows[1]["pass@k"]["mean"] == pytest.approx((1 + 5 / 6 + 1 / 2 + 0) / 4)
    assert rows[1]["pass^k"]["mean"] == pytest.approx((1 + 1 / 6 + 0 + 0) / 4)
    low, high = rows[2]["pass@k"]["interval"]
    assert (low, high) == wilson(3, 4)  # three of four tasks: sixteen episodes are not sixteen tasks
    assert summarize(EvalRecords.read(measured(tmp_path / "once", ["ab"])).records)["at_k"] is None
    seeds = [measured(tmp_path / f"s{n}", [won, won]) for n, won in enumerate(("ab", "cd"))]
    assert evaluate.main(["compare", str(path), "--against", *map(str, seeds)]) == 0
    shown = capsys.readouterr().out
    [result] = json.loads(shown.splitlines()[-1])["comparisons"]
    assert [row["k"] for row in result["at_k"]] == [1, 2]
    assert result["at_k"][1]["pass@k"]["second"] == 0.5  # not 1: no policy wins all
    assert "pass@2" in shown and "pass^2" in shown


def test_what_differs_otherwise_is_said_and_other_splits_are_refused(tmp_path):
    here = measured(tmp_path / "a", ["ab"])
    there = measured(tmp_path / "b", ["ab"], temperature=1.0, agent={"name": "other"}, seed=3)
    assert compared([here], [there])["differs"] == {"temperature": [["0.0"], ["1.0"]]}
    other = measured(tmp_path / "c", ["ab"], TaskSplit("RoleAgent/Toy-v0", "train", ("a", "b")))
    with pytest.raises(ValueError, match=r"valid \(4 tasks.*train \(2 tasks.*only success on the same tasks"):
        compared([here], [other])


OFFICIAL = {"source": "official", "version": "2.1.1"}


@pytest.mark.parametrize(
    ("data", "other", "same"),
    [
        (OFFICIAL, OFFICIAL, True),
        (OFFICIAL, {"source": "generated", "rooms": "standard"}, False),
        (OFFICIAL, {"source": "official", "version": "2.1.3"}, False),
        ({"source": "official", "nouns": "heuristic"}, {"source": "official", "nouns": "en_core_web_sm 3.8.0"}, False),
    ],
)
def test_other_data_are_refused(tmp_path, data, other, same):
    paths = [measured(tmp_path / f"{n}", ["ab"], data=found) for n, found in enumerate((data, other))]
    if same:
        assert compared(paths[:1], paths[1:])["task_split"]["data"] == data
    else:
        with pytest.raises(ValueError, match="only success on the same tasks and data"):
            compared(paths[:1], paths[1:])


def test_the_command_compares_runs_and_files(tmp_path, capsys):
    """A run folder stands for its measurement at the end; before and after of the same runs are paired."""
    runs = []
    for seed, (before, after) in enumerate((("a", "abc"), ("b", "ab"))):
        run = tmp_path / f"run{seed}"
        run.mkdir()
        (run / "config.yaml").write_text(json.dumps(to_dict(load_config(overrides=[f"seed={seed}"]))))
        for name, won in (("before", before), ("after", after)):
            records = [Record(t, "heat", t in won, 0.0, 4, "won" if t in won else "lost") for t in SPLIT.task_ids]
            content = {"task_split": SPLIT.manifest(), "records": [asdict(record) for record in records]}
            (run / f"{name}.json").write_text(json.dumps(content))
        runs.append(run)
    befores = [str(run / "before.json") for run in runs]
    assert evaluate.main(["compare", *map(str, runs), "--against", *befores]) == 0
    shown = capsys.readouterr().out
    [result] = json.loads(shown.splitlines()[-1])["comparisons"]
    assert result["success"]["difference"] == result["seeds"]["difference"] == pytest.approx(0.375)
    assert result["seeds"]["paired"] and "A minus B over seeds: +37.5 points" in shown
    assert "(paired by run)" in shown
    assert evaluate.main(["compare", str(runs[0]), str(runs[1])]) == 0
    [result] = json.loads(capsys.readouterr().out.splitlines()[-1])["comparisons"]
    assert result["success"]["only_first"] == 1


OTHER = TaskSplit("RoleAgent/Toy-v0", "test", ("e", "f"))


def test_one_call_compares_with_several_baselines_on_several_splits(tmp_path, capsys):
    """Each pair of files on the same tasks is compared with the sign of the first side."""
    files = {
        name: [measured(tmp_path / f"{name}-valid", [valid]), measured(tmp_path / f"{name}-test", [test], OTHER)]
        for name, valid, test in (("mine", "abcd", "e"), ("gigpo", "abc", "ef"), ("grpo", "a", ""))
    }
    given = [[str(path) for path in files[name]] for name in files]
    assert evaluate.main(["compare", *given[0], "--against", *given[1], "--against", *reversed(given[2])]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["comparisons"]
    assert [(one["second"], one["success"]["difference"]) for one in found] == [
        ([given[1][0]], 0.25),
        ([given[1][1]], -0.5),
        ([given[2][0]], 0.75),
        ([given[2][1]], 0.5),
    ]
    assert evaluate.main(["compare", *given[0], "--against", given[1][0]]) == 2
    assert "test (2 tasks" in capsys.readouterr().err


def test_a_table_has_an_agent_a_row_and_a_split_a_column(tmp_path, capsys):
    """Seeds of one agent are one cell, a missing one is a dash, and the numbers are those of every evaluation."""
    mine = [measured(tmp_path / f"m{n}", [won], agent={"name": "50% mine_1"}) for n, won in enumerate(("ab", "abc"))]
    base = [measured(tmp_path / "b", ["a"], agent={"name": "base"})]
    base.append(measured(tmp_path / "t", ["e"], OTHER, agent={"name": "base"}))
    files = [str(path) for path in (*mine, *base)]
    assert evaluate.main(["table", *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| agent | RoleAgent/Toy-v0:valid | RoleAgent/Toy-v0:test |"
    low, high = rate([1, 1, 0, 0, 1, 1, 1, 0], [0, 1, 2, 3] * 2)[1:]
    assert lines[2] == f"| 50% mine_1 | 62.5 [{100 * low:.1f}, {100 * high:.1f}], n=8 | – |"
    assert evaluate.main(["table", *files, "--format", "latex"]) == 0
    latex = capsys.readouterr().out
    assert rf"50\% mine\_1 & $62.5$ & $[{100 * low:.1f}, {100 * high:.1f}]$ & -- & -- \\" in latex
    assert evaluate.main(["table", "--row", "ours", *files[:2], "--row", "base", *files[2:], "--format", "csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [(row["agent"], row["split"], row["evaluations"], row["success"]) for row in rows] == [
        ("ours", "valid", "2", "0.625"),
        ("base", "valid", "1", "0.25"),
        ("base", "test", "1", "0.5"),
    ]
    assert evaluate.main(["table"]) == 2
    assert "--row" in capsys.readouterr().err


def test_a_table_has_another_row_for_another_checkpoint_or_temperature(tmp_path, capsys):
    agent = {"name": "toy", "checkpoint": "step-500005", "weights": "a"}
    files = [
        str(measured(tmp_path / name, won, agent=agent | more, temperature=heat, seed=seed))
        for name, won, more, heat, seed in (
            ("greedy", ["abcd"], {}, 0.0, 0),
            ("again", ["ab"], {}, 0.0, 1),
            ("sampled", ["a"], {}, 1.0, 0),
            ("early", [""], {"checkpoint": "step-500001", "weights": "b"}, 0.0, 0),
        )
    ]
    assert evaluate.main(["table", *files, files[0], "--format", "csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [(row["agent"], row["evaluations"], row["success"]) for row in rows] == [
        ("toy, checkpoint=step-500005, temperature=0.0", "2", "0.75"),
        ("toy, checkpoint=step-500005, temperature=1.0", "1", "0.25"),
        ("toy, checkpoint=step-500001, temperature=0.0", "1", "0.0"),
    ]


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "no record file"),
        ("hello\n", "not an evaluation file"),
        ('{"protocol": 99}\n{"task_id": "a", "task_type": "", "won": true, "reward": 1, "steps": 1, '
         '"stop_reason": "won"}\n', "newer version of roleagent"),
        ('{"protocol": 2}\n', "no episode with an outcome"),
        ('{"protocol": 2}\n{"task_id": "a", "task_type": "", "won": true, "reward": 1, "steps": 1, '
         '"stop_reason": "won"}\n', "on which tasks"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_one_line(tmp_path, capsys, content, words):
    path = tmp_path / "a.jsonl"
    if content is not None:
        path.write_text(content)
    assert evaluate.main(["compare", str(path), str(path)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("evaluate.py: ") and words in line
    assert evaluate.main(["compare", str(path)]) == 2
    assert "--against" in capsys.readouterr().err

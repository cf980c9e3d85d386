"""The watchdog: recorded runs that collapsed are named and healthy ones left alone; what is no number stops a run."""

import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from programs import TOY_RUN as CONFIG
from programs import load as load_program
from programs import run_both
from tiny import qwen

from roleagent.config import load
from roleagent.learners.engine.engine import Learner, NotFinite
from roleagent.learners.run import nan_dump
from roleagent.learners.run.metrics import FEWEST, behavior_metrics, not_learning
from roleagent.learners.run.ranks import Ranks
from roleagent.learners.run.watchdog import SIGNS, Watchdog, signs_of
from roleagent.types import Completion, Prediction, Segment, Task, Trajectory, Turn

HISTORIES = json.loads((Path(__file__).parents[1] / "histories.json").read_text())
HEALTHY = [name for name, reported in HISTORIES.items() if not reported["collapses"]]


def rows(name):
    reported = HISTORIES[name]
    named = [dict(zip(reported["columns"], row, strict=True)) for row in reported["rows"]]
    return [{name: value for name, value in row.items() if value is not None} for row in named]  # not logged then


def events(watchdog, history):
    found = []
    for number, row in enumerate(history, start=1):
        before = set(watchdog.alarms)
        _, over = watchdog.observe(row)
        raised = set(watchdog.alarms) - before
        if raised or over:
            found.append((number, sorted(raised), sorted(over)))
    return found


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_is_left_alone(name):
    assert events(Watchdog(), rows(name)) == []


@pytest.mark.parametrize("name", [name for name in HISTORIES if name not in HEALTHY])
def test_a_run_that_collapsed_is_named_by_what_shows_it(name):
    named = {sign for _, raised, _ in events(Watchdog(), rows(name)) for sign in raised}
    assert named >= set(HISTORIES[name]["collapses"])


def test_penalties_that_outweigh_the_task_are_named():
    """SmolLM2 under GRPO, as logged: it stopped to win, and to fail commands."""
    figures = [(0.0625, 9.625), (0.25, 6.781), (0.3125, 4.438), (0.0938, 6.281), (0.0625, 3.125), (0.0, 2.375)]
    history = [{**CALM, "success": won, "reward": won, "reward_invalid_action": failed} for won, failed in figures]

    def raised(weight):
        signs = signs_of(load(overrides=[f"estimator.rewards.invalid_action={weight}"]))
        return [number for number, names, _ in events(Watchdog(signs=signs), history) if "penalties" in names]

    assert (raised(-0.2), raised(-0.02), raised(0.2)) == ([3], [], [])


def test_a_resumed_run_is_watched_as_if_it_had_never_stopped():
    for name, split in itertools.product(HISTORIES, (1, 7, 12)):
        history = rows(name)
        whole = events(Watchdog(), history)
        rest = events(Watchdog(history[:split]), history[split:])
        assert [(number + split, *what) for number, *what in rest] == [e for e in whole if e[0] > split]


CALM = {"tokens": 500.0, "entropy": 0.5, "success": 0.4, "zero_variance_groups": 3.0, "groups": 16.0}
CALM |= {"calls": 30.0, "tool_success/find": 0.5, "teacher_share": 0.5}
CALM |= {"held_out_success": 0.35, "held_out_invalid": 0.1}
SICK = {
    "entropy_fell": {"entropy": 0.001},
    "entropy_rose": {"entropy": 4.0},
    "success_fell": {"success": 0.02},
    "zero_variance": {"zero_variance_groups": 16.0},
    "kl": {"kl": 9.0},
    "mismatch": {"mismatch": 0.5},
    "clip_fraction": {"clip_fraction": 0.7},
    "invalid_actions": {"invalid_action_share": 0.97},
    "repeated_ngrams": {"repeated_ngrams": 0.95},
    "repeated_actions": {"repeated_actions": 0.95},
    "cut_replies": {"cut_replies": 1.0},
    "failed_calls": {"tool_success/find": 0.0},
    "teacher_silent": {"teacher_share": 0.0},
    "held_out_gap": {"held_out_success": 0.0},
    "held_out_invalid": {"held_out_invalid": 1.0},
}


@pytest.mark.parametrize("name", SIGNS)
def test_each_sign_is_named_once_with_its_figure_and_said_to_be_over_once(name):
    watchdog = Watchdog()
    history = [CALM] * 10 + [{**CALM, **SICK[name]}] * 10 + [CALM] * 10
    raised, over = [], []
    for number, row in enumerate(history, start=1):
        words, gone = watchdog.observe(row)
        raised += [(number, word) for word in words]
        over += [(number, sign) for sign in gone]
    [(at, _)] = raised
    assert 13 <= at <= 17  # it lasts for three iterations; means of five come up to four later
    assert [(sign, 23 <= number <= 25) for number, sign in over] == [(name, True)]


@pytest.mark.parametrize(
    "row",
    [
        {"success": 1.0, "entropy": 0.0, "zero_variance_groups": 16.0, "held_out_success": 1.0},  # all is won
        {"tokens": 0.0, "entropy": 0.0},  # nothing was updated, so nothing is known of the entropy
        {"entropy": 0.2, "success": 0.2},  # worse, and no collapse
    ],
    ids=["solved", "no update", "worse"],
)
def test_what_looks_alike_is_no_collapse(row):
    assert events(Watchdog(), [CALM] * 10 + [{**CALM, **row}] * 10) == []


@pytest.mark.parametrize(
    ("first", "later", "named"),
    [
        ({"mismatch": 1e-6}, {"mismatch": 5e-4}, True),  # float32: a small step that did not arrive
        ({"mismatch": 6e-3}, {"mismatch": 2e-2}, False),  # bfloat16
        ({"mismatch": 6e-3}, {"mismatch": 7e-2}, True),
        ({}, {"mismatch": 6e-3}, False),  # nothing was updated at first
        (
            {"mismatch": 1e-6},
            {"mismatch": 0.3, "staleness": 2.0, "sync_mismatch": 1e-6},
            False,
        ),  # rollout.async_level=1
        ({"mismatch": 1e-6}, {"mismatch": 5e-3, "staleness": 2.0, "sync_mismatch": 5e-3}, True),
    ],
)
def test_a_sampler_without_the_weights_is_named_however_small_the_steps_are(first, later, named):
    found = events(Watchdog(), [{**CALM, **first}] + [{**CALM, **later}] * 4)
    assert [names for _, names, _ in found] == ([["mismatch"]] if named else [])


@pytest.mark.parametrize("held_out, named", [(0.57, True), (0.58, False), (0.97, False), (1.0, False)])
def test_a_gap_of_forty_points_is_named_by_the_iterations_of_the_evaluated_policy(held_out, named):
    """Training wins 97 %. Later iterations are of other policies: they are compared at the next evaluation."""
    row = {**CALM, "success": 0.97, "zero_variance_groups": 3.0}
    del row["held_out_success"]
    history = [{**row, "held_out_success": held_out}] + [row] * 4 + [{**row, "success": 0.0}] * 9
    watchdog = Watchdog()
    found = [number for number, raised, _ in events(watchdog, history) if "held_out_gap" in raised]
    assert found == [3] * named
    text = watchdog.alarms.get("held_out_gap", "")
    assert not named or ("57%" in text and "97%" in text)
    assert not Watchdog(history[:5]).collapsed  # training is sound


@pytest.mark.parametrize(("success", "advice"), [(0.0, "warmstart.episodes"), (0.5, "rollout.group_size")])
def test_zero_variance_groups_say_what_to_do(success, advice):
    message = SIGNS["zero_variance"]([{"groups": 4.0, "zero_variance_groups": 4.0, "success": success}])
    assert message.startswith("4 of 4 groups have zero variance") and advice in message


FLAT = {"success": 0.3, "reward": 0.3, "groups": 16.0, "zero_variance_groups": 7.0, "replaced_groups": 0.0}
IN_TRANSCRIPT = load(overrides=["prompt.predictions=followup"])


def noisy(rise, **values):
    """Forty iterations; in the second half success rises by so much, with noise around it."""
    return [
        {**FLAT, "success": 0.3 + rise * max(0, number - 20) / 19 + 0.05 * (-1) ** number, **values}
        for number in range(40)
    ]


@pytest.mark.parametrize("rise", [0.0, 0.01, -0.2])
def test_a_run_without_a_trend_is_named_with_what_usually_differs(rise):
    words = not_learning(noisy(rise), IN_TRANSCRIPT)
    figure = re.search(r"in the last 20 iterations success changed by ([+-][\d.]+) ± 0.04", words)
    assert float(figure[1]) == pytest.approx(rise, abs=0.03) and "56% of the groups" in words
    assert "prompt.predictions=followup" in words and "\n" not in words
    assert "prompt.predictions" not in not_learning(noisy(rise), load(overrides=["wia=off"]))


@pytest.mark.parametrize(
    "history",
    [
        noisy(0.2),
        noisy(0.0, zero_variance_groups=9.0),
        noisy(0.0)[: 2 * FEWEST - 2],
        [{**row, "reward": number / 40} for number, row in enumerate(noisy(0.0))],  # the score rises
        [],
        [{"success": None, "groups": None}] * 40,
    ],
    ids=["learning", "few groups", "short", "reward", "empty", "damaged"],
)
def test_a_run_that_learns_or_cannot_is_not_named(history):
    assert not_learning(history, IN_TRANSCRIPT) is None


def turn(words, action="look", observation="A pan.", reason="stop", predicted=None, valid=True):
    said = Completion(tuple(words), (0.0,) * len(words), reason)
    reported = None
    if predicted is not None:
        reported = Prediction((1,), Completion(tuple(predicted), (0.0,) * len(predicted), "length"), ("",))
    return Turn((1,), said, action, observation, prediction=reported, info={"valid_action": valid})


def test_conduct_counts_what_it_says():
    task = Task("RoleAgent/Toy-v0", "boil-egg-1")
    stuck = [turn([1, 2, 3, 4, 5, 6], f"go {n % 2}", f"room {n % 2}") for n in range(4)]
    fresh = [turn([7, 8] * 6, f"go {n}", f"room {n}", "length", [1, 2, 3], valid=False) for n in range(4)]
    episodes = [
        Trajectory(task, tuple(stuck), False, True, "max_steps"),
        Trajectory(task, tuple(fresh), False, True, "context"),
    ]
    assert behavior_metrics(episodes) == {
        "invalid_action_share": 0.5,
        "repeated_ngrams": 4 / 12,  # of eight actions and four predictions
        "repeated_actions": 0.5,
        "cut_replies": 0.5,
        "cut_predictions": 1.0,
        "max_steps_share": 0.5,
        "context_share": 0.5,
    }
    assert set(behavior_metrics([]).values()) == {0.0}


SEGMENTS = [
    Segment((5, 6, 7, 8, 9), (0, 1, 1, 2, 2), (0.0, -1.0, -1.0, -1.0, -1.0), (0.0, 1.0, 1.0, -1.0, -1.0), n)
    for n in (0, 1)
]
WEIGHTS = {"weights": list(np.array([[0.0, 1.0, 1.0, 1.0, math.nan], [0.0, 1.0, 1.0, 2.0, 1.0]]))}


class Burst(torch.autograd.Function):
    @staticmethod
    def forward(ctx, number):
        return number.clone()

    @staticmethod
    def backward(ctx, *upstream):
        return upstream[0] * math.inf


@pytest.mark.parametrize("what", ["loss", "gradient"])
@pytest.mark.parametrize("stage, dtype", [(0, "float32"), (1, "float32"), (2, "bfloat16"), (3, "float32")])
def test_an_update_that_is_no_number_leaves_the_weights_alone(what, stage, dtype):
    Ranks.join()
    policy = qwen()
    policy.model.to(getattr(torch, dtype))
    config = load(overrides=[f"deepspeed.zero_stage={stage}", f"policy.dtype={dtype}", "optim.warmup_steps=0"])
    learner = Learner(policy, config, 1e-2)

    def weights():
        return {name: weight.clone() for name, weight in learner.weights()}

    def good(tokens):
        return -tokens.logprobs.sum()

    def bad(tokens):
        if what == "gradient":
            return Burst.apply(tokens.logprobs).sum()
        return (tokens.logprobs * tokens.columns["weights"]).sum()

    start = weights()
    assert learner.update(SEGMENTS, WEIGHTS, good, 1.0) > 0  # the norm of this very update, at every stage
    before = weights()
    assert any(not torch.equal(start[name], before[name]) for name in start)
    with pytest.raises(NotFinite) as caught:
        learner.update(SEGMENTS, WEIGHTS, bad, 1.0)
    after = weights()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert math.isfinite(caught.value.loss) == (what == "gradient")
    learner.close()


def test_the_batch_that_broke_an_update_can_be_looked_at(tmp_path, capsys):
    error = NotFinite(math.nan, 0.5, SEGMENTS, WEIGHTS)
    error.tasks = ["boil-egg-1", "cool-pea-2"]
    nan_dump.write(tmp_path / "rank-0", error)
    first, second = nan_dump.read(tmp_path / "rank-0")
    assert [first.task, second.task] == error.tasks
    assert first.token_ids.tolist() == SEGMENTS[0].token_ids.tolist()
    assert first.mask.tolist() == SEGMENTS[0].token_kind.tolist()
    assert first.faults() == {"weights": 1} and second.faults() == {}
    assert second.extremes() == {"sampler_logprobs": 1.0, "weights": 2.0}
    assert nan_dump.main([str(tmp_path)]) == 0
    assert "task boil-egg-1: 1 of weights not finite" in capsys.readouterr().out
    assert nan_dump.main([str(tmp_path / "nothing")]) == 2


@pytest.mark.slow
def test_all_ranks_stop_together_with_the_same_words_and_the_checkpoint_stays_good(tmp_path):
    """A rate and a decay that throw the weights out of the range of floats: the second update is not made."""
    path, folder = tmp_path / "toy.yaml", tmp_path / "run"
    path.write_text(yaml.safe_dump(CONFIG))
    common = ("--config", path, f"run_dir={folder}", "train.iterations=1", "warmstart.epochs=1")
    thrown = ("optim.lr=10", "optim.weight_decay=1e9", "warmstart.lr=1e-12")  # the warm start's share is nothing
    ended = run_both(*common, "optim.warmup_steps=0", "estimator.norm=mean", "loss.kl=1", *thrown)
    assert [status for status, _, _ in ended] == [3, 3], ended
    said = [err.splitlines()[-1].partition(": ")[2] for _, _, err in ended]
    assert said[0] == said[1] and "the loss is" in said[0] and "Traceback" not in ended[0][2]
    assert "step-500000" in said[0]
    place = said[0].split()[-1]
    batches = sorted(Path(place).glob("rank-*.safetensors"))
    assert [batch.name for batch in batches] == ["rank-0.safetensors", "rank-1.safetensors"]
    assert all(suspect.task for batch in batches for suspect in nan_dump.read(batch.with_suffix("")))
    train = load_program("train")
    start = folder / "checkpoints" / "step-500000" / "policy"
    again = [f"policy.path={start}", f"run_dir={tmp_path / 'again'}", "warmstart.episodes=0", "train.iterations=1"]
    assert train.main(["--config", str(path), *again]) == 0


@pytest.mark.slow
def test_stop_on_ends_a_run_that_collapsed_with_a_checkpoint_and_off_lets_it_go_on(tmp_path, capsys, monkeypatch):
    """This policy has seen twelve episodes and wins nothing: every group ends alike."""
    path, folder = tmp_path / "toy.yaml", tmp_path / "run"
    path.write_text(yaml.safe_dump(CONFIG))
    train = load_program("train")
    arguments = ["--config", str(path), f"run_dir={folder}", "train.checkpoint_every=100"]
    assert train.main([*arguments, "train.iterations=9", "train.stop_on_alarm=on"]) == 0
    assert "collapse: 3 of 3 groups have zero variance" in capsys.readouterr().out
    assert sorted(step.name for step in (folder / "checkpoints").glob("step-*"))[-1] == "step-500003"
    monkeypatch.setattr(
        "roleagent.learners.run.evaluation.not_learning", lambda history, config: f"judged by {len(history)} iterations"
    )
    assert train.main([*arguments, "train.iterations=4", "train.stop_on_alarm=off", "--resume"]) == 0
    shown = capsys.readouterr().out
    assert "have zero variance" not in shown and "judged by 4 iterations" in shown  # it was named before
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert ["zero_variance" in row["alarms"] for row in rows if row["stage"] == "train"] == [False, False, True, True]

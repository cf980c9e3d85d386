"""Splits: one order, one digest, no task twice; and the interval that reports quote."""

import hashlib

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.tasks.split import TaskSplit, assert_disjoint, wilson

SPLIT = TaskSplit("RoleAgent/Toy-v0", "train", ("boil-egg-1", "boil-egg-2", "fry-fish-1"))


def test_a_split_knows_its_tasks():
    assert len(SPLIT) == 3
    assert "fry-fish-1" in SPLIT
    assert "fry-fish-2" not in SPLIT
    assert 3 not in SPLIT
    assert SPLIT.require("boil-egg-2") == "boil-egg-2"


def test_the_digest_is_of_the_ids_in_their_order():
    assert SPLIT.digest == hashlib.sha256(b"boil-egg-1\nboil-egg-2\nfry-fish-1").hexdigest()[:16]
    assert TaskSplit("other", "valid", SPLIT.task_ids).digest == SPLIT.digest
    assert TaskSplit("RoleAgent/Toy-v0", "train", SPLIT.task_ids[::-1]).digest != SPLIT.digest


def test_the_manifest_says_what_a_report_needs():
    assert SPLIT.manifest() == {"env_id": "RoleAgent/Toy-v0", "split": "train", "tasks": 3, "digest": SPLIT.digest}


@pytest.mark.parametrize("task_ids, words", [((), "has no tasks"), (("a", "b", "a"), "names a task twice")])
def test_an_empty_or_double_split_is_refused(task_ids, words):
    with pytest.raises(ValueError, match=words):
        TaskSplit("RoleAgent/Toy-v0", "train", task_ids)


def test_an_unknown_id_names_the_nearest():
    with pytest.raises(ValueError, match=r"unknown task id 'boil-eg-1' in RoleAgent/Toy-v0:train .*'boil-egg-1'"):
        SPLIT.require("boil-eg-1")
    with pytest.raises(ValueError) as caught:
        SPLIT.require("zzz")
    assert "did you mean" not in str(caught.value)


def test_overlapping_splits_are_named():
    other = TaskSplit("RoleAgent/Toy-v0", "valid", ("boil-egg-3", "fry-fish-1"))
    with pytest.raises(ValueError, match="train and valid share 'fry-fish-1'"):
        assert_disjoint([SPLIT, other])
    apart = TaskSplit("RoleAgent/Toy-v0", "valid", ("boil-egg-3",))
    assert_disjoint([SPLIT, apart])
    with pytest.raises(ValueError, match="share 'boil'"):
        assert_disjoint([SPLIT, apart], key=lambda task_id: task_id.split("-")[0])


def test_the_splits_of_an_environment_are_disjoint_and_always_the_same():
    task_splits = {}
    for split in ("train", "valid"):
        first, second = (gymnasium.make("RoleAgent/Toy-v0", split=split).unwrapped.task_split for _ in range(2))
        assert first == second
        task_splits[split] = first
    assert_disjoint(task_splits.values())


def test_wilson_by_hand():
    """(p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n), worked out for 8 of 10."""
    low, high = wilson(8, 10)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_share_and_is_symmetric(pair):
    won, n = pair
    low, high = wilson(won, n)
    assert 0 <= low <= won / n + 1e-12 and won / n - 1e-12 <= high <= 1
    assert high - low < 1
    mirrored = wilson(n - won, n)
    assert mirrored == pytest.approx((1 - high, 1 - low))
    assert sum(wilson(10 * won, 10 * n)[::-1][i] * (1, -1)[i] for i in (0, 1)) < high - low  # more data, narrower

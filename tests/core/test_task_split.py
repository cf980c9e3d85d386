"""Splits: one order, one digest, no task twice; and the interval that reports quote."""

import hashlib
from collections import Counter

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import ROOT
from small_envs import SMALL

from roleagent.agents.builders import EnvSplit
from roleagent.config import from_dict, load
from roleagent.envs.adapters.splits import Splits
from roleagent.tasks.split import TaskSplit, assert_disjoint, wilson

SPLIT = TaskSplit("RoleAgent/Toy-v0", "train", ("boil-egg-1", "boil-egg-2", "fry-fish-1"))


def test_the_digest_is_of_the_ids_in_their_order():
    assert SPLIT.digest == hashlib.sha256(b"boil-egg-1\nboil-egg-2\nfry-fish-1").hexdigest()[:16]
    assert TaskSplit("other", "valid", SPLIT.task_ids).digest == SPLIT.digest
    assert TaskSplit("RoleAgent/Toy-v0", "train", SPLIT.task_ids[::-1]).digest != SPLIT.digest


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


ALFWORLD = {"look": 13, "pick": 35, "clean": 27, "cool": 25, "heat": 16, "two": 24}  # valid_seen, as published


@given(n=st.integers(1, 140))
def test_the_first_tasks_are_of_all_types_in_proportion(n):
    """Also where a split lists its types one after another; a panel of all tasks is the split, with its digest."""
    ids = sorted(f"{name}-{i:02d}" for name, size in ALFWORLD.items() for i in range(size))
    split = TaskSplit("RoleAgent/ALFWorld-v0", "valid_seen", tuple(ids))
    first = split.first(n, lambda task_id: task_id[:-3])
    assert len(first) == n
    assert set(first.task_ids) <= set(split.first(min(140, n + 7), lambda task_id: task_id[:-3]).task_ids)
    counted = Counter(task_id[:-3] for task_id in first.task_ids)
    assert all(abs(counted[name] - n * size / 140) < 2 for name, size in ALFWORLD.items())
    assert n < 6 or len(counted) == 6
    assert (first is split) == (n == 140) and (first.digest == split.digest) == (n == 140)


@pytest.mark.parametrize(
    ("env_id", "n"), [("RoleAgent/Toy-v0", 12), ("RoleAgent/ALFWorld-v0", 12), ("RoleAgent/TextCraft-v0", 12)]
)
def test_every_panel_and_every_row_limit_has_all_types(env_id, n):
    """``eval_tasks``, ``--tasks``, the adapters' ``limit`` and ALFWorld's ``games``: one order."""
    config = from_dict({"env": {"id": env_id, "eval_split": "valid", "kwargs": SMALL[env_id]}})
    split = {"RoleAgent/ALFWorld-v0": "valid_seen"}.get(env_id, "valid")
    panel = EnvSplit.open(config, split, n)
    types = {panel.base.unwrapped.task_type(one) for one in panel.base.unwrapped.task_split.task_ids}
    assert len(types) > 1 and {panel.base.unwrapped.task_type(one) for one in panel.task_split.task_ids} == types
    assert [row["task_id"] for row in Splits(env_id, SMALL[env_id]).rows(split, n)] == list(panel.task_split.task_ids)
    if env_id == "RoleAgent/ALFWorld-v0":
        few = gymnasium.make(env_id, split=split, games=n, **SMALL[env_id]).unwrapped.task_split
        assert few.digest == panel.task_split.digest


def test_the_default_run_is_measured_on_the_whole_split():
    config = load(ROOT / "configs" / "default.yaml")
    panel = EnvSplit.held_out(config)
    assert panel.task_split is panel.base.unwrapped.task_split and len(panel.task_split) == 200
    assert panel.task_split.digest == "20482c8f62bc0e6f" and panel.manifest()["data"]["rooms"] == "tiny"


def test_overlapping_splits_are_named():
    other = TaskSplit("RoleAgent/Toy-v0", "valid", ("boil-egg-3", "fry-fish-1"))
    with pytest.raises(ValueError, match="train and valid share 'fry-fish-1'"):
        assert_disjoint([SPLIT, other])
    apart = TaskSplit("RoleAgent/Toy-v0", "valid", ("boil-egg-3",))
    assert_disjoint([SPLIT, apart])
    with pytest.raises(ValueError, match="share 'boil'"):
        assert_disjoint([SPLIT, apart], key=lambda task_id: task_id.split("-")[0])


def test_wilson_by_hand():
    """(p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n), worked out for 8 of 10."""
    low, high = wilson(8, 10)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)
    assert wilson(0, 0) == (0.0, 1.0)

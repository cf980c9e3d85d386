"""Which failures the curriculum retrieves from, and by what it draws what it retrieved."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from failures import NOTHING, TOY, failed, story

from roleagent.curricula import CurriculumSampler, RuleAnalyst
from roleagent.curricula.candidates import unread
from roleagent.curricula.rule_analyst import UnreadAnalyst
from roleagent.curricula.task_records import TaskRecords
from roleagent.tasks.split import TaskSplit
from roleagent.types import Group, Reflection, Selection, Task, Trajectory, Turn

SPLIT = TaskSplit(TOY, "train", tuple(f"t{number}" for number in range(40)))


class First:
    """An analyst that selects the first candidates and remembers what it was shown."""

    def __init__(self, picks=2, mode="navigation_loop"):
        self.picks, self.mode, self.shown = picks, mode, []

    def reflect(self, trajectories):
        return [failed(trajectory.task.task_id, self.mode)[1] for trajectory in trajectories]

    def select(self, reflections, candidates):
        self.shown += [list(offered) for offered in candidates]
        return [Selection(tuple(range(min(self.picks, len(offered))))) for offered in candidates]

    def costs(self):
        return {}


def won(task_id, task_type="heat"):
    turn = Turn((), NOTHING, "look", "done", rewards={"task": 1.0}, info={"won": True, "valid_action": True})
    return Trajectory(Task(TOY, task_id, task_type=task_type), (turn,), True, False, "won")


def lost(task_id, task_type="heat"):
    return failed(task_id, task_type=task_type)[0]


def group(task_id, wins=0, losses=1, task_type="heat"):
    episodes = [won(task_id, task_type)] * wins + [lost(task_id, task_type)] * losses
    return Group(episodes[0].task, tuple(episodes))


def sampler(library, analyst, seed=0, task_split=SPLIT, **options):
    return CurriculumSampler(task_split, library, analyst, np.random.default_rng(seed), **options)


def tasks_shown(analyst):
    return [[failure.task.task_id for failure in offered] for offered in analyst.shown]


# --- candidates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("picks", [2, 0])  # 0: the search by words takes the selection's place
def test_a_failing_task_is_never_its_own_candidate(library, picks):
    library.record([failed(f"t{number}") for number in range(4)], iteration=0)
    analyst = First(picks)
    curriculum = sampler(library, analyst)
    for _ in range(4):
        curriculum.observe([group(f"t{number}") for number in range(4)])
    for number, shown in enumerate(tasks_shown(analyst)):
        assert shown and f"t{number % 4}" not in shown
    assert all(retrieval.task_id != retrieval.chosen_task_id for retrieval in library.retrievals())
    assert len(library.retrievals()) >= 16 and curriculum.metrics()["self_retrievals_total"] == 0


LIKE = {"t1": "cool a plate", "t2": "heat a mug", "t3": "cool a cup", "t4": "cool a pan"}
UNLIKE = {"t5": "find two spoons", "t6": "open every drawer", "t7": "bring some fish", "t8": "clean old forks"}
GOALS = {"t0": "cool a mug", **LIKE, **UNLIKE}


def about(task_id):
    """A lost group of a task, with its text."""
    found = group(task_id, losses=2)
    task = replace(found.task, goal=GOALS[task_id])
    return Group(task, tuple(replace(one, task=task) for one in found.trajectories))


@pytest.mark.parametrize("control", ["replay", "text"])
def test_controls_retrieve_without_reading_the_failure(library, control):
    """The paper's claim is about reading: these draw as many failed tasks, at random or by the task's text."""
    curriculum = sampler(library, UnreadAnalyst(), control=control)
    curriculum.observe([about(task_id) for task_id in GOALS])
    before = len(library.retrievals())
    for _ in range(60):
        curriculum.observe([about("t0")])
    chosen = Counter(one.chosen_task_id for one in library.retrievals()[before:])
    assert chosen.total() == 4 * 60
    if control == "text":
        assert chosen == dict.fromkeys(LIKE, 60)
    else:
        assert chosen.keys() == GOALS.keys() - {"t0"} and min(chosen.values()) > 15 and max(chosen.values()) < 45


@pytest.mark.parametrize("control", ["replay", "text"])
def test_a_control_follows_up_as_many_failures_as_the_rule_analyst(library, control):
    """Or else the comparison would be of fewer tasks, too: one task, lost in two modes, is asked for twice."""
    two = (  # a loop, and commands that fail
        story(*[("look", "a kitchen")] * 8),
        story(("open shelf 9", "Nothing happens."), ("dance", "Nothing happens.")),
    )
    library.record([failed("t5")], iteration=0)
    for analyst, only in ((RuleAnalyst(), None), (UnreadAnalyst(), control)):
        curriculum = sampler(library, analyst, control=only)
        curriculum.observe([Group(two[0].task, two)])
        assert curriculum.metrics()["selections"] == 2


def test_a_control_draws_tasks_and_not_their_modes(library):
    """From what somebody has read: t1 failed in three ways, and is a task like the others."""
    modes = ("navigation_loop", "wrong_object", "missing_precondition")
    library.record([*(failed("t1", mode) for mode in modes), *(failed(f"t{n}") for n in range(2, 9))], iteration=0)
    chosen = Counter()
    for seed in range(300):
        [offer] = unread(library, SPLIT, [("t0", failed("t0")[1])], by_text=False, rng=np.random.default_rng(seed))
        chosen.update(one.task.task_id for one in offer.shown)
    assert chosen.total() == 4 * 300 and min(chosen.values()) > 100 and max(chosen.values()) < 200, chosen


def test_a_frozen_curriculum_draws_as_at_its_checkpoint(library):
    curriculum = sampler(library, First())
    curriculum.observe([about(task_id) for task_id in GOALS])
    frozen = sampler(library, UnreadAnalyst(), control="frozen")
    frozen.load_state_dict(curriculum.state_dict())
    before, entries = frozen.probabilities(), len(library)
    assert before.max() > 2 / len(SPLIT)  # it prefers tasks
    for _ in range(5):
        assert frozen.observe([about("t0"), group("t1", wins=2, losses=0)]) == {}
    assert frozen.probabilities().tolist() == before.tolist() and len(library) == entries
    assert frozen.metrics()["uniform_groups"] > 0


def test_older_failures_come_before_those_of_this_iteration(kept):
    kept.record([failed("t9"), failed("t8")], iteration=0)
    analyst = First()
    curriculum = sampler(kept, analyst)
    curriculum.observe([group("t1"), group("t2")])
    assert [sorted(shown) for shown in tasks_shown(analyst)] == [["t8", "t9"]] * 2
    metrics = curriculum.metrics()
    assert metrics["same_iteration_share"] == metrics["same_iteration_total"] == 0
    curriculum.observe([group("t3"), group("t9")])  # t9 has just been played: it gives way to the others
    assert [sorted(shown) for shown in tasks_shown(analyst)[2:]] == [["t1", "t2", "t8"]] * 2


def test_failures_of_this_iteration_serve_where_there_is_nothing_older(kept):
    analyst = First()
    curriculum = sampler(kept, analyst)
    curriculum.observe([group("t1")])
    assert tasks_shown(analyst) == [[]] and curriculum.weights == {}
    assert curriculum.metrics()["selections"] == 0  # nothing was shown that could have been selected
    curriculum = sampler(kept, analyst)
    kept.rollback(0)
    curriculum.observe([group("t1"), group("t2"), group("t3")])
    assert [sorted(shown) for shown in tasks_shown(analyst)[1:]] == [["t2", "t3"], ["t1", "t3"], ["t1", "t2"]]
    assert curriculum.metrics()["same_iteration_share"] == 1 and curriculum.metrics()["same_iteration_total"] == 6
    kept.rollback(0)
    kept.record([failed("t2", "wrong_receptacle")], iteration=0)
    curriculum.observe([group("t1"), group("t2"), group("t3")])
    shown = [[(f.task.task_id, f.reflection.mode) for f in offered] for offered in analyst.shown[4:]]
    assert shown[0] == shown[2] == [("t2", "wrong_receptacle")]  # filed before, though the task has failed again
    assert sorted(task_id for task_id, _ in shown[1]) == ["t1", "t3"]


def test_candidates_come_from_all_of_the_library(kept):
    """Whatever is old or rare is shown now and then, beside what is alike in mode and in words."""
    task_split = TaskSplit(TOY, "train", tuple(f"t{number}" for number in range(400)))
    kept.record([failed("t0", "price_constraint_violation", "buy", "rare")])
    kept.record([failed(f"t{number}", "wrong_receptacle") for number in range(1, 200)])
    kept.record([failed(f"t{number}", "navigation_loop") for number in range(200, 390)])
    kept.record([failed(f"t{number}", "premature_give_up", text="the yellow submarine") for number in (390, 391)])

    class Wordy(First):
        def reflect(self, trajectories):
            return [Reflection(self.mode, "", None, "yellow submarine", "") for _ in trajectories]

    analyst = Wordy()
    curriculum = sampler(kept, analyst, task_split=task_split, candidates=9)
    for number in range(392, 399):
        curriculum.observe([group(f"t{number}")])
    lists = tasks_shown(analyst)
    assert all(len(set(shown)) == len(shown) == 9 for shown in lists)
    assert {"t390", "t391"} <= set(lists[0][:6])  # found by their words
    assert all(int(shown[0][1:]) >= 390 for shown in lists)
    modes = Counter(failure.reflection.mode for offered in analyst.shown for failure in offered)
    assert min(Counter(f.reflection.mode for f in offered)["navigation_loop"] for offered in analyst.shown) >= 3
    assert modes["wrong_receptacle"] and modes["price_constraint_violation"] >= 3  # 1 of 392 entries
    alike = {task_id for shown in lists for task_id in shown if 200 <= int(task_id[1:]) < 390}
    assert min(int(task_id[1:]) for task_id in alike) < 300  # the newest would be 384 to 389


# --- learnability -----------------------------------------------------------------------------------------------------


def test_the_estimate_shrinks_towards_the_rate_of_the_task_type():
    types = {f"t{number}": "easy" if number < 20 else "hard" for number in range(40)}
    records = TaskRecords(SPLIT, 0.9, types.get)
    assert records.chances(0) == pytest.approx(0.5)
    for number in range(10):
        records.add(f"t{number}", 7, 8, iteration=1)
        records.add(f"t{number + 20}", 1, 8, iteration=1)
    p = records.chances(1)
    assert p[15] == pytest.approx(7 / 8, abs=0.02) and p[35] == pytest.approx(1 / 8, abs=0.02)  # nobody played these
    for number in (1, 21):
        records.add(f"t{number}", 0, 8, iteration=1)
    p = records.chances(1)
    assert p[35] < p[1] < p[15] and p[21] < p[35]
    assert p[1] > p[21] * 5  # the same eight losses count for less against the rate of an easy type
    later = records.chances(60)  # what was known has faded
    assert later == pytest.approx(np.where(np.arange(40) < 20, later[15], later[35]), abs=0.02)
    again = TaskRecords(SPLIT, 0.9, types.get)
    again.load_state_dict(json.loads(json.dumps(records.state_dict())))
    assert np.array_equal(again.chances(3), records.chances(3)) and np.array_equal(again.waited(3), records.waited(3))


def test_a_task_that_was_always_lost_weighs_less_than_an_unplayed_one(kept):
    curriculum = sampler(kept, First(0), overlooked=0.0)
    curriculum.observe([group("t1", losses=8), group("t2", wins=8, losses=0), group("t3", wins=3, losses=5)])
    curriculum.weights = dict.fromkeys(("t1", "t2", "t3", "t4"), 1.0)  # others filled the library with t4
    curriculum.records.learn_type("t4", "heat")
    p = curriculum.probabilities()
    assert 0 < p[1] - 0.5 / 40 < 0.5 * (p[4] - 0.5 / 40) and 0 < p[2] - 0.5 / 40 < 0.5 * (p[4] - 0.5 / 40)
    assert p[3] == pytest.approx(p[4], rel=0.1) and p.sum() == pytest.approx(1)
    counts = Counter(curriculum.sample(1)[0] for _ in range(3000))
    assert counts["t1"] < counts["t4"] / 2
    literal = sampler(kept, First(0), overlooked=0.0, learnability=False)
    literal.load_state_dict(curriculum.state_dict())
    assert literal.probabilities()[1:5] == pytest.approx(0.5 / 40 + 0.5 / 4)


# --- overlooked tasks -------------------------------------------------------------------------------------------------


def kinds(task_id):
    return "heat" if int(task_id[1:]) < 20 else "cool"


def test_overlooked_tasks_of_the_retrieved_type_get_their_share(kept):
    options = {"epsilon": 0.8, "overlooked": 0.5, "learnability": False}
    curriculum = sampler(kept, First(), task_type=kinds, **options)
    for number in range(10):  # t0 … t9 are played, t10 … t19 of the same type never
        curriculum.observe([group(f"t{number}")])
    curriculum.weights = {"t9": 2.0, "t25": 1.0}
    p = curriculum.probabilities() - 0.2 / 40
    assert p[9] == pytest.approx(0.8 * 0.5 * 2 / 3)  # just played: nobody overlooked it
    waited = sum(range(10)) + 10 * 10  # iterations
    assert p[0] == pytest.approx(0.8 * 0.5 * 2 / 3 * 9 / waited)
    assert p[10:20] == pytest.approx(0.8 * 0.5 * 2 / 3 * 10 / waited)
    assert p[30] == pytest.approx(0.8 * 0.5 * 1 / 3 / 20) and p.sum() == pytest.approx(0.8)
    counts = Counter(curriculum.sample(1)[0] for _ in range(6000))
    assert all(abs(counts[task_id] / 6000 - p[i] - 0.2 / 40) < 0.02 for i, task_id in enumerate(SPLIT.task_ids))
    assert curriculum.metrics()["overlooked_total"] / 6000 == pytest.approx(0.4, abs=0.03)
    other = sampler(kept, First(), task_type=kinds, **(options | {"overlooked": 0.0}))
    other.load_state_dict(curriculum.state_dict())
    assert other.probabilities()[10:20] == pytest.approx(0.2 / 40)


# --- figures ----------------------------------------------------------------------------------------------------------


def test_groups_of_the_curriculum_are_compared_with_uniform_ones(kept):
    curriculum = sampler(kept, RuleAnalyst(), epsilon=0.99, overlooked=0.0)
    curriculum.observe([group("t1"), group("t2")])
    metrics = curriculum.metrics()
    assert (metrics["uniform_zero_variance_share"], metrics["uniform_success"]) == (1, 0)
    assert "curriculum_success" not in metrics  # nothing was drawn from it yet
    curriculum.weights = {"t5": 1.0, "t6": 1.0}
    batch = curriculum.sample(4)
    sought = {"t5", "t6"}
    assert sought < set(batch)
    crashed = group("t5", wins=3, losses=1)
    crashed = Group(crashed.task, (*crashed.trajectories, story(stop_reason="error", task_id="t5")))
    other = [group(task_id, wins=2, losses=0) for task_id in batch if task_id not in sought]
    curriculum.observe([crashed, group("t6", losses=4), *other])
    metrics = curriculum.metrics()
    assert (metrics["curriculum_zero_variance_share"], metrics["curriculum_success"]) == (0.5, 0.375)
    assert (metrics["uniform_zero_variance_share"], metrics["uniform_success"]) == (1, 1)
    assert metrics["curriculum_groups"] == 2 and metrics["curriculum_zero_variance_groups"] == 1
    assert metrics["uniform_groups"] == metrics["uniform_zero_variance_groups"] == 4

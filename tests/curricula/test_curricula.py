"""Failure modes, the rule analyst and the samplers."""

import json
import math
import warnings
from collections import Counter
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from failures import NOTHING, TOY, failed, story
from hypothesis import given
from hypothesis import strategies as st

from roleagent.curricula import CurriculumSampler, FailureLibrary, RuleAnalyst, TypeSampler, UniformSampler
from roleagent.envs.wrappers import FailureCurriculum
from roleagent.failures.modes import match_mode, taxonomy
from roleagent.tasks.split import TaskSplit
from roleagent.types import Analyst, Group, Reflection, Sampler, Selection, Task, Trajectory, Turn

ALFWORLD = taxonomy("RoleAgent/ALFWorld-v0")
SEARCH = taxonomy("RoleAgent/SearchQA-v0")


def won(task_id):
    turn = Turn((), NOTHING, "look", "done", rewards={"task": 1.0}, info={"won": True, "valid_action": True})
    return Trajectory(Task(TOY, task_id), (turn,), True, False, "won")


def group(*trajectories):
    return Group(trajectories[0].task, trajectories)


SPLIT = TaskSplit(TOY, "train", tuple(f"t{number}" for number in range(20)))


class Recall:
    """An analyst that always sees one mode and always picks the named tasks (or nothing)."""

    def __init__(self, *picks, mode="navigation_loop"):
        self.picks, self.mode, self.shown = picks, mode, []

    def reflect(self, trajectories):
        return [Reflection(self.mode, "", None, "", self.mode, "model") for _ in trajectories]

    def select(self, reflections, candidates):
        self.shown += [[candidate.task.task_id for candidate in offered] for offered in candidates]
        return [
            Selection(tuple(i for i, candidate in enumerate(offered) if candidate.task.task_id in self.picks))
            for offered in candidates
        ]

    def costs(self):
        return {}


def sampler(library, analyst, seed=0, **options):
    return CurriculumSampler(SPLIT, library, analyst, np.random.default_rng(seed), **options)


# --- modes ------------------------------------------------------------------------------------------------------------


MODES = {
    **dict.fromkeys(("missing_precondition", "Missing Precondition", "missing_preconditions"), "missing_precondition"),
    "DOMINANT_TYPE: missing-precondition.": "missing_precondition",
    "navigation loop, then premature give-up": "navigation_loop",
    "wrong recepticle": "wrong_receptacle",
    "The agent was asleep": "the_agent_was_asleep",
    "unlooped_navigation_looping": "unlooped_navigation_looping",
    "  ": "unknown",
}


@given(st.text())
def test_free_text_finds_its_mode(text):
    assert {text: match_mode(text, ALFWORLD) for text in MODES} == MODES
    mode = match_mode(text, SEARCH)
    assert mode and match_mode(mode, SEARCH) == mode


# --- samplers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 7, 20, 21, 45])
def test_no_task_twice_while_others_are_left(kept, n):
    curriculum = sampler(kept, Recall())
    curriculum.weights = {"t3": 9.0, "t4": 1.0}
    by_type = TypeSampler(SPLIT, np.random.default_rng(0), 0.9, lambda task_id: str(len(task_id)))  # ten of each
    for chosen in (UniformSampler(SPLIT, np.random.default_rng(0)), curriculum, by_type):
        counts = Counter(chosen.sample(n))
        assert sum(counts.values()) == n and set(counts) <= set(SPLIT.task_ids)
        assert not counts or max(counts.values()) == math.ceil(n / 20)
        if n >= 20:
            assert min(counts.values()) == n // 20 and len(counts) == 20


def test_the_mixture_by_hand(kept):
    curriculum = sampler(kept, Recall(), epsilon=0.4)
    curriculum.weights = {"t3": 3.0, "t4": 1.0}
    p = curriculum.probabilities()
    assert p[3] == pytest.approx(0.6 / 20 + 0.4 * 0.75) and p[4] == pytest.approx(0.6 / 20 + 0.4 * 0.25)
    assert p[0] == pytest.approx(0.6 / 20) and p.sum() == pytest.approx(1)
    counts = Counter(curriculum.sample(1)[0] for _ in range(6000))
    assert all(abs(counts[task_id] / 6000 - p[i]) < 0.025 for i, task_id in enumerate(SPLIT.task_ids))
    assert curriculum.metrics()["from_curriculum"] / 6000 == pytest.approx(0.4, abs=0.03)


def test_types_are_drawn_alike():
    """Two tasks of one type, eighteen of another."""
    chosen = TypeSampler(
        SPLIT, np.random.default_rng(0), 0.5, lambda task_id: "rare" if task_id in ("t3", "t4") else ""
    )
    p = chosen.probabilities()
    assert p[3] == p[4] == pytest.approx(0.5 / 20 + 0.5 / 4) and p[0] == pytest.approx(0.5 / 20 + 0.5 / 36)
    counts = Counter(chosen.sample(1)[0] for _ in range(6000))
    assert all(abs(counts[task_id] / 6000 - p[i]) < 0.025 for i, task_id in enumerate(SPLIT.task_ids))


def test_weights_by_hand(kept):
    curriculum = sampler(kept, Recall("t1", "t2"), decay=0.9, success_factor=0.5)
    curriculum.observe([group(failed("t1")[0]), group(failed("t2")[0])])
    assert curriculum.weights == {"t1": 1.0, "t2": 1.0}  # each of two failures retrieved the other
    curriculum.observe([group(won("t1")), group(won("t5"))])
    assert curriculum.weights == pytest.approx({"t1": 0.9 * 0.5, "t2": 0.9})
    assert isinstance(curriculum.analyst, Analyst) and len(kept) == 2
    half = group(won("t2"), failed("t2")[0])
    curriculum.observe([half])  # the failure of t2 retrieves t1 again
    assert curriculum.weights == pytest.approx({"t1": 0.45 * 0.9 + 1, "t2": 0.9 * 0.9 * 0.5**0.5})


@given(st.dictionaries(st.sampled_from(SPLIT.task_ids), st.floats(1e-3, 1e9), max_size=20), st.floats(0, 0.99))
def test_no_task_starves(weights, epsilon):
    curriculum = CurriculumSampler(SPLIT, None, None, np.random.default_rng(0), epsilon)
    curriculum.weights = weights
    assert curriculum.probabilities().min() >= (1 - epsilon) / 20 - 1e-12
    assert curriculum.probabilities().sum() == pytest.approx(1)


def test_options_are_checked(kept):
    for options in ({"epsilon": 1.0}, {"epsilon": -0.1}, {"decay": 1.1}, {"success_factor": -1}, {"overlooked": 2}):
        with pytest.raises(ValueError, match="must be in"):
            sampler(kept, Recall(), **options)
    for made in (UniformSampler(SPLIT, np.random.default_rng(0)), sampler(kept, RuleAnalyst())):
        assert isinstance(made, Sampler)


def test_a_failure_changes_the_tasks_that_the_next_batch_plays():
    """Through the real environment: the ids come back in the environment's own info."""
    env = gymnasium.make(TOY)
    task_split = env.unwrapped.task_split
    curriculum = CurriculumSampler(task_split, FailureLibrary(), RuleAnalyst(), np.random.default_rng(0))
    hard = ["heat-egg-tray-1", "cool-fish-table-2", "clean-apple-counter-3"]

    def play(wrapped, episodes):
        return Counter(wrapped.reset()[1]["task_id"] for _ in range(episodes))

    wrapped = FailureCurriculum(env, curriculum)
    before = play(wrapped, 300)
    groups = []
    for task_id in hard:
        first, info = env.reset(options={"task_id": task_id})
        text, *_, info = env.step("go to table")
        turn = Turn((), NOTHING, "go to table", text, info=info)
        task = Task(TOY, task_id, goal=info["goal"], task_type=info["task_type"])
        groups.append(Group(task, (Trajectory(task, (turn,), False, True, "max_steps", first),)))
    curriculum.observe(groups)
    after = play(wrapped, 300)
    assert sum(before[task_id] for task_id in hard) <= 10  # 300 · 3 / 432 ≈ 2
    assert sum(after[task_id] for task_id in hard) >= 120  # 300 · (ε + (1-ε) · 3 / 432) ≈ 151
    batch = curriculum.sample(16)
    assert set(hard) <= set(batch)
    curriculum.sample(1)  # in place of a group that taught nothing: the share is that of the iteration
    lost = groups[0].trajectories[0]
    tasks = [Task(TOY, task_id) for task_id in batch]
    curriculum.observe([Group(task, (replace(lost, task=task),)) for task in tasks])
    assert curriculum.metrics()["curriculum_share"] == 3 / 16


def test_only_tasks_of_the_split_have_weight(kept):
    kept.record([failed("elsewhere"), failed("t2")])
    analyst = Recall("elsewhere", "t2")
    curriculum = sampler(kept, analyst)
    curriculum.observe([group(failed("t1")[0])])
    assert curriculum.weights == {"t2": 1.0} and "elsewhere" not in analyst.shown[0]
    fallback = sampler(kept, Recall())
    fallback.observe([group(failed("t1")[0])])
    assert "elsewhere" not in fallback.weights and fallback.weights


def test_evaluation_and_crashes_never_write_the_library(kept):
    curriculum = sampler(kept, Recall("t1"))
    curriculum.observe([group(story(stop_reason="error", task_id="t1"))])
    assert len(kept) == 0 and curriculum.weights == {}
    with pytest.raises(ValueError, match="'valid-1' is not one"):
        curriculum.observe([group(failed("t1")[0]), group(failed("valid-1")[0])])
    assert len(kept) == 0 and curriculum.iteration == 1


def test_resume_continues_exactly(library):
    curriculum = sampler(library, RuleAnalyst())
    curriculum.observe([group(failed("t1")[0]), group(failed("t2", task_type="cool")[0])])
    curriculum.sample(5)
    state = json.loads(json.dumps(curriculum.state_dict()))
    kept = library.candidates(TOY)

    def go_on(one):
        batches = [one.sample(6)]
        one.observe([group(failed("t9")[0]), group(won("t1"))])
        after = one.state_dict()
        del after["cursor"]  # a server may number the failures differently the second time
        return [*batches, one.sample(6), one.weights, one.metrics(), after]

    first = go_on(curriculum)
    assert len(library) == 3
    resumed = sampler(library, RuleAnalyst(), seed=99)
    resumed.load_state_dict(state)
    assert library.candidates(TOY) == kept  # the killed iteration's failures are gone
    assert go_on(resumed) == first


def test_resume_warns_when_the_library_is_gone(kept, tmp_path):
    curriculum = sampler(kept, RuleAnalyst())
    curriculum.observe([group(failed("t1")[0])])
    state = curriculum.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler(kept, RuleAnalyst()).load_state_dict(state)
    with pytest.warns(UserWarning, match="holds less than the checkpoint remembers"):
        sampler(FailureLibrary(f"sqlite:///{tmp_path}/new.db"), RuleAnalyst()).load_state_dict(state)


def test_a_state_of_another_split_is_refused(kept):
    state = UniformSampler(TaskSplit(TOY, "train", ("a", "b")), np.random.default_rng(0)).state_dict()
    with pytest.raises(ValueError, match="saved for the split"):
        UniformSampler(SPLIT, np.random.default_rng(0)).load_state_dict(state)

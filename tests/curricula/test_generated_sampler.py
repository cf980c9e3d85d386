"""GenEnv's sampler and the simulators without a model, and what the published code gets wrong about them."""

import json
import random
import warnings
from collections import Counter

import gymnasium
import numpy as np
import pytest
from failures import NOTHING, TOY

from roleagent.curricula import CurriculumSampler, FailureLibrary, RuleAnalyst, UniformSampler
from roleagent.curricula.alignment import Alignment
from roleagent.curricula.generated_sampler import GeneratedSampler
from roleagent.curricula.simulators import BaseSimulator, StaticSimulator, TableSimulator
from roleagent.curricula.task_writer import TaskWriter
from roleagent.envs.wrappers import FailureCurriculum
from roleagent.tasks.grammar import Validation, grammar_of
from roleagent.tasks.simulator import Situation
from roleagent.types import Group, Task, Trajectory, Turn

ENV = gymnasium.make(TOY, generated_tasks=True)
GRAMMAR = grammar_of(ENV)
SPLIT = ENV.unwrapped.task_split


def episode(task_id, won, stop_reason=""):
    turn = Turn((), NOTHING, "look", "", rewards={"task": float(won)}, info={"won": won, "valid_action": True})
    task = Task(TOY, task_id, "train", "", task_id.partition("-")[0])
    return Trajectory(task, (turn,), won, not won, stop_reason or ("won" if won else "max_steps"))


def group(task_id, successes, attempts=8):
    episodes = tuple(episode(task_id, number < successes) for number in range(attempts))
    return Group(episodes[0].task, episodes)


def generated(*, simulator=None, inner=None, seed=0, **options):
    rng = np.random.default_rng(seed)
    simulator = simulator or TableSimulator(GRAMMAR, rng)
    return GeneratedSampler(inner or UniformSampler(SPLIT, rng), GRAMMAR, simulator, rng, **options)


def is_written(task_id):
    return task_id not in SPLIT.task_ids


def play(sampler, solve, iterations=1, size=12):
    """Iterations in which each task is solved ``solve(task_id)`` times of 8; the last batch."""
    batch = []
    for _ in range(iterations):
        batch = sampler.sample(size)
        sampler.observe([group(task_id, solve(task_id)) for task_id in batch])
    return batch


def by_kind(task_id):
    """Half of the tasks to heat something are solved, and nothing else ever is."""
    return 4 if task_id.startswith("heat") else 0


class Lines(BaseSimulator):
    """Writes given lines, and keeps what it is trained with."""

    def __init__(self, *lines):
        super().__init__(GRAMMAR)
        self.lines, self.trained = lines, []

    def propose(self, situations, n, rng):
        return [[self.lines[int(rng.integers(len(self.lines)))] for _ in range(n)] for _ in situations]

    def update(self, records, rng):
        self.trained.append(list(records))
        return {}


def test_a_batch_mixes_fresh_replayed_and_base_tasks():
    sampler = generated()
    play(sampler, lambda task_id: 0)
    batch = sampler.sample(12)
    assert len(set(batch)) == 12
    reasons = Counter(sampler.choices().get(task_id, ("base",))[0] for task_id in batch)
    assert reasons == {"fresh": 6, "replayed": 3, "base": 3}
    assert all(is_written(task_id) == (task_id in sampler.choices()) for task_id in batch)
    fresh = [task_id for task_id, (reason, _) in sampler.choices().items() if reason == "fresh"]
    plans = [len(GRAMMAR.check(GRAMMAR.spec(task_id)).plan) for task_id in fresh]
    sampler.observe([group(task_id, 4) for task_id in batch])
    assert sampler.metrics()["genenv_plan_length"] == np.mean(plans)


# --- a gap between base tasks -----------------------------------------------------------------------------------------


def test_tasks_between_trivial_and_hopeless_ones_are_found():
    """Base tasks have one call or four; the agent always solves the former, never the latter, and half of two."""
    env = gymnasium.make("RoleAgent/Office-v0", generated_tasks=True, calls=[1, 4])
    grammar, split, rng = grammar_of(env), env.unwrapped.task_split, np.random.default_rng(0)
    sampler = GeneratedSampler(UniformSampler(split, rng), grammar, TableSimulator(grammar, rng), rng)

    def calls(lines):
        return Counter(int(line.partition("calls=")[2]) for line in lines)

    before = calls(sampler.simulator.propose([None], 400, np.random.default_rng(1))[0])
    assert before[2] + before[3] < 4
    for _ in range(12):
        batch = sampler.sample(24)
        solved = {1: 8, 2: 4, 3: 1}
        sampler.observe([group(task_id, solved.get(int(task_id.split("-")[1]), 0)) for task_id in batch])
    after = calls(sampler.simulator.propose([None], 400, np.random.default_rng(1))[0])
    assert after[2] > 150 and after[3] > 30


def test_numbers_are_varied_to_their_neighbors():
    grammar = grammar_of(gymnasium.make("RoleAgent/Office-v0", generated_tasks=True))
    assert [grammar.others("calls", value) for value in ("1", "4", "6")] == [["2"], ["3", "5"], ["5"]]
    assert len(grammar.others("kind", "book")) == 3


# --- what the published code does not do ------------------------------------------------------------------------------


def test_the_simulator_learns_and_writes_something_else():
    """The published simulator is never trained."""
    sampler = generated(fresh=1.0, replay=0.0)
    start = sampler.simulator.state_dict()
    play(sampler, by_kind, 15)
    assert sampler.simulator.state_dict()["table"] != start["table"]
    kinds = Counter(line.split()[0] for line in sampler.simulator.propose([None], 400, np.random.default_rng(1))[0])
    before = Counter(
        line.split()[0] for line in sampler.simulator.initial().propose([None], 400, np.random.default_rng(1))[0]
    )
    assert kinds["kind=heat"] > 250 and before["kind=heat"] < 150
    assert sampler.metrics()["genenv_kl"] > 0.5


def test_shuffled_rewards_teach_nothing():
    sampler = generated(fresh=1.0, replay=0.0, shuffle_rewards=True, variation_share=0.0)
    play(sampler, by_kind, 15)
    kinds = Counter(line.split()[0] for line in sampler.simulator.propose([None], 400, np.random.default_rng(1))[0])
    assert kinds["kind=heat"] < 250


def test_what_the_checks_refuse_does_not_decide_which_types_are_written(monkeypatch):
    """What is refused leaves no record: a type that is refused every second time would be written less and less."""
    check = type(GRAMMAR).check
    refused = Validation(False, "unsolvable")
    monkeypatch.setattr(
        type(GRAMMAR),
        "check",
        lambda self, one: refused if one.values[0] == "heat" and one.seed % 2 else check(self, one),
    )
    heats = []
    for seed in range(2):
        sampler = generated(fresh=1.0, replay=0.0, variation_share=0.0, novelty=0, seed=seed)
        play(sampler, lambda task_id: 4, 8, size=48)
        heats.append(sampler.simulator.types["heat"])
    assert 0.12 < np.mean(heats) < 0.4  # 0.25 at first; 0.04 if records counted alike


def test_the_reward_of_a_group_comes_from_its_own_episodes():
    """The published code reads the first prompts' scores for all."""
    sampler = generated(fresh=1.0, replay=0.0, simulator=Lines(*(GRAMMAR.write(GRAMMAR.base(RNG)) for _ in range(200))))
    batch = sampler.sample(9)
    solved = {task_id: number for number, task_id in enumerate(batch)}
    groups = [group(task_id, successes) for task_id, successes in solved.items()]
    random.Random(0).shuffle(groups)
    broken = Group(groups[0].task, (*groups[0].trajectories, episode(groups[0].task.task_id, False, "error")))
    sampler.observe([broken, *groups[1:]])
    assert {record.task_id: (record.successes, record.attempts) for record in sampler.records} == {
        task_id: (successes, 8) for task_id, successes in solved.items()
    }
    [trained] = sampler.simulator.trained
    assert {solved[record.task_id] for record in trained} == {3, 4, 5}
    assert all(record.reward == Alignment().reward(record.successes, 8) for record in trained)


RNG = np.random.default_rng(11)


def test_credit_by_situation_lets_a_trivial_and_a_hopeless_task_look_right():
    for credit, trained in (("task", 0), ("batch", 1)):
        simulator = Lines("kind=bring item=egg place=tray containers=4 closed=2", LINE)
        sampler = generated(simulator=simulator, fresh=1.0, replay=0.0, credit=credit, variations=2)
        for _ in range(20):
            batch = sampler.sample(2)
            if len({task_id.partition("-")[0] for task_id in batch}) == 2:
                break
            sampler.observe([])
        sampler.observe([group(task_id, 8 if task_id.startswith("bring") else 0) for task_id in batch])
        assert len(simulator.trained) == trained
        [situation], _ = sampler._situations(1, np.random.default_rng(0))
        assert situation.seed_success in ((8, 8), (0, 8))  # what is said of the task is of the task alone


LINE = "kind=heat item=egg place=counter containers=4 closed=2"


def test_earlier_tasks_are_played_again_until_they_are_solved_oldest_first():
    """The published code forgets every earlier task."""
    sampler = generated(fresh=0.5, replay=0.5)
    first = [task_id for task_id in play(sampler, lambda task_id: 3, size=4) if is_written(task_id)]
    second = play(sampler, lambda task_id: 8 if task_id in first else 3, size=4)
    assert [task_id for task_id in second if task_id in first] == first
    third = play(sampler, lambda task_id: 3, size=4)
    assert not set(third) & set(first) and set(third) & set(second)
    assert len(sampler.pool) == 6
    assert sampler.metrics()["genenv_replay_gain"] == 0


def test_every_variation_of_a_situation_is_used():
    """The published worker takes n, and returns the first output."""
    lines = [f"kind={kind} item=egg place=tray containers=4 closed=2" for kind in ("bring", "heat", "cool", "clean")]
    simulator, asked = Lines(*lines), []
    simulator.propose = lambda situations, n, rng: asked.append((len(situations), n)) or [lines[:n] for _ in situations]
    sampler = generated(simulator=simulator, fresh=1.0, replay=0.0, variations=4, variation_share=0.0)
    batch = sampler.sample(4)
    assert asked == [(1, 4)] and sorted(task_id.partition("-")[0] for task_id in batch) == sorted(
        line.split()[0].removeprefix("kind=") for line in lines
    )


def test_the_divergence_is_measured_from_the_first_simulator_after_a_resume_too():
    """The published reference becomes the newest checkpoint, so that the penalty holds on to nothing."""
    sampler, resumed = generated(fresh=1.0, replay=0.0), generated(fresh=1.0, replay=0.0, seed=5)
    start = sampler.simulator.initial().state_dict()
    play(sampler, by_kind, 8)
    resumed.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    for one in (sampler, resumed):
        assert one.simulator.initial().state_dict()["table"] == start["table"]
        assert (
            one.simulator.divergence() == pytest.approx(sampler.metrics()["genenv_kl"])
            and one.simulator.divergence() > 0.1
        )


def test_a_task_whose_plan_does_not_win_is_never_played(monkeypatch):
    sampler = generated(fresh=1.0, replay=0.0)
    solve = type(GRAMMAR).solve
    monkeypatch.setattr(
        type(GRAMMAR), "solve", lambda self, spec: solve(self, spec)[: -1 if spec.values[0] == "heat" else None]
    )
    batches = [play(sampler, lambda task_id: 4) for _ in range(4)]
    assert not any(is_written(task_id) and task_id.startswith("heat") for batch in batches for task_id in batch)
    refused = [line for line in sampler.take_events() if line.get("refused") == "unsolvable"]
    assert refused and all(line["line"].startswith("kind=heat") for line in refused)


# --- writing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [None, [], [[]], [[None, 3, b"x"]], [["</tasks>"] * 9], ["kind=heat", "x"], {}, 7])
def test_a_simulator_that_writes_nothing_usable_is_named_once_and_base_tasks_are_played(answer):
    simulator = Lines("x")
    simulator.propose = lambda situations, n, rng: answer
    sampler = generated(simulator=simulator)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(3):
            batch = sampler.sample(8)
            assert len(batch) == 8 and not any(map(is_written, batch))
            sampler.observe([group(task_id, 4) for task_id in batch])
    [warning] = warned
    assert "Lines: none of 16 proposals was accepted (syntax 16)" in str(warning.message)
    assert "\n" not in str(warning.message)
    found = sampler.metrics()
    assert found["genenv_fallback"] == 4 and found["genenv_proposed"] == found["genenv_refused_syntax"] == 16


def test_the_same_field_values_are_accepted_once_in_some_iterations():
    sampler = generated(simulator=Lines(LINE), fresh=1.0, replay=0.0, novelty=3, variation_share=0.0)
    played = [sum(map(is_written, play(sampler, lambda task_id: 0, size=4))) for _ in range(7)]
    assert played == [1, 0, 0, 1, 0, 0, 1]
    assert sampler.metrics()["genenv_refused_duplicate"] == 3 * 4


def test_a_simulator_that_repeats_itself_is_seen_in_its_proposals():
    sampler = generated(simulator=Lines(LINE, LINE.replace("egg", "fish")), fresh=1.0, replay=0.0, variation_share=0.0)
    play(sampler, lambda task_id: 0, size=8)
    found = sampler.metrics()
    assert found["genenv_accepted"] == 2  # the accepted tasks always differ
    assert found["genenv_distinct_share"] == pytest.approx(2 / found["genenv_proposed"])
    play(sampler, lambda task_id: 0, size=8)
    found = sampler.metrics()
    assert found["genenv_accepted"] == 0 and found["genenv_distinct_share"] == 2 / 32


def test_variations_change_one_field_of_a_task_in_the_band():
    sampler = generated(simulator=Lines(LINE), fresh=1.0, replay=0.0, variation_share=1.0)
    [first, *_] = play(sampler, lambda task_id: 4 if task_id.startswith("heat") else 0, size=1)
    batch = sampler.sample(4)
    assert sampler.choices()[batch[0]][1] == "a recent task with one field changed"
    parent = GRAMMAR.spec(first).values
    for task_id in batch:
        assert sum(a != b for a, b in zip(parent, GRAMMAR.spec(task_id).values, strict=True)) == 1


def test_a_situation_reports_recent_success_by_type_and_a_recent_task():
    simulator, seen = Lines(LINE), []
    propose = simulator.propose
    simulator.propose = lambda situations, n, rng: (seen.extend(situations), propose(situations, n, rng))[1]
    sampler = generated(simulator=simulator, variation_share=0.0, novelty=0)
    for _ in range(4):
        play(sampler, by_kind, size=4)
    assert seen[0].success == {} and seen[0].seed_task is None
    assert (
        seen[-1].success["heat"][1] in range(16, 65) and seen[-1].success["heat"][0] * 2 == seen[-1].success["heat"][1]
    )
    assert seen[-1].seed_success == (4, 8) and seen[-1].seed_task.values[0] == "heat" and seen[-1].target == 0.5


def test_the_static_list_is_drawn_once_and_its_tasks_stay_the_same():
    simulator = StaticSimulator(GRAMMAR, 12, np.random.default_rng(2))
    sampler = generated(simulator=simulator, fresh=1.0, replay=0.0, variation_share=0.0)
    batches = [sorted(task_id for task_id in play(sampler, lambda task_id: 4) if is_written(task_id)) for _ in range(2)]
    assert batches[0] and batches[1] == batches[0]


def test_nothing_of_a_static_list_is_passed_over():
    simulator = StaticSimulator(GRAMMAR, 40, np.random.default_rng(2))
    writer = TaskWriter(GRAMMAR, simulator, variation_share=0.0)
    writer.write([Situation({})] * 3, [4, 1, 2], [False] * 3, 1, np.random.default_rng(3))
    assert simulator.position == writer.counters["proposed"]


def test_the_base_simulator_writes_as_the_split_is():
    lines = BaseSimulator(GRAMMAR).propose([None], 800, np.random.default_rng(3))[0]
    kinds = Counter(line.split()[0] for line in lines)
    assert max(abs(count / 800 - 1 / 4) for count in kinds.values()) < 0.06
    table = TableSimulator(GRAMMAR, np.random.default_rng(4)).propose([None], 800, np.random.default_rng(5))[0]
    for place in range(5):
        shares = [Counter(line.split()[place] for line in drawn) for drawn in (lines, table)]
        names = {name for one in shares for name in one}
        assert sum(abs(shares[0][name] - shares[1][name]) for name in names) / 1600 < 0.1


# --- with other samplers ----------------------------------------------------------------------------------------------


def test_the_failure_curriculum_sees_base_tasks_alone_and_its_reflections_keep_their_numbers():
    library = FailureLibrary()
    inner = CurriculumSampler(SPLIT, library, RuleAnalyst(), np.random.default_rng(0))
    sampler = generated(inner=inner)
    batch = sampler.sample(12)
    groups = [group(task_id, 7) for task_id in batch]
    reflections = sampler.observe(groups)
    base = [number for number, task_id in enumerate(batch) if not is_written(task_id)]
    assert sorted(reflections) == [(number, 7) for number in base]
    assert sampler.metrics()["failures"] == len(base) and inner.records.last.sum() == len(base)
    assert set(sampler.metrics()) > {"curriculum_share", "genenv_fresh_success", "genenv_base_success"}


def test_a_task_that_nobody_handed_out_is_refused():
    sampler = generated()
    sampler.sample(4)
    with pytest.raises(ValueError, match="neither a task of the split nor one that the sampler handed out"):
        sampler.observe([group("heat-egg-counter-7", 0)])


def test_the_wrapper_plays_what_the_sampler_writes():
    env = FailureCurriculum(ENV, generated(fresh=1.0, replay=0.0))
    _, info = env.reset()
    assert is_written(info["task_id"]) and GRAMMAR.spec(info["task_id"])


# --- resuming ---------------------------------------------------------------------------------------------------------


SIMULATORS = {
    "table": lambda rng: TableSimulator(GRAMMAR, rng),
    "base": lambda rng: BaseSimulator(GRAMMAR),
    "static": lambda rng: StaticSimulator(GRAMMAR, 50, rng),
}


@pytest.mark.parametrize("kind", SIMULATORS)
def test_a_loaded_sampler_goes_on_as_if_nothing_had_happened(kind):
    first, second = (generated(simulator=SIMULATORS[kind](np.random.default_rng(6)), seed=seed) for seed in (7, 8))
    play(first, lambda task_id: sum(map(ord, task_id)) % 9, 3, size=6)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for _ in range(3):
        for sampler in (first, second):
            play(sampler, lambda task_id: sum(map(ord, task_id)) % 9, size=6)
        assert first.state_dict() == second.state_dict() and first.metrics() == second.metrics()


def test_a_probe_leaves_no_trace():
    sampler = generated(fresh=1.0, replay=0.0)
    play(sampler, by_kind, 12)
    before = json.dumps(sampler.state_dict())
    found = sampler.probe(40, np.random.default_rng(0))
    heats = {name: sum(task_id.startswith("heat") for task_id in task_ids) for name, task_ids in found.items()}
    assert heats["present"] > 20 > heats["initial"] and all(len(task_ids) == 40 for task_ids in found.values())
    assert json.dumps(sampler.state_dict()) == before


def test_a_probe_after_a_variation_has_found_a_type_that_base_tasks_never_have():
    """Base questions have one hop or two, and a changed field can make three of them."""
    env = gymnasium.make("RoleAgent/SearchQA-v0", data_dir="generated", generated_tasks=True)
    grammar, rng = grammar_of(env), np.random.default_rng(0)
    simulator, inner = TableSimulator(grammar, rng), UniformSampler(env.unwrapped.task_split, rng)
    sampler = GeneratedSampler(inner, grammar, simulator, rng, fresh=1.0, replay=0.0, variation_share=0.5)
    play(sampler, lambda task_id: 4, 3)
    assert "three_hop" in simulator.types
    assert all(len(task_ids) == 8 for task_ids in sampler.probe(8, rng).values())


def test_a_probe_does_not_move_on_in_the_static_list():
    simulator = StaticSimulator(GRAMMAR, 60, np.random.default_rng(2))
    sampler = generated(simulator=simulator, fresh=1.0, replay=0.0)
    play(sampler, by_kind, 12)
    before = json.dumps(sampler.state_dict())
    assert sampler.probe(5, np.random.default_rng(0))
    assert json.dumps(sampler.state_dict()) == before

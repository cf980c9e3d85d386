"""The contract of a task grammar: ids are specifications, plans win, and no proposal raises."""

import copy
import multiprocessing
import pickle
import random
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hostile import NOT_TEXT, ODD
from written_tasks import hostile_line, well_formed_line, written

from roleagent.tasks.grammar import REFUSALS, OpenTaskSplit, Refused, grammar_of

ALFWORLD = "RoleAgent/ALFWorld-v0"
GENERATED = [
    ("RoleAgent/Toy-v0", {}),
    (ALFWORLD, {"data_dir": "generated", "size": "tiny"}),
    ("RoleAgent/WebShop-v0", {}),
    ("RoleAgent/SearchQA-v0", {}),
    ("RoleAgent/Office-v0", {}),
    ("RoleAgent/TextCraft-v0", {"data_dir": "generated"}),
]
FREE = ("RoleAgent/ToolEnv-v0", {})
LARGER = [(ALFWORLD, {"data_dir": "generated", "size": size}) for size in ("small", "standard")]


def make(env_id, arguments, **more):
    return gymnasium.make(env_id, **{"generated_tasks": True, **arguments, **more})


of_fields = pytest.mark.parametrize("env", GENERATED, indirect=True, ids=lambda param: param[0])
"""For grammars whose tasks have closed lists of values; tests/core/test_free_form.py has the others."""


@pytest.fixture(scope="module", params=[*GENERATED, FREE], ids=lambda param: param[0])
def env(request):
    return make(*request.param)


@pytest.fixture(scope="module")
def grammar(env):
    return grammar_of(env)


@pytest.fixture
def closed(env):
    arguments = {name: value for name, value in env.spec.kwargs.items() if name != "generated_tasks"}
    return lambda **more: gymnasium.make(env.spec.id, **{**arguments, **more})


def first_texts(env_id, arguments, task_ids):
    env = make(env_id, arguments)
    return [(env.reset(options={"task_id": one}), env.unwrapped.walkthrough()) for one in task_ids]


def test_an_id_is_the_task_in_every_copy_and_process(env, grammar):
    specs = list(written(grammar, 20))
    task_ids = [grammar.task_id(spec) for spec in specs]
    here = first_texts(env.spec.id, env.spec.kwargs, task_ids)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(first_texts, (env.spec.id, env.spec.kwargs, task_ids)) == here
    for spec, task_id, ((_, info), _) in zip(specs, task_ids, here, strict=True):
        assert grammar.spec(task_id) == spec and task_id in env.unwrapped.task_split
        assert info["task_id"] == task_id and info["task_type"] == grammar.task_type(spec)
    env.reset(options={"task_id": task_ids[0]})
    command = here[0][1][0]
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert other.step(command)[:4] == copy.deepcopy(env).step(command)[:4]  # info has the seconds of calls
        assert other.reset(options={"task_id": task_ids[1]}) == here[1][0]
        assert isinstance(other.unwrapped.task_split, OpenTaskSplit)


@pytest.mark.parametrize(
    ("env_id", "arguments", "count"),
    [
        *((*one, 50) for one in (*GENERATED, FREE)),
        *(pytest.param(*one, 1000, marks=pytest.mark.slow) for one in (*GENERATED, *LARGER, FREE)),
    ],
)
def test_accepted_tasks_are_won_by_their_plan_and_are_not_held_out(env_id, arguments, count):
    grammar = grammar_of(env := make(env_id, arguments))
    accepted, held_out = 0, grammar.held_out_contents()
    for spec in written(grammar, 10 * count, seed=1):
        if accepted == count:
            break
        found = grammar.check(spec)
        assert found.reason in ("", *REFUSALS) and found.accepted == (not found.reason)
        if not found.accepted:
            continue
        accepted += 1
        env.reset(options={"task_id": grammar.task_id(spec)})
        infos = [env.step(command)[-1] for command in found.plan]
        assert infos[-1]["won"] and all(info["valid_action"] for info in infos)
        assert 2 <= len(found.plan) <= grammar.plan_share * env.unwrapped.max_steps
        assert grammar.content(spec) not in held_out and grammar.spec(grammar.task_id(spec)) == spec
    assert accepted == count


@of_fields
def test_a_line_is_read_as_it_is_written_and_repaired_only_in_case_and_order(grammar):
    spec = grammar.base(np.random.default_rng(2))
    line = grammar.write(spec)
    assert grammar.read(line) == (spec.values, False)
    shuffled = " ".join(reversed(line.split()))
    assert grammar.read(f"  {shuffled.upper()} ") == (spec.values, True)
    for wrong in ("", line.replace("=", " "), f"{line} {line}", line.split()[0], line + " more=1", None, "x" * 10**6):
        with pytest.raises(Refused) as refused:
            grammar.read(wrong)
        assert refused.value.reason in ("syntax", "vocabulary")


@of_fields
def test_a_variation_differs_in_one_field(grammar):
    rng = np.random.default_rng(3)
    for spec in written(grammar, 30, seed=3):
        varied = grammar.vary(spec, rng)
        assert sum(a != b for a, b in zip(spec.values, varied.values, strict=True)) == 1


@of_fields
def test_the_same_values_are_worth_writing_again_where_another_seed_asks_for_something_else(env, grammar):
    rng = np.random.default_rng(0)
    values = grammar.base(rng).values
    ids = [grammar.task_id(grammar.complete(values, rng)) for _ in range(8)]
    goals = {env.reset(options={"task_id": task_id})[1]["goal"] for task_id in ids}
    assert (len(goals) > 2) == grammar.seed_draws_goal  # ALFWorld words a goal in two ways


def test_a_task_whose_plan_does_not_win_is_refused(grammar, monkeypatch):
    spec = grammar.base(np.random.default_rng(4))
    plan = grammar.check(spec).plan
    monkeypatch.setattr(type(grammar), "solve", lambda self, spec: plan[:-1])
    assert grammar.check(spec).reason == "unsolvable"


@of_fields
@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("line", "reasons"),
    [(hostile_line, {"syntax", "vocabulary"}), (well_formed_line, set())],
    ids=["hostile", "well-formed"],
)
def test_no_proposal_raises(grammar, count, line, reasons):
    rng, draws, refused = random.Random(count), np.random.default_rng(count), set()
    for number in range(count):
        try:
            values, _ = grammar.read(line(rng, grammar))
            spec = grammar.complete(values, draws)
        except Refused as error:
            refused.add(error.reason)
            continue
        assert spec.values == tuple(values)
        if number % 10 == 0:
            assert grammar.check(spec).reason in ("", *REFUSALS)
    assert refused >= reasons if reasons else refused <= {"inconsistent"}


def test_evaluation_splits_and_closed_environments_refuse_generated_tasks(env, closed, grammar):
    split = "valid_unseen" if env.spec.id == ALFWORLD else "valid"
    with pytest.raises(ValueError, match="generated tasks are for training"):
        closed(split=split, generated_tasks=True)
    with pytest.raises(ValueError, match="unknown task id"):
        closed(split=split).reset(options={"task_id": grammar.task_id(grammar.base(np.random.default_rng(5)))})
    with pytest.raises(ValueError, match="generated_tasks=True"):
        grammar_of(closed(split=split))


def test_listed_tasks_stay_as_they_are(env, closed):
    assert env.unwrapped.task_split.manifest() == closed().unwrapped.task_split.manifest()
    assert env.reset(seed=3) == closed().reset(seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


def changed(task_id, rng):
    place, kind = rng.randrange(len(task_id)), rng.randrange(3)
    new = rng.choice("0123456789-+_/é١٢\n \0az") if kind == 0 else "" if kind == 1 else task_id[place] * 2
    return task_id[:place] + new + task_id[place + 1 :]


def test_an_id_that_is_not_canonical_ends_in_one_line(env, grammar):
    """What an id says is what its grammar reads and the environment plays, or nothing plays it."""
    rng, task_split = random.Random(0), env.unwrapped.task_split
    ids = [grammar.task_id(spec) for spec in written(grammar, 20)]
    for task_id in (task_split.task_ids[0], *ODD, *NOT_TEXT, *(changed(rng.choice(ids), rng) for _ in range(300))):
        try:
            spec = grammar.spec(task_id)
        except ValueError as error:
            assert "\n" not in str(error) and len(str(error)) < 500
            assert task_id not in task_split or task_id in task_split.task_ids
            continue
        assert grammar.task_id(spec) == task_id
    for task_id in ("", *(ids[0] + more for more in ("000000", "\n", "+")), *NOT_TEXT[1:]):
        with pytest.raises(ValueError) as error:
            env.reset(options={"task_id": task_id})
        assert "\n" not in str(error.value)

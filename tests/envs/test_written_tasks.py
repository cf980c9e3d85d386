"""What holds of written tasks in every environment: plans, copies, other processes, hostile ids, listed tasks."""

import copy
import multiprocessing
import pickle
import random
import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from hostile import NOT_TEXT, ODD
from written_tasks import written

from roleagent.task_grammar import OpenTaskSplit, grammar_of

NAMES = ("ALFWorld", "WebShop", "SearchQA", "Office")
ALFWORLD, WEBSHOP, SEARCHQA, OFFICE = (f"RoleAgent/{name}-v0" for name in NAMES)
CASES = [
    *((ALFWORLD, {"data_dir": "generated", "size": size}) for size in ("tiny", "small", "standard")),
    (WEBSHOP, {}),
    (SEARCHQA, {}),
    (OFFICE, {}),
]
each_case = pytest.mark.parametrize(("env_id", "arguments"), CASES)
each_env = pytest.mark.parametrize(("env_id", "arguments"), dict((one[0], one) for one in reversed(CASES)).values())


def make(env_id, arguments, **more):
    return gymnasium.make(env_id, **{"generated_tasks": True, **arguments, **more})


@pytest.mark.slow
@each_case
def test_a_thousand_tasks_are_won_by_their_plans(env_id, arguments):
    grammar = grammar_of(env := make(env_id, arguments))
    accepted = [spec for spec in written(grammar, 1100, seed=7) if grammar.check(spec).accepted]
    assert len(accepted) >= 1000
    held_out = grammar.held_out_contents()
    for spec in accepted:
        env.reset(options={"task_id": grammar.task_id(spec)})
        infos = [env.step(command)[-1] for command in grammar.check(spec).plan]
        assert infos[-1]["won"] and all(info["valid_action"] for info in infos)
        assert grammar.content(spec) not in held_out and grammar.spec(grammar.task_id(spec)) == spec


def first_texts(env_id, arguments, task_ids):
    """The beginnings and the plans of tasks, as the process makes them that runs this."""
    env = make(env_id, arguments)
    return [(env.reset(options={"task_id": one}), env.unwrapped.walkthrough()) for one in task_ids]


@each_env
def test_copies_and_other_processes_play_the_same_tasks(env_id, arguments):
    env = make(env_id, arguments)
    grammar = grammar_of(env)
    task_ids = [grammar.task_id(spec) for spec in written(grammar, 20, seed=1)]
    here = first_texts(env_id, arguments, task_ids)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(first_texts, (env_id, arguments, task_ids)) == here
    env.reset(options={"task_id": task_ids[0]})
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert (
            other.step(here[0][1][0])[:4] == copy.deepcopy(env).step(here[0][1][0])[:4]
        )  # info has the seconds of calls
        assert other.reset(options={"task_id": task_ids[1]}) == here[1][0]
        assert isinstance(other.unwrapped.task_split, OpenTaskSplit)


@each_env
def test_listed_tasks_stay_as_they_are(env_id, arguments):
    closed, opened = make(env_id, arguments, generated_tasks=False), make(env_id, arguments)
    assert opened.unwrapped.task_split.task_ids == closed.unwrapped.task_split.task_ids
    assert opened.unwrapped.task_split.manifest() == closed.unwrapped.task_split.manifest()
    assert opened.reset(seed=3) == closed.reset(seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(opened.unwrapped)


def changed(task_id, rng):
    """The id with one character replaced, dropped or doubled."""
    place, kind = rng.randrange(len(task_id)), rng.randrange(3)
    new = rng.choice("0123456789-+_/é١٢\n \0az") if kind == 0 else "" if kind == 1 else task_id[place] * 2
    return task_id[:place] + new + task_id[place + 1 :]


@each_env
def test_an_id_that_is_not_canonical_ends_in_one_line(env_id, arguments):
    """What an id says is what its grammar reads and the environment plays, or nothing plays it."""
    rng = random.Random(0)
    env = make(env_id, arguments)
    grammar = grammar_of(env)
    ids = [grammar.task_id(spec) for spec in written(grammar, 20)]
    for task_id in (*ODD, *NOT_TEXT, *(changed(rng.choice(ids), rng) for _ in range(300))):
        try:
            spec = grammar.spec(task_id)
        except ValueError as error:
            assert "\n" not in str(error) and len(str(error)) < 500
            assert task_id not in env.unwrapped.task_split or task_id in env.unwrapped.task_split.task_ids
            continue
        assert grammar.task_id(spec) == task_id
    longer = [ids[0] + more for more in ("000000", "\n", "+")]
    for task_id in ("", *longer, *(one for one in NOT_TEXT if one is not None)):
        with pytest.raises(ValueError) as error:
            env.reset(options={"task_id": task_id})
        assert "\n" not in str(error.value)

"""The contract of a task grammar: ids are specifications, plans win, and no proposal raises."""

import pickle
import random
import string

import gymnasium
import numpy as np
import pytest

from roleagent.task_grammar import REFUSALS, Refused, grammar_of

GENERATED = [
    ("RoleAgent/Toy-v0", {}),
    ("RoleAgent/ALFWorld-v0", {"data_dir": "generated", "size": "tiny"}),
    ("RoleAgent/WebShop-v0", {}),
    ("RoleAgent/SearchQA-v0", {}),
    ("RoleAgent/Office-v0", {}),
    ("RoleAgent/TextCraft-v0", {"data_dir": "generated"}),
]


@pytest.fixture(scope="module", params=GENERATED, ids=lambda param: param[0])
def env(request):
    env_id, arguments = request.param
    return gymnasium.make(env_id, generated_tasks=True, **arguments)


@pytest.fixture(scope="module")
def grammar(env):
    return grammar_of(env)


def drawn(grammar, count, seed=0):
    """Base tasks, and tasks that differ from them in some fields."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        spec = grammar.base(rng)
        for _ in range(number % 4):
            spec = grammar.vary(spec, rng)
        yield spec


def test_an_id_is_the_task_on_every_machine(env, grammar):
    other = pickle.loads(pickle.dumps(env.unwrapped))
    for spec in drawn(grammar, 40):
        task_id = grammar.task_id(spec)
        assert grammar.spec(task_id) == spec and task_id in env.unwrapped.task_split
        observation, info = env.reset(options={"task_id": task_id})
        assert (observation, info) == other.reset(options={"task_id": task_id})
        assert info["task_id"] == task_id and info["task_type"] == grammar.task_type(spec)


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_accepted_tasks_are_won_by_their_plan_and_are_not_held_out(env, grammar, count):
    accepted, held_out = 0, grammar.held_out_contents()
    for spec in drawn(grammar, 10 * count, seed=1):
        if accepted == count:
            break
        found = grammar.check(spec)
        assert found.reason in ("", *REFUSALS) and found.accepted == (not found.reason)
        if not found.accepted:
            continue
        accepted += 1
        env.reset(options={"task_id": grammar.task_id(spec)})
        info = [env.step(command) for command in found.plan][-1][-1]
        assert info["won"] and 2 <= len(found.plan) <= grammar.plan_share * env.unwrapped.max_steps
        assert grammar.content(spec) not in held_out
    assert accepted == count


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


def test_a_variation_differs_in_one_field(grammar):
    rng = np.random.default_rng(3)
    for spec in drawn(grammar, 30, seed=3):
        varied = grammar.vary(spec, rng)
        assert sum(a != b for a, b in zip(spec.values, varied.values, strict=True)) == 1


def test_a_task_whose_plan_does_not_win_is_refused(grammar, monkeypatch):
    spec = grammar.base(np.random.default_rng(4))
    plan = grammar.check(spec).plan
    monkeypatch.setattr(type(grammar), "solve", lambda self, spec: plan[:-1])
    assert grammar.check(spec).reason == "unsolvable"


def hostile(rng, grammar):
    """A line that a bad model may write: noise, control characters, tags, wrong numbers, cut or doubled fields."""
    names, kinds = list(grammar.fields), rng.randrange(5)
    if kinds == 0:
        return "".join(rng.choice(string.printable + "\x00\u202e<>=é") for _ in range(rng.randrange(60)))
    pairs = [f"{name}={rng.choice((*grammar.fields[name], 'NaN', '-1', '1e9', '<tasks>', 'x' * 50))}" for name in names]
    if kinds == 1:
        pairs[rng.randrange(len(pairs))] = rng.choice(["", "=", "==", "</tasks>", "a=b=c", "\x1b[2J", names[0] + "="])
    elif kinds == 2:
        pairs = rng.sample(pairs, rng.randrange(len(pairs) + 1))
    elif kinds == 3:
        pairs += rng.sample(pairs, 1)
    return " ".join(pairs)


SIZES = [1000, pytest.param(10_000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("count", SIZES)
def test_no_hostile_proposal_raises(grammar, count):
    rng, draws = random.Random(count), np.random.default_rng(count)
    refused = set()
    for number in range(count):
        try:
            values, _ = grammar.read(hostile(rng, grammar))
            spec = grammar.complete(values, draws)
        except Refused as error:
            assert error.reason in REFUSALS
            refused.add(error.reason)
            continue
        if number % 10 == 0:
            assert grammar.check(spec).reason in ("", *REFUSALS)
    assert refused >= {"syntax", "vocabulary"}


@pytest.mark.parametrize("count", SIZES)
def test_no_random_proposal_raises(grammar, count):
    """Each field has any of its values: most lines are well-formed, and many fit no game."""
    rng = np.random.default_rng(count)
    for number in range(count):
        values = [choices[int(rng.integers(len(choices)))] for choices in grammar.fields.values()]
        line = " ".join(f"{name}={value}" for name, value in zip(grammar.fields, values, strict=True))
        assert grammar.read(line) == (tuple(values), False)
        try:
            spec = grammar.complete(values, rng)
        except Refused as error:
            assert error.reason == "inconsistent"
            continue
        assert spec.values == tuple(values)
        if number % 10 == 0:
            assert grammar.check(spec).reason in ("", *REFUSALS)


def test_evaluation_splits_and_closed_environments_refuse_generated_tasks(env, grammar):
    split = next(name for name in ("valid", "valid_unseen", "test") if _has(env, name))
    with pytest.raises(ValueError, match="generated tasks are for training"):
        gymnasium.make(env.spec.id, **{**env.spec.kwargs, "split": split})
    arguments = {name: value for name, value in env.spec.kwargs.items() if name != "generated_tasks"}
    closed = gymnasium.make(env.spec.id, **{**arguments, "split": split})
    with pytest.raises(ValueError, match="unknown task id"):
        closed.reset(options={"task_id": grammar.task_id(grammar.base(np.random.default_rng(5)))})
    with pytest.raises(ValueError, match="generated_tasks=True"):
        grammar_of(closed)


def _has(env, split):
    arguments = {name: value for name, value in env.spec.kwargs.items() if name != "generated_tasks"}
    try:
        return bool(gymnasium.make(env.spec.id, **{**arguments, "split": split}))
    except ValueError:
        return False


def test_no_spec_is_read_from_the_id_of_a_listed_task(env, grammar):
    with pytest.raises(ValueError):
        grammar.spec(env.unwrapped.task_split.task_ids[0])

"""Written tasks of ALFWorld: what their fields change, their ids, and that listed games stay as they are."""

import random
from contextlib import suppress
from itertools import product

import gymnasium
import numpy as np
import pytest
from written_tasks import hostile_line, well_formed_line, written

from roleagent.envs.alfworld.engine.game import Game
from roleagent.envs.alfworld.generated.generate import generate
from roleagent.envs.alfworld.generated.layout import SIZES
from roleagent.envs.alfworld.generated.tasks import TaskName, scene_of
from roleagent.envs.alfworld.goals import parse_goal
from roleagent.envs.alfworld.official.games import list_games, split_folder
from roleagent.envs.alfworld.official.tasks import NewGoal
from roleagent.tasks.grammar import REFUSALS, Refused, grammar_of

ALFWORLD = "RoleAgent/ALFWorld-v0"
HELD_OUT = 40  # of the 140 games are for evaluation in the folder of the tests


def make(size="tiny", **options):
    return gymnasium.make(ALFWORLD, data_dir="generated", size=size, generated_tasks=True, **options)


@pytest.mark.parametrize("size", SIZES)
def test_fields_describe_the_game(size):
    grammar = grammar_of(env := make(size))
    for spec in written(grammar, 60):
        fields = dict(zip(grammar.fields, spec.values, strict=True))
        game = Game.from_source(generate(grammar.task_id(spec)))
        here = [
            game.openable[r]
            for r, contents in enumerate(game.contents)
            for o in contents
            if game.objects[o].split()[0] == fields["object"].lower()
        ]
        assert len(here) == int(fields["spare"]) + 1 + fields["type"].startswith("pick_two")
        assert set(here) == {fields["door"] == "yes"}
        assert game.source.goal in env.reset(options={"task_id": game.source.task_id})[0]
        assert TaskName.parse(grammar.task_id(spec)).size == fields.get("size", size)


# --- new goals in official rooms --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(official_games, tmp_path_factory):
    games = split_folder(official_games["current"], "valid_seen")
    root = tmp_path_factory.mktemp("split")
    for number, task in enumerate(sorted({task_id.partition("/")[0] for task_id in list_games(games)})):
        split = root / ("valid_seen" if number < HELD_OUT else "train")
        split.mkdir(exist_ok=True)
        (split / task).symlink_to(games / task)
    return root


@pytest.fixture
def official(folder):
    return gymnasium.make(ALFWORLD, data_dir=folder, generated_tasks=True)


@pytest.mark.parametrize("count", [60, pytest.param(1200, marks=pytest.mark.slow)])
def test_new_goals_are_won_by_their_plans(official, count):
    grammar, accepted = grammar_of(official), 0
    for spec in written(grammar, count):
        task_id = grammar.task_id(spec)
        assert grammar.spec(task_id) == spec and task_id in official.unwrapped.task_split
        found = grammar.check(spec)
        if not found.accepted:
            continue
        accepted += 1
        text, info = official.reset(options={"task_id": task_id})
        goal = parse_goal(text)
        assert (goal.task_type, goal.obj, goal.place) == tuple(map(str.lower, spec.values)) and not info["won"]
        assert info["task_type"] == grammar.task_type(spec) == official.unwrapped.task_type(task_id)
        infos = [official.step(command)[-1] for command in found.plan]
        assert infos[-1]["won"] and all(info["valid_action"] for info in infos)
        assert scene_of(task_id) == scene_of(task_id.partition("+")[2])
    assert accepted > count * 5 / 6


def test_a_task_of_an_evaluation_split_is_refused(folder, official):
    """Written into another game of the same scene, it has the same name."""
    grammar = grammar_of(official)
    held_out = grammar.held_out_contents()
    assert len(held_out) == HELD_OUT
    reasons = set()
    for name, game in product(held_out, official.unwrapped.task_split.task_ids):
        task_type, obj, _, place, scene = name.split("-")
        goal = NewGoal(task_type, obj, place, game)
        with suppress(ValueError):  # nothing else asks for such a thing
            if scene_of(game) == scene:
                reasons.add(grammar.check(grammar.spec(goal.task_id)).reason)
    assert "held_out" in reasons and "" not in reasons


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("line", [hostile_line, well_formed_line])
def test_no_proposal_of_a_new_goal_raises(official, count, line):
    grammar, rng, draws = grammar_of(official), random.Random(count), np.random.default_rng(count)
    for number in range(count):
        with suppress(Refused):
            values, _ = grammar.read(line(rng, grammar))
            spec = grammar.complete(values, draws)
            assert spec.values == tuple(values)
            if number % 10 == 0:
                assert grammar.check(spec).reason in ("", *REFUSALS)

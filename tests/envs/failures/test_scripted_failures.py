"""Failures by construction: every mistake is made, it is the only one, and the rules find it."""

import re
from collections import Counter
from functools import partial

import gymnasium
import numpy as np
import pytest

from roleagent.curricula.rule_analyst import RuleAnalyst
from roleagent.envs.alfworld.goals import parse_goal
from roleagent.envs.alfworld.text import kind_of
from roleagent.envs.failures import play_failure, play_failures, scripted_modes
from roleagent.failures.modes import taxonomy

ALFWORLD, WEBSHOP, SEARCH, OFFICE, CRAFTING, TOOLS = (
    taxonomy(f"RoleAgent/{name}-v0") for name in ("ALFWorld", "WebShop", "SearchQA", "Office", "TextCraft", "ToolEnv")
)
MODES = {"webshop": WEBSHOP, "search": SEARCH, "office": OFFICE, "textcraft": CRAFTING, "tools": TOOLS}
WORLDS = {
    "toy": ("RoleAgent/Toy-v0", {}),
    "tiny": ("RoleAgent/ALFWorld-v0", {"data_dir": "generated", "size": "tiny"}),
    "standard": ("RoleAgent/ALFWorld-v0", {"data_dir": "generated", "size": "standard"}),
    "webshop": ("RoleAgent/WebShop-v0", {"data_dir": "generated"}),
    "search": ("RoleAgent/SearchQA-v0", {"data_dir": "generated"}),
    "office": ("RoleAgent/Office-v0", {}),
    "textcraft": ("RoleAgent/TextCraft-v0", {"data_dir": "generated"}),
    "tools": ("RoleAgent/ToolEnv-v0", {}),
}
INVALID = {  # modes with commands that cannot be carried out
    "webshop": ("navigation_error",),
    "search": (),
    "textcraft": (
        *("fetching_craftable", "missing_ingredient", "wrong_quantity"),
        *("invented_recipe", "repeated_failed_command"),
    ),
}
HOUSES = ("toy", "tiny", "standard")
N = 12  # episodes per mode and world


@pytest.fixture(scope="module")
def envs():
    made = {name: partial(gymnasium.make, env_id, **options) for name, (env_id, options) in WORLDS.items()}
    return {name: make(disable_env_checker=True) for name, make in made.items()}


@pytest.fixture(scope="module")
def made(envs):
    """Failed episodes by world and mode, made when they are first asked for."""
    kept = {}

    def episodes(world, mode):
        if (world, mode) not in kept:
            seed = [*world.encode(), *mode.encode()]
            kept[world, mode] = play_failures(envs[world], mode, N, np.random.default_rng(seed))
        return kept[world, mode]

    return episodes


def each(*worlds):
    return pytest.mark.parametrize(("world", "mode"), [(w, m) for w in worlds for m in MODES.get(w, ALFWORLD)])


# --- what holds of every mistake --------------------------------------------------------------------------------------


@each(*WORLDS)
def test_every_mistake_can_be_made_and_loses(made, envs, world, mode):
    episodes = made(world, mode)
    assert len(episodes) == N
    for mistake in episodes:
        trajectory = mistake.trajectory
        assert mistake.mode == mode and trajectory.task.env_id == WORLDS[world][0]
        assert not trajectory.success and trajectory.outcome == 0
        assert len(trajectory.turns) <= envs[world].unwrapped.max_steps
        assert trajectory.stop_reason == ("lost" if trajectory.terminated else "max_steps")
        assert trajectory.terminated != trajectory.truncated
        assert mistake.step is None or 0 <= mistake.step < len(trajectory.turns)
        states = [trajectory.initial_observation, *(turn.observation for turn in trajectory.turns)]
        assert [turn.state for turn in trajectory.turns] == states[:-1]
        unreadable = [not turn.action for turn in trajectory.turns]
        assert any(unreadable) == (mode == "action_format_error")
        assert [bool(turn.info["format_error"]) for turn in trajectory.turns] == unreadable
        if world in INVALID:
            invalid = [turn for turn in trajectory.turns if turn.action and not turn.info["valid_action"]]
            assert bool(invalid) == (mode in INVALID[world])


@each("toy", "webshop", "search", "textcraft")
def test_episodes_vary_and_come_again_with_the_same_generator(made, envs, world, mode):
    task_id = made(world, mode)[0].trajectory.task.task_id
    same = [play_failure(envs[world], task_id, mode, np.random.default_rng(7)) for _ in range(2)]
    assert same[0] == same[1]
    others = [play_failure(envs[world], task_id, mode, np.random.default_rng(seed)) for seed in range(20)]
    ways = {tuple(turn.action for turn in other.trajectory.turns) for other in others if other}
    assert len(ways) >= 4


def test_what_is_no_mistake_here(envs):
    with pytest.raises(ValueError, match=r"no scripted failure 'repeated_query'.*navigation_loop"):
        play_failure(envs["toy"], "bring-egg-tray-1", "repeated_query", np.random.default_rng(0))
    with pytest.raises(ValueError, match="unknown task id"):
        play_failure(envs["toy"], "bring-anvil-tray-1", "navigation_loop", np.random.default_rng(0))
    assert scripted_modes(gymnasium.make("CartPole-v1")) == ()


# --- exactly one mistake, by facts that no rule is asked about --------------------------------------------------------


def goal_of(task):
    if task.env_id == WORLDS["toy"][0]:
        verb, item, target, _ = task.task_id.split("-")
        return item, target, "" if verb == "bring" else verb
    goal = parse_goal(task.goal)
    treatment = task.task_type.split("_")[1] if "_then_place" in task.task_type else ""
    return goal.obj, "" if goal.place.endswith("lamp") else goal.place, treatment


@pytest.mark.parametrize("world", HOUSES)
def test_the_rest_of_a_task_in_a_house_is_done_right(made, world):
    """What was taken and treated, and where it was put."""
    for mode in ("wrong_object_interaction", "wrong_receptacle", "wrong_target_location", "missing_precondition"):
        for mistake in made(world, mode):
            item, target, treatment = goal_of(mistake.trajectory.task)
            worked = [turn.action for turn in mistake.trajectory.turns if turn.info["valid_action"]]
            took = {command.split(" ")[1] for command in worked if command.startswith("take")}
            treated = any(command.startswith(("heat", "cool", "clean")) for command in worked)
            found = [re.match(r"(?:move|put) (\S+).* (?:to|in/on) (.+)", command) for command in worked]
            put = [(match[1], kind_of(match[2])) for match in found if match]
            if mode == "missing_precondition":
                assert not treated
            elif mode == "wrong_object_interaction":
                assert item not in took and took and (treated or not treatment) and (put or not target)
            else:
                assert item in took and treated == bool(treatment)
                assert bool(put) == (mode == "wrong_receptacle") and (item, target) not in put


# --- who is asked about them ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", WORLDS)
def test_the_rules_know_what_went_wrong(made, envs, world):
    """Measured with 300 episodes per mode: at least 99 % of the modes and 98 % of the steps in every world."""
    right, distances = Counter(), []
    for mode in scripted_modes(envs[world]):
        for mistake in made(world, mode):
            [reflection] = RuleAnalyst().reflect([mistake.trajectory])
            right[mode] += reflection.mode == mode
            if mistake.step is not None:
                step = reflection.critical_step
                distances.append(np.inf if step is None else abs(step - mistake.step))
    assert right.total() >= 0.96 * N * len(scripted_modes(envs[world])), right
    assert min(right.values()) >= 0.75 * N, right
    assert np.mean(np.array(distances) <= 1) >= 0.94
    assert np.mean(np.array(distances) == 0) >= (0.98 if world in ("webshop", "office", "tools") else 0.9)


def test_official_games_and_products(official_games, webshop_data):
    for folder in official_games.values():
        env = gymnasium.make("RoleAgent/ALFWorld-v0", data_dir=folder, split="valid_seen")
        for mode in ALFWORLD:
            assert len(play_failures(env, mode, 2, np.random.default_rng(0))) == 2, mode
    env = gymnasium.make("RoleAgent/WebShop-v0", data_dir=webshop_data)
    for mode in {*WEBSHOP} - {"price_constraint_violation", "premature_purchase"}:  # there is little to choose from
        assert len(play_failures(env, mode, 2, np.random.default_rng(0))) == 2, mode

"""Failures by construction: every mistake is made, it is the only one, and the rules find it."""

import json
from collections import Counter
from itertools import groupby, pairwise

import gymnasium
import numpy as np
import pytest
from fake_openai import serving
from programs import load

from roleagent.curricula.rule_analyst import RuleAnalyst
from roleagent.envs.alfworld.goals import parse_goal
from roleagent.envs.alfworld.text import kind_of
from roleagent.envs.failures import play_failure, play_failures, scripted_modes
from roleagent.envs.searchqa.text import normalise, read_information
from roleagent.failure_modes import taxonomy

ALFWORLD = taxonomy("RoleAgent/ALFWorld-v0")
WEBSHOP = taxonomy("RoleAgent/WebShop-v0")
SEARCH = taxonomy("RoleAgent/SearchQA-v0")
OFFICE = taxonomy("RoleAgent/Office-v0")
CRAFTING = taxonomy("RoleAgent/TextCraft-v0")
TOOLS = taxonomy("RoleAgent/ToolEnv-v0")
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
HOUSES = ("toy", "tiny", "standard")
N = 12  # episodes per mode and world


@pytest.fixture(scope="module")
def envs():
    return {name: gymnasium.make(env_id, **options) for name, (env_id, options) in WORLDS.items()}


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
    """Every mode of these worlds, as test parameters."""
    return pytest.mark.parametrize(("world", "mode"), [(w, m) for w in worlds for m in MODES.get(w, ALFWORLD)])


# --- what holds of every mistake --------------------------------------------------------------------------------------


def test_every_mode_has_a_script(envs):
    for world, env in envs.items():
        assert scripted_modes(env) == MODES.get(world, ALFWORLD)


@each(*WORLDS)
def test_every_mistake_can_be_made_and_loses(made, envs, world, mode):
    episodes = made(world, mode)
    assert len(episodes) == N
    env = envs[world].unwrapped
    for mistake in episodes:
        trajectory = mistake.trajectory
        assert mistake.mode == mode and trajectory.task.env_id == WORLDS[world][0]
        assert not trajectory.success and trajectory.outcome == 0 and len(trajectory.turns) <= env.max_steps
        assert trajectory.stop_reason == ("lost" if trajectory.terminated else "max_steps")
        assert trajectory.terminated != trajectory.truncated
        assert mistake.step is None or 0 <= mistake.step < len(trajectory.turns)
        states = [trajectory.initial_observation, *(turn.observation for turn in trajectory.turns)]
        assert [turn.state for turn in trajectory.turns] == states[:-1]
        unreadable = [turn for turn in trajectory.turns if not turn.action]
        assert all(turn.info["format_error"] and not turn.info["valid_action"] for turn in unreadable)
        assert bool(unreadable) == (mode == "action_format_error")
        assert all(turn.info["format_error"] is None for turn in trajectory.turns if turn.action)


@each("toy", "webshop", "search", "textcraft")
def test_episodes_vary_and_come_again_with_the_same_generator(made, envs, world, mode):
    commands = [[turn.action for turn in mistake.trajectory.turns] for mistake in made(world, mode)]
    assert len(set(map(tuple, commands))) >= N / 2
    task_id = made(world, mode)[0].trajectory.task.task_id
    same = [play_failure(envs[world], task_id, mode, np.random.default_rng(7)) for _ in range(2)]
    assert same[0] == same[1]
    others = [play_failure(envs[world], task_id, mode, np.random.default_rng(seed)) for seed in range(20)]
    ways = {tuple(turn.action for turn in other.trajectory.turns) for other in others if other}
    # One may stop at any step of the way, and there are only so many products and values to get wrong.
    few = world in ("search", "textcraft") or mode in (
        "premature_give_up",
        "premature_purchase",
        "price_constraint_violation",
    )
    assert len(ways) >= (4 if few else 8)


def test_what_is_no_mistake_here(envs):
    with pytest.raises(ValueError, match=r"no scripted failure 'repeated_query'.*navigation_loop"):
        play_failure(envs["toy"], "bring-egg-tray-1", "repeated_query", np.random.default_rng(0))
    with pytest.raises(ValueError, match="unknown task id"):
        play_failure(envs["toy"], "bring-anvil-tray-1", "navigation_loop", np.random.default_rng(0))
    assert scripted_modes(gymnasium.make("CartPole-v1")) == ()


# --- exactly one mistake, by facts that no rule is asked about --------------------------------------------------------


def goal_of(task):
    """Item, target and treatment of a household task."""
    if task.env_id == WORLDS["toy"][0]:
        verb, item, target, _ = task.task_id.split("-")
        return item, target, "" if verb == "bring" else verb
    goal = parse_goal(task.goal)
    treatment = task.task_type.split("_")[1] if "_then_place" in task.task_type else ""
    return goal.obj, "" if goal.place.endswith("lamp") else goal.place, treatment


@each(*HOUSES)
def test_one_mistake_in_a_house(made, world, mode):
    for mistake in made(world, mode):
        turns, step = mistake.trajectory.turns, mistake.step
        item, target, treatment = goal_of(mistake.trajectory.task)
        worked = [turn.action.split(" ") for turn in turns if turn.info["valid_action"]]
        futile = [turn.action for turn in turns if turn.action and not turn.info["valid_action"]]
        took = {words[1] for words in worked if words[0] == "take"}
        put = [(words[1], kind_of(turn_place(words))) for words in worked if words[0] in ("move", "put")]
        treated = [words for words in worked if words[0] in ("heat", "cool", "clean")]
        after = [turn.action.split(" ") for turn in turns[step:]] if step is not None else worked
        walks = [" ".join(words[2:]) for words in after if words[0] == "go"]
        if mode not in ("repeated_failed_action", "entity_confusion", "missing_precondition"):
            # The expert finds out by walking that two places are reached from the same spot.
            assert len(futile) <= 2 and all(command.startswith("go to") for command in futile)
        if mode == "repeated_failed_action":
            times = Counter(futile).most_common(1)[0][1]
            assert times >= 3 and len(futile) - times <= 2
        elif mode == "entity_confusion":
            before = mistake.trajectory.initial_observation + "".join(turn.observation for turn in turns)
            assert len(futile) >= 3 and Counter(futile).most_common(1)[0][1] <= len(futile) / 2
            assert all(any(f" {name}" not in before for name in named(command)) for command in futile)
        elif mode == "missing_precondition":
            assert not treated and (futile or (treatment and (item, target) in put))
        elif mode == "wrong_object_interaction":
            assert item not in took and took and (treated or not treatment) and (put or not target)
        elif mode == "wrong_receptacle":
            assert put and all(thing == item and place != target for thing, place in put)
            assert bool(treated) == bool(treatment)
        elif mode == "wrong_target_location":
            assert item in took and not put and bool(treated) == bool(treatment)
            assert len(walks) >= 3 and target not in map(kind_of, walks)
        elif mode == "navigation_loop":
            assert {words[0] for words in after} <= {"go", "look"} and len(set(walks)) <= 3
            assert len(walks) >= 5 and all(one != other for one, other in pairwise(walks))
        elif mode == "repetitive_exploration":
            assert not took and len(set(walks)) >= 3 and len(walks) >= 4
            gone = [turn.action for turn in turns[:step]]
            assert all(f"go to {place}" in gone for place in walks)
        elif mode == "exhaustive_exploration_failure":
            assert item not in took and len(walks) == len(set(walks)) and all(place != target for _, place in put)
        elif mode == "premature_give_up":
            assert {words[0] for words in after} <= {"look", "inventory", "examine", "help", "open", "close"}
            assert len(after) >= 4


def turn_place(words):
    """Where a thing was put: what follows the preposition."""
    for preposition in ("to", "in/on"):
        if preposition in words:
            return " ".join(words[words.index(preposition) + 1 :])
    return ""


def named(command):
    """The names in a household command."""
    rest = command.removeprefix("go to ") if command.startswith("go to ") else command.partition(" ")[2]
    return rest.split(" from ")


@each("webshop")
def test_one_mistake_in_the_shop(made, envs, world, mode):
    shop = envs[world].unwrapped.shop
    purchases = {"wrong_product_selection", "price_constraint_violation", "premature_purchase"}
    right_product = {"wrong_attribute_selection", "missing_attribute_selection"}
    for mistake in made(world, mode):
        trajectory = mistake.trajectory
        goal = shop.goals.find(trajectory.task.task_id)
        commands = [turn.action for turn in trajectory.turns]
        searches = [command.lower() for command in commands if command.startswith("search")]
        invalid = [turn for turn in trajectory.turns if turn.action and not turn.info["valid_action"]]
        assert bool(invalid) == (mode == "navigation_error")
        if mode == "irrelevant_query":
            continue  # what comes of the search is part of the mistake
        assert trajectory.terminated == (mode in purchases | right_product)
        asin = trajectory.turns[-1].info["asin"]
        if mode in right_product:
            chosen = [value for value in goal.options.values() if f"click[{value}]" in commands]
            assert asin == goal.asin and (mode == "wrong_attribute_selection" or len(chosen) < len(goal.options))
        elif mode in purchases:
            bought = shop.catalogue[shop.catalogue.position(asin)]
            assert (bought.prices[0] >= goal.price_upper) == (mode == "price_constraint_violation")
            read = {"click[features]", "click[description]"} & {*commands[commands.index(f"click[{asin.lower()}]") :]}
            assert asin != goal.asin and not (mode == "premature_purchase" and read)
        elif mode == "repeated_query":
            assert len(searches) >= 4 and len({frozenset(search[7:-1].split()) for search in searches}) == 1
        elif mode == "excessive_browsing":
            assert len(searches) <= 2 and len({turn.info["asin"] for turn in trajectory.turns} - {""}) >= 2
        elif mode == "premature_termination":
            assert len({turn.action for turn in trajectory.turns[mistake.step :]}) <= len(goal.options)
            assert asin == goal.asin and len(searches) == 1


@each("search")
def test_one_mistake_in_a_search(made, world, mode):
    for mistake in made(world, mode):
        turns = mistake.trajectory.turns
        golden = normalise(turns[-1].info["golden_answers"][0])
        answer = normalise(turns[-1].info["answer"])
        read = normalise(" ".join(f"{d.title} {d.text}" for t in turns for d in read_information(t.observation)))
        searches = [frozenset(normalise(turn.action).split()) for turn in turns if turn.action.startswith("search")]
        assert all(turn.info["valid_action"] for turn in turns if turn.action)
        assert (len(set(searches)) < len(searches)) == (mode == "repeated_retrieval_query")
        assert bool(searches) == (mode != "premature_answer") or mode == "action_format_error"
        if mode in ("wrong_answer", "information_misinterpretation", "partial_answer", "hallucinated_answer"):
            assert golden in read and answer and answer != golden
            one, other = set(golden.split()), set(answer.split())
            assert (one < other or other < one) == (mode == "partial_answer")
            said = answer in normalise(mistake.trajectory.task.goal)
            assert (answer in read and not said) == (mode == "information_misinterpretation") or mode[0] in "wp"
        elif mode == "insufficient_retrieval":
            assert golden not in read and (not answer or answer in read)


@each("textcraft")
def test_one_mistake_in_crafting(made, world, mode):
    failing = {
        "fetching_craftable": "Could not find ",
        "missing_ingredient": "Could not find enough items",
        "wrong_quantity": "Could not find",
        "invented_recipe": "Could not find",
        "repeated_failed_command": "Could not find",
    }
    for mistake in made(world, mode):
        turns, step = mistake.trajectory.turns, mistake.step
        failed = [turn for turn in turns if turn.action and not turn.info["valid_action"]]
        after = [turn.action for turn in turns[step:] if turn.action]
        assert all(turn.info["valid_action"] for turn in turns[:step])
        assert bool(failed) == (mode in failing) and all(turn.observation.startswith(failing[mode]) for turn in failed)
        repeats = max(sum(1 for _ in same) for _, same in groupby(turn.action for turn in turns))
        if mode == "repeated_failed_command":
            assert len(set(after)) == 1 and repeats >= 3
        elif mode == "fetching_craftable":
            assert all(command.startswith("get") or command == "inventory" for command in after)
        elif mode == "aimless_fetching":
            assert not any(command.startswith("craft") for command in after)
        elif mode == "distractor_crafting":
            made_of = {
                turn.action.split(" using ")[0].split(" ", 2)[2] for turn in turns[step:] if "using" in turn.action
            }
            assert made_of and mistake.trajectory.task.goal not in {f"craft {name}" for name in made_of}


# --- who is asked about them ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", WORLDS)
def test_the_rules_know_what_went_wrong(made, envs, world):
    """Measured with 300 episodes per mode: at least 99 % of the modes and 98 % of the steps in every world."""
    right, near = Counter(), []
    for mode in scripted_modes(envs[world]):
        for mistake in made(world, mode):
            [reflection] = RuleAnalyst().reflect([mistake.trajectory])
            right[mode] += reflection.mode == mode
            if mistake.step is not None:
                step = reflection.critical_step
                near.append(step is not None and abs(step - mistake.step) <= 1)
    assert right.total() >= 0.96 * N * len(scripted_modes(envs[world])), right
    assert min(right.values()) >= 0.75 * N, right
    assert np.mean(near) >= 0.94


def test_official_games_and_products(official_games, webshop_data):
    """The same agents where nothing was generated."""
    for folder in official_games.values():
        env = gymnasium.make("RoleAgent/ALFWorld-v0", data_dir=folder, split="valid_seen")
        for mode in ALFWORLD:
            assert len(play_failures(env, mode, 2, np.random.default_rng(0))) == 2, mode
    env = gymnasium.make("RoleAgent/WebShop-v0", data_dir=webshop_data)
    for mode in {*WEBSHOP} - {"price_constraint_violation", "premature_purchase"}:  # there is little to choose from
        assert len(play_failures(env, mode, 2, np.random.default_rng(0))) == 2, mode


@pytest.fixture
def benchmark(capsys):
    """``benchmarks/analysts.py``: from its arguments to its result, or to what it says when there is none."""
    program = load("benchmarks/analysts")

    def result(*arguments):
        status = program.main([*map(str, arguments)])
        said = capsys.readouterr()
        assert status in (0, 2)
        return said.err if status else json.loads(said.out.splitlines()[-1].removeprefix("RESULT "))

    return result


def test_the_benchmark_of_the_rules(benchmark, tmp_path):
    out = tmp_path / "failures.jsonl"
    result = benchmark("--n", 1, "--worlds", "toy,search", "--out", out)
    assert set(result["worlds"]) == {"toy", "search"}
    assert result["worlds"]["toy"]["accuracy"]["n"] == 11 and result["worlds"]["search"]["ratio"] > 2
    labels = [json.loads(line)["label"]["mode"] for line in out.read_text().splitlines()]
    assert labels == [*ALFWORLD, *SEARCH]
    assert (
        benchmark("--worlds", "toys")
        == "analysts.py: no world 'toys': there are toy, alfworld, webshop, search, textcraft\n"
    )


def test_the_benchmark_of_a_server(benchmark):
    """It says the same mode, invents one, or cannot be read, by turns."""

    def reply(body, number):
        mode = ("navigation loop", "fell_asleep", None)[number % 3]
        return f"<reflection>\nDOMINANT_TYPE: {mode}\nCRITICAL_STEP: 1\n</reflection>" if mode else "Well, well."

    with serving(reply) as server:
        [world] = benchmark("--endpoint", server.url, "--n", 3, "--worlds", "toy")["worlds"].values()
    assert world["modes"]["navigation_loop"]["accuracy"]["share"] == pytest.approx(1 / 3, abs=0.34)
    assert world["outside"] + world["fallback"] == pytest.approx(2 / 3, abs=0.04)

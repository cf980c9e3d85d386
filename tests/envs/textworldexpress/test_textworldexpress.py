"""``RoleAgent/TextWorldExpress-v0``: splits, episodes, copies. What needs Java runs in .ci/textworldexpress."""

import copy
import os
import pickle
import warnings

import gymnasium
import pytest
from gymnasium.error import DependencyNotInstalled
from gymnasium.utils.env_checker import check_env
from hostile import HUGE, NOT_TEXT, ODD

import roleagent  # noqa: F401  (registers the environments)
from roleagent.envs.textworldexpress import simulator
from roleagent.envs.textworldexpress.env import UNKNOWN, TextWorldExpressEnv
from roleagent.envs.textworldexpress.tasks import FOLDS, GAMES, task_split
from roleagent.tasks.split import assert_disjoint

ENV_ID = "RoleAgent/TextWorldExpress-v0"


@pytest.fixture
def make():
    """Makes environments, where there are the package and Java; ROLEAGENT_TEXTWORLDEXPRESS=required makes it a must."""
    try:
        simulator.require_textworldexpress()
    except DependencyNotInstalled as error:
        if os.environ.get("ROLEAGENT_TEXTWORLDEXPRESS") == "required":
            raise
        pytest.skip(str(error))
    return lambda **options: gymnasium.make(ENV_ID, disable_env_checker=True, **options)


def test_no_other_program_commands_the_machine(make):
    make().reset(seed=0)
    py4j = pytest.importorskip("py4j.java_gateway")
    port = simulator.machine().jvm._gateway_client.gateway_parameters.port
    stranger = py4j.JavaGateway(gateway_parameters=py4j.GatewayParameters(port=port))
    with pytest.raises(Exception, match=r"[Aa]uth"):
        stranger.jvm.java.lang.System.getProperty("user.home")


def test_splits_have_other_numbers_and_mix_the_games():
    splits = [task_split(name, tuple(GAMES), None) for name in FOLDS]
    assert_disjoint(splits)
    assert [len(split) for split in splits] == [16_000] * 3
    assert {task.partition("/")[0] for task in splits[2].task_ids[:16]} == set(GAMES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, "there are train, valid, test"),
        ({"games": "Cooking"}, "unknown game 'Cooking'; there are CookingWorld"),
        ({"max_steps": 0}, "at least 1"),
        ({"variations": 0}, "at least 1"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        TextWorldExpressEnv(**options)


def test_what_is_missing_is_named(monkeypatch):
    from roleagent.envs import java

    monkeypatch.setattr(java, "find_spec", lambda name: None)
    with pytest.raises(DependencyNotInstalled, match=r"pip install 'roleagent\[textworldexpress\]'"):
        TextWorldExpressEnv()


@pytest.mark.parametrize("game", GAMES)
def test_the_simulators_own_way_wins(make, game):
    env = make(split="test", games=[game], variations=1, max_steps=200)
    text, info = env.reset()
    assert text.startswith(info["goal"]) and info["admissible_actions"] and not info["won"]
    total = 0.0
    for command in env.unwrapped.walkthrough():
        text, reward, terminated, truncated, info = env.step(command)
        total += reward
    assert info["won"] and terminated and not truncated and info["valid_action"] and total == pytest.approx(1.0)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("look around")


def test_a_game_agrees_with_the_package(make):
    package = pytest.importorskip("textworld_express")
    env = make(split="valid", games="CookingWorld", variations=1)
    text, info = env.reset()
    original = package.TextWorldExpressEnv(envStepLimit=10**6)
    first, _ = original.reset(seed=10_000, gameFold="dev", gameName="cookingworld", gameParams=GAMES["CookingWorld"][1])
    assert text == f"{info['goal']}\n\n{first.strip()}"
    for command in ("read cookbook", "open fridge", "no such thing", "take cookbook", "inventory"):
        text, reward, *_, info = env.step(command)
        theirs, gained, _, report = original.step(command)
        assert (text, reward) == (theirs.strip(), pytest.approx(gained))
        assert info["admissible_actions"] == sorted(report["validActions"])
    original.close()


def test_copies_go_on_alone(make):
    env = make(games="CoinCollector,Sorting", variations=3).unwrapped
    env.reset(options={"task_id": "Sorting/1"})
    other = make(games="CoinCollector").unwrapped  # in the same machine
    other.reset(seed=0)
    first, *rest = env.walkthrough()
    env.step(first)
    copies = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    for one in (env, *copies):
        found = [one.step(command) for command in rest]
        assert found[-1][2] and found[-1][4]["won"]
    assert other.step("look around")[4]["task_type"] == "CoinCollector"


def test_odd_commands_cost_a_step_and_change_nothing(make):
    env = make(games="CoinCollector", variations=1, max_steps=40)
    env.reset()
    for command in (*ODD, *NOT_TEXT, "look" * HUGE):
        text, reward, terminated, truncated, info = env.step(command)
        if info["valid_action"]:
            continue  # the simulator understood it
        assert text.startswith(UNKNOWN[:14]) and reward == 0 and not terminated
        if truncated:
            env.reset()


def test_it_is_a_gymnasium_environment(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(make(games="CoinCollector", variations=2).unwrapped, skip_render_check=True)

"""A pool of environments: a failure is an answer, not the end of the run."""

import gymnasium
import pytest

from roleagent.envs.pool import EnvPool
from roleagent.spaces import Unicode


def toy():
    return gymnasium.make("RoleAgent/Toy-v0", disable_env_checker=True)


class Fragile(gymnasium.Env):
    action_space = observation_space = Unicode()
    made = 0

    def __init__(self):
        type(self).made += 1

    def reset(self, *, seed=None, options=None):
        if (options or {}).get("task_id") == "broken":
            raise ValueError("truncated\ngame file")
        return "ready", {}

    def step(self, action):
        if action in ("exit", "stop"):
            raise {"exit": SystemExit(2), "stop": KeyboardInterrupt()}[action]
        return str(1 // (action != "crash")), 1, False, False, {}

    def close(self):
        raise RuntimeError("cannot even close")


def test_environments_are_built_when_needed_and_play_apart():
    pool = EnvPool(toy)
    assert len(pool) == 0
    infos = [pool.reset(0, "bring-egg-table-1").info, pool.reset(7, "heat-fish-tray-1").info]
    assert [info["task_id"] for info in infos] == ["bring-egg-table-1", "heat-fish-tray-1"] and len(pool) == 2
    outcome = pool.step(0, "go to table")
    assert outcome.observation.startswith("You arrive at table.") and outcome.reward == 0.0 and not outcome.terminated
    assert pool.step(7, "").info["valid_action"] is False
    assert pool.reset(0, seed=5).observation == pool.reset(7, seed=5).observation
    pool.close()
    assert len(pool) == 0 and pool.reset(0).error is None


@pytest.mark.parametrize(("action", "error"), [("crash", "ZeroDivisionError: "), ("exit", "SystemExit: 2")])
def test_a_crash_is_reported_and_the_environment_replaced(action, error):
    pool = EnvPool(Fragile, n=2)
    made = Fragile.made
    pool.reset(0), pool.reset(1)
    outcome = pool.step(0, action)
    assert outcome.error.startswith(error) and "\n" not in outcome.error and outcome.reward == 0.0
    assert f" ({__file__}:" in outcome.error  # where the user has to look
    assert "has failed" in pool.step(0, "go").error
    assert pool.step(1, "go").error is None  # the others go on
    assert pool.reset(0).observation == "ready" and Fragile.made == made + 1
    assert pool.reset(1, "broken").error.startswith("ValueError: truncated game file")
    with pytest.raises(ValueError, match="unknown task id 'nonsense'"):  # the caller's mistake
        EnvPool(toy).reset(0, "nonsense")


def test_missing_data_stops_a_run_before_it_begins():
    def make():
        raise FileNotFoundError("no games")

    with pytest.raises(FileNotFoundError):
        EnvPool(make, n=1)
    assert EnvPool(make).reset(0).error.startswith("FileNotFoundError: no games")


def test_the_user_can_always_stop():
    pool = EnvPool(Fragile)
    pool.reset(0)
    with pytest.raises(KeyboardInterrupt):
        pool.step(0, "stop")

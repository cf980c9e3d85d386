"""Environments behind OpenEnv's protocol: played there and here to the same end, by their client and by ours."""

import json
import re
import time
from urllib.request import urlopen

import gymnasium
import pytest

pytest.importorskip("openenv", reason="OpenEnv is not installed: pip install -e '.[test]'")
from openenv.core import GenericEnvClient
from served import Served
from small_envs import SMALL, by_expert

from roleagent.envs.adapters.openenv import application
from roleagent.envs.adapters.remote import RemoteEnv
from roleagent.envs.wrappers import PredictedState


def serve(env_id, port=0, **options):
    return Served(application(env_id, **options), port)


@pytest.mark.parametrize("env_id", SMALL)
def test_a_remote_episode_is_a_local_one(env_id):
    local = gymnasium.make(env_id, **SMALL[env_id])
    with serve(env_id, sessions=2, **SMALL[env_id]) as served:
        remote = RemoteEnv(served.url)
        assert remote.task_split == local.unwrapped.task_split
        assert remote.max_steps == local.unwrapped.max_steps
        for arguments in ({"seed": 3}, {"options": {"task_id": remote.task_split.task_ids[-1]}}):
            assert remote.reset(**arguments) == local.reset(**arguments)
            for command in ("no such command ☀", *local.unwrapped.walkthrough()):
                found = remote.step(command)
                assert found == local.step(command)
                if found[2] or found[3]:
                    with pytest.raises(gymnasium.error.ResetNeeded):
                        remote.step("look")
                    break
        assert by_expert(remote, remote.task_split.task_ids[0])[-1][-1]["won"]  # from here, by what is seen
        other = RemoteEnv(served.url)  # an episode of its own beside the first
        task_id = other.task_split.task_ids[1]
        remote.reset(options={"task_id": remote.task_split.task_ids[0]})
        assert other.reset(options={"task_id": task_id}) == local.reset(options={"task_id": task_id})
        assert remote.step("look") != other.step("look")
        remote.close(), other.close()


def test_openenvs_client_plays_our_server():
    with serve("RoleAgent/Toy-v0", max_steps=60, max_episode_steps=30) as served:
        assert PredictedState(RemoteEnv(served.url)).horizon == 2  # the client knows how long an episode is
    with serve("RoleAgent/Toy-v0", max_steps=2) as served:
        with GenericEnvClient(base_url=served.url).sync() as client:
            result = client.reset(task_id="heat-egg-tray-1", episode_id="mine")
            assert "put a hot egg on the tray" in result.observation["text"]
            assert (result.reward, result.done) == (None, False)
            assert (result := client.step({"command": "look"})).reward == 0.0
            assert (result := client.step({"command": "go to sink"})).done
            assert result.observation["truncated"]
            assert result.observation["info"]["task_id"] == "heat-egg-tray-1"
            state = client.state()
            assert (state["episode_id"], state["step_count"], state["split"]) == ("mine", 2, "train")
            for refused, reason in (
                (lambda: client.step({"command": "look"}), "call reset"),
                (lambda: client.step({"order": "look"}), "VALIDATION_ERROR"),
                (lambda: client.reset(task_id="heat-egg"), "unknown task id 'heat-egg'"),
                (lambda: client.reset(difficulty=3), "not difficulty"),
                (lambda: client.step({"command": "look"}), "reset comes before step"),  # none of these began an episode
            ):
                with pytest.raises(RuntimeError, match=reason):
                    refused()
            assert "valid" in client.reset(split="valid").observation["info"]["split"]
        described = json.load(urlopen(served.url + "/metadata"))
        assert described["name"] == "RoleAgent/Toy-v0"
        assert set(json.load(urlopen(served.url + "/schema"))["action"]["properties"]) == {"command", "metadata"}


def test_sessions_are_limited_and_places_come_back():
    with serve("RoleAgent/Toy-v0", sessions=1) as served:
        first, second = RemoteEnv(served.url), RemoteEnv(served.url, split="valid")
        first.reset(seed=0)
        with pytest.raises(ConnectionError, match="1/1 sessions"):
            second.reset(seed=0)
        first.close()
        for _ in range(100):  # the server hears of it a moment later
            try:
                assert second.reset(seed=0)[1]["split"] == "valid"
                break
            except ConnectionError:
                time.sleep(0.02)
        else:
            pytest.fail("the place of a client that had left was never given to another")
        second.close()


def test_errors_of_a_client():
    with serve("RoleAgent/Toy-v0") as served:
        with pytest.raises(ValueError, match="unknown split 'dev'"):
            RemoteEnv(served.url, split="dev")
        with pytest.raises(ValueError, match="serves RoleAgent/Toy-v0, not RoleAgent/WebShop-v0"):
            gymnasium.make("roleagent.envs.adapters.remote:Remote/WebShop-v0", url=served.url)
        env = gymnasium.make("roleagent.envs.adapters.remote:Remote/Toy-v0", url=served.url, split="valid")
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.unwrapped.step("look")
        with pytest.raises(ValueError, match="unknown task id 'heat-egg-tray-1'"):
            env.reset(options={"task_id": "heat-egg-tray-1"})
        env.reset(seed=0)
    with pytest.raises(ConnectionError, match=re.escape(served.url)):
        env.step("look")
    with pytest.raises(ConnectionError, match="does not answer as a server"):
        RemoteEnv(served.url)
    with serve("RoleAgent/Toy-v0", port=served.port):  # a server that is back is found again
        assert env.reset(seed=0)[1]["split"] == "valid"
        env.close()


@pytest.mark.slow
def test_a_silent_client_loses_its_place_and_finds_another():
    with serve("RoleAgent/Toy-v0", sessions=1, timeout=0.5) as served:
        silent, other = RemoteEnv(served.url), RemoteEnv(served.url)
        silent.reset(seed=0)
        time.sleep(6)  # OpenEnv looks every five seconds
        other.reset(seed=0)
        with pytest.raises(ConnectionError, match="the session has ended"):
            silent.step("look")
        other.close()
        time.sleep(0.2)
        assert silent.reset(seed=1)[1]["valid_action"]
        silent.close()

"""Environments as TRL plays them: tools, prompts, rewards; and TRL's own trainer that learns in one."""

import inspect
import json
import pickle

import gymnasium
import pytest

pytest.importorskip("trl", reason="TRL is not installed: pip install -e '.[test]'")
from small_envs import SMALL
from transformers.utils import get_json_schema

from roleagent.envs.adapters.trl import OVER, _class, environment_factory, tasks_dataset

NAMES = {
    "RoleAgent/Toy-v0": {"act"},
    "RoleAgent/ALFWorld-v0": {"act"},
    "RoleAgent/WebShop-v0": {"search", "click"},
    "RoleAgent/SearchQA-v0": {"search", "answer"},
    "RoleAgent/TextCraft-v0": {"get", "craft", "inventory"},
}


def tools_of(episodes):
    members = inspect.getmembers(type(episodes), predicate=inspect.isfunction)
    names = [name for name, _ in members if name[0] != "_" and name not in ("reset", "get_reward")]
    return {name: getattr(episodes, name) for name in names}


def call(tools, command):
    if "craft" in tools:
        verb, _, rest = command.partition(" ")
        number, _, item = rest.partition(" ")
        return tools[verb](int(number), item) if verb == "get" else tools[verb](*([rest] if rest else []))
    verb, _, argument = command.rstrip("]").partition("[")
    return tools[verb](argument) if verb in tools else tools["act"](command)


@pytest.mark.parametrize("env_id", NAMES)
def test_an_episode_by_tools_is_the_environments_own(env_id):
    arguments = SMALL[env_id]
    factory = pickle.loads(pickle.dumps(environment_factory(env_id, hints=False, **arguments)))
    row = tasks_dataset(env_id, limit=3, **arguments)[2]
    episodes, env = factory(), gymnasium.make(env_id, **arguments)
    tools = tools_of(episodes)
    assert set(tools) == NAMES[env_id]
    for tool in tools.values():  # what the model is told of them
        described = get_json_schema(tool)["function"]
        assert all(parameter["description"] for parameter in described["parameters"]["properties"].values())
    text, info = env.reset(options={"task_id": row["task_id"]})
    assert episodes.reset(**row) == text
    assert episodes.get_reward() == 0.0
    commands = env.unwrapped.walkthrough()
    for command in commands:
        text, reward, terminated, truncated, info = env.step(command)
        assert call(tools, command) == (f"{text}\n{OVER}" if terminated or truncated else text)
    assert call(tools, commands[-1]) == OVER
    assert episodes.get_reward() == reward == 1.0
    assert {**episodes.info, "rewards": info["rewards"]}.items() >= info.items()
    assert (len(episodes.commands), episodes.over, episodes.failure) == (len(commands), True, None)
    episodes.reset(**row)
    assert (episodes.commands, episodes.get_reward(), episodes.over) == ([], 0.0, False)


def test_rows_and_hints():
    """Evaluation plays another split than training; a prompt says what to do and what can be done."""
    episodes = environment_factory("RoleAgent/Toy-v0")()
    row = tasks_dataset("RoleAgent/Toy-v0", split="valid", limit=1)[0]
    assert row["prompt"][-1]["role"] == "user"
    text = episodes.reset(**row)
    assert (episodes.info["task_id"], episodes.info["split"]) == (row["task_id"], "valid")
    assert text.splitlines()[-1].startswith("Possible now: go to")
    assert len(tasks_dataset("RoleAgent/Toy-v0")) == 432
    with pytest.raises(ValueError, match="unknown task id"):
        episodes.reset(task_id=row["task_id"], split="train")
    assert episodes.act("look") == OVER
    shop = environment_factory("RoleAgent/WebShop-v0", **SMALL["RoleAgent/WebShop-v0"])()
    assert "Possible now: search" in shop.reset()


def test_a_model_reads_the_tools_own_schemas():
    properties = {
        "seats": {"type": ["integer", "null"], "default": None},
        "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        "day": {"type": "string", "enum": ["Mon", "Tue"]},
        "note": {},
    }
    for required in ({"required": ["day"]}, {}):
        schema = {"type": "object", "properties": properties, **required}
        described = get_json_schema(_class("Rooms", (("room", "Books.", json.dumps(schema)),)).room)["function"]
        found = {key: {**one, "description": ""} for key, one in described["parameters"].pop("properties").items()}
        assert described["parameters"] == {"type": "object", **required}
        assert found == {
            "day": {"type": "string", "enum": ["Mon", "Tue"], "description": ""},
            "seats": {"type": "integer", "nullable": True, "description": ""},
            "tags": {"type": "array", "items": {"type": "string"}, "nullable": True, "description": ""},
            "note": {"description": ""},
        }


def test_an_environment_that_fails_has_no_reward(monkeypatch):
    episodes = environment_factory("RoleAgent/Toy-v0")()
    episodes.reset()

    def fail(action):
        raise OSError("the index is gone")

    monkeypatch.setattr(episodes._env.unwrapped, "step", fail)
    with pytest.raises(OSError, match="the index"), pytest.warns(UserWarning, match="has failed: OSError"):
        episodes.act("look")
    assert episodes.get_reward() is None
    assert episodes.act("look") == OVER

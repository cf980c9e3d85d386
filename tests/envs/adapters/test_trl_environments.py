"""Environments as TRL plays them: tools, prompts, rewards; and TRL's own trainer that learns in one."""

import inspect
import json
import pickle

import gymnasium
import pytest

pytest.importorskip("trl", reason="TRL is not installed: pip install -e '.[test]'")
from shared_data import shared_data
from small_envs import SMALL
from transformers.utils import get_json_schema

from roleagent.envs.adapters.trl import CALL, OVER, _class, environment_factory, tasks_dataset
from roleagent.tools import Result

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


class Weather:
    """A tool as a server describes one: its names are none in Python, its texts have lines of their own."""

    def __init__(self, name="get-weather"):
        self.name, self.description = name, "The weather.\n\nArgs:\n    where: no argument of it\n"
        about = {"type": "string", "description": "The day.\nuser_id: not here"}
        self.parameters = {"type": "object", "properties": {"from": about, "user-id": {"type": "integer"}}}

    def execute(self, arguments, state):
        return Result(json.dumps(arguments))


def tool_tasks(*tools):
    return {"train": [{"id": tool, "prompt": f"Use {tool}.", "answer": "x", "tools": [tool]} for tool in tools]}


@pytest.mark.parametrize(("env_id", "folder"), [("RoleAgent/BFCL-v0", "bfcl"), ("RoleAgent/APIBank-v0", "api_bank")])
def test_tools_of_the_task_are_in_its_prompt_and_can_be_called(env_id, folder):
    data = {"data_dir": shared_data(folder, "published data")}
    episodes, env = environment_factory(env_id, **data)(), gymnasium.make(env_id, disable_env_checker=True, **data)
    task_ids = env.unwrapped.task_split.task_ids
    for task_id in (*task_ids[:3], *task_ids[len(task_ids) // 2 :][:3], *task_ids[-3:]):
        _, info = env.reset(options={"task_id": task_id})
        text = episodes.reset(task_id=task_id)
        assert all(f'"name": "{tool["function"]["name"]}"' in text for tool in info["tools"]), task_id
        calls = json.loads(env.unwrapped.walkthrough()[0])
        tools = tools_of(episodes)
        tools["call"](**calls) if "calls" in calls else tools["answer"]("none")
        assert episodes.get_reward() == 1.0, task_id
    episodes.reset(task_id=task_ids[0])
    assert "neither" in tools["call"](calls="nonsense") and episodes.get_reward() == 0.0


def test_tasks_with_tools_of_their_own():
    """A task's prompt lists its tools and no others; an environment that offers a new one has to say so."""
    options = {"tools": [Weather("a"), Weather("b")], "tasks": tool_tasks("a", "b")}
    episodes = environment_factory("RoleAgent/ToolEnv-v0", **options)()
    assert set(tools_of(episodes)) == {"call", "answer"}
    described = get_json_schema(episodes.call)["function"]["parameters"]["properties"]
    assert described["calls"]["items"] == {"type": "object"}
    row = tasks_dataset("RoleAgent/ToolEnv-v0", **options)[1]
    text = episodes.reset(**row)
    assert '"name": "b"' in text and '"name": "a"' not in text and CALL in text
    assert json.loads(episodes.call([{"name": "b", "arguments": {"from": "Mon"}}])) == {"from": "Mon"}
    assert "there is no tool 'a'" in episodes.call([{"name": "a", "arguments": {}}])
    env = episodes._env.unwrapped
    env.__class__ = type("Silent", (type(env),), {"tools_by_task": False})
    with pytest.raises(ValueError, match=r"offers the tool 'b'.*tools_by_task"):
        episodes.reset(**row)

"""AgentGym's protocol: clients that make the calls of its own, against the environments themselves."""

import json
import re
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import gymnasium
import pytest

pytest.importorskip("starlette", reason="Starlette is not installed: pip install -e '.[test]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install -e '.[test]'")
from served import Served
from small_envs import SMALL

from roleagent.envs.adapters.agentgym import ProtocolError, Server, application


def ask(url, path, body=None):
    """The JSON that a path returns; a body is posted."""
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(f"{url}/{path}", data, {"Content-Type": "application/json"}), timeout=10) as answer:
        return json.load(answer)


class Client:
    """The calls of ``TextCraftEnvClient``, and of those of SciWorld and BabyAI."""

    created = {"minecraft_dir": "x/", "commands": None, "goal": None}  # noqa: RUF012

    def __init__(self, url):
        self.url, self.info = url, ask(url, "create", self.created)
        self.env_id = self.info["id"]

    def reset(self, number):
        self.info = ask(self.url, "reset", {"data_idx": number, "id": self.env_id})

    def observe(self):
        assert ask(self.url, f"observation?id={self.env_id}") == self.info["observation"]
        return self.info["observation"]

    def step(self, action):
        action = action.split("Action:")[-1].strip()
        self.info = ask(self.url, "step", {"action": action, "id": self.env_id})
        return self.info["observation"], self.info["reward"], self.info["done"]

    def close(self):
        return ask(self.url, "close", {"id": self.env_id})


class ALFWorldClient(Client):
    """The calls of ``AlfWorldEnvClient``."""

    created = {}  # noqa: RUF012

    def reset(self, game):
        self.info = ask(self.url, "reset", {"game": game, "world_type": "Text", "id": self.env_id})

    def observe(self):
        return f"{self.info['observation']}\nAVAILABLE ACTIONS: {','.join(self.info['available_actions'])}"


class NumberedClient:
    """The calls of ``WebshopEnvClient`` and ``SearchQAEnvClient``."""

    def __init__(self, url, task_field, text_field, created):
        self.url, self.task_field, self.text_field = url, task_field, text_field
        self.env_idx = ask(url, "create", created)

    def reset(self, number):
        self.answer = ask(self.url, "reset", {self.task_field: number, "env_idx": self.env_idx})

    def observe(self):
        return ask(self.url, f"observation?env_idx={self.env_idx}")

    def step(self, action):
        answer = ask(self.url, "step", {"action": action, "env_idx": self.env_idx})
        assert answer["info"] is None
        return answer[self.text_field], answer["reward"], answer["done"]

    def close(self):
        return ask(self.url, "close", {"env_idx": self.env_idx})


CLIENTS = {
    "RoleAgent/Toy-v0": Client,
    "RoleAgent/TextCraft-v0": Client,
    "RoleAgent/ALFWorld-v0": ALFWorldClient,
    "RoleAgent/WebShop-v0": lambda url: NumberedClient(url, "session_id", "state", {}),
    "RoleAgent/SearchQA-v0": lambda url: NumberedClient(url, "id", "observation", {"id": 0}),
}
SAY = {  # a command as the client's model writes it
    "RoleAgent/ALFWorld-v0": lambda command: f"Thought:\nHm.\n\nAction:\n{command}",
    "RoleAgent/SearchQA-v0": lambda command: re.sub(r"(\w+)\[(.*)\]", r"<think>Hm.</think><\1> \2 </\1>", command),
}


@pytest.mark.parametrize("env_id", CLIENTS)
def test_a_client_of_agentgym_plays_the_environments_own_episodes(env_id):
    local = gymnasium.make(env_id, **SMALL[env_id], **({"split": "test"} if env_id in TESTED else {}))
    say = SAY.get(env_id, str)
    with Served(application(env_id, **SMALL[env_id])) as served:
        client, other = CLIENTS[env_id](served.url), CLIENTS[env_id](served.url)
        for number in (2, 0):
            other.reset(1)
            client.reset(number)
            text, info = local.reset(options={"task_id": local.unwrapped.task_split.task_ids[number]})
            assert info["goal"] in client.observe()
            if env_id == "RoleAgent/ALFWorld-v0":
                commands = ",".join(info["admissible_actions"])
                assert client.observe() == "\n".join(text.split("\n\n")[1:]) + f"\nAVAILABLE ACTIONS: {commands}"
                assert client.info["task_type"] == info["task_id"]
            elif env_id != "RoleAgent/SearchQA-v0":
                assert client.observe() == text
            for command in local.unwrapped.walkthrough():
                text, reward, terminated, truncated, info = local.step(command)
                assert client.step(say(command)) == (text, reward, terminated or truncated)
            assert terminated and reward == 1
            with pytest.raises((HTTPError, KeyError)):  # an error, or an answer without what a client reads
                client.step(say("look"))
        assert client.close() and other.close()
        assert ask(served.url, "list_envs") == []


TESTED = ("RoleAgent/WebShop-v0", "RoleAgent/SearchQA-v0")


def test_webshop_has_the_pages_of_its_server_and_scores():
    env_id = "RoleAgent/WebShop-v0"
    local = gymnasium.make(env_id, **SMALL[env_id], split="valid", reward="score")
    goal = int(local.unwrapped.task_split.task_ids[0].split("/")[1])
    with Served(application(env_id, **SMALL[env_id])) as served:
        client = CLIENTS[env_id](served.url)
        client.reset(goal)  # the published goal index, across the splits
        _, info = local.reset(options={"task_id": local.unwrapped.task_split.task_ids[0]})
        assert client.answer[1] is None
        assert ask(served.url, "available_actions?env_idx=0") == {"has_search_bar": True, "clickables": ["search"]}
        assert ask(served.url, "instruction_text?env_idx=0") == f"Instruction: {info['goal']}"
        search, *clicks = local.unwrapped.walkthrough()
        item = next(click for click in clicks if click.startswith("click[b0"))
        for command in (search, item, "click[buy now]"):  # without its options
            text, reward, over, *_ = local.step(command)
            assert client.step(command) == (text, reward, over)
        assert over and 0 < reward <= 1


def test_bad_requests_get_one_line_and_full_servers_recover():
    with Served(application("RoleAgent/Toy-v0", sessions=1, timeout=0.0)) as served:
        first = ask(served.url, "create", {})
        for path, body, part in (
            ("step", {"id": 9, "action": "look"}, "no environment 9: id comes from /create"),
            ("step", {"id": 0, "action": 3}, "action must be a text"),
            ("reset", {"id": 0, "data_idx": 10**9}, "no task 1000000000: data_idx is 0 to"),
            ("reset", {"id": 0, "data_idx": True}, "no task True"),
            ("step", {}, "no environment None"),
        ):
            answer = ask(served.url, path, body)
            assert part in answer["error"] and "\n" not in answer["error"]
        for body in (b"{", b"[1]", b" " * (1 << 20) + b"{}"):
            with pytest.raises(HTTPError) as refused:
                urlopen(Request(f"{served.url}/step", body), timeout=10)
            assert refused.value.code in (413, 422)
        second = ask(served.url, "create", {})  # the first has been silent for more than 0 s
        assert second["id"] == 1 and "error" in ask(served.url, "step", {"id": first["id"], "action": "look"})
    with Served(application("RoleAgent/Toy-v0", sessions=1)) as served:
        ask(served.url, "create", {})
        with pytest.raises(HTTPError, match="503"):
            ask(served.url, "create", {})


def test_no_episode_goes_on_after_its_environment_has_failed(monkeypatch):
    server = Server("RoleAgent/Toy-v0", {}, 2, None)
    number = server.create({})["id"]
    with monkeypatch.context() as patch:
        patch.setattr("roleagent.envs.toy.env.ToyKitchen.step", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            server.step({"id": number, "action": "look"})
    with pytest.raises(ProtocolError, match="reset it"):
        server.step({"id": number, "action": "look"})
    server.reset({"id": number, "data_idx": 0})
    assert not server.step({"id": number, "action": "look"})["done"]

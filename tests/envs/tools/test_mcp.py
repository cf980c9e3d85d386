"""Tools of MCP servers: real servers of the SDK, over stdio, over HTTP, and such as hang, die or are not there."""

import itertools
import json
import shlex
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("mcp")
import anyio
import mcp_server
from mcp.shared.memory import create_client_server_memory_streams
from served import Served

from roleagent.envs.pool import EnvPool
from roleagent.envs.tools import Call, ToolEnv
from roleagent.envs.tools.calls.command import call_command
from roleagent.envs.tools.definition.load import load_tools as load_all
from roleagent.envs.tools.mcp import MCPClient, MCPError, load_tools
from roleagent.envs.tools.mcp.session import Server
from roleagent.tools import CallTimeout, EpisodeError, ToolError

SCRIPT = [sys.executable, mcp_server.__file__]
COMMAND = shlex.join(SCRIPT)
NUMBERS = itertools.count()


@contextmanager
def served(server):
    """The URL of a server in this process."""
    with Served(server.streamable_http_app()) as found:
        yield f"{found.url}/mcp"


@pytest.fixture(scope="module")
def url():
    with served(mcp_server.build()) as found:
        yield found


def in_memory(starts, **options):
    """A transport to a server in this process, which counts its starts."""

    @asynccontextmanager
    async def connect():
        starts.append(1)
        async with create_client_server_memory_streams() as (client, (read, write)), anyio.create_task_group() as group:
            server = mcp_server.build(die=write.close, **options)
            inner = getattr(server, "_lowlevel_server", None) or server._mcp_server
            group.start_soon(inner.run, read, write, inner.create_initialization_options())
            yield client
            group.cancel_scope.cancel()

    return connect


@contextmanager
def episode(client, isolation="episode"):
    """An episode of an environment: what calls its tools, by name. Only a call that hangs is given up soon."""
    number = next(NUMBERS)

    def caller(tool):
        def call(arguments):
            tool.set_timeout(0.3 if arguments.get("how") == "hang" else 300.0)
            return tool.execute(arguments)

        return call

    yield {tool.name: caller(tool.begin(number, isolation)) for tool in client.tools}
    [tool.end(number) for tool in client.tools]


@pytest.mark.parametrize("where", ["stdio", "http"])
def test_the_tools_of_a_server(where, url):
    client = MCPClient(COMMAND if where == "stdio" else url, allow=["put"])
    assert client.name == "shelf" and [tool.name for tool in client.tools] == ["add", "look", "put", "misbehave"]
    add, put = client.tools[0], client.tools[2]
    assert (add.description, add.read_only, add.network) == ("Adds two numbers.", True, False)
    assert add.parameters["properties"]["a"]["type"] == "integer" and add.parameters["required"] == ["a", "b"]
    assert (put.read_only, put.network) == (False, True)
    with episode(client) as tools:
        assert tools["add"]({"a": 2, "b": 3}).text == "5"
        failed = tools["misbehave"]({"how": "raise"})
        assert not failed.success and "misbehave" in failed.text
        assert not tools["add"]({"a": "two"}).success  # the server checks as well
        assert 100_000 < len(tools["misbehave"]({"how": "much"}).text) < 100_100


def test_each_episode_has_a_session_of_its_own():
    client = MCPClient("shelf", transport=in_memory([]), allow=["put"])
    for isolation, seen in (("process", "empty"), ("shared", "egg")):
        with episode(client, isolation) as one, episode(client, isolation) as other:
            assert one["put"]({"thing": "egg"}).text == "done" and one["look"]({}).text == "egg"
            assert other["look"]({}).text == seen


@pytest.mark.parametrize("proxy", ["socks5://me:secret@127.0.0.1:9", "http://127.0.0.1:9"])
def test_a_proxy_is_not_asked_for_a_server_without_one(url, proxy, monkeypatch):
    for name in ("ALL_PROXY", "HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert MCPClient(url).name == "shelf"
    monkeypatch.setenv("NO_PROXY", "127.0.0.2")
    with pytest.raises(MCPError, match="the server does not start: ") as caught:
        MCPClient(url)
    if proxy.startswith("socks5"):
        assert "pip install socksio, or set NO_PROXY=127.0.0.1" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_only_tools_that_read_are_offered(url, capsys):
    client = MCPClient(url)
    assert "put" not in [tool.name for tool in client.tools] and client.refused == ("put",)
    assert [tool.name for tool in load_tools(url, only=["put"], allow="put")] == ["put"]
    assert capsys.readouterr().err == ""
    for _ in range(2):
        assert len(load_tools(url, start_timeout=29)) == 3
    assert capsys.readouterr().err == "not offered, since they may change something: put (allow=[put])\n"
    with pytest.raises(MCPError, match=r"without readOnlyHint, put may change something: allow=\[put\] permits it"):
        MCPClient(url, only=["put"])
    with pytest.raises(MCPError, match="there is no tool 'throw'; there are add, look, put, misbehave"):
        MCPClient(url, allow=["throw"])


@pytest.mark.parametrize("how", ["hang", "die"])
def test_a_server_that_fails_is_restarted_once_and_then_ends_the_episode(how):
    starts = []
    client = MCPClient("shelf", transport=in_memory(starts), allow=["put"])
    reason = "the server gave no answer in 0.3 s" if how == "hang" else "the server has died"
    with episode(client) as tools:
        with pytest.raises(CallTimeout if how == "hang" else ToolError, match=reason):
            tools["misbehave"]({"how": how})  # two attempts
        assert tools["add"]({"a": 1, "b": 1}).text == "2"  # a success ends the row
        with pytest.raises(ToolError, match=reason):
            tools["misbehave"]({"how": how})
        with pytest.raises(EpisodeError, match=f"shelf: {reason}"):
            tools["misbehave"]({"how": how})
    assert len(starts) == 1 + 5  # the list of tools, then one start per attempt that followed a failure
    with episode(client) as tools:
        tools["put"]({"thing": "egg"})
        with pytest.raises(EpisodeError):  # a restarted server would not know of the egg
            tools["misbehave"]({"how": how})


def test_a_session_in_which_an_episode_only_read_serves_the_next():
    starts = []
    client = MCPClient("shelf", transport=in_memory(starts), allow=["put"])
    for isolation, first, expected in (
        ("episode", ("look", {}), 2),  # the list of tools, and one session for both episodes
        ("session", ("look", {}), 2 + 2),
        ("episode", ("put", {"thing": "egg"}), 4 + 1),  # the first has an unchanged session, the second needs another
    ):
        with episode(client, isolation) as tools:
            tools[first[0]](first[1])
        with episode(client, isolation) as tools:
            assert tools["look"]({}).text == "empty"
        assert len(starts) == expected


def test_a_changed_session_is_reset_for_the_next_episode_where_the_server_can():
    starts = []
    client = MCPClient("shelf", transport=in_memory(starts, clears=True), allow=["put"], reset="clear")
    assert [tool.name for tool in client.tools] == ["add", "look", "put", "misbehave"] and client.refused == ()
    for thing, expected in (("egg", 2), ("pan", 2), ("glue", 2), ("cup", 3), ("jar", 3)):
        with episode(client) as tools:
            assert tools["look"]({}).text == "empty"
            tools["put"]({"thing": thing})
            assert tools["look"]({}).text == thing
        assert len(starts) == expected  # the list of tools, one session, and another after the reset that failed
    with pytest.raises(MCPError, match="there is no tool 'undo'"):
        MCPClient("shelf", transport=in_memory(starts), reset="undo")


def test_one_episode_does_not_end_a_shared_session_of_others():
    starts = []
    client = MCPClient("shelf", transport=in_memory(starts))
    with episode(client, "shared") as first, episode(client, "shared") as second:
        with pytest.raises(ToolError, match="no answer"):
            first["misbehave"]({"how": "hang"})
        assert second["add"]({"a": 1, "b": 1}).text == "2"
    assert len(starts) == 2


def test_a_command_that_dies_is_started_again_and_none_outlives_its_episode(tmp_path):
    starts = tmp_path / "starts"
    with episode(MCPClient(shlex.join([*SCRIPT, str(starts)])), "session") as tools:
        with pytest.raises(ToolError, match="the server has died"):
            tools["misbehave"]({"how": "die"})
        assert tools["add"]({"a": 1, "b": 1}).text == "2"
    pids = starts.read_text().split()
    assert len(pids) == 4
    if not Path("/proc/self").exists():
        pytest.skip("this system has no /proc")
    until = time.monotonic() + 15
    while any(Path("/proc", pid).exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(Path("/proc", pid).exists() for pid in pids)


@pytest.mark.parametrize(
    "address, options, problem",
    [
        ("no-such-command --x", {}, r"the server does not start: FileNotFoundError: .*no-such-command"),
        (f"{sys.executable} -c 'raise SystemExit(\"no key is set\")'", {}, r"does not start: .*\(no key is set\)"),
        (f"{sys.executable} -c 'import time; time.sleep(9)'", {"start_timeout": 0.3}, "no answer in 0.3 s"),
        ("http://127.0.0.1:9/mcp", {}, r"the server does not start: "),
        ("http://me:secret@127.0.0.1:9/mcp", {}, "token=NAME"),
        ("x", {"timeout": 0}, "timeout and start_timeout are seconds, above 0"),
        ("x", {"cache_only": True}, "cache_only needs cache=FILE"),
        ("x", {"cache": __file__}, "cannot be used: file is not a database"),
        ("x", {"environment": ["NO_SUCH_NAME"]}, "the environment variable NO_SUCH_NAME is not set"),
        ("x", {"environment": "NO_SUCH_NAME"}, "the environment variable NO_SUCH_NAME is not set"),
        ("x", {"timeout": "20"}, "timeout and start_timeout are seconds, above 0"),
        ("x", {"allow": 3}, "allow is a list of names"),
        ("x", {"token": 3}, "token that of an environment variable"),
        ("x", {"colour": "red"}, "unexpected keyword argument 'colour'"),
        ("'x", {}, "the command cannot be read: No closing quotation"),
    ],
)
def test_a_server_that_cannot_be_used_is_one_line(address, options, problem):
    with pytest.raises(MCPError, match=problem) as error:
        load_tools(address, **options)
    assert "\n" not in str(error.value) and str(error.value).startswith("MCP server ")


LISTING = """
import json, sys
tools = json.loads(sys.argv[1])
for line in sys.stdin:
    asked = json.loads(line)
    about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
    about |= {"serverInfo": {"name": "x", "version": "1"}}
    found = {"initialize": about, "tools/list": {"tools": tools}}.get(asked["method"])
    result = {"content": [{"type": "text", "text": json.dumps(asked.get("params", {}).get("arguments"))}]}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": found or result}), flush=True)
"""


def listing(*tools):
    """The address of a server that lists these tools as they are, and answers a call with its arguments."""
    return shlex.join([sys.executable, "-c", LISTING, json.dumps(tools)])


def listed(name, **schema):
    return {"name": name, "description": "One.", "inputSchema": schema, "annotations": {"readOnlyHint": True}}


GOOD = listed("good", type="object", properties={"a": {"type": "integer"}})
LETTERS = {"type": "string", "pattern": r"^\p{L}+$"}


def test_a_schema_that_python_or_the_sdk_would_refuse_is_used_as_far_as_it_goes():
    bare = {"name": "bare", "annotations": {"readOnlyHint": True}}
    named = {"patternProperties": {r"^\p{L}+$": {"type": "integer"}}, "additionalProperties": False}
    tools = load_tools(
        listing(GOOD, listed("words", type="object", properties={"a": LETTERS}), listed("untyped"), bare)
    )
    assert [tool.name for tool in tools] == ["good", "words", "untyped", "bare"]
    assert tools[1].parameters["properties"]["a"] == LETTERS and tools[2].parameters["type"] == "object"
    env = ToolEnv(
        tools=f"mcp:{listing(listed('words', type='object', properties={'a': LETTERS}), listed('n', **named))}",
        tasks=SERVED,
        split="all",
        max_steps=9,
    )
    env.reset()
    for name, given, fits in (("words", {"a": "été"}, True), ("words", {"a": 3}, False), ("n", {"é": 1}, True)):
        _, _, _, _, info = env.step(call_command([Call(name, given)]))
        assert (info["calls"][0]["error"] is None) == fits
    env.close()


PAGING = """
import json, sys
tools, size, cursor, asked = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3], 0
for line in sys.stdin:
    said = json.loads(line)
    about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
    found = {**about, "serverInfo": {"name": "x", "version": "1"}}
    if said["method"] == "tools/list":
        asked += 1
        print("asked", asked, file=open(sys.argv[4], "a"))
        first = int((said.get("params") or {}).get("cursor", 0)) if cursor == "sound" else 0
        found = {"tools": tools[first : first + size]}
        more = {"sound": str(first + size) if first + size < len(tools) else None, "same": "8", "count": str(asked)}
        found |= {"nextCursor": more[cursor]} if more[cursor] else {}
    if "id" in said:
        print(json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": found}), flush=True)
"""


@pytest.mark.parametrize(
    ("cursor", "size", "requests"), [("same", 8, 2), ("count", 8, 2), ("sound", 8, 1), ("sound", 3, 3)]
)
def test_a_list_in_pages_ends_even_where_its_cursor_does_not_advance(tmp_path, cursor, size, requests):
    """Eight tools, and none of them twice (codebase-memory-mcp 1247)."""
    tools = [listed(f"tool_{number}", type="object") for number in range(8)]
    command = [sys.executable, "-c", PAGING, json.dumps(tools), str(size), cursor, str(tmp_path / "asked")]
    assert [tool.name for tool in load_tools(shlex.join(command))] == [tool["name"] for tool in tools]
    assert len((tmp_path / "asked").read_text().splitlines()) == requests


def test_a_tool_with_a_schema_of_its_results_may_return_text_alone():
    """The SDK would refuse the result (bricks-mcp 45)."""
    tool = GOOD | {"outputSchema": {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}}
    env = ToolEnv(tools=f"mcp:{listing(tool)}", tasks=SERVED, split="all")
    env.reset()
    observation, _, _, _, info = env.step(call_command([Call("good", {"a": 3})]))
    assert info["calls"][0]["error"] is None and json.loads(observation) == {"a": 3}
    env.close()


def test_a_tool_whose_schema_is_none_is_left_out_and_named(capsys):
    tool = listed("bad", type="object", properties={"a": {"type": "text"}})
    problem = "the tool bad: no JSON Schema: "
    assert [one.name for one in load_tools(listing(GOOD, tool))] == ["good"]
    assert capsys.readouterr().err.startswith(f"not offered: {problem}")
    for options in ({"only": ["bad"]}, {"allow": ["bad"]}):
        with pytest.raises(MCPError, match=f"^MCP server .*: {problem}"):
            load_tools(listing(GOOD, tool), **options)
    with pytest.raises(MCPError, match=problem):
        load_tools(listing(tool))


def test_cached_results_are_replayed_without_a_server(tmp_path):
    cache, starts = str(tmp_path / "calls.sqlite"), []
    client = MCPClient("shelf", transport=in_memory(starts), cache=cache, allow=["put"])
    with episode(client) as one, episode(client) as other:
        assert one["look"]({}).text == "empty" and one["add"]({"a": 1, "b": 2}).text == "3"
        one["put"]({"thing": "egg"})
        assert one["look"]({}).text == "egg"  # the cache knows of no egg
        assert other["look"]({}).text == "empty"
    assert len(starts) == 2  # the list of tools, and the first episode's session
    replay = MCPClient("shelf", transport=in_memory(starts), cache=cache, cache_only=True)
    with episode(replay) as again:
        assert again["add"]({"b": 2, "a": 1}).text == "3" and again["look"]({}).text == "empty"
        with pytest.raises(EpisodeError, match=r'shelf: the cache has no result of add {"a": 1, "b": 1}'):
            again["add"]({"a": 1, "b": 1})
    assert len(starts) == 2 and [tool.name for tool in replay.tools] == ["add", "look", "misbehave"]


def test_clashing_names_get_the_server_s_name(url):
    with served(mcp_server.build("other shelf")) as other:
        tools = load_all([{"mcp": url, "only": ["add"]}, {"mcp": other, "only": ["add", "look"]}])
        assert [tool.name for tool in tools] == ["shelf_add", "other_shelf_add", "look"]
        assert tools[1].begin(-1, "shared").execute({"a": 2, "b": 2}).text == "4"
        tools[1].end(-1)


def test_a_token_is_sent_as_header(monkeypatch, url):
    seen, inner = [], mcp_server.build().streamable_http_app()

    async def app(scope, receive, send):
        if scope["type"] == "http":
            seen.append(dict(scope["headers"]).get(b"authorization"))
        await inner(scope, receive, send)

    monkeypatch.setenv("SHELF_TOKEN", "s3cret")
    with Served(app) as found, episode(MCPClient(guarded := f"{found.url}/mcp", token="SHELF_TOKEN")) as tools:
        assert tools["add"]({"a": 1, "b": 1}).text == "2"
    assert set(seen) == {b"Bearer s3cret"} and "s3cret" not in repr(Server(guarded, token="SHELF_TOKEN"))


SERVED = [{"id": "sum", "prompt": "What is 2 + 3?", "answer": "5"}]


def test_an_environment_with_a_server(url):
    tools = [{"mcp": COMMAND, "only": ["look", "put"], "allow": ["put"]}, {"mcp": url, "only": ["misbehave"]}]
    pool = EnvPool(lambda: ToolEnv(tools=tools, tasks=SERVED, split="all", max_steps=9))
    info = {index: pool.reset(index).info for index in range(2)}[0]
    assert [tool["function"]["name"] for tool in info["tools"]] == ["look", "put", "misbehave"]
    put, look = call_command([Call("put", {"thing": "egg"})]), call_command([Call("look", {})])
    assert [outcome.observation for outcome in pool.step_many({0: put, 1: look}).values()] == ["done", "empty"]
    outcomes = pool.step_many({0: look, 1: call_command([Call("misbehave", {"how": "fine"})])})
    assert [outcome.observation for outcome in outcomes.values()] == ["egg", "fine"]
    pool.close()
    with pytest.raises(MCPError, match="isolation=process needs a command"):
        ToolEnv(tools=f"mcp:{url}", tasks=SERVED, isolation="process")


def test_a_lost_server_is_an_error_of_its_episode_alone():
    client = MCPClient("shelf", transport=in_memory([]))
    timeouts = iter([0.3, 300.0, 300.0])  # of the lost episode, of the other one, and of that after the loss
    make = lambda: ToolEnv(tools=client.tools, tasks=SERVED, split="all", max_steps=9, timeout=next(timeouts))  # noqa: E731
    pool = EnvPool(make)
    [pool.reset(index) for index in range(2)]
    turn = {0: call_command([Call("misbehave", {"how": "hang"})]), 1: call_command([Call("add", {"a": 2, "b": 3})])}
    first, second = pool.step_many(turn), pool.step_many(turn)
    assert (first[0].error, first[0].observation) == (None, "the server gave no answer in 0.3 s")
    assert second[0].error == "EpisodeError: shelf: the server gave no answer in 0.3 s"
    assert [outcomes[1].observation for outcomes in (first, second)] == ["5", "5"]
    assert pool.reset(0).error is None and pool.step_many({0: turn[1]})[0].observation == "5"
    pool.close()

"""The broker: calls of many episodes run together, and nothing depends on which finished first."""

import asyncio
import multiprocessing
import threading
import time
from types import SimpleNamespace

import pytest
from gymnasium.wrappers import TimeLimit

from roleagent.envs.pool import EnvPool
from roleagent.envs.tools import Call, ToolEnv, tool
from roleagent.envs.tools.calls.broker import Broker, PreparedCall
from roleagent.envs.tools.calls.command import call_command
from roleagent.envs.wrappers import PredictedState
from roleagent.tools import EpisodeError, Result, ToolError


def tool_of(execute, **more):
    return SimpleNamespace(name="t", description="", parameters={}, execute=execute, **more)


def run(tool, *arguments, broker=None, state=None, timeout=10.0):
    calls = [[PreparedCall(tool, {"x": x}, state, timeout)] for x in arguments]
    return [results[0] for results in (broker or Broker(4)).run(calls)]


def slow_double(arguments, state):
    time.sleep(0.03 if arguments["x"] == 0 else 0.0)  # the first call finishes last
    return 2 * arguments["x"]


async def async_double(arguments, state):
    await asyncio.sleep(0.03 if arguments["x"] == 0 else 0.0)
    return 2 * arguments["x"]


DOUBLES = {
    "threads": tool_of(slow_double),
    "loop": tool_of(async_double),
    "started": tool_of(None, is_async=True, start=async_double),
    "returns a coroutine": tool_of(lambda arguments, state: async_double(arguments, state)),
    "batch": tool_of(None, batch_execute=lambda arguments, states: [2 * one["x"] for one in arguments]),
}


@pytest.mark.parametrize("kind", DOUBLES)
def test_results_have_the_order_of_the_calls(kind):
    assert [found.result.text for found in run(DOUBLES[kind], *range(9))] == [str(2 * x) for x in range(9)]


def raising(error):
    def execute(arguments, state):
        raise error

    return execute


class Hostile(Exception):
    """Can be shown neither as a text nor as an object."""

    def __str__(self):
        raise RuntimeError("no")

    __repr__ = __str__


async def crash_in_loop(arguments, state):
    raise ValueError("no")


@pytest.mark.parametrize(
    "execute, failure, text",
    [
        (raising(ToolError("not on Sundays")), "refused", "not on Sundays"),
        (raising(SystemExit("bye\nbye")), "error", "the tool failed: SystemExit: bye bye"),
        (crash_in_loop, "error", "the tool failed: ValueError: no"),
        (raising(EpisodeError("the server has died")), "error", "the server has died"),
        (lambda arguments, state: {1, 2}, "error", "the tool failed: TypeError: Object of type set is not JSON seria"),
        (lambda arguments, state: Result("no", success=False), None, "no"),
        (raising(Hostile()), "error", "the tool failed: Hostile:"),
        (lambda arguments, state: Result(Hostile()), "error", "the tool failed: RuntimeError: no"),
        (lambda arguments, state: Result("x", reward=Hostile()), "error", "the tool failed: RuntimeError: no"),
        (lambda arguments, state: Result("x", reward=float("nan")), "error", "the tool failed: ValueError: its reward"),
        (lambda arguments, state: Result("x", images=3), "error", "the tool failed: TypeError: its images"),
    ],
)
def test_what_a_tool_raises_is_a_result(execute, failure, text):
    found = run(tool_of(execute), 1)[0]
    assert (found.failure, found.result.success) == (failure, False) and found.result.text.startswith(text)
    assert (found.fatal is not None) == (text == "the server has died")


@pytest.mark.parametrize("blocking", ["threads", "loop", "blocked loop"])
def test_a_call_that_hangs_fails_alone(blocking):
    release = threading.Event()

    def hang(arguments, state):
        return release.wait(20) if arguments["x"] < 3 else "done"

    async def hang_in_loop(arguments, state):
        if arguments["x"] < 3:
            await asyncio.sleep(20)
        return "done"

    async def block_the_loop(arguments, state):
        return hang(arguments, state)

    execute = {"threads": hang, "loop": hang_in_loop, "blocked loop": block_the_loop}[blocking]
    broker, begun = Broker(2), time.monotonic()
    found = run(tool_of(execute), *range(6), broker=broker, timeout=0.1)
    assert [one.failure for one in found[:3]] == ["timeout"] * 3 and time.monotonic() - begun < 5
    assert found[0].result.text == "the tool took longer than 0.1 s"
    if blocking != "blocked loop":
        assert [one.result.text for one in found[3:]] == ["done"] * 3
    assert [one.result.text for one in run(tool_of(execute), 3, 4, broker=broker, timeout=5)] == ["done"] * 2
    assert run(tool_of(hang_in_loop, timeout=0.05), 0, timeout=60)[0].failure == "timeout"  # the tool's own limit
    release.set()


def test_equal_read_only_calls_run_once():
    def count(arguments, state):
        ran.append(arguments["x"])
        return arguments["x"]

    for more, state, expected in [
        ({"read_only": True}, {}, 2),
        ({"read_only": True}, {"seen": 1}, 3),  # it may read the state
        ({"read_only": True, "takes_state": False}, {"seen": 1}, 2),
        ({"read_only": True, "random": True}, None, 3),
        ({}, None, 3),
    ]:
        ran = []
        found = run(tool_of(count, **more), 1, 2, 1, state=state)
        assert len(ran) == expected and [one.result.text for one in found] == ["1", "2", "1"]
        assert [one.shared for one in found] == [False, False, expected == 2]


def test_the_calls_of_an_episode_run_in_their_order():
    def append(arguments, state):
        time.sleep(0.02 if arguments["x"] == 0 else 0)
        state.append(arguments["x"])
        return str(state)

    states, append = [[], []], tool_of(append)
    found = Broker().run([[PreparedCall(append, {"x": x}, state) for x in range(3)] for state in states] + [[]])
    assert states == [[0, 1, 2]] * 2 and [len(one) for one in found] == [3, 3, 0]
    assert found[1][1].result.text == "[0, 1]"


def ask_in_a_fork(broker, pipe):
    pipe.send(run(DOUBLES["threads"], 4, broker=broker)[0].result.text)


def test_a_forked_process_has_threads_of_its_own():
    """Gymnasium's AsyncVectorEnv forks where it can."""
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system has no fork")
    broker = Broker()
    run(DOUBLES["threads"], 1, broker=broker)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=ask_in_a_fork, args=(broker, there))
    process.start()
    assert here.poll(20) and here.recv() == "8"
    process.join()


def env_with(execute):
    tasks = [{"id": "a", "prompt": "Go.", "answer": "1"}]
    return ToolEnv([tool(execute, name="f")], tasks, split="all", max_steps=9)


def command(x):
    return call_command([Call("f", {"x": x})])


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_pool_runs_a_turn_of_calls_at_the_same_time(wrapped):
    together = threading.Barrier(8)

    def meet(x: int) -> str:
        """Waits for the others."""
        together.wait(5)
        return str(x)

    def make():
        return TimeLimit(PredictedState(env_with(meet), 1) if wrapped else env_with(meet), 9)

    pool = EnvPool(make, broker=Broker(8))
    [pool.reset(index) for index in range(8)]
    for turn in (1, 2):
        commands = {index: command(turn * index) for index in range(8)}
        actions = {k: {"command": one, "predictions": ("",)} if wrapped else one for k, one in commands.items()}
        found = [outcome.observation for outcome in pool.step_many(actions).values()]
        assert found == [str(turn * index) for index in range(8)]

"""Counters of tool calls by hand, and the warnings of idle tools."""

import pytest

from roleagent.config import load
from roleagent.learners.method import method_of
from roleagent.learners.run.metrics import add_counters, idle_mechanisms, tool_metrics
from roleagent.types import Completion, Task, Trajectory, Turn

TASK = Task("RoleAgent/ToolEnv-v0", "one")
SAID = Completion((1,), (-0.5,), "stop")


def turn(*calls, answer="", **counters):
    described = [{"name": name, "error": error, "seconds": seconds} for name, error, seconds in calls]
    info = {"calls": described, "counters": {"calls": len(calls), **counters}, "answer": answer}
    return Turn((5,), SAID, "a", "o", None, None, {}, info)


def episodes():
    unread = (("", "malformed", 0.0), ("find", "bad_arguments", 0.0))
    first = (turn(("find", None, 0.1), *unread), turn(("find", "refused", 0.3), tool_errors=1), turn(answer="p47"))
    second = (turn(("fly", "unknown_tool", 0.0), unknown_tool=1), turn(("sum", "refused", 0.2), tool_errors=1))
    return [Trajectory(TASK, turns, True, False, "lost") for turns in (first, second)]


def test_counters_by_hand():
    found = tool_metrics(episodes())
    assert found == {
        "calls": 6.0,
        "tool_errors": 2.0,
        "unknown_tool": 1.0,
        "calls_per_episode": 3.0,
        "answer_rate": 0.5,
        "tool_calls/find": 2.0,
        "tool_success/find": 0.5,
        "tool_seconds/find": pytest.approx(0.2),
        "tool_calls/sum": 1.0,
        "tool_success/sum": 0.0,
        "tool_seconds/sum": 0.2,
    }, "a call that no tool got is of no tool"
    plain = Trajectory(TASK, (Turn((5,), SAID, "a", "o"),), True, False, "won")
    assert tool_metrics([plain]) == {}


COMMON = dict.fromkeys(("predictions_scored", "returns_modulated", "zero_variance_groups", "replaced_groups"), 0.0)
FARMED = {"reward_tool": 3.0, "returns_changed": 0.5, "process_only_groups": 3.0, "groups": 5.0}


@pytest.mark.parametrize(
    ("options", "counted", "words"),
    [
        ([], tool_metrics(episodes()), ["all 2 calls of the tool sum failed"]),
        ([], {"calls": 0.0}, ["tools are offered"]),
        ([], {}, []),
        ([], {"world_loss_share": 0.1}, ["loss.action_mask is on"]),
        (["loss.action_mask=off"], {"world_loss_share": 0.1}, []),
        (["estimator.rewards.tool=0.2"], {}, ["has 'tool'"]),
        (["estimator.rewards.tool=0.2"], {"reward_tool": 3.0}, ["no process reward ever changed a return"]),
        (["estimator.rewards.tool=0.2"], {"reward_tool": 3.0, "returns_changed": 0.5}, []),
        (["estimator.rewards.tool=0.2"], FARMED, ["in 60% of the groups only process rewards differed"]),
        (["estimator.rewards.tool=0.2"], FARMED | {"groups": 6.0}, []),
        (["estimator.rewards.tool=0.2", "estimator.process_gate=live"], FARMED, []),
        (["method=dapo"], {"zero_variance_groups": 3.0, "reward_overlong": 0.5}, ["dynamic_sampling_rounds"]),
        (["method=dapo"], {"zero_variance_groups": 3.0, "replaced_groups": 1.0}, ["has 'overlong'"]),
        (["wia=on"], {}, ["no prediction was ever scored", "ever changed a return", "no true state"]),
        (["aiw=on"], {"curriculum_from_curriculum": 1.0, "curriculum_failures": 2.0}, []),
        (["aiw=on"], {"curriculum_failures": 2.0}, ["failure library"]),
        (["aiw=on", "curriculum.analyst=types"], {}, []),  # a control without a library
    ],
    ids=str,
)
def test_what_is_switched_on_and_does_nothing_is_reported(options, counted, words):
    counters = {}
    for _ in range(2):
        add_counters(counters, COMMON | counted)
    found = idle_mechanisms(method_of(load(overrides=["wia=off", "aiw=off", *options])), counters)
    assert len(found) == len(words) and all(word in text for word, text in zip(words, found, strict=True)), found

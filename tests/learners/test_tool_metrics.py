"""Counters of tool calls by hand, and the warnings of idle tools."""

import pytest

from roleagent.config import load
from roleagent.learners.run.counters import add_counters, idle_mechanisms
from roleagent.learners.run.metrics import tool_metrics
from roleagent.types import Completion, Task, Trajectory, Turn

TASK = Task("RoleAgent/ToolEnv-v0", "one")
SAID = Completion((1,), (-0.5,), "stop")


def turn(*calls, answer="", **counters):
    """A turn with calls (tool, error, seconds)."""
    described = [{"name": name, "error": error, "seconds": seconds} for name, error, seconds in calls]
    info = {"calls": described, "counters": {"calls": len(calls), **counters}, "answer": answer}
    return Turn((5,), SAID, "a", "o", None, None, {}, info)


def episodes():
    first = (turn(("find", None, 0.1)), turn(("find", "refused", 0.3), tool_errors=1), turn(answer="p47"))
    second = (turn(("fly", "unknown_tool", 0.0), unknown_tool=1), turn(("sum", "refused", 0.2), tool_errors=1))
    return [Trajectory(TASK, turns, True, False, "lost") for turns in (first, second)]


def test_counters_by_hand():
    found = tool_metrics(episodes())
    assert found == {
        "calls": 4.0,
        "tool_errors": 2.0,
        "unknown_tool": 1.0,
        "calls_per_episode": 2.0,
        "answer_rate": 0.5,
        "tool_calls/find": 2.0,
        "tool_success/find": 0.5,
        "tool_seconds/find": pytest.approx(0.2),
        "tool_calls/sum": 1.0,
        "tool_success/sum": 0.0,
        "tool_seconds/sum": 0.2,
    }, "a tool that does not exist is no tool"
    plain = Trajectory(TASK, (Turn((5,), SAID, "a", "o"),), True, False, "won")
    assert tool_metrics([plain]) == {}


COMMON = dict.fromkeys(("predictions_scored", "returns_modulated", "zero_variance_groups", "replaced_groups"), 1.0)


def test_idle_tools_are_reported():
    config = load(overrides=["wia=off", "aiw=off", "estimator.rewards={}"])

    def warnings(metrics):
        counters = {}
        for _ in range(2):
            add_counters(counters, COMMON | metrics)
        return idle_mechanisms(config, counters)

    assert warnings(tool_metrics(episodes())) == ["all 2 calls of the tool sum failed"]
    assert warnings({"calls": 0.0}) == ["tools are offered, but none was ever called"]
    assert warnings({}) == [], "an environment without tools"
    assert "loss.action_mask is on" in warnings({"world_loss_share": 0.1})[0]
    config = load(overrides=["wia=off", "aiw=off", "estimator.rewards={}", "loss.action_mask=off"])
    assert warnings({"world_loss_share": 0.1}) == [], "the ablation"

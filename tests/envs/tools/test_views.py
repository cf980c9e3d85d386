"""Existing environments as tools: the same episodes, played by calls."""

import pickle

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from small_envs import SMALL, by_expert
from tiny import Script

from roleagent.agents.rollout import Rollout
from roleagent.config.settings import PromptConfig, RolloutConfig
from roleagent.curricula.rule_analyst import RuleAnalyst
from roleagent.envs.pool import EnvPool
from roleagent.envs.registry import make_env
from roleagent.envs.restoring import Restorer
from roleagent.envs.tools.calls.command import answer_command, call_command
from roleagent.envs.tools.views import ToolView
from roleagent.envs.wrappers import Tags, ToolTags
from roleagent.tools import Call

NAMES = {
    "TextCraft": {"get", "craft", "inventory"},
    "Toy": {"act"},
    "ALFWorld": {"act"},
    "WebShop": {"search", "click"},
    "SearchQA": {"search", "answer"},
}
each_view = pytest.mark.parametrize(
    ("name", "fine"), [*((name, False) for name in NAMES), ("Toy", True), ("ALFWorld", True)]
)


def env_of(name):
    return make_env(f"RoleAgent/{name}-v0", SMALL[f"RoleAgent/{name}-v0"])


def view_of(name, fine=False, **options):
    arguments = SMALL[f"RoleAgent/{name}-v0"] | options
    return make_env(f"RoleAgent/{name}-v0", {**arguments, "view": "fine" if fine else "tools"})


@each_view
def test_every_walkthrough_wins_with_the_same_rewards_and_steps(name, fine):
    view, env = view_of(name, fine), env_of(name)
    assert view.unwrapped.task_split.digest == env.unwrapped.task_split.digest
    for task_id in view.unwrapped.task_split.task_ids[:25]:
        text, info = env.reset(options={"task_id": task_id})
        seen, told = view.reset(options={"task_id": task_id})
        assert seen == text and told.items() >= info.items()
        offered = {tool["function"]["name"] for tool in told["tools"]}
        assert offered == NAMES[name] or (fine and {"goto", "take", "put"} <= offered)
        plan, calls = env.unwrapped.walkthrough(), view.walkthrough()
        for command, action in zip(plan, calls, strict=True):
            returned, report = env.step(command), view.step(action)
            assert report[:4] == returned[:4]
            assert report[4]["command"] == command and report[4]["state"] == returned[4]["state"]
        assert not plan or returned[4]["won"]


@each_view
def test_experts_play_views_as_they_play_environments(name, fine):
    def played(env):
        task_id = env.unwrapped.task_split.task_ids[3]
        return [step[1:3] for step in by_expert(env, task_id, rng=np.random.default_rng(1))]

    assert played(view_of(name, fine)) == played(env_of(name))


@pytest.mark.filterwarnings("ignore:.*different from the unwrapped")
def test_contract_and_copies():
    view = view_of("Toy", fine=True)
    check_env(view, skip_render_check=True)
    view.reset(seed=1)
    copy = pickle.loads(pickle.dumps(view))
    for action in view.walkthrough():
        assert copy.step(action)[:4] == view.step(action)[:4]


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (call_command([Call("goto", {"place": "the moon"})]), "'the moon' is not one of"),
        (call_command([Call("goto", {})]), "place is missing"),
        (call_command([Call("fly", {})]), "there is no tool 'fly'"),
        (answer_command("egg"), "nothing to answer"),
        ('{"error": "The reply is malformed."}', "malformed"),
        (None, "Nothing happens"),
    ],
)
def test_a_refused_call_costs_a_step_and_is_answered(action, reason):
    view = view_of("Toy", fine=True, max_steps=2)
    view.reset(seed=1)
    text, reward, terminated, truncated, info = view.step(action)
    assert reason in text and (reward, terminated, truncated) == (0.0, False, False)
    assert not info["valid_action"] and info["command"] == ""
    assert view.step(action)[3]  # it has taken two steps


@pytest.mark.parametrize("replay", [False, True])
def test_a_view_goes_back_with_its_environment(replay):
    """What a sibling left behind, malformed replies and listed commands, is not that of the restored state."""
    view = view_of("Toy", format_gate=True)
    before = view.reset(options={"task_id": "bring-egg-tray-1"})[1]["admissible_actions"]
    restorer = Restorer(view, replay)
    start = restorer.save()
    _, _, _, _, info = view.step(view.call_of(next(command for command in before if command.startswith("go"))))
    assert info["admissible_actions"] != before
    view.step('{"error": "malformed"}')
    restorer.restore(start, "bring-egg-tray-1", ())
    assert view._possible == before
    for action in view.walkthrough():
        _, reward, _, _, info = view.step(action)
    assert (info["rewards"]["task"], info["rewards"]["format"], reward) == (1.0, 0.0, 1.0)
    with pytest.raises(NotImplementedError, match="replay the commands"):
        ToolView("CartPole-v1").snapshot()


def test_failures_in_a_view_are_those_of_the_environment():
    """Detectors read the environment's own commands."""
    commands = ["go to counter", "look", "look", "look", "go to table", "go to counter"]

    def mode(env, reply):
        replies = iter([reply(command) for command in commands] + [reply("look")] * 40)
        script = Script(lambda prompt, slot: next(replies))
        limits = RolloutConfig(action_tokens=100)
        rollout = Rollout(script, EnvPool(lambda: env), "RoleAgent/Toy-v0", PromptConfig(), limits, 0, None, env.reader)
        [group] = rollout.play(["bring-egg-tray-1"], 1, 0.0)
        [failed] = group.trajectories
        assert [turn.action for turn in failed.turns[:6]] == commands
        return RuleAnalyst().reflect([failed])[0].mode

    view = ToolTags(view_of("Toy"), horizon=0)
    seen = mode(view, lambda command: view.reader.write(view.get_wrapper_attr("call_of")(command)))
    plain = mode(Tags(env_of("Toy"), horizon=0), lambda command: f"<action>{command}</action>")
    assert seen == plain != "unknown"

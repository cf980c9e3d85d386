"""The office: its tasks, tools and expert, judging, and its failure modes."""

import copy
import pickle
import random

import gymnasium
import pytest
from small_envs import by_expert

from roleagent.envs.office.goals import DONE, command_of
from roleagent.envs.office.tasks import CALLS, build_task, task_ids
from roleagent.envs.office.world import PERSON_FIELDS, ROOM_FIELDS, SPLITS, build_office, names
from roleagent.envs.tools.calls.command import read_command
from roleagent.tools import Call

OFFICE = "RoleAgent/Office-v0"


@pytest.fixture(scope="module")
def env():
    return gymnasium.make(OFFICE, split="valid").unwrapped


def call(tool, /, **arguments):
    return command_of(Call(tool, arguments))


def play(env, task_id, commands):
    env.reset(options={"task_id": task_id})
    for command in commands:
        *_, terminated, truncated, info = env.step(command)
        if terminated or truncated:
            break
    return info


@pytest.mark.parametrize("count", CALLS)
def test_expert_and_walkthrough_win_with_as_many_calls_as_the_task_says(env, count):
    for task_id in task_ids("valid", (count,)):
        steps = by_expert(env, task_id)
        assert steps[-1][-1]["won"] and len(steps) == count + 2, task_id  # the beginning, the calls, the answer
        walkthrough = env.walkthrough()
        assert len(walkthrough) == count + 1 and play(env, task_id, walkthrough)["won"]


@pytest.mark.parametrize("kind", range(2))
def test_splits_share_no_name_and_offices_have_names_of_their_split(kind):
    pools = {split: set(names(split, 0)[kind]) for split in SPLITS}
    assert not pools["train"] & pools["valid"] | pools["train"] & pools["test"] | pools["valid"] & pools["test"]
    office = build_office("test", random.Random(3))
    of_kind = [name for name, id in office.ids.items() if id.startswith("pr"[kind])]
    assert set(of_kind) <= pools["test"]
    assert set(of_kind[0].split()) & set(of_kind[1].split()), "a name that is like another one"


def test_a_booking_is_judged_by_the_state_and_an_answer_by_itself(env):
    task_id = "meet-1-400"
    env.reset(options={"task_id": task_id})
    right, done = env.walkthrough()
    arguments = read_command(right).readable[0].arguments
    assert play(env, task_id, [done])["won"] is False
    assert play(env, task_id, [right, done])["expected"] == [arguments[name] for name in ("id", "day", "hour")]
    free = env._state["office"].taken[arguments["id"], arguments["day"]]
    hours = [hour for hour in range(8, 18) if hour not in free and hour != arguments["hour"]]
    other = call("book", **{**arguments, "hour": hours[0]})
    assert play(env, task_id, [right, other, done])["won"] is False, "another booking beside the right one"
    assert play(env, task_id, [right] * 8)["won"], "cut off, but done"
    answer = build_task("lookup-1-400", "valid").answer
    assert play(env, "lookup-1-400", [command_of(answer)])["won"]
    assert not play(env, "lookup-1-400", [command_of(f"{answer} {DONE}")])["won"]


def test_what_a_booking_takes_is_no_longer_free(env):
    env.reset(options={"task_id": "book-1-400"})
    room = env._state["office"].rooms()[0]
    hours = env.step(call("free", id=room, day="Friday"))[0].split(", ")
    env.step(call("book", id=room, day="Friday", hour=int(hours[1])))
    assert env.step(call("free", id=room, day="Friday"))[0].split(", ") == [hours[0], *hours[2:]]


def test_refusals_help(env):
    env.reset(options={"task_id": "book-1-400"})
    office = env._state["office"]
    [person, second], room = office.people()[:2], office.rooms()[0]
    name = office.name(person)
    day, hours = "Monday", office.taken[room, "Monday"]
    taken, open_hours = min(hours), [hour for hour in range(8, 18) if hour not in hours]
    for command, shown in (
        (call("find", name=name.split()[0]), [name]),
        (call("find", name=name[:-1]), [name]),
        (call("detail", id=person, field="price"), PERSON_FIELDS),
        (call("detail", id=room, field="boss"), ROOM_FIELDS),
        (call("free", id="p00", day=day), [person, second, room]),
        (call("free", id="Mara", day=day), ["find"]),
        (call("free", id=room, day="Sunday"), ["Monday"]),
        (call("book", id=room, day=day, hour=taken), map(str, open_hours)),
    ):
        observation, *_, info = env.step(command)
        assert all(text in observation for text in shown), (command, observation)
        assert info["rewards"]["tool_error"] == 1 and info["calls"][0]["error"] and not info["valid_action"]
    assert not env._state["bookings"]
    env.reset(options={"task_id": "book-1-400"})
    for amount in ("40", "40 EUR", "EUR4.5", "EUR", "XXX40"):
        assert "EUR, USD, GBP" in env.step(call("convert", amount=amount, to="EUR"))[0]


def test_copies_go_on_alone(env):
    env.reset(options={"task_id": "book-2-400"})
    plan = env.walkthrough()
    env.step(plan[0])
    copies = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    for one in (*copies, env):
        assert not one._state["bookings"]
        assert one.step(plan[1])[0].startswith("booked")
        assert one.step(plan[2])[-1]["won"]

"""Which lessons of the failure library a prompt holds: those of like tasks and states, and what the control shows."""

from functools import partial

import pytest
from failures import TOY, story
from tiny import TASKS, Script, play, world_of

from roleagent.agents.rendering import note_of
from roleagent.curricula import FailureLibrary
from roleagent.curricula.lessons import Lessons
from roleagent.learners.distillation import with_note
from roleagent.random_streams import random_stream
from roleagent.types import Reflection


def failed(task_id, goal, lesson, mode="missing_precondition"):
    kind = task_id.partition("-")[0]
    query = f"{kind}: {mode}; {goal}"
    return story(("look", "a kitchen"), task_id=task_id, task_type=kind, goal=goal), Reflection(
        mode, "what happened", 0, lesson, query
    )


STREAM = partial(random_stream, 0, "lessons")
HEAT, BRING = "First heat the {}, then bring it to the {}.", "Bring the {} to the {}."
FAILURES = [
    failed("heat-fish-tray-1", "put a hot fish on the tray", HEAT.format("fish", "tray")),
    failed("heat-egg-table-1", "put a hot egg on the table", HEAT.format("egg", "table")),
    failed("heat-fish-tray-2", "put a hot fish on the tray", BRING.format("fish", "tray"), "wrong_receptacle"),
    failed("bring-egg-tray-2", "put the egg on the tray", "Open the drawer before reaching into it."),
    failed("bring-egg-tray-3", "put the egg on the tray", "Look somewhere new.", "navigation_loop"),
]
EGG = "heat-egg-table-9", "heat", "put a hot egg on the table", "You are in a kitchen."


@pytest.fixture
def filed(tmp_path):
    library = FailureLibrary(tmp_path / "failures.db")
    library.record(FAILURES[:4], iteration=1)
    library.record(FAILURES[4:], iteration=2)
    yield library
    library.close()


def test_a_lesson_reaches_unseen_tasks_of_like_type_and_like_words(filed):
    lessons = Lessons.read(filed, [TOY], STREAM)
    hot_egg = [*lessons.nearest(TOY, *EGG)]
    assert hot_egg[0] == HEAT.format("egg", "table")
    assert set(hot_egg[:3]) == {reflection.lesson for _, reflection in FAILURES[:3]}  # its type comes first
    closed = "bring-fish-tray-9", "bring", "put the fish on the tray", "You arrive at drawer 1. The drawer is closed."
    assert next(lessons.nearest(TOY, *closed)) == "Open the drawer before reaching into it."  # by the state
    assert [*lessons.nearest("RoleAgent/Other-v0", *EGG)] == []


def test_what_the_library_learned_later_is_left_out_on_request(filed):
    then = {*Lessons.read(filed, [TOY], STREAM, until=1).nearest(TOY, *EGG)}
    assert "Look somewhere new." not in then and len(then) == 4
    assert then < {*Lessons.read(filed, [TOY], STREAM).nearest(TOY, *EGG)}


def test_the_control_shows_the_same_lessons_to_other_tasks(filed):
    retrieved, shuffled = (Lessons.read(filed, [TOY], STREAM, shuffled=on) for on in (False, True))
    seen = {next(shuffled.nearest(TOY, f"heat-egg-table-{n}", *EGG[1:])) for n in range(40)}
    assert len({next(retrieved.nearest(TOY, f"heat-egg-table-{n}", *EGG[1:])) for n in range(40)}) == 1
    assert "Look somewhere new." in seen and len(seen) > 2
    assert [*shuffled.nearest(TOY, *EGG)] == [*shuffled.nearest(TOY, *EGG)]  # a group reads the same


def test_a_share_of_the_tasks_reads_none(filed):
    lessons = Lessons.read(filed, [TOY], STREAM, share=0.5)
    read = [bool([*lessons.nearest(TOY, f"heat-egg-table-{n}", *EGG[1:])]) for n in range(200)]
    assert 70 < sum(read) < 130


@pytest.mark.parametrize("style", ["transcript", "window"])
def test_prompts_hold_lessons_up_to_the_budget(filed, style):
    policy = Script(lambda prompt, slot: "<action>look</action>")
    world = world_of(f"prompt.style={style}", "wia=off", "env.kwargs.max_steps=3")
    nearest = [BRING.format("fish", "tray"), HEAT.format("fish", "tray")]
    one, two = (len(policy.encode(note_of(nearest[:count]))) for count in (1, 2))
    for tokens, most, shown in ((two, 2, 2), (one, 2, 1), (two, 1, 1), (3, 3, 0)):
        lessons = Lessons.read(filed, [TOY], STREAM, most=most, tokens=tokens)
        rollout, groups = play(policy, world.reading(lessons), TASKS[1:2])
        for episode in groups[0].trajectories:
            assert with_note(episode, rollout, "").turns == episode.turns  # a teacher with a hint reads them, too
            prompts = [policy.decode(turn.prompt_ids) for turn in episode.turns]
            assert all(prompt.count("Lessons from earlier failures:") == bool(shown) for prompt in prompts)
            for turn, prompt in zip(episode.turns, prompts, strict=True):
                assert len(turn.lessons) <= most and all(prompt.count(one) == 1 for one in turn.lessons)
                assert len(policy.encode(note_of(turn.lessons))) <= tokens
            assert len(episode.turns[0].lessons) == shown


def test_the_window_reads_what_fits_the_present_state(filed):
    filed.record(
        [failed("heat-fish-tray-3", "put a hot fish on the tray", "When you arrive and see nothing, look elsewhere.")]
    )
    commands = ["go to fridge", "look", "look"]
    policy = Script(lambda prompt, slot: f"<action>{commands[len(policy.prompts) % 3 - 1]}</action>")
    read = {}
    for style in ("transcript", "window"):
        world = world_of(f"prompt.style={style}", "wia=off", "env.kwargs.max_steps=3")
        lessons = Lessons.read(filed, [TOY], STREAM, most=1, tokens=99)
        [episode] = play(policy, world.reading(lessons), TASKS[1:2], copies=1)[1][0].trajectories
        assert [turn.action for turn in episode.turns] == commands
        read[style] = [turn.lessons for turn in episode.turns]
    assert len(set(read["transcript"])) == 1  # it stands in the first message
    assert (
        read["window"][0]
        == read["transcript"][0]
        != read["window"][1]
        == ("When you arrive and see nothing, look elsewhere.",)
    )

"""The failure modes of ALFWorld and of the toy kitchen, each told from an episode."""

import pytest
from failures import story
from hypothesis import given
from hypothesis import strategies as st

from roleagent.curricula import RuleAnalyst
from roleagent.envs.alfworld.text import Goal, read_command, read_goal
from roleagent.failures.modes import UNKNOWN, diagnose, taxonomy

ALFWORLD = taxonomy("RoleAgent/ALFWorld-v0")
NO = "Nothing happens."


def go(place, text="You see nothing."):
    return f"go to {place}", f"You arrive at {place}. {text}"


def test_goals_and_commands_of_both_kitchens_and_formats():
    for text, goal in {
        "put a clean spatula in drawer.": Goal("spatula", "drawer", "clean"),
        "put a hot egg on the table": Goal("egg", "table", "heat"),
        "put the egg on the table": Goal("egg", "table"),
        "put some soapbar on toilet.": Goal("soapbar", "toilet"),
        "find two pillow and put them in sofa.": Goal("pillow", "sofa", "", 2),
        "cool some pan and put it in stoveburner.": Goal("pan", "stoveburner", "cool"),
        "examine the book with the desklamp.": Goal("book"),
        "buy a red mug": Goal(),
    }.items():
        assert read_goal(text) == goal
    assert read_command("put egg 1 in/on fridge 1") == read_command("move egg 1 to fridge 1") != ("", "", "")
    assert read_command("take soap bar 1 from sink basin 2") == ("take", "soap bar 1", "sink basin 2")
    assert read_command("fly to the moon") == ("", "", "")


SHELF = go("shelf 1", "You see egg 1, cup 1.")
TAKE = [SHELF, ("take egg 1 from shelf 1", "You take it.")]
HEAT = [go("stove 1"), ("heat egg 1 with stove 1", "You heat it.")]
CUP = ("take cup 1 from shelf 1", "You take it.")
CLOSED = go("drawer 1", "The drawer 1 is closed.")
EGG = [("take egg 1 from drawer 1", NO)]
SEEN = ("examine egg 1", "There is an egg 1 somewhere.")
LAMP = "look at egg 1 under the desklamp"
BIN_BESIDE = "You are facing the shelf 1, and bin 1. Next to it, nothing."
OPEN = ("open box 1", ".")


def move(place):
    return (f"move egg 1 to {place}", "You move it.")


PUT_IN_BIN = [go("bin 1"), move("bin 1")]
EPISODES = [  # mode, its step, what was done; words of the detail; the task where it is another
    ("action_format_error", 1, [go("shelf 1"), ("", NO), ("", NO)]),
    ("missing_precondition", 3, [*TAKE, go("table 1"), move("table 1")]),
    ("missing_precondition", 2, [*TAKE, ("heat egg 1 with stove 1", NO), go("table 1"), move("table 1")]),
    ("missing_precondition", 2, [SEEN, CLOSED, *EGG * 2], "was closed"),
    ("missing_precondition", 1, [SEEN, *[("heat egg 1 with stove 1", NO)] * 2], "was not at the stove 1"),
    ("missing_precondition", 2, [SEEN, go("stove 1"), *[("heat egg 1 with stove 1", NO)] * 2], "was not in hand"),
    ("wrong_object_interaction", 1, [SHELF, CUP, go("stove 1"), ("heat cup 1 with stove 1", "ok")]),
    ("wrong_object_interaction", 1, [SHELF, CUP, go("desk 1"), ("use desklamp 1", ".")], "", LAMP),
    ("wrong_receptacle", 5, [*TAKE, *HEAT, go("drawer 1"), move("drawer 1")]),
    ("wrong_receptacle", 5, [*TAKE, *HEAT, *PUT_IN_BIN, ("take egg 1 from bin 1", "."), go("box 1"), move("box 1")]),
    ("entity_confusion", 1, [go("shelf 1"), ("take egg 3 from shelf 1", NO), ("take egg 12 from shelf 1", NO)]),
    ("repeated_failed_action", 2, [go("shelf 1", "You see egg 1."), *[("open shelf 1", NO)] * 3]),
    ("repeated_failed_action", 3, [SHELF, ("look", BIN_BESIDE), *[("take cup 1 from bin 1", NO)] * 3]),
    # An opened drawer is no longer closed.
    ("repeated_failed_action", 3, [CLOSED, ("open drawer 1", "You open it. You see egg 1."), *EGG * 3]),
    ("navigation_loop", 3, [go("shelf 1"), *[go("drawer 1"), go("drawer 2")] * 3]),
    ("navigation_loop", 3, [go("shelf 1"), go("drawer 1"), go("drawer 2")] * 3),
    ("premature_give_up", 1, [go("shelf 1"), *[("look", "You are here.")] * 4]),
    ("premature_give_up", 3, [go("box 1"), OPEN, *[("close box 1", "."), OPEN] * 3]),
    ("wrong_target_location", 4, [*TAKE, *HEAT, go("drawer 1"), go("drawer 2")]),
    ("wrong_target_location", None, [*TAKE, *HEAT, go("table 1")], "in time"),
    ("repetitive_exploration", 3, [go(place) for place in ("shelf 1", "drawer 1", "stove 1")] * 2),
    ("repetitive_exploration", 3, [go(f"drawer {n}") for n in (1, 2, 3, 1, 3, 2, 1, 3)]),
    ("exhaustive_exploration_failure", None, [go("shelf 1"), go("drawer 1")]),
]


@pytest.mark.parametrize("episode", EPISODES)
def test_each_mode_is_detected_at_its_step(episode):
    mode, step, exchanges, detail, goal = (*episode, "", "")[:5]
    [reflection] = RuleAnalyst().reflect([story(*exchanges, **({"goal": goal} if goal else {}))])
    assert (reflection.mode, reflection.critical_step) == (mode, step)
    assert reflection.detail and reflection.lesson and reflection.query and reflection.source == "rule"
    assert detail in reflection.detail and (goal or "heat" in reflection.query)


def test_episodes_that_ended_early_and_other_environments():
    assert {mode for mode, *_ in EPISODES} == set(ALFWORLD)
    assert diagnose(story(terminated=True, stop_reason="lost"))[0] == "exhaustive_exploration_failure"
    assert diagnose(story(go("shelf 1"), terminated=True, stop_reason="lost"))[0] == "premature_give_up"
    mode, finding = diagnose(story(go("shelf 1"), env_id="Somebody/Else-v1"))  # which has no rules
    assert mode == UNKNOWN and finding.step is None


@given(st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30)), max_size=12), st.text(max_size=40))
def test_no_episode_breaks_the_analyst(exchanges, goal):
    assert RuleAnalyst().reflect([story(*exchanges, goal=goal)])[0].mode in ALFWORLD

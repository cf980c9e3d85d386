"""Failure modes told by the rules, with their step, from episodes written by hand: houses and search QA.

:mod:`test_scripted_failures` plays every mode of every environment; here are the cases that are hard to tell apart.
"""

from dataclasses import replace

import gymnasium
import pytest
from failures import story
from hypothesis import given
from hypothesis import strategies as st

from roleagent.curricula.rule_analyst import RuleAnalyst
from roleagent.envs.retrieval.passages import Passage
from roleagent.envs.retrieval.retriever import Hit
from roleagent.envs.searchqa.data.dataset import Archive
from roleagent.envs.searchqa.data.questions import Question, Questions
from roleagent.envs.wrappers import Tags
from roleagent.failures.modes import UNKNOWN, diagnose, taxonomy
from roleagent.types import Completion, Task, Trajectory, Turn

ALFWORLD, SEARCH = taxonomy("RoleAgent/ALFWorld-v0"), taxonomy("RoleAgent/SearchQA-v0")
NO = "Nothing happens."
SAID = Completion((), (), "stop")

# --- houses ---


def go(place, text="You see nothing."):
    return f"go to {place}", f"You arrive at {place}. {text}"


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
def test_a_house(episode):
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


# --- search QA ---

TEXTS = {
    "Silver Harbor": "Silver Harbor is a war film. It was filmed by Mara Quill Osgood.",
    "Mara Quill Osgood": "Mara Quill Osgood is a poet. She was taught by Joren Wick.",
    "Velvet Tower": "Velvet Tower is a love film. It was filmed by Quin Rudge.",
}
DIRECTOR = Question("nq", "test_0", "Who directed Silver Harbor?", ("Mara Quill Osgood",))
TEACHER = Question("nq", "test_1", "Who taught the director of Silver Harbor?", ("Joren Wick",))
ECHO = Question("nq", "test_3", "Who taught Mara Quill Osgood, who is no Wick?", ("Joren Wick",))
VERDICT = Question("nq", "test_2", "Are Silver Harbor and Velvet Tower war films?", ("no",))


class Engine:
    """Finds passages whose title the query contains."""

    name = "titles"

    def retrieve(self, queries, k=3):
        passages = [Passage(title, title, text) for title, text in TEXTS.items()]
        return [[Hit(passage, 1.0) for passage in passages if passage.title in query][:k] for query in queries]


def play(question, *replies):
    """An episode of the real environment; replies are commands, or whole replies if they begin with a tag."""
    questions = Questions({"test": (question,)})
    env = gymnasium.make("RoleAgent/SearchQA-v0", split="test", data_dir="generated")
    env.unwrapped.archive, env.unwrapped.task_split = Archive(questions, Engine()), questions.task_split("test")
    env = Tags(env)
    first, info = env.reset()
    task = Task("RoleAgent/SearchQA-v0", info["task_id"], info["split"], info["goal"], info["task_type"])
    turns, terminated, truncated = [], False, False
    for reply in replies:
        assert not (terminated or truncated)
        text, _, terminated, truncated, info = env.step(f"<action>{reply}</action>")
        command = "" if info["format_error"] else reply
        turns.append(Turn((), SAID, command, text, rewards=info["rewards"], info=info))
    reason = "lost" if terminated else "max_steps"
    trajectory = Trajectory(task, tuple(turns), terminated, truncated, reason, first)
    assert not trajectory.success
    return trajectory


FAILURES = [
    ("action_format_error", 0, DIRECTOR, ["", "answer[Quin Rudge]"]),
    ("action_format_error", 1, DIRECTOR, ["search[Silver Harbor]", "look[Silver Harbor]", "search[x]", "answer[x]"]),
    ("action_format_error", 0, DIRECTOR, ["search[]", "search[Silver Harbor]", "answer[Quin Rudge]"]),
    ("premature_answer", 0, DIRECTOR, ["answer[Quin Rudge]"]),
    ("premature_answer", 1, DIRECTOR, ["search[silver harbour]", "answer[Quin Rudge]"]),  # nothing found
    ("irrelevant_retrieval_query", 0, DIRECTOR, ["search[weather tomorrow]", "search[Silver Harbor]", "answer[poet]"]),
    ("irrelevant_retrieval_query", 1, DIRECTOR, ["search[Silver Harbor]", "search[who]", "answer[Quin Rudge]"]),
    ("repeated_retrieval_query", 1, DIRECTOR, ["search[Silver Harbor]", "search[harbor, silver]", "answer[war]"]),
    ("partial_answer", 1, DIRECTOR, ["search[Silver Harbor]", "answer[Mara Quill]"]),
    ("partial_answer", 1, ECHO, ["search[Mara Quill Osgood]", "answer[Wick]"]),  # a word of the question, too
    ("partial_answer", 1, DIRECTOR, ["search[Silver Harbor]", "answer[the director is Mara Quill Osgood]"]),
    ("hallucinated_answer", 1, DIRECTOR, ["search[Silver Harbor]", "answer[Steven Spielberg]"]),
    ("hallucinated_answer", 1, DIRECTOR, ["search[Silver Harbor]", "answer[Mara Osgood Crane]"]),
    ("information_misinterpretation", 1, DIRECTOR, ["search[Silver Harbor]", "answer[war film]"]),
    (
        "information_misinterpretation",
        2,
        TEACHER,
        ["search[Silver Harbor]", "search[Mara Quill Osgood]", "answer[Mara Quill Osgood]"],
    ),
    (
        "information_misinterpretation",
        0,
        DIRECTOR,
        ["search[Silver Harbor]", "search[Mara Quill]", "search[Quill film]", "search[Osgood]"],
    ),
    ("insufficient_retrieval", 0, TEACHER, ["search[Silver Harbor]", "answer[Mara Quill Osgood]"]),
    (
        "insufficient_retrieval",
        3,
        TEACHER,
        ["search[Silver Harbor]", "search[taught]", "search[director Silver]", "search[Quill poet film]"],
    ),
    ("wrong_answer", 1, DIRECTOR, ["search[Silver Harbor]", "answer[yes]"]),
    ("wrong_answer", 1, DIRECTOR, ["search[Silver Harbor]", "answer[I do not know]"]),
    ("wrong_answer", 1, DIRECTOR, ["search[Silver Harbor]", "answer[Silver Harbor]"]),
    ("insufficient_retrieval", 0, TEACHER, ["search[Silver Harbor]", "answer[Silver Harbor]"]),  # not yet found
    ("wrong_answer", 1, VERDICT, ["search[Silver Harbor and Velvet Tower]", "answer[yes]"]),
    ("wrong_answer", 1, VERDICT, ["search[Silver Harbor and Velvet Tower]", "answer[war]"]),
]


@pytest.mark.parametrize(("mode", "step", "question", "replies"), FAILURES)
def test_search_qa(mode, step, question, replies):
    assert mode in SEARCH and len({mode for mode, *_ in FAILURES}) == len(SEARCH)  # each is played
    [reflection] = RuleAnalyst().reflect([play(question, *replies)])
    assert (reflection.mode, reflection.critical_step) == (mode, step)
    assert reflection.detail and reflection.lesson and "nq" in reflection.query and reflection.source == "rule"


def test_episodes_of_which_the_right_answer_is_not_known():
    """A rollout that outgrew its context never learns it, and neither do the rules."""
    whole = play(DIRECTOR, "search[Silver Harbor]", "search[Quill]", "answer[war]")
    cut = replace(whole, turns=whole.turns[:2], terminated=False, truncated=True, stop_reason="context")
    mode, finding = diagnose(cut)
    assert (mode, finding.step, finding.detail) == ("insufficient_retrieval", 1, "nothing was answered")
    assert diagnose(replace(cut, turns=()))[0] == "insufficient_retrieval"
    silent = replace(whole.turns[2], info={**whole.turns[2].info, "golden_answers": []})
    assert diagnose(replace(whole, turns=(*whole.turns[:2], silent)))[0] == "wrong_answer"

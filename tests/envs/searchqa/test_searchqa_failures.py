"""The nine ways in which search QA fails, each played in the real environment and told apart by rule."""

from dataclasses import replace

import gymnasium
import pytest

from roleagent.curricula.rule_analyst import RuleAnalyst
from roleagent.envs.retrieval.passages import Passage
from roleagent.envs.retrieval.retriever import Hit
from roleagent.envs.searchqa.data.dataset import Archive
from roleagent.envs.searchqa.data.questions import Question, Questions
from roleagent.envs.wrappers import Tags
from roleagent.failures.modes import diagnose, taxonomy
from roleagent.types import Completion, Task, Trajectory, Turn

SEARCH = taxonomy("RoleAgent/SearchQA-v0")

SAID = Completion((), (), "stop")
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
def test_the_modes(mode, step, question, replies):
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

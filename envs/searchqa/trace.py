"""An episode of search QA, read from its text: searches, passages and answer."""

from __future__ import annotations

from dataclasses import dataclass

from roleagent.envs.failures.detectors import is_malformed
from roleagent.envs.searchqa.text import normalize, read_command, read_information, subject_words
from roleagent.types import Trajectory

VERDICTS = frozenset({"yes", "no"})


@dataclass(frozen=True, slots=True)
class Step:
    """One command.

    Attributes:
        number: the turn, 0-based.
        verb, argument: its parts; ``""`` where it has none.
        malformed: whether the reply was neither a search nor an answer.
        known: the words that question and passages had shown before it.
        shown: the text of the passages that came back.
    """

    number: int
    verb: str
    argument: str
    malformed: bool
    known: frozenset[str]
    shown: str


@dataclass(frozen=True)
class Trace:
    """A whole episode.

    Attributes:
        answer: the step that answered; None if none did.
        golden: normal forms of the golden answers; empty where they are not known, or have no such form.
    """

    question: str
    steps: tuple[Step, ...]
    answer: Step | None
    golden: frozenset[str]

    @property
    def searches(self) -> list[Step]:
        """The searches in order."""
        return [step for step in self.steps if step.verb == "search"]

    def first_showing(self, text: str) -> Step | None:
        """The first search whose passages contain a text in normal form, word by word."""
        return next((step for step in self.searches if f" {text} " in f" {normalize(step.shown)} "), None)


def read_trace(trajectory: Trajectory) -> Trace:
    """Follows the reader through an episode."""
    question = trajectory.task.goal
    known = subject_words(question)
    steps: list[Step] = []
    for number, turn in enumerate(trajectory.turns):
        verb, argument = read_command(turn.action)
        malformed = is_malformed(turn) or not argument
        documents = read_information(turn.observation)
        shown = " ".join(f"{document.title} {document.text}" for document in documents)
        steps.append(Step(number, "" if malformed else verb, argument, malformed, known, shown))
        known |= subject_words(shown)
    report = trajectory.turns[-1].info if trajectory.turns else {}
    golden = frozenset(filter(None, map(normalize, report.get("golden_answers", ()))))
    answer = steps[-1] if steps and steps[-1].verb == "answer" else None
    return Trace(question, tuple(steps), answer, golden)


__all__ = ["VERDICTS", "Step", "Trace", "read_trace"]

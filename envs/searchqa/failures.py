"""Failure modes of search QA, with one detector each."""

from __future__ import annotations

from roleagent.envs.failures.detectors import unreadable_replies
from roleagent.envs.searchqa.text import normalize, subject_words
from roleagent.envs.searchqa.trace import VERDICTS, Trace, read_trace
from roleagent.failures.modes import FailureModes, Finding

MEANINGS = {
    "wrong_answer": "its answer can be no answer to the question, or is wrong for no reason that shows",
    "insufficient_retrieval": "it had not found what the answer needs when it answered or ran out of turns",
    "irrelevant_retrieval_query": "it searched for what has little to do with the question",
    "repeated_retrieval_query": "it searched for the same words again",
    "information_misinterpretation": "the passages held the answer, and it read something else from them",
    "partial_answer": "its answer is only a part of the right one, or says more than that",
    "hallucinated_answer": "its answer stands in nothing that it had read",
    "premature_answer": "it answered without having searched",
    "action_format_error": "its replies could not be read as commands",
}
"""By mode, what it means, as a sentence about the agent."""

_SHRUGS = frozenset({"cannot", "no", "nobody", "none", "not", "nothing", "unclear", "unknown", "unsure"})


def action_format_error(trace: Trace) -> Finding | None:
    """At least a quarter of the replies held neither a search nor an answer."""
    return unreadable_replies([step.malformed for step in trace.steps])


def premature_answer(trace: Trace) -> Finding | None:
    """The answer was given before anything had been read."""
    if trace.answer is None or any(step.shown for step in trace.searches):
        return None
    detail = f"{trace.answer.argument!r} was answered before anything had been found"
    return Finding(trace.answer.number, detail, "Search before answering.")


def irrelevant_retrieval_query(trace: Trace) -> Finding | None:
    """A search with less than half of its words in the question or in the passages read so far."""
    for step in trace.searches:
        words = subject_words(step.argument)
        if 2 * len(words & step.known) < max(1, len(words)):
            detail = f"the search for {step.argument!r} has little to do with the question"
            return Finding(step.number, detail, "Search for what the question or a passage names.")
    return None


def repeated_retrieval_query(trace: Trace) -> Finding | None:
    """A search for the same words as an earlier one."""
    seen: set[frozenset[str]] = set()
    for step in trace.searches:
        words = subject_words(step.argument)
        if words in seen:
            detail = f"{step.argument!r} had been searched for before"
            return Finding(step.number, detail, "Search for what is still missing, in other words.")
        seen.add(words)
    return None


def partial_answer(trace: Trace) -> Finding | None:
    """The answer has only some words of a golden one, or all of them and more."""
    if trace.answer is None:
        return None
    given = frozenset(normalize(trace.answer.argument).split())
    for words in map(frozenset, map(str.split, trace.golden)):
        if given and (given < words or words < given):
            detail = f"{trace.answer.argument!r} is only partly the answer"
            return Finding(trace.answer.number, detail, "Answer with the whole name or phrase, and nothing else.")
    return None


def hallucinated_answer(trace: Trace) -> Finding | None:
    """The answer is in no passage that was read. Yes and no never are."""
    if trace.answer is None:
        return None
    text = normalize(trace.answer.argument)
    if text in VERDICTS or (text and trace.first_showing(text)):
        return None
    detail = f"{trace.answer.argument!r} stands in none of the passages"
    return Finding(trace.answer.number, detail, "Answer only with what a passage says.")


def information_misinterpretation(trace: Trace) -> Finding | None:
    """A gold answer was in the passages that were read, and another answer was given."""
    for text in sorted(trace.golden - VERDICTS):
        if found := trace.first_showing(text):
            given = f"{trace.answer.argument!r} was" if trace.answer else "nothing was"
            detail = f"{given} answered although the passages for {found.argument!r} held the answer"
            return Finding(
                trace.answer.number if trace.answer else found.number,
                detail,
                "Read which passage speaks of the thing in question, and what it says of it.",
            )
    return None


def insufficient_retrieval(trace: Trace) -> Finding | None:
    """Nothing that was read holds a golden answer."""
    if not trace.golden - VERDICTS:
        return None
    detail = f"after {len(trace.searches)} searches nothing that was read held the answer"
    lesson = "Look up every name on the way to the answer before answering."
    return Finding(trace.searches[-1].number if trace.searches else None, detail, lesson)


def wrong_answer(trace: Trace) -> Finding | None:
    """A gold answer had been read; the given one is of the wrong kind: yes or no, unknown, a name from the question."""
    if trace.answer is None or not any(map(trace.first_showing, trace.golden - VERDICTS)):
        return None
    text = normalize(trace.answer.argument)
    echo = f" {text} " in f" {normalize(trace.question)} "
    shrug = not _SHRUGS.isdisjoint(text.split()) and not trace.first_showing(text)
    if not (echo or shrug or text in VERDICTS):
        return None
    detail = f"{trace.answer.argument!r} can be no answer to the question"
    return Finding(trace.answer.number, detail, "Answer with what the question asks for, as a passage names it.")


def the_rest(trace: Trace) -> tuple[str, Finding]:
    """A wrong verdict, or an answer of which no more is known than that it was wrong; or no answer at all."""
    if trace.answer is not None:
        detail = f"{trace.answer.argument!r} is not the answer"
        return wrong_answer.__name__, Finding(trace.answer.number, detail, "Check the answer against every passage.")
    step = len(trace.steps) - 1 if trace.steps else None
    return insufficient_retrieval.__name__, Finding(step, "nothing was answered", "Answer while there is time.")


# The first that applies is the dominant one: what spoils an episode from the start comes first, then the searches,
# then how the answer compares with what is right, and with what was read.
FAILURE_MODES = FailureModes(
    MEANINGS,
    detectors=(
        action_format_error,
        premature_answer,
        irrelevant_retrieval_query,
        repeated_retrieval_query,
        partial_answer,
        wrong_answer,
        hallucinated_answer,
        information_misinterpretation,
        insufficient_retrieval,
    ),
    read=read_trace,
    otherwise=the_rest,
)

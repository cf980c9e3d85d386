"""How answering questions by searching fails (search QA): one question per failure mode."""

from __future__ import annotations

from roleagent.curricula.rules.rulebook import Finding, Rulebook, unreadable
from roleagent.curricula.rules.searchqa_story import VERDICTS, Story, read
from roleagent.reading import normalise, subject_words

_SHRUGS = frozenset({"cannot", "no", "nobody", "none", "not", "nothing", "unclear", "unknown", "unsure"})


def action_format_error(story: Story) -> Finding | None:
    """At least a quarter of the replies held neither a search nor an answer."""
    return unreadable([step.malformed for step in story.steps])


def premature_answer(story: Story) -> Finding | None:
    """The answer was given before anything had been read."""
    if story.answer is None or any(step.shown for step in story.searches):
        return None
    detail = f"{story.answer.argument!r} was answered before anything had been found"
    return Finding(story.answer.number, detail, "Search before answering.")


def irrelevant_retrieval_query(story: Story) -> Finding | None:
    """A search of which less than half of the words stand in the question or in what had been read by then."""
    for step in story.searches:
        words = subject_words(step.argument)
        if 2 * len(words & step.known) < max(1, len(words)):
            detail = f"the search for {step.argument!r} has little to do with the question"
            return Finding(step.number, detail, "Search for what the question or a passage names.")
    return None


def repeated_retrieval_query(story: Story) -> Finding | None:
    """A search for the same words as an earlier one."""
    seen: set[frozenset[str]] = set()
    for step in story.searches:
        words = subject_words(step.argument)
        if words in seen:
            detail = f"{step.argument!r} had been searched for before"
            return Finding(step.number, detail, "Search for what is still missing, in other words.")
        seen.add(words)
    return None


def partial_answer(story: Story) -> Finding | None:
    """The answer has only some words of a golden one, or all of them and more."""
    if story.answer is None:
        return None
    given = frozenset(normalise(story.answer.argument).split())
    for words in map(frozenset, map(str.split, story.golden)):
        if given and (given < words or words < given):
            detail = f"{story.answer.argument!r} is only partly the answer"
            return Finding(story.answer.number, detail, "Answer with the whole name or phrase, and nothing else.")
    return None


def hallucinated_answer(story: Story) -> Finding | None:
    """The answer stands in nothing that was read. Yes and no never do."""
    if story.answer is None:
        return None
    text = normalise(story.answer.argument)
    if text in VERDICTS or (text and story.first_showing(text)):
        return None
    detail = f"{story.answer.argument!r} stands in none of the passages"
    return Finding(story.answer.number, detail, "Answer only with what a passage says.")


def information_misinterpretation(story: Story) -> Finding | None:
    """A golden answer was among what was read, and was not the answer given."""
    for text in sorted(story.golden - VERDICTS):
        if found := story.first_showing(text):
            given = f"{story.answer.argument!r} was" if story.answer else "nothing was"
            detail = f"{given} answered although the passages for {found.argument!r} held the answer"
            return Finding(
                story.answer.number if story.answer else found.number,
                detail,
                "Read which passage speaks of the thing in question, and what it says of it.",
            )
    return None


def insufficient_retrieval(story: Story) -> Finding | None:
    """Nothing that was read holds a golden answer."""
    if not story.golden - VERDICTS:
        return None
    detail = f"after {len(story.searches)} searches nothing that was read held the answer"
    lesson = "Look up every name on the way to the answer before answering."
    return Finding(story.searches[-1].number if story.searches else None, detail, lesson)


def wrong_answer(story: Story) -> Finding | None:
    """The right one had been read, and what was answered can be none: a verdict, a shrug, a name from the question."""
    if story.answer is None or not any(map(story.first_showing, story.golden - VERDICTS)):
        return None
    text = normalise(story.answer.argument)
    echo = f" {text} " in f" {normalise(story.question)} "
    shrug = not _SHRUGS.isdisjoint(text.split()) and not story.first_showing(text)
    if not (echo or shrug or text in VERDICTS):
        return None
    detail = f"{story.answer.argument!r} can be no answer to the question"
    return Finding(story.answer.number, detail, "Answer with what the question asks for, as a passage names it.")


def the_rest(story: Story) -> tuple[str, Finding]:
    """A wrong verdict, or an answer of which no more is known than that it was wrong; or no answer at all."""
    if story.answer is not None:
        detail = f"{story.answer.argument!r} is not the answer"
        return wrong_answer.__name__, Finding(story.answer.number, detail, "Check the answer against every passage.")
    step = len(story.steps) - 1 if story.steps else None
    return insufficient_retrieval.__name__, Finding(step, "nothing was answered", "Answer while there is time.")


# The first that applies is the dominant one: what spoils an episode from the start comes first, then the searches,
# then how the answer compares with what is right, and with what was read.
RULEBOOK = Rulebook(
    read,
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
    otherwise=the_rest,
)

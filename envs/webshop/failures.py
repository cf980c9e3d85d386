"""Failure modes of WebShop, with one detector each."""

from __future__ import annotations

from roleagent.envs.failures.detectors import unreadable_replies
from roleagent.envs.webshop.text import words_of
from roleagent.envs.webshop.trace import Step, Trace, read_trace
from roleagent.failures.modes import FailureModes, Finding

MEANINGS = {
    "irrelevant_query": "it searched for words that have little to do with the request",
    "wrong_product_selection": "it bought another product than the one asked for, or one that cannot be had as asked",
    "wrong_attribute_selection": "it chose another value of an option than the request names",
    "missing_attribute_selection": "it left an option unchosen that the request names",
    "premature_purchase": "it bought before it had seen whether the product is what was asked for",
    "excessive_browsing": "it looked at page after page and bought nothing in time",
    "repeated_query": "it searched for the same words again and again",
    "navigation_error": "it clicked on what the page does not have, or lost its way between pages",
    "price_constraint_violation": "it bought a product that costs more than allowed",
    "action_format_error": "its replies could not be read as commands",
    "premature_termination": "it stopped before anything fitting was bought, while there were steps left",
}
"""By mode, what it means, as a sentence about the agent."""

_CONVINCING = 0.85  # share of the request's words that a product should have shown before it is bought
_WORSE = 0.25  # share of them by which another product in sight was visibly the better one
_MANY = 6  # pages behind the results: products, details, further results


def action_format_error(trace: Trace) -> Finding | None:
    """At least a quarter of the replies held no search and no click."""
    return unreadable_replies([step.malformed for step in trace.steps])


def irrelevant_query(trace: Trace) -> Finding | None:
    """Less than a third of the words of the last search are in the request."""
    if not trace.searches:
        return None
    wanted = words_of(trace.request.sentence)
    beside = [3 * len(words & wanted) < max(1, len(words)) for words in map(_searched, trace.searches)]
    if not beside[-1]:
        return None
    since = max((number for number, idle in enumerate(beside) if not idle), default=-1) + 1
    first = trace.searches[since]
    detail = f"the search for {first.argument!r} says little of what was asked for"
    return Finding(first.number, detail, "Search for the product and the options in the words of the request.")


def _searched(step: Step) -> frozenset[str]:
    return words_of(step.argument)


def wrong_product_selection(trace: Trace) -> Finding | None:
    """The purchase lacks an option of the request; or it is right otherwise, and a better product was visible."""
    if trace.bought is None:
        return None
    for name, value in trace.request.options.items():
        if value not in trace.bought.groups.get(name, ()):
            detail = f"{trace.bought.title!r} was bought, which cannot be had in {name} {value!r}"
            return Finding(
                trace.bought.opened, detail, "Buy only a product that offers every option that is asked for."
            )
    if any(flaw(trace) for flaw in _SURE_FLAWS):
        return None
    cover = trace.request.cover(trace.bought.page_words)
    for listing in trace.listed.values():
        affordable = listing.price < trace.request.cap
        if affordable and trace.request.cover(words_of(listing.title)) >= cover + _WORSE:
            detail = f"{trace.bought.title!r} was bought although {listing.title!r} was in sight"
            return Finding(
                trace.bought.opened, detail, "Compare the titles of all results with the request before opening one."
            )
    return None


def price_constraint_violation(trace: Trace) -> Finding | None:
    """The purchase is above the price limit."""
    if trace.bought is None or trace.bought.price < trace.request.cap:
        return None
    detail = f"{trace.bought.title!r} costs ${trace.bought.price}, but less than ${trace.request.cap} was asked for"
    return Finding(len(trace.steps) - 1, detail, "Leave products whose price is above the limit.")


def wrong_attribute_selection(trace: Trace) -> Finding | None:
    """Another value of an option was chosen than the request names, and the product has both."""
    for name, value, chosen, step in _options(trace):
        if chosen and chosen != value:
            detail = f"{name} {chosen!r} was chosen where {value!r} was asked for"
            return Finding(step, detail, f"Choose exactly the {name} that the request names.")
    return None


def missing_attribute_selection(trace: Trace) -> Finding | None:
    """An option that the request names was there, and none was chosen."""
    for name, value, chosen, _ in _options(trace):
        if not chosen:
            detail = f"nothing was chosen for {name}, where {value!r} was asked for"
            return Finding(len(trace.steps) - 1, detail, f"Click the {name} that the request names before buying.")
    return None


# What leaves no doubt about a purchase; that another title sounds better does.
_SURE_FLAWS = (price_constraint_violation, wrong_attribute_selection, missing_attribute_selection)


def _options(trace: Trace) -> list[tuple[str, str, str, int | None]]:
    """For every option of the purchase that the request names: group, value wanted, value chosen, step."""
    if trace.bought is None:
        return []
    found = []
    for name, values in trace.bought.groups.items():
        if value := trace.request.wanted(name, values):
            chosen, step = trace.bought.chosen.get(name, ("", None))
            found.append((name, value, chosen, step))
    return found


def premature_purchase(trace: Trace) -> Finding | None:
    """A product was bought that had not shown all that was asked for, and its details were not looked at."""
    if trace.bought is None or trace.bought.read or trace.request.cover(trace.bought.page_words) >= _CONVINCING:
        return None
    unseen = ", ".join(sorted(trace.request.words - trace.bought.page_words))
    detail = f"{trace.bought.title!r} was bought before anything had been seen of: {unseen}"
    return Finding(len(trace.steps) - 1, detail, "Read the features of a product before buying it.")


def repeated_query(trace: Trace) -> Finding | None:
    """At least two searches asked for the same words as an earlier one."""
    seen: set[frozenset[str]] = set()
    again = []
    for step in trace.searches:
        words = words_of(step.argument)
        if words in seen:
            again.append(step)
        seen.add(words)
    if len(again) < 2:
        return None
    detail = f"{again[0].argument!r} had been searched for before"
    return Finding(again[0].number, detail, "When a search was of no use, use other words or turn the page.")


def navigation_error(trace: Trace) -> Finding | None:
    """At least two clicks were on something that the page did not have."""
    lost = [step for step in trace.steps if step.verb == "click" and not step.worked]
    if len(lost) < 2:
        return None
    detail = f"{lost[0].argument!r} could not be clicked on the {lost[0].page} page"
    return Finding(lost[0].number, detail, "Click only what stands on the page; go back to reach another one.")


def excessive_browsing(trace: Trace) -> Finding | None:
    """The steps went into looking at products and results, and nothing was bought."""
    looks = [step for step in trace.steps if step.worked and step.verb == "click" and _is_look(step.argument, trace)]
    if trace.bought is not None or len(looks) < _MANY:
        return None
    detail = f"{len(looks)} pages were looked at, {len(trace.opened)} products among them, and nothing was bought"
    return Finding(looks[_MANY - 1].number, detail, "Buy the best product seen while there are steps left.")


def _is_look(argument: str, trace: Trace) -> bool:
    return argument in trace.opened or argument in ("next >", "description", "features", "reviews", "attributes")


def premature_termination(trace: Trace) -> Finding | None:
    """The episode ended before anything was bought."""
    if trace.bought is not None:
        return None
    useful = max((step.number for step in trace.steps if step.new), default=-1)  # after it nothing came of anything
    step = min(useful + 1, len(trace.steps) - 1) if trace.steps else None
    return Finding(step, "nothing was bought", "Search, open, choose, buy.")


def a_near_miss(trace: Trace) -> tuple[str, Finding]:
    """All that the pages showed was as it should be; the product was another one all the same."""
    step, title = (trace.bought.opened, trace.bought.title) if trace.bought else (None, "")
    missed = Finding(step, f"{title!r} was not quite what was asked for", "Compare more products before buying.")
    return wrong_product_selection.__name__, missed


# The first that applies is the dominant one: what spoils an episode from the start comes first, then what was wrong
# with the purchase, from the product to its details, and how the shopper moved about where nothing was bought.
FAILURE_MODES = FailureModes(
    MEANINGS,
    detectors=(
        action_format_error,
        irrelevant_query,
        wrong_product_selection,
        price_constraint_violation,
        wrong_attribute_selection,
        missing_attribute_selection,
        premature_purchase,
        repeated_query,
        navigation_error,
        excessive_browsing,
        premature_termination,
    ),
    read=read_trace,
    otherwise=a_near_miss,
)

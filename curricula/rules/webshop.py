"""How shopping fails (WebShop): one question per failure mode."""

from __future__ import annotations

from roleagent.curricula.rules.rulebook import Finding, Rulebook, unreadable
from roleagent.curricula.rules.webshop_story import Step, Story, read
from roleagent.storefront import words_of

_CONVINCING = 0.85  # share of the request's words that a product should have shown before it is bought
_WORSE = 0.25  # share of them by which another product in sight was visibly the better one
_MANY = 6  # pages behind the results: products, details, further results


def action_format_error(story: Story) -> Finding | None:
    """At least a quarter of the replies held no search and no click."""
    return unreadable([step.malformed for step in story.steps])


def irrelevant_query(story: Story) -> Finding | None:
    """Less than a third of the words last searched for stand in the request."""
    if not story.searches:
        return None
    wanted = words_of(story.request.sentence)
    beside = [3 * len(words & wanted) < max(1, len(words)) for words in map(_searched, story.searches)]
    if not beside[-1]:
        return None
    since = max((number for number, idle in enumerate(beside) if not idle), default=-1) + 1
    first = story.searches[since]
    detail = f"the search for {first.argument!r} says little of what was asked for"
    return Finding(first.number, detail, "Search for the product and the options in the words of the request.")


def _searched(step: Step) -> frozenset[str]:
    return words_of(step.argument)


def wrong_product_selection(story: Story) -> Finding | None:
    """What was bought lacks an option that the request names; or, all else in order, a better one was in sight."""
    if story.bought is None:
        return None
    for name, value in story.request.options.items():
        if value not in story.bought.groups.get(name, ()):
            detail = f"{story.bought.title!r} was bought, which cannot be had in {name} {value!r}"
            return Finding(
                story.bought.opened, detail, "Buy only a product that offers every option that is asked for."
            )
    if any(flaw(story) for flaw in _SURE_FLAWS):
        return None
    cover = story.cover(story.bought.told)
    for listing in story.listed.values():
        affordable = listing.price < story.request.cap
        if affordable and story.cover(words_of(listing.title)) >= cover + _WORSE:
            detail = f"{story.bought.title!r} was bought although {listing.title!r} was in sight"
            return Finding(
                story.bought.opened, detail, "Compare the titles of all results with the request before opening one."
            )
    return None


def price_constraint_violation(story: Story) -> Finding | None:
    """What was bought costs more than it may."""
    if story.bought is None or story.bought.price < story.request.cap:
        return None
    detail = f"{story.bought.title!r} costs ${story.bought.price}, but less than ${story.request.cap} was asked for"
    return Finding(len(story.steps) - 1, detail, "Leave products whose price is above the limit.")


def wrong_attribute_selection(story: Story) -> Finding | None:
    """Another value of an option was chosen than the request names, and the product has both."""
    for name, value, chosen, step in _options(story):
        if chosen and chosen != value:
            detail = f"{name} {chosen!r} was chosen where {value!r} was asked for"
            return Finding(step, detail, f"Choose exactly the {name} that the request names.")
    return None


def missing_attribute_selection(story: Story) -> Finding | None:
    """An option that the request names was there, and none was chosen."""
    for name, value, chosen, _ in _options(story):
        if not chosen:
            detail = f"nothing was chosen for {name}, where {value!r} was asked for"
            return Finding(len(story.steps) - 1, detail, f"Click the {name} that the request names before buying.")
    return None


# What leaves no doubt about a purchase; that another title sounds better does.
_SURE_FLAWS = (price_constraint_violation, wrong_attribute_selection, missing_attribute_selection)


def _options(story: Story) -> list[tuple[str, str, str, int | None]]:
    """For every option of the purchase that the request names: group, value wanted, value chosen, step."""
    if story.bought is None:
        return []
    found = []
    for name, values in story.bought.groups.items():
        if value := story.request.wanted(name, values):
            chosen, step = story.bought.chosen.get(name, ("", None))
            found.append((name, value, chosen, step))
    return found


def premature_purchase(story: Story) -> Finding | None:
    """A product was bought that had not shown all that was asked for, and its details were not looked at."""
    if story.bought is None or story.bought.read or story.cover(story.bought.told) >= _CONVINCING:
        return None
    unseen = ", ".join(sorted(story.request.words - story.bought.told))
    detail = f"{story.bought.title!r} was bought before anything had been seen of: {unseen}"
    return Finding(len(story.steps) - 1, detail, "Read the features of a product before buying it.")


def repeated_query(story: Story) -> Finding | None:
    """At least two searches asked for the same words as an earlier one."""
    seen: set[frozenset[str]] = set()
    again = []
    for step in story.searches:
        words = words_of(step.argument)
        if words in seen:
            again.append(step)
        seen.add(words)
    if len(again) < 2:
        return None
    detail = f"{again[0].argument!r} had been searched for before"
    return Finding(again[0].number, detail, "When a search was of no use, use other words or turn the page.")


def navigation_error(story: Story) -> Finding | None:
    """At least two clicks were on something that the page did not have."""
    lost = [step for step in story.steps if step.verb == "click" and not step.worked]
    if len(lost) < 2:
        return None
    detail = f"{lost[0].argument!r} could not be clicked on the {lost[0].page} page"
    return Finding(lost[0].number, detail, "Click only what stands on the page; go back to reach another one.")


def excessive_browsing(story: Story) -> Finding | None:
    """The steps went into looking at products and results, and nothing was bought."""
    looks = [step for step in story.steps if step.worked and step.verb == "click" and _is_look(step.argument, story)]
    if story.bought is not None or len(looks) < _MANY:
        return None
    detail = f"{len(looks)} pages were looked at, {len(story.opened)} products among them, and nothing was bought"
    return Finding(looks[_MANY - 1].number, detail, "Buy the best product seen while there are steps left.")


def _is_look(argument: str, story: Story) -> bool:
    return argument in story.opened or argument in ("next >", "description", "features", "reviews", "attributes")


def premature_termination(story: Story) -> Finding | None:
    """The episode ended before anything was bought."""
    if story.bought is not None:
        return None
    useful = max((step.number for step in story.steps if step.new), default=-1)  # after it nothing came of anything
    step = min(useful + 1, len(story.steps) - 1) if story.steps else None
    return Finding(step, "nothing was bought", "Search, open, choose, buy.")


def a_near_miss(story: Story) -> tuple[str, Finding]:
    """All that the pages showed was as it should be; the product was another one all the same."""
    step, title = (story.bought.opened, story.bought.title) if story.bought else (None, "")
    missed = Finding(step, f"{title!r} was not quite what was asked for", "Compare more products before buying.")
    return wrong_product_selection.__name__, missed


# The first that applies is the dominant one: what spoils an episode from the start comes first, then what was wrong
# with the purchase, from the product to its details, and how the shopper moved about where nothing was bought.
RULEBOOK = Rulebook(
    read,
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
    otherwise=a_near_miss,
)

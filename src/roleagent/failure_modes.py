"""Failure modes: the names under which failures are kept, and how free text finds one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rapidfuzz.distance import Indel
from rapidfuzz.process import extractOne

ALFWORLD = (
    "repetitive_exploration",
    "wrong_target_location",
    "wrong_receptacle",
    "premature_give_up",
    "missing_precondition",
    "repeated_failed_action",
    "navigation_loop",
    "entity_confusion",
    "wrong_object_interaction",
    "exhaustive_exploration_failure",
    "action_format_error",
)
WEBSHOP = (
    "irrelevant_query",
    "wrong_product_selection",
    "wrong_attribute_selection",
    "missing_attribute_selection",
    "premature_purchase",
    "excessive_browsing",
    "repeated_query",
    "navigation_error",
    "price_constraint_violation",
    "action_format_error",
    "premature_termination",
)
SEARCH = (
    "wrong_answer",
    "insufficient_retrieval",
    "irrelevant_retrieval_query",
    "repeated_retrieval_query",
    "information_misinterpretation",
    "partial_answer",
    "hallucinated_answer",
    "premature_answer",
    "action_format_error",
)
TAXONOMIES = {"alfworld": ALFWORLD, "toy": ALFWORLD, "webshop": WEBSHOP, "search": SEARCH}
MEANINGS = {  # in the order of the taxonomies
    # ALFWorld
    "repetitive_exploration": "it kept going back to places that it had already searched",
    "wrong_target_location": "it had the right thing, ready, and carried it to places that were not its destination",
    "wrong_receptacle": "it put the right thing down for good in a place that was not asked for",
    "premature_give_up": "it stopped trying, or did nothing that could help, while there were steps left",
    "missing_precondition": "it left out a step that had to come first, such as opening, taking, heating or cleaning",
    "repeated_failed_action": "it gave a command that had no effect, again and again",
    "navigation_loop": "it walked to and fro between the same places without doing anything there",
    "entity_confusion": "it named things that are not there, or mistook one numbered thing for another",
    "wrong_object_interaction": "it handled a thing that the task is not about",
    "exhaustive_exploration_failure": "it searched on and on and never got hold of the thing it needed",
    "action_format_error": "its replies could not be read as commands",
    # WebShop
    "irrelevant_query": "it searched for words that have little to do with the request",
    "wrong_product_selection": "it bought another product than the one asked for, or one that cannot be had as asked",
    "wrong_attribute_selection": "it chose another value of an option than the request names",
    "missing_attribute_selection": "it left an option unchosen that the request names",
    "premature_purchase": "it bought before it had seen whether the product is what was asked for",
    "excessive_browsing": "it looked at page after page and bought nothing in time",
    "repeated_query": "it searched for the same words again and again",
    "navigation_error": "it clicked on what the page does not have, or lost its way between pages",
    "price_constraint_violation": "it bought a product that costs more than allowed",
    "premature_termination": "it stopped before anything fitting was bought, while there were steps left",
    # search questions
    "wrong_answer": "its answer can be no answer to the question, or is wrong for no reason that shows",
    "insufficient_retrieval": "it had not found what the answer needs when it answered or ran out of turns",
    "irrelevant_retrieval_query": "it searched for what has little to do with the question",
    "repeated_retrieval_query": "it searched for the same words again",
    "information_misinterpretation": "the passages held the answer, and it read something else from them",
    "partial_answer": "its answer is only a part of the right one, or says more than that",
    "hallucinated_answer": "its answer stands in nothing that it had read",
    "premature_answer": "it answered without having searched",
}
"""What each mode means, as a sentence about the agent."""
UNKNOWN = "unknown"
_MOST_CHARACTERS = 64  # of a mode that somebody made up


def family(env_id: str) -> str:
    """The kind of environment that an id names, a key of :data:`TAXONOMIES`; ``""`` where the name says nothing.

    >>> family("RoleAgent/WebShop-v0"), family("Somebody/Else-v1")
    ('webshop', '')
    """
    name = env_id.rpartition("/")[2].lower()
    return next((key for key in TAXONOMIES if name.startswith(key)), "")


def taxonomy(env_id: str) -> tuple[str, ...]:
    """The modes of an environment, by the name in its id; every mode where the name says nothing.

    >>> taxonomy("RoleAgent/WebShop-v0")[0]
    'irrelevant_query'
    >>> len(taxonomy("Somebody/Else-v1"))
    29
    """
    return TAXONOMIES.get(family(env_id)) or tuple(dict.fromkeys(ALFWORLD + WEBSHOP + SEARCH))


def match_mode(text: str, modes: tuple[str, ...]) -> str:
    """The mode that a free text names: exactly, somewhere within it, or but for a typing error.

    What names none of them is a new mode, kept in normal form so that it is one and the same wherever it turns up.

    >>> match_mode("**Navigation Loop** (desk 1 and desk 2)", ALFWORLD)
    'navigation_loop'
    >>> match_mode("Wrong recepticle", ALFWORLD)
    'wrong_receptacle'
    >>> match_mode("Dropped the egg!", ALFWORLD)
    'dropped_the_egg'
    """
    name = _joined(text)
    if not name:
        return UNKNOWN
    if name in modes:
        return name
    named = [(f"_{name}_".find(f"_{mode}_"), mode) for mode in modes if f"_{mode}_" in f"_{name}_"]
    if named:
        return min(named)[1]
    near = extractOne(name, modes, scorer=Indel.normalized_similarity, score_cutoff=0.85)
    return near[0] if near else name[:_MOST_CHARACTERS].rstrip("_")


def _joined(text: str) -> str:
    return re.sub(r"[\W_]+", "_", text.lower()).strip("_")


def is_known(mode: str, env_id: str) -> bool:
    """Whether a mode belongs to the environment's taxonomy."""
    return mode in taxonomy(env_id)


def within(text: str, modes: Sequence[str]) -> str:
    """The one mode that a text speaks of; ``""`` where it names none, or several.

    >>> within("A Navigation loop: the agent went to and fro.", ALFWORLD), within("wrong_receptacle?", WEBSHOP)
    ('navigation_loop', '')
    """
    name = f"_{_joined(text)}_"
    named = [mode for mode in modes if f"_{mode}_" in name]
    return named[0] if len(named) == 1 else ""

"""TextWorld made bearable for tests: the same engine with caches around its repeated work, and so the same output.

``benchmarks/alfworld_parity.py`` compares with the engine as it is installed. What is cached: the second translation of
each problem (only the planner uses it), parsed templates and queries, and the deep copies of names that never change.
"""

from contextlib import contextmanager
from copy import copy
from functools import cache, lru_cache
from unittest import mock


@contextmanager
def cached_textworld():
    """Within it, TextWorld needs about 0.4 s to load a game and a few milliseconds per step."""
    import fast_downward
    from textworld.envs.pddl import textgen
    from textworld.logic import Rule

    translate, parse, query = fast_downward.pddl2sas, textgen._parse_and_convert, Rule.parse_conjunctive_query
    translated = lru_cache(maxsize=2)(lambda domain, problem: translate(domain, problem))

    @cache
    def parsed(text, rule_name):
        return parse(text, rule_name=rule_name)

    def copy_context(context):
        return {**context, "variables": dict(context["variables"]), "mapping": dict(context["mapping"])}

    with (
        mock.patch.object(fast_downward, "pddl2sas", lambda domain, problem, **_: translated(domain, problem)),
        mock.patch.object(
            textgen, "_parse_and_convert", lambda text, rule_name, **_: [*map(copy, parsed(text, rule_name))]
        ),
        mock.patch.object(textgen, "copy_context", copy_context),
        mock.patch.object(Rule, "parse_conjunctive_query", lru_cache(maxsize=None)(query)),
    ):
        yield

"""Figures of an iteration of Agent-R, and warnings about mechanisms that had no effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from roleagent.learners.revision.examples import Example

if TYPE_CHECKING:
    from roleagent.config import Config


def counts_of(examples: Sequence[Example]) -> dict[str, int]:
    """By part the number of the imitated examples (``examples_…``) and of their trained tokens (``tokens_…``)."""
    found = {}
    for part in ("good", "revision", "pair"):
        own = [example for example in examples if example.part == part]
        found |= {f"examples_{part}": len(own), f"tokens_{part}": sum(one.trained_tokens for one in own)}
    return found


def shares_of(counts: Mapping[str, float], examples: Sequence[Example]) -> dict[str, float]:
    """Shares and means of an iteration.

    Returns:
        ``without_good_share`` and ``without_bad_share`` of the trees that did not fail, ``uct_share`` of the
        selections, ``false_splice_share`` of the splices; of the revision trajectories ``revision_length``, the mean
        t′, and ``revision_length_share``, the mean t′/T_b.
    """

    def share(part: str, whole: str) -> float:
        return counts.get(part, 0) / max(1, counts.get(whole, 0))

    played = max(1, counts.get("trees", 0) - counts.get("failed_trees", 0))
    found = {
        "without_good_share": counts.get("without_good", 0) / played,
        "without_bad_share": counts.get("without_bad", 0) / played,
        "uct_share": share("search_chosen_by_uct", "search_chosen"),
        "false_splice_share": share("splice_false", "splices"),
    }
    cut = [example.text for example in examples if example.part == "revision"]
    if cut:
        found["revision_length"] = sum(text["cut"] for text in cut) / len(cut)
        found["revision_length_share"] = sum(text["cut"] / text["bad_steps"] for text in cut) / len(cut)
    return found


def failures_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many trees ended with an error of their environment, and the first of these errors; ``""`` without any.

    >>> failures_of([{"error": ""}, {"error": "OSError: no server"}])
    '1 of 2 trees failed, the first with OSError: no server'
    """
    errors = [row["error"] for row in rows if row.get("error")]
    return f"{len(errors)} of {len(rows)} trees failed, the first with {errors[0]}" if errors else ""


def sentence_of(iteration: int, summary: Mapping[str, float]) -> str:
    """What an iteration found, for the display.

    >>> found = {"trees": 8, "without_good_share": 0.25, "pairs": 9, "splices": 6, "false_splice_share": 0.5}
    >>> sentence_of(2, {**found, "examples_good": 5, "examples_revision": 3})
    'iteration 2: 8 trees, 25% without a good leaf; 9 pairs, 6 splices, 50% of them false; imitates 5 good, 3 revised'
    """
    text = (
        f"iteration {iteration}: {summary['trees']:.0f} trees, {summary['without_good_share']:.0%} without a good leaf"
    )
    text += f"; {summary.get('pairs', 0):.0f} pairs"
    if summary.get("examples_pair"):
        return f"{text}, prefers the good path of {summary['examples_pair']:.0f}"
    text += f", {summary.get('splices', 0):.0f} splices, {summary['false_splice_share']:.0%} of them false"
    return f"{text}; imitates {summary['examples_good']:.0f} good, {summary['examples_revision']:.0f} revised"


def idle_mechanisms(config: Config, counters: Mapping[str, float]) -> list[str]:
    """A warning for each mechanism that is switched on and had no effect."""
    options = config.revision
    if config.train.stage == "eto":
        return [] if counters.get("examples_pair") else ["no tree had a good and a bad path, so nothing was preferred"]
    expected = {"examples_good": "no tree had a good path"} if options.share < 1 else {}
    if options.share:
        expected["pairs"] = "no tree had a good and a bad path, so no revision was ever imitated"
        expected["verdict_bad"] = "the judge never called an action bad, so no revision was ever imitated"
        expected["examples_revision"] = "no revision trajectory was ever imitated" + _refuted(config, counters)
    if options.splice == "searched" and counters.get("searched"):
        expected["splice_searched"] = "revision.splice=searched, but no search behind a bad step ever ended well"
    idle = [text for name, text in expected.items() if not counters.get(name)]
    read, unread = (counters.get(f"verdict_source_{name}", 0.0) for name in ("model", "fallback"))
    if unread and not read:
        idle.append("none of the judge's answers could be read: no action was ever called bad")
    return idle


def _refuted(config: Config, counters: Mapping[str, float]) -> str:
    """What to change if the world refuted every splice, as the end of a warning."""
    splices = counters.get("splices", 0.0)
    if not splices or counters.get("splice_false") != splices:
        return ""
    remedy = "; direct revision needs revision.splice=published" if config.revision.judge == "last" else ""
    return f": the world refuted all {splices:.0f} splices{remedy}"


__all__ = ["counts_of", "failures_of", "idle_mechanisms", "sentence_of", "shares_of"]

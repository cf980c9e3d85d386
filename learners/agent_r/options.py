"""The options of Agent-R (arXiv 2501.11425): the search, pairs, the transition point, splices and the loss."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from roleagent.config.settings import (
    KNOWN_KEYS,
    Amount,
    Count,
    Length,
    Rate,
    Share,
    ShareAbove0,
    ShareBelow1,
    check_name,
)
from roleagent.validation import Number, PathText, Text

JUDGES = ("auto", "step", "reflection", "rule", "value", "last", "random")


@dataclass(frozen=True, config=KNOWN_KEYS)
class SearchConfig:
    """The search trees of an iteration (``method=agent_r`` and ``eto``)."""

    tasks: Length = 48  # trees
    num_children: Length = 4  # replies sampled where a tree is expanded
    simulations: Length = 8  # from the root of a tree to a leaf
    depth: Length = 20  # most replies of a path
    uct: Amount = 0.25  # weight of exploration, c_uct (Eq. 5)
    rollouts: Count = 0  # that a simulation plays to the end from its new child, whose value is their mean; 0: the
    # chosen child is expanded, too, down to a leaf; with num_children=1 all rollouts begin at the root
    expert_prefix: ShareBelow1 = 0.0  # share of an expert's episode that is played before the search begins, for a
    # policy that finds no good leaf; it is shown and not imitated


@dataclass(frozen=True, config=KNOWN_KEYS)
class RevisionConfig:
    """Which paths are good and bad, who finds the mistake, and what is imitated (``method=agent_r`` and ``eto``)."""

    iterations: Length = 3  # search, judge, splice, imitate, measure: so often
    alpha: tuple[Share, ...] = (0.5, 0.7, 1.0)  # by iteration, what the reward of a good path is above, or at 1 equal
    # to; the last one from then on
    beta: ShareAbove0 = 0.2  # what separates a good and a bad path (exclusive), on the same scale as alpha
    separation: Literal["gap", "bound"] = "gap"  # beta is the least difference of the two rewards, or, as Eq. 4 has it,
    # a number below every good one and above every bad one
    pairing: Literal["nearest", "all"] = "nearest"  # a bad path goes with the good one that shares most steps, and bad
    # paths that differ in their last step alone are one; or each bad path goes with every good one, as published
    pairs_per_tree: Count = 40  # most pairs of a tree, drawn before they are judged and spliced; 0: all
    judge: Text = "auto"  # step (the policy, step by step), reflection (the analyst), rule, value (of the tree), last,
    # random, or module:Class; auto: step with policy.path, else rule, or value where an environment has no rules
    splice: Literal["verified", "searched", "published"] = "verified"  # what the world refutes is dropped; searched
    # anew from the bad state; or nothing is tested
    per_task: Count = 12  # most good, and most revision trajectories of a task; 0: all
    share: Share = 0.5  # of revision trajectories in the loss of agent data; the rest are good trajectories
    eta: ShareAbove0 = 0.2  # weight of the larger of these two parts, where general data weigh 1 - eta (Eq. 6)
    general: PathText = ""  # a file of conversations, one JSON object a line; empty: none, and eta is 1
    replay: ShareBelow1 = 0.2  # share of the loss for the data of the warm start
    epochs: tuple[Annotated[Number, Field(gt=0, le=1000)], ...] = (3.0, 1.0, 1.0)  # by iteration, passes over its data
    lr: Rate = 0.0  # peak; 0: that of the warm start, of method=eto 1e-6 and then 5e-7

    @model_validator(mode="after")
    def _lists(self) -> RevisionConfig:
        check_name("options.revision.judge", self.judge, *JUDGES)
        for name in ("alpha", "epochs"):
            if not getattr(self, name):
                raise ValueError(f"options.revision.{name} needs at least one number")
        return self

    def of_iteration(self, name: Literal["alpha", "epochs"], iteration: int) -> float:
        """α or the epochs of an iteration, numbered from 1.

        >>> RevisionConfig().of_iteration("alpha", 2), RevisionConfig().of_iteration("epochs", 9)
        (0.7, 1.0)
        """
        values: tuple[float, ...] = getattr(self, name)
        return values[min(iteration, len(values)) - 1]


@dataclass(frozen=True, config=KNOWN_KEYS)
class AgentROptions:
    """The section ``options`` of ``method=agent_r`` and ``method=eto``."""

    search: SearchConfig = field(default_factory=SearchConfig)
    revision: RevisionConfig = field(default_factory=RevisionConfig)


__all__ = ["JUDGES", "AgentROptions", "RevisionConfig", "SearchConfig"]

"""``roleagent trees <verb>``: shows the search trees of a run (``method=agent_r``)."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from roleagent.agents.analysts.judges import PlaceJudge, ReflectionJudge, StepJudge, revision_lengths
from roleagent.agents.analysts.model import ModelAnalyst
from roleagent.agents.policies.protocol import PolicyError
from roleagent.commands import Parser, complain, natural, printable
from roleagent.curricula.rule_analyst import RuleAnalyst
from roleagent.failures.verdicts import Judge
from roleagent.options import ConfigError

if TYPE_CHECKING:
    from roleagent.agents.search.tree import Tree

EXAMPLES = """\
examples:
  roleagent trees list runs/agent_r
  roleagent trees list runs/agent_r --iteration 2
  roleagent trees show runs/agent_r 2.17
  roleagent trees show runs/agent_r 2.17 --depth 3
  roleagent trees counts runs/agent_r
  roleagent trees lengths runs/agent_r --iteration 1
  roleagent trees lengths runs/agent_r --iteration 1 --judge step --policy ~/models/small"""
VERBS = {
    "list": "List the trees: task, nodes, leaves, best outcome, Q of the root.",
    "show": "Show one tree: each reply with N, Q, its command, the observation and the verdict.",
    "counts": "Show what each iteration found: replies, pairs, splices, what was dropped and why, trained tokens.",
    "lengths": "Show where a judge finds the first mistake of the lost paths. Compare judges on the same trees.",
}
_JUDGES = ("rule", "last", "step", "reflection")
_WIDTH = 100  # characters of an observation


def main(arguments: Sequence[str]) -> int:
    """The group of verbs; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        for line in {"list": _listed, "show": _shown, "counts": _counts, "lengths": _lengths}[options.verb](options):
            print(line)
    except (ConfigError, PolicyError) as error:
        return complain("roleagent trees", error)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser("roleagent trees", "Show the search trees of a run.", epilog=EXAMPLES, allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, summary in VERBS.items():
        own = verbs.add_parser(verb, help=summary, description=summary, epilog=EXAMPLES)
        own.add_argument("run", type=Path, metavar="RUN", help="a run folder")
        if verb not in ("show", "counts"):
            own.add_argument("--iteration", type=natural, metavar="N", help="of this iteration alone")
        if verb == "lengths":
            own.add_argument("--judge", choices=_JUDGES, default="rule", help="who judges (default: %(default)s)")
            own.add_argument("--policy", metavar="MODEL", help="of step and reflection: a model's folder or hub name")
        elif verb == "show":
            own.add_argument("tree", metavar="TREE", help="its name, as list shows it, e.g. 2.17")
            own.add_argument("--depth", type=natural, default=99, metavar="N", help="most replies of a path")
    return parser


def _trees(options: argparse.Namespace) -> Iterator[tuple[str, Tree]]:
    """The trees that were asked for, at least one."""
    from roleagent.agents.search.storage import iterations_of, stored_trees

    there = iterations_of(options.run)
    if not there:
        raise ConfigError(f"{options.run} has no search trees: they come with method=agent_r")
    if options.iteration and options.iteration not in there:
        raise ConfigError(f"{options.run} has no iteration {options.iteration}; there are {', '.join(map(str, there))}")
    return stored_trees(options.run, options.iteration)


def _listed(options: argparse.Namespace) -> Iterator[str]:
    trees = _trees(options)
    yield "tree     nodes  leaves  best  Q     descents  task"
    for name, tree in trees:
        leaves = tree.leaves()
        best = max((leaf.outcome for leaf in leaves), default=0.0)
        numbers = f"{name:<7}{len(tree.nodes):>7}{len(leaves):>8}{best:>6.2f}{tree.root.value or 0.0:>6.2f}"
        yield f"{numbers}{tree.descents:>10}  {printable(tree.error or tree.task.task_id)}"


def _counts(options: argparse.Namespace) -> Iterator[str]:
    from roleagent.agents.search.storage import stored_counts

    rows = stored_counts(options.run)
    if not rows:
        raise ConfigError(f"{options.run} has no finished iteration of Agent-R")
    yield f"{'iteration':<36}{''.join(f'{number:>10}' for number in rows)}"
    for name in sorted({name for row in rows.values() for name in row}):
        found = (row.get(name, 0) for row in rows.values())
        yield f"{name:<36}{''.join(f'{n:>10.3f}' if isinstance(n, float) else f'{n:>10}' for n in found)}"


def _lengths(options: argparse.Namespace) -> Iterator[str]:
    trees = [tree for _, tree in _trees(options)]
    lost = [tree.trajectory(leaf) for tree in trees for leaf in tree.leaves() if leaf.depth and leaf.outcome <= 0]
    if not lost:
        raise ConfigError(f"the trees of {options.run} have no path with reward 0")
    found = revision_lengths(_judge(options), lost)
    yield (
        f"{options.judge}: a mistake in {found['found']:.1%} of {len(lost)} lost paths; its step in the mean "
        f"{found['length']:.2f}, relative to the path {found['length_share']:.2f}"
    )


def _judge(options: argparse.Namespace) -> Judge:
    if options.judge == "rule":
        return ReflectionJudge(RuleAnalyst())
    if options.judge == "last":
        return PlaceJudge()
    if not options.policy:
        raise ConfigError(f"--judge {options.judge} needs --policy")
    import torch

    from roleagent.agents.policies.hf import HFPolicy, own_device

    analyst = ModelAnalyst(HFPolicy.from_path(options.policy, torch.Generator(own_device())), temperature=0.0)
    return StepJudge(analyst) if options.judge == "step" else ReflectionJudge(analyst)


def _shown(options: argparse.Namespace) -> Iterator[str]:
    from roleagent.agents.search.storage import stored_trees, stored_verdicts

    iteration = options.tree.partition(".")[0]
    trees = stored_trees(options.run, int(iteration) if iteration.isdecimal() else None)
    tree = next((tree for name, tree in trees if name == options.tree), None)
    if tree is None:
        raise ConfigError(f"{options.run} has no tree {options.tree!r}; roleagent trees list {options.run} lists them")
    verdicts = stored_verdicts(options.run, options.tree)
    yield printable(f"{tree.task.task_id}: {tree.task.goal}")
    yield printable(tree.root.observation)
    waiting = list(reversed(tree.root.children))
    while waiting:
        node = waiting.pop()
        times = f" ×{node.multiplicity}" if node.multiplicity > 1 else ""
        value = "-" if node.value is None else f"{node.value:.2f}"
        end = f" [{node.stop_reason} {node.outcome:g}]" if node.is_leaf else ""
        command = printable(node.command) or f"(malformed) {printable(node.reply)}"
        seen = printable(node.observation)[:_WIDTH]
        kind, reason, source = verdicts.get(node.number, ("", "", ""))
        verdict = f" ({source}: {kind}{': ' * bool(reason)}{printable(reason)})" if kind else ""
        yield f"{'  ' * node.depth}{node.number} N={node.visits} Q={value} {command}{times}{end} → {seen}{verdict}"
        if node.depth < options.depth:
            waiting += reversed(node.children)


__all__ = ["main"]

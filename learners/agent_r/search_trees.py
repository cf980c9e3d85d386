"""Search trees on disk: a compressed file of JSON lines per batch, in the folder ``search`` of a run, and ``roleagent
trees``, which shows them.

A file is written atomically, so a batch is there as a whole or not at all, and a resumed run repeats only a batch
without a file. A stored tree has everything but prompts, log-probabilities and snapshots: they are made again where
they are needed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from roleagent.agents.analysts.models import ModelAnalyst
from roleagent.agents.policies.protocol import PolicyError
from roleagent.commands import Parser, complain, natural, printable
from roleagent.curricula.rule_analyst import RuleAnalyst
from roleagent.failures.verdicts import Judge
from roleagent.files import read_json_lines, write_json_lines
from roleagent.learners.agent_r.judges import PlaceJudge, ReflectionJudge, StepJudge, revision_lengths
from roleagent.learners.agent_r.search import Node, Tree
from roleagent.options import ConfigError
from roleagent.types import Completion, Task

if TYPE_CHECKING:
    from roleagent.learners.agent_r.search import Tree


FOLDER = "search"
_PLAIN = (
    *("number", "depth", "command", "reply", "observation", "info", "reward", "outcome", "terminated", "truncated"),
    *("stop_reason", "multiplicity", "visits", "value_sum", "simulated", "exhausted"),
)
_COUNTS = ("simulations", "expansions", "chosen", "chosen_by_uct", "error")


class StoredTree(NamedTuple):
    """A tree of a run, and its name: ``ITERATION.NUMBER``, both from 1."""

    name: str
    tree: Tree


def batch_file(run: Path, iteration: int, batch: int) -> Path:
    """The file of a batch; iterations count from 1, batches from 0."""
    return run / FOLDER / f"iteration-{iteration:04d}" / f"batch-{batch:04d}.jsonl.gz"


def write_trees(path: Path, trees: Sequence[Tree]) -> None:
    """Writes a batch."""
    write_json_lines(path, (_described(tree) for tree in trees), default=_plain)


def _plain(value: Any) -> Any:
    """A number of NumPy as one of Python; what else JSON lacks as text."""
    return value.item() if isinstance(value, np.generic) else str(value)


def read_trees(path: Path) -> list[Tree]:
    """Reads a batch.

    Raises:
        ConfigError: the file is damaged; one line.
    """
    try:
        return [_tree(row) for row in read_json_lines(path)]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ConfigError(f"{path} cannot be read as search trees: {error}") from error


def iterations_of(run: Path) -> list[int]:
    """The iterations with search trees, in order."""
    folders = {path.parent.name for path in run.glob(f"{FOLDER}/iteration-*/batch-*.jsonl.gz")}
    return sorted(int(name.rpartition("-")[2]) for name in folders)


def stored_trees(run: Path, iteration: int | None = None) -> Iterator[StoredTree]:
    """The trees of a run in order; of one iteration, or of all.

    Raises:
        ConfigError: a file is damaged.
    """
    for of in iterations_of(run):
        if iteration not in (None, of):
            continue
        number = 0
        for path in sorted(batch_file(run, of, 0).parent.glob("batch-*.jsonl.gz")):
            for tree in read_trees(path):
                number += 1
                yield StoredTree(f"{of}.{number}", tree)


def stored_verdicts(run: Path, name: str) -> dict[int, tuple[str, str, str]]:
    """The verdicts about a tree: kind, reason and source by the number of the node. Empty before it was judged.

    They are written with the examples of its batch, in the folder ``revision``.

    Args:
        name: of the tree, as :class:`StoredTree` has it.

    Raises:
        ConfigError: a file is damaged.
    """
    iteration, _, number = name.partition(".")
    left = int(number)
    for path in sorted((run / "revision" / f"iteration-{int(iteration):03d}").glob("batch-*.jsonl.gz")):
        try:
            rows = [*read_json_lines(path)]
            if left <= len(rows):
                return {int(node): tuple(said) for node, said in rows[left - 1]["verdicts"].items()}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        left -= len(rows)
    return {}


def stored_counts(run: Path) -> dict[int, dict[str, float]]:
    """The counts of a run's iterations, by iteration; those of single commands and lengths are left out.

    Raises:
        ConfigError: a file is damaged.
    """
    found = {}
    for path in sorted((run / "revision").glob("iteration-[0-9]*.json")):
        try:
            row = json.loads(path.read_text(encoding="utf-8"))
            counts = {name: n for name, n in row.items() if "/" not in name}
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        found[int(path.stem.rpartition("-")[2])] = counts
    return found


def _described(tree: Tree) -> dict[str, Any]:
    counts = {name: getattr(tree, name) for name in _COUNTS}
    return {"task": asdict(tree.task), **counts, "nodes": [_node(node) for node in tree.nodes]}


def _node(node: Node) -> dict[str, Any]:
    described = {name: getattr(node, name) for name in _PLAIN}
    described["parent"] = None if node.parent is None else node.parent.number
    if node.completion is not None:
        described["tokens"] = list(node.completion.token_ids)
        described["finish"] = node.completion.finish_reason
        described["version"] = node.completion.policy_version
    return described


def _tree(described: dict[str, Any]) -> Tree:
    nodes: list[Node] = []
    for one in described["nodes"]:
        node = Node(**{name: one[name] for name in _PLAIN})
        if one["parent"] is not None:
            parent = node.parent = nodes[one["parent"]]
            parent.children.append(node)
            tokens = tuple(one["tokens"])
            node.completion = Completion(tokens, (0.0,) * len(tokens), one["finish"], one["version"])
        nodes.append(node)
    counts = {name: described[name] for name in _COUNTS}
    return Tree(Task(**described["task"]), nodes[0], nodes, **counts)


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
    there = iterations_of(options.run)
    if not there:
        raise ConfigError(f"{options.run} has no search trees: they come with method=agent_r")
    if options.iteration and options.iteration not in there:
        raise ConfigError(f"{options.run} has no iteration {options.iteration}; there are {', '.join(map(str, there))}")
    return stored_trees(options.run, options.iteration)


def _listed(options: argparse.Namespace) -> Iterator[str]:
    trees = _trees(options)
    yield "tree     nodes  leaves  best  Q     simulations  task"
    for name, tree in trees:
        leaves = tree.leaves()
        best = max((leaf.outcome for leaf in leaves), default=0.0)
        numbers = f"{name:<7}{len(tree.nodes):>7}{len(leaves):>8}{best:>6.2f}{tree.root.value or 0.0:>6.2f}"
        yield f"{numbers}{tree.simulations:>10}  {printable(tree.error or tree.task.task_id)}"


def _counts(options: argparse.Namespace) -> Iterator[str]:
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

    policy = HFPolicy.from_path(options.policy, torch.Generator(own_device()))
    if options.judge == "step" and not policy.tokenizer.chat_template:
        raise ConfigError(f"--judge step needs a model that follows instructions, and {options.policy} has no template")
    analyst = ModelAnalyst(policy, temperature=0.0)
    return StepJudge(analyst) if options.judge == "step" else ReflectionJudge(analyst)


def _shown(options: argparse.Namespace) -> Iterator[str]:
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

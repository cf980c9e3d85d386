"""Search trees on disk: a compressed file of JSON lines per wave, in the folder ``search`` of a run.

A file is written atomically, so a wave is there as a whole or not at all, and a resumed run repeats only a wave without
a file. A stored tree has everything but prompts, log-probabilities and snapshots: they are made again where they are
needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from roleagent.agents.search.tree import Node, Tree
from roleagent.files import read_json_lines, write_json_lines
from roleagent.options import ConfigError
from roleagent.types import Completion, Task

FOLDER = "search"
_PLAIN = (
    *("number", "depth", "command", "reply", "observation", "info", "reward", "outcome", "terminated", "truncated"),
    *("stop_reason", "multiplicity", "visits", "value_sum", "simulated", "exhausted"),
)
_COUNTS = ("descents", "expansions", "chosen", "chosen_by_uct", "error")


class StoredTree(NamedTuple):
    """A tree of a run, and its name: ``ITERATION.NUMBER``, both from 1."""

    name: str
    tree: Tree


def wave_file(run: Path, iteration: int, wave: int) -> Path:
    """The file of a wave; iterations count from 1, waves from 0."""
    return run / FOLDER / f"iteration-{iteration:04d}" / f"wave-{wave:04d}.jsonl.gz"


def write_trees(path: Path, trees: Sequence[Tree]) -> None:
    """Writes a wave."""
    write_json_lines(path, (_described(tree) for tree in trees), default=str)


def read_trees(path: Path) -> list[Tree]:
    """Reads a wave.

    Raises:
        ConfigError: the file is damaged; one line.
    """
    try:
        return [_tree(row) for row in read_json_lines(path)]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ConfigError(f"{path} cannot be read as search trees: {error}") from error


def iterations_of(run: Path) -> list[int]:
    """The iterations with search trees, in order."""
    folders = {path.parent.name for path in run.glob(f"{FOLDER}/iteration-*/wave-*.jsonl.gz")}
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
        for path in sorted(wave_file(run, of, 0).parent.glob("wave-*.jsonl.gz")):
            for tree in read_trees(path):
                number += 1
                yield StoredTree(f"{of}.{number}", tree)


def stored_verdicts(run: Path, name: str) -> dict[int, tuple[str, str, str]]:
    """The verdicts about a tree: kind, reason and source by the number of the node. Empty before it was judged.

    They are written with the examples of its wave, in the folder ``revision``.

    Args:
        name: of the tree, as :class:`StoredTree` has it.

    Raises:
        ConfigError: a file is damaged.
    """
    iteration, _, number = name.partition(".")
    left = int(number)
    for path in sorted((run / "revision" / f"iteration-{int(iteration):03d}").glob("wave-*.jsonl.gz")):
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


__all__ = [
    *(
        "FOLDER",
        "StoredTree",
        "iterations_of",
        "read_trees",
        "stored_counts",
        "stored_trees",
        "stored_verdicts",
        "wave_file",
    ),
    "write_trees",
]

"""The data of the iterations of Agent-R (arXiv 2501.11425): search, judge and splice, collect.

Everything lies in the folder ``revision/`` of the run:

==============================  =====================================================================================
``iteration-001/tasks.json``    the tasks that are searched, and how many at a time
``iteration-001/search-….json`` what the search of a batch cost
``iteration-001/batch-….gz``    JSON lines: the examples and leaves of a batch of trees, a tree a line
``iteration-001.json``          counts: trees, pairs, verdicts, splices, what was dropped, tokens
``after-001.json``              the evaluation after the iteration
==============================  =====================================================================================

A batch is the unit of ``--resume``: it is there as a whole, or it is searched again and gives the same trees.

An iteration's figures are logged, with warnings about mechanisms without effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roleagent.agents.builders import EnvSplit, open_analyst
from roleagent.agents.policies.protocol import Policy
from roleagent.config import ConfigError, method_class
from roleagent.files import read_json_lines, write_json_lines
from roleagent.learners.agent_r.data import Example, RevisionData, select
from roleagent.learners.agent_r.judges import open_judge
from roleagent.learners.agent_r.learning import PreferenceData
from roleagent.learners.agent_r.search import Search, Tree
from roleagent.learners.agent_r.search_trees import batch_file, read_trees, write_trees
from roleagent.learners.dealing import RankSampler
from roleagent.learners.engine.engine import Learner
from roleagent.learners.run.run import Run
from roleagent.types import Completion, Group, Reflection, Task, Trajectory, Turn

if TYPE_CHECKING:
    from roleagent.config import Config


BATCH_TREES = 32
"""Trees that a rank searches together."""


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


def sentence_of(iteration: int, summary: Mapping[str, float], imitates: bool) -> str:
    """What an iteration found, for the display.

    >>> found = {"trees": 8, "without_good_share": 0.25, "pairs": 9, "splices": 6, "false_splice_share": 0.5}
    >>> sentence_of(2, {**found, "examples_good": 5, "examples_revision": 3}, imitates=True)
    'iteration 2: 8 trees, 25% without a good leaf; 9 pairs, 6 splices, 50% of them false; imitates 5 good, 3 revised'
    """
    trees = summary["trees"] - summary.get("failed_trees", 0)  # of which the share is
    text = f"iteration {iteration}: {trees:.0f} trees, {summary['without_good_share']:.0%} without a good leaf"
    text += f"; {summary.get('pairs', 0):.0f} pairs"
    if not imitates:  # ETO
        return f"{text}, prefers the good path of {summary['examples_pair']:.0f}"
    text += f", {summary.get('splices', 0):.0f} splices, {summary['false_splice_share']:.0%} of them false"
    return f"{text}; imitates {summary['examples_good']:.0f} good, {summary['examples_revision']:.0f} revised"


def idle_mechanisms(config: Config, counters: Mapping[str, float]) -> list[str]:
    """A warning for each mechanism that is switched on and had no effect."""
    options = config.options.revision
    if not method_class(config.method).imitates:  # ETO
        return [] if counters.get("examples_pair") else ["no tree had a good and a bad path, so nothing was preferred"]
    expected = {"examples_good": "no tree had a good path"} if options.share < 1 else {}
    if options.share:
        expected["pairs"] = "no tree had a good and a bad path, so no revision was ever imitated"
        expected["verdict_bad"] = "the judge never called an action bad, so no revision was ever imitated"
        expected["examples_revision"] = "no revision trajectory was ever imitated" + _refuted(config, counters)
    if options.splice == "searched" and counters.get("searched"):
        expected["splice_searched"] = (
            "options.revision.splice=searched, but no search behind a bad step ever ended well"
        )
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
    remedy = (
        "; direct revision needs options.revision.splice=published" if config.options.revision.judge == "last" else ""
    )
    return f": the world refuted all {splices:.0f} splices{remedy}"


@dataclass(frozen=True)
class TreeBatch:
    """Trees that are searched side by side.

    Attributes:
        iteration: from 1.
        number: of the batch in its iteration, from 0.
        first: number of the batch's first tree in the iteration.
        task_ids: a tree each, of all ranks.
        path: of its file.
    """

    iteration: int
    number: int
    first: int
    task_ids: tuple[str, ...]
    path: Path


def iterations(run: Run) -> Iterator[int]:
    """The numbers of the iterations that are left."""
    total = run.config.options.revision.iterations
    run.begin(total)
    while run.progress.revisions < total and not run.stops(run.progress.revisions, total):
        yield run.progress.revisions + 1


def tree_batches(run: Run, sampler: RankSampler, iteration: int) -> Iterator[TreeBatch]:
    """The batches of an iteration that are not in the run folder. The sampler chooses the tasks."""
    if run.progress.searched >= iteration:  # a resumed run has done it
        return
    options, folder = run.config.options.search, _folder(run, iteration)
    drawn = sampler.sample(options.tasks)
    saved = run.ranks.once(lambda: run.folder.read_json(f"{_name(iteration)}/tasks.json"))
    tasks = drawn if saved is None else list(saved["tasks"])
    # Of a resumed run, whose files are numbered by batch, that of the ranks with which it searched first.
    size = BATCH_TREES * run.ranks.size if saved is None else saved["batch"]
    if saved is None:
        run.ranks.once(lambda: _write_tasks(run, iteration, tasks, size))
    run.display.stage(f"search {iteration}", len(tasks))
    for number, first in enumerate(range(0, len(tasks), size)):
        batch = TreeBatch(
            iteration, number, first, tuple(tasks[first : first + size]), folder / f"batch-{number:03d}.jsonl.gz"
        )
        if not run.ranks.once(batch.path.exists):
            yield batch
        run.display.advance(first + len(batch.task_ids))


def search(run: Run, searcher: Search, batch: TreeBatch) -> list[Tree]:
    """This rank's trees of a batch; those of all ranks are written to the run folder."""
    path = batch_file(run.folder.path, batch.iteration, batch.number)
    if run.ranks.once(path.exists):  # a resumed run has searched it
        return run.ranks.share(read_trees(path))
    policy, own = searcher.rollout.policy, run.ranks.share(range(len(batch.task_ids)))
    policy.reseed(int(run.own_stream("search", batch.iteration, batch.number).integers(2**62)))
    streams = [run.stream("trees", batch.iteration, batch.first + place) for place in own]
    before = asdict(searcher.stats)
    with run.timer("generation"):
        task_ids, progress = [batch.task_ids[place] for place in own], partial(run.inner, "trees")
        trees = searcher.search(task_ids, streams, progress)
    found = run.ranks.collect(trees)
    spent = run.ranks.gather({name: number - before[name] for name, number in asdict(searcher.stats).items()})
    run.ranks.once(lambda: _write_counts(run, batch, spent))
    run.ranks.once(lambda: write_trees(path, found))  # last: where they exist, a resumed run searches no more
    return trees


def make_examples(run: Run, split: EnvSplit, actor: Policy, batch: TreeBatch, trees: Sequence[Tree]) -> None:
    """Judges and splices the trees of this rank, and writes the batch's file."""
    data = _data(run, split, actor, batch.iteration, (batch.iteration, batch.number))
    numbers = run.ranks.share(range(batch.first, batch.first + len(batch.task_ids)))
    streams = [run.stream("revision examples", batch.iteration, number) for number in numbers]
    _write_examples(run, batch.path, data, trees, streams)


def _data(run: Run, split: EnvSplit, actor: Policy, iteration: int, stream: tuple[str | int, ...]) -> RevisionData:
    """What makes examples of trees; ``stream`` names its random numbers."""
    config = run.config
    actor.reseed(int(run.own_stream("revision policies", *stream).integers(2**62)))
    judge = open_judge(config, actor, run.own_stream("judge", *stream))
    kind = RevisionData if run.method.imitates else PreferenceData
    analyst = open_analyst(config, actor) if config.reads_failures else None
    return kind(split, actor, judge, analyst, config.options.revision.of_iteration("alpha", iteration))


def _write_examples(
    run: Run, path: Path, data: RevisionData, trees: Sequence[Tree], streams: Sequence[np.random.Generator]
) -> None:
    with run.timer("analysis"):
        found = run.ranks.collect([one.to_json() for one in data.make(trees, streams)])
    run.ranks.once(lambda: write_json_lines(path, found))


def collect(run: Run, sampler: RankSampler, iteration: int) -> list[Example]:
    """The iteration's examples, the same on every rank; bad leaves go to the failure library.

    An iteration without examples is passed over with a warning, since other tasks or a lower α may give some.

    Raises:
        ConfigError: the first iteration has none. The policy cannot win then, and another search would cost as much.
            Or the environment failed in all trees.
    """
    rows = run.ranks.once(lambda: _rows(run, iteration))
    if failures := failures_of(rows):
        if all(row.get("error") for row in rows):
            raise ConfigError(
                f"{failures}: repair the environment, remove {_folder(run, iteration)} and "
                f"{batch_file(run.folder.path, iteration, 0).parent}, and continue with --resume"
            )
        run.display.warn(f"iteration {iteration}: {failures}")
    found = [Example.from_json(one) for row in rows for one in row["examples"]]
    tokens = run.config.train.tokens if run.method.imitates else 0
    limits = tokens, run.config.options.revision.per_task
    examples, dropped = select(found, *limits, run.stream("revision selection", iteration))
    if run.progress.searched < iteration:
        _observe(run, sampler, rows)
        counts: Counter[str] = Counter()
        for row in rows:
            counts.update(row["counts"])
        for spent in run.ranks.once(lambda: _spent(run, iteration)):
            counts.update({f"search_{name}": number for name, number in spent.items()})
        counts.update({f"dropped_{name}": number for name, number in dropped.items()})
        counts.update(counts_of(examples))
        for name, number in counts.items():
            run.progress.counters[name] = run.progress.counters.get(name, 0.0) + number
        summary = {**counts, **shares_of(counts, examples)}
        run.ranks.once(lambda: run.folder.write_json(f"{_name(iteration)}.json", summary))
        run.display.say(sentence_of(iteration, summary, run.method.imitates))
        run.progress.searched, run.progress.began = iteration, run.progress.step
    if not examples:
        reason = f"iteration {iteration} has nothing to learn from: {_why_empty(run.config, rows)}"
        if iteration == 1:
            raise ConfigError(reason)
        run.display.warn(f"{reason}. The policy stays as it is")
    return examples


def _why_empty(config: Config, rows: Sequence[Mapping[str, Any]]) -> str:
    """Why no path of these trees is learned, and what to change."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row["counts"])
    if cut := counts["dropped_context"]:
        return f"{cut} paths do not fit into policy.context={config.policy.context}: raise it"
    needed = "good path" if counts["good_leaves"] == 0 else "good and a bad path" if not counts["pairs"] else ""
    if needed:
        return (
            f"none of the {len(rows)} trees has a {needed}. Raise options.search.simulations or depth, lower "
            "options.revision.alpha, or imitate more demonstrations first (warmstart.epochs)"
        )
    return f"of {counts['pairs']} pairs no splice holds: lower options.revision.share, or choose another judge"


def finish(run: Run, learner: Learner, result: Mapping[str, Any]) -> None:
    """Logs the iteration with its evaluation, as a step of its own, and saves it."""
    iteration = run.progress.searched
    run.progress.step += 1
    summary = run.ranks.once(lambda: run.folder.read_json(f"{_name(iteration)}.json")) or {}
    run.log({"revision": iteration, **summary, "held_out_success": result["success"]})
    run.progress.revisions = iteration
    run.save(learner)
    learner.close()
    if iteration == run.config.options.revision.iterations:
        for warning in idle_mechanisms(run.config, run.progress.counters):
            run.display.warn(warning)


def _observe(run: Run, sampler: RankSampler, rows: Sequence[Mapping[str, Any]]) -> None:
    """Gives the outcomes and the analyzed failures to the sampler."""
    groups, reflections = [], []
    for row in rows:
        task = Task(**row["task"])
        groups.append(Group(task, tuple(_trajectory(task, leaf, run.progress.version) for leaf in row["leaves"])))
        reflections += [Reflection(**leaf["reflection"]) for leaf in row["leaves"] if "reflection" in leaf]
    sampler.observe_analyzed(groups, reflections)


def _trajectory(task: Task, leaf: Mapping[str, Any], version: int) -> Trajectory:
    """A leaf from a batch's file: its text and its outcome."""
    said, info = Completion((), (), "stop", version), {"won": leaf["won"]}
    steps = leaf.get("turns") or [["", "", leaf["outcome"]]]
    turns = tuple(Turn((), said, action, text, rewards={"task": reward}, info=info) for action, text, reward in steps)
    return Trajectory(task, turns, True, False, leaf.get("stop_reason", "won"), leaf.get("first", ""))


def _write_counts(run: Run, batch: TreeBatch, spent: Sequence[Mapping[str, int]]) -> None:
    total = {name: sum(part[name] for part in spent) for name in spent[0]}
    run.folder.write_json(f"{_name(batch.iteration)}/search-{batch.number:03d}.json", total)


def _write_tasks(run: Run, iteration: int, tasks: Sequence[str], batch: int) -> None:
    _folder(run, iteration).mkdir(parents=True, exist_ok=True)
    run.folder.write_json(f"{_name(iteration)}/tasks.json", {"tasks": list(tasks), "batch": batch})


def _spent(run: Run, iteration: int) -> list[dict[str, Any]]:
    """What the searches of an iteration counted, batch by batch."""
    names = [f"{_name(iteration)}/{path.name}" for path in sorted(_folder(run, iteration).glob("search-*.json"))]
    return [run.folder.read_json(name) or {} for name in names]


def _rows(run: Run, iteration: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in sorted(_folder(run, iteration).glob("batch-*.jsonl.gz")):
        try:
            rows += read_json_lines(path)
        except (OSError, ValueError) as error:
            again = run.progress.searched < iteration  # later no file of the iteration is made again
            advice = "remove it, and continue with --resume" if again else "restore it from a copy, or train anew"
            raise ConfigError(f"{path} is damaged ({error}): {advice}") from error
    return rows


def _folder(run: Run, iteration: int) -> Path:
    return run.folder.path / _name(iteration)


def _name(iteration: int) -> str:
    return f"revision/iteration-{iteration:03d}"

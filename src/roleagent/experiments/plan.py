"""The plan of an experiment: its arms, seeds, evaluations, and where its runs lie."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml
from pydantic.dataclasses import dataclass

from roleagent.commands import nearest
from roleagent.config import Config, load
from roleagent.config.settings import KNOWN_KEYS, Count, Positive, ShareAbove0, Size, Temperature
from roleagent.experiments.runs import KEPT, Run, result_of
from roleagent.learners.run.conflicts import check_learning
from roleagent.learners.run.folder import is_free, read_config
from roleagent.learners.run.forks import checkpoint_after, first_with_reference, fork, forked, reference_of
from roleagent.options import ConfigError, parse_yaml, user_path
from roleagent.random_streams import random_stream
from roleagent.timer import PARTS
from roleagent.validation import Integer, Switch, Text, validated

START = "warm start"
"""The arm from which all others start: imitation of the demonstrations alone."""

FORKED_RUN = "forked run"
"""The run whose checkpoints are forked."""

UNCHANGED = "unchanged"
"""The arm of forks that continues as the run did."""

SUCCESS = "success"
"""The measure that every environment has."""

_INSTEAD = {  # of options that an arm of forks cannot have
    "run_dir": "--out names the folder of forks",
    **dict.fromkeys(
        ("train.iterations", "train.until", "train.tokens", "train.stop_after"),
        "the iterations of forks are their length (--length, fork.length)",
    ),
}

SHIPPED = Path(__file__).parents[1] / "configs" / "experiments"


@dataclass(frozen=True, config=KNOWN_KEYS)
class Arm:
    """One arm of an experiment.

    Attributes:
        options: ``key=value``, as for ``train``: what defines the arm.
        over: the arms with which it is compared.
        seeds: its seeds; empty: those of the plan.
        own_start: whether it has a warm start of its own, because its policy replies in another form. That start is an
            arm, too, called ``warm start of`` and the arm's name.
        minutes: of a run, for the first estimate of the time.
    """

    options: tuple[Text, ...] = ()
    over: tuple[Text, ...] = ()
    seeds: tuple[Integer, ...] = ()
    own_start: Switch = False
    minutes: Positive | None = None


@dataclass(frozen=True, config=KNOWN_KEYS)
class Evaluation:
    """How the final policies are evaluated, on the whole split.

    Attributes:
        temperature: of sampling.
        repeats: episodes per task.
        in_training: whether training ends with this evaluation anyway, so that it is not played again.
    """

    temperature: Temperature
    repeats: Size = 1
    in_training: Switch = False

    def records(self, run: Path) -> Path:
        """The file of its records in a run folder."""
        if self.in_training:
            return run / "after.json"
        often = f"-{self.repeats}-times" if self.repeats > 1 else ""
        return run / f"split-temperature-{self.temperature:g}{often}.jsonl"

    def result(self, run: Path) -> Path:
        """The file of its result, which is written last."""
        records = self.records(run)
        return records if self.in_training else records.with_suffix(".result.json")

    def is_finished(self, run: Path) -> bool:
        """Whether its result is there; an evaluation with errors is continued, and retries their episodes."""
        result = self.result(run)
        return result.exists() and (self.in_training or not json.loads(result.read_text(encoding="utf-8"))["errors"])


@dataclass(frozen=True, config=KNOWN_KEYS)
class Forks:
    """Arms that begin at checkpoints of a run in place of its warm start.

    Attributes:
        run: the folder of that run; empty: the experiment trains one of each seed.
        at: iterations of the checkpoints; 0: the warm start.
        length: iterations of a fork; 0: to the end of the run. Schedules are those of the run.
        repeats: forks of each arm from each checkpoint. All but the first draw other random numbers.
    """

    at: tuple[Count, ...]
    length: Count = 0
    repeats: Size = 1
    run: Text = ""


@dataclass(frozen=True, config=KNOWN_KEYS)
class PaperItem:
    """A table or figure of a paper that the report shows from these runs.

    Attributes:
        title: its number, and what it is.
        shows: ``success`` by type of task; ``seconds`` of an iteration by part; ``correlation`` of an episode's mean
            prediction score and its outcome; or a picture of all arms: ``curves`` of success during training,
            ``predictions``, the predictive reward by iteration, and ``failures`` in the library by mode.
        arms: the rows of a table, in this order; empty: all arms.
        published: the published figures: percentages or correlations by arm; for ``seconds`` by part.
    """

    title: Text
    shows: Literal["success", "seconds", "correlation", "curves", "predictions", "failures"]
    arms: tuple[Text, ...] = ()
    published: Mapping[Text, float] = field(default_factory=dict)


class Branch(NamedTuple):
    """Where the forks of all arms begin alike: with the same weights and the same random numbers.

    Attributes:
        seed: of the run.
        at: the iteration of the checkpoint.
        repeat: 0 draws the random numbers of the run.
    """

    seed: int
    at: int
    repeat: int

    def __str__(self) -> str:
        return f"seed {self.seed}, at {self.at}" + (f", repeat {self.repeat}" if self.repeat else "")


class Job(NamedTuple):
    """One run of an experiment.

    Attributes:
        start_arm: the arm whose run it starts from.
        branch: of a fork.
    """

    seed: int
    arm: str
    start_arm: str
    branch: Branch | None = None

    @property
    def key(self) -> int | Branch:
        """What it shares with one run of each other arm."""
        return self.branch or self.seed

    @property
    def name(self) -> str:
        """The name of the run."""
        return f"{self.arm}, {self.branch or f'seed {self.seed}'}"

    @property
    def start(self) -> str:
        """The name of its warm start."""
        return f"{self.start_arm}, seed {self.seed}"


@dataclass(frozen=True, config=KNOWN_KEYS)
class Plan:
    """An experiment as its file describes it.

    Attributes:
        title: of the report.
        config: the configuration file of all runs, as ``train --config`` reads it.
        arms: by name. All arms of a seed start from one warm start, or from a checkpoint (``fork``).
        fork: where the arms begin; None: at the warm start.
        seeds: of every arm that names none.
        options: ``key=value`` for all runs.
        evaluations: of the final policies.
        measure: what is compared: ``success``, ``success/TYPE`` of one type of tasks or ``success/*-4-*`` of those with
            such ids, or a metric of the environment in [0, 1] where success is rare.
        threshold: of the measure, for sample efficiency, in (0, 1].
        start_minutes: of a warm start.
        note: what a reader must know, in Markdown.
        machine: of one run, if it takes a whole one: the GPUs for which the minutes are. Runs are one at a time then.
        needs: environment variables that name the experiment's data.
        paper: tables and figures of a paper, at the beginning of the report.
        rehearsal: ``key=value``: a small policy and world in which all arms run within minutes.
    """

    title: Text
    config: Text
    arms: Mapping[Text, Arm]
    fork: Forks | None = None
    seeds: tuple[Integer, ...] = ()
    options: tuple[Text, ...] = ()
    evaluations: tuple[Evaluation, ...] = (Evaluation(1.0),)
    measure: Text = SUCCESS
    threshold: ShareAbove0 = 0.5
    start_minutes: Positive | None = None
    note: Text = ""
    machine: Text = ""
    needs: tuple[Text, ...] = ()
    paper: tuple[PaperItem, ...] = ()
    rehearsal: tuple[Text, ...] = ()

    @classmethod
    def read(cls, path: Path, options: Sequence[str] = (), rehearse: bool = False) -> Plan:
        """The plan in a YAML file.

        Args:
            options: more options for all runs, behind those of the file.
            rehearse: whether all runs are those of the rehearsal, which need no data.

        Raises:
            ConfigError: one line that names the mistake.
        """
        given = read_mapping(path, "the experiment")
        of_run = isinstance(given.get("fork"), dict) and given["fork"].get("run")
        for key in ("title", "arms") if of_run else ("title", "config", "arms"):
            if not given.get(key):
                raise ConfigError(f"{path} is no experiment: it has no {key}")
        if not isinstance(given.get("options") or [], list):
            raise ConfigError(f"{path}: options is a list, one `key=value` each")
        try:
            if rehearse:
                return cls.of(given).rehearsed(options)
            return cls.of({**given, "options": [*(given.get("options") or ()), *options]})
        except (ConfigError, TypeError) as error:
            raise ConfigError(f"{path}: {error}") from error

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Plan:
        """The plan of nested mappings.

        Raises:
            ConfigError: one line that names the mistake.
        """
        forks, arms = given.get("fork"), given.get("arms")
        if isinstance(arms, Mapping):
            given = {**given, "arms": {str(name): arm or {} for name, arm in arms.items()}}  # `GRPO:` has no options
        if isinstance(forks, Mapping) and forks.get("run"):
            if given.get("config"):
                raise ConfigError("the run of fork.run has its own configuration: remove config")
            given = {**given, "config": str(user_path(forks["run"]) / "config.yaml")}
        plan = validated(cls, with_unchanged(given) if forks else given)
        plan.check()
        return plan

    def rehearsed(self, options: Sequence[str] = ()) -> Plan:
        """The same arms with a small policy and world, without data and estimates.

        Args:
            options: more options for all runs.

        Raises:
            ConfigError: the plan has no rehearsal, or an arm has an option that does not fit it.
        """
        if not self.rehearsal:
            raise ConfigError("it has no rehearsal: list options there, one `key=value` each")
        arms = {name: replace(arm, minutes=None) for name, arm in self.arms.items()}
        all_options = (*self.options, *self.rehearsal, *options)
        note = (
            "**A rehearsal** with a small policy and world: it shows that every run ends and every cell is filled. "
            f"Its figures say nothing about the experiment.\n\n{self.note}"
        )
        plan = replace(self, options=all_options, arms=arms, machine="", needs=(), start_minutes=None, note=note)
        plan.check()
        return plan

    def check(self) -> None:
        """Refuses what cannot be run.

        Raises:
            ConfigError: one line that names the mistake.
        """
        for name, other in combinations(self.reported, 2):
            if folder_name(name) == folder_name(other):
                raise ConfigError(f"the arms {name!r} and {other!r} have the same folder: give one another name")
        if not self.evaluations:
            raise ConfigError("evaluations is empty: name at least one, e.g. {temperature: 1.0}")
        if len({one.temperature for one in self.evaluations}) < len(self.evaluations):
            raise ConfigError("two evaluations have the same temperature")
        for item in self.paper:
            self._check_paper(item)
        if self.fork:
            self._check_forks(self.fork)
            return
        for name, arm in self.arms.items():
            seeds = self.seeds_of(name)
            if not seeds:
                raise ConfigError(f"the arm {name!r} has no seeds: give seeds to the plan or the arm")
            if len(set(seeds)) < len(seeds):
                raise ConfigError(f"the arm {name!r} has a seed twice")
            self._check_over(name)
            options = [*self.options, *arm.options]
            for option in options:
                if option.partition("=")[0] in ("seed", "run_dir"):
                    raise ConfigError(f"the experiment itself sets {option.partition('=')[0]}: remove {option!r}")
            try:
                config = load(self.config, [*options, f"seed={seeds[0]}"])
            except ConfigError as error:
                raise ConfigError(f"the arm {name!r}: {error}") from error
            self._check_evaluations(config)

    def _check_paper(self, item: PaperItem) -> None:
        for arm in item.arms:
            if arm not in self.reported:
                raise ConfigError(f"{item.title!r} has a row {arm!r}, which is no arm{nearest(arm, self.reported)}")
        known = PARTS if item.shows == "seconds" else item.arms or self.reported
        for name in item.published:
            if name not in known:
                raise ConfigError(f"{item.title!r} has a published figure of {name!r}; there are {', '.join(known)}")

    def _check_over(self, name: str) -> None:
        for other in self.arms[name].over:
            if other == name:
                raise ConfigError(f"the arm {name!r} is compared with itself: name another arm in over")
            if other not in self.reported:
                hint = nearest(other, self.reported)
                raise ConfigError(f"the arm {name!r} is compared with {other!r}, which is no other arm{hint}")

    def _check_evaluations(self, config: Config) -> None:
        ends = config.rollout.eval_temperature
        for one in self.evaluations:
            if one.in_training and (one.temperature, one.repeats) != (ends, 1):
                raise ConfigError(f"in_training an evaluation is of each task once, at temperature {ends:g}")

    def _check_forks(self, forks: Forks) -> None:
        if not forks.at or len(set(forks.at)) < len(forks.at):
            raise ConfigError("fork.at names the iterations of checkpoints, each once, e.g. [20, 40]")
        if forks.run and (self.seeds or self.options):
            raise ConfigError("the run of fork.run has its seed and its options: remove seeds and options")
        config = read_config(user_path(forks.run)) if forks.run else load(self.config, self.options)
        if max(forks.at) >= config.train.last:
            raise ConfigError(f"a run of {config.train.last} iterations has nothing left to fork at {max(forks.at)}")
        if len(forks.at) > 1 and not forks.length:
            raise ConfigError(
                "forks from several checkpoints need a length (--length, fork.length): to the end of the run they are "
                "of different lengths, and compared with one and the same end"
            )
        if (end := max(forks.at) + forks.length) > config.train.last:
            raise ConfigError(
                f"forks of {forks.length} iterations at {max(forks.at)} end after {end}, and the run has "
                f"{config.train.last}: choose a smaller length, or earlier checkpoints"
            )
        for name, arm in self.arms.items():
            self._check_over(name)
            if not self.seeds_of(name):
                raise ConfigError(f"the arm {name!r} has no seeds: give seeds to the plan, or fork.run")
            if arm.own_start or arm.seeds:
                raise ConfigError(f"the arm {name!r} begins at a checkpoint: remove own_start and seeds")
            if name == UNCHANGED and (arm.options or arm.over):
                raise ConfigError(f"the arm {UNCHANGED!r} is the run itself: give an arm with options another name")
            if name != UNCHANGED and not arm.options:
                raise ConfigError(f"the arm {name!r} changes nothing: {UNCHANGED!r} is there already")
            for key in (option.partition("=")[0] for option in arm.options):
                if is_free(key):
                    raise ConfigError(
                        f"the arm {name!r}: {key} does not change how a policy learns; "
                        f"{_INSTEAD.get(key, 'all forks have that of the run')}"
                    )
            try:
                found = forked(config, arm.options)
                if any(forks.at) and forks.run:
                    reference_of(user_path(forks.run), config, found)
                elif (
                    any(forks.at)
                    and not config.train.keep_warmstart
                    and (reading := first_with_reference(config, found))
                ):
                    raise ConfigError(
                        f"{reading} needs the policy after the warm start, which the forked run does not "
                        "keep: add train.keep_warmstart=on to the options of the experiment"
                    )
            except ConfigError as error:
                raise ConfigError(f"the arm {name!r}: {error}") from error
            if name != UNCHANGED and found == forked(config, ()):
                raise ConfigError(f"the arm {name!r} changes nothing: the run has {', '.join(arm.options)} already")
        self._check_evaluations(config)
        for iteration in forks.at if forks.run else ():
            checkpoint_after(user_path(forks.run), iteration)

    def check_arms(self, names: Iterable[str]) -> None:
        """Refuses, before anything is trained, contradictory options and what this machine cannot do.

        Methods and models need torch, unlike a plan.

        Raises:
            ConfigError: one line that names the arm and the mistake.
        """
        from roleagent.agents.policies.hf import PolicyError
        from roleagent.learners.run.launch import check_machine

        run = self.fork.run if self.fork else ""
        common = read_config(user_path(run)) if run else load(self.config, self.options)
        for name in names:
            options = self.arms[name].options
            try:
                config = forked(common, options) if self.fork else load(self.config, [*self.options, *options])
                check_learning(config)
                check_machine(config, resume=bool(run))
            except (ConfigError, PolicyError) as error:
                raise ConfigError(f"the arm {name!r}: {error}") from error

    def missing_data(self) -> str:
        """A line about an environment variable that is to name the data and is not set; empty if there is none."""
        missing = [name for name in self.needs if not os.environ.get(name)]
        return f"{missing[0]} is not set: the experiment needs the data that it names" if missing else ""

    def check_data(self) -> None:
        """Refuses to begin without the data.

        Raises:
            ConfigError: an environment variable is not set.
        """
        if missing := self.missing_data():
            raise ConfigError(missing)

    @property
    def reported(self) -> list[str]:
        """All arms in the report's order, with warm starts before the arms that use them."""
        if self.fork:
            return [*self.arms]
        own = [own_start(name) for name, arm in self.arms.items() if arm.own_start]
        return [START, *own, *self.arms]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The compared arms: the gain of the second over the first."""
        return [(other, name) for name, arm in self.arms.items() for other in arm.over]

    def seeds_of(self, arm: str) -> tuple[int, ...]:
        """The seeds of an arm."""
        if self.fork and self.fork.run:
            return (load(self.config).seed,)
        return self.arms[arm].seeds or self.seeds

    def minutes_of(self, arm: str) -> float | None:
        """The plan's estimate for a run of an arm, or for a warm start."""
        return self.arms[arm].minutes if arm in self.arms else self.start_minutes

    def is_finished(self, run: Path) -> bool:
        """Whether the run in a folder is finished and evaluated."""
        return result_of(run) is not None and all(evaluation.is_finished(run) for evaluation in self.evaluations)

    def jobs(self, seeds: Sequence[int] = (), arms: Sequence[str] = ()) -> list[Job]:
        """The runs in their order, seed by seed.

        Args:
            seeds: only these.
            arms: only these.

        Raises:
            ConfigError: the plan has no such seed or arm.
        """
        known = sorted({seed for arm in self.arms for seed in self.seeds_of(arm)})
        for seed in seeds:
            if seed not in known:
                raise ConfigError(f"the plan has no seed {seed}; it has {', '.join(map(str, known))}")
        for arm in arms:
            if arm not in self.arms:
                raise ConfigError(f"there is no arm {arm!r}{nearest(arm, self.arms)}; arms: {', '.join(self.arms)}")
        wanted = [
            (seed, name, arm)
            for seed in known
            for name, arm in self.arms.items()
            if seed in self.seeds_of(name) and (not seeds or seed in seeds) and (not arms or name in arms)
        ]
        if self.fork:
            branches = [(at, repeat) for at in self.fork.at for repeat in range(self.fork.repeats)]
            return [
                Job(seed, name, FORKED_RUN, Branch(seed, at, repeat))
                for seed in dict.fromkeys(seed for seed, *_ in wanted)
                for at, repeat in branches
                for name in (name for other, name, _ in wanted if other == seed)
            ]
        return [Job(seed, name, own_start(name) if arm.own_start else START) for seed, name, arm in wanted]

    def start(self, job: Job, out: Path) -> Run:
        """The warm start of a run: a training run without iterations; or the run that is forked."""
        return Run(self._start_folder(job, out), self.config, self._start_options(job), quiet=True)

    def run(self, job: Job, out: Path) -> Run:
        """The run itself, which begins with the weights of its warm start.

        Raises:
            ConfigError: the warm start is not finished, or a checkpoint cannot be forked.
        """
        if job.branch:
            folder = self.folders([job], out)[job.arm][job.branch]
            fork(self._start_folder(job, out), job.branch.at, self._fork_options(job, job.branch), folder)
            return Run(folder, folder / "config.yaml", (), quiet=True)
        start = self.start(job, out)
        if start.start() is None:
            raise ConfigError(f"its warm start ({job.start}) is not finished")
        return start.control(folder_name(job.arm), *self._arm_options(job))

    def options_of(self, job: Job) -> list[str]:
        """All options of a run, ``key=value``; the last one of a key counts."""
        return [*self._start_options(job), *self._arm_options(job)]

    def _start_options(self, job: Job) -> list[str]:
        if self.fork:
            every = math.gcd(*self.fork.at)
            kept = max(self.fork.at) // every if every else 1
            until = [f"train.until={max(self.fork.at)}"] if every else ["train.iterations=0"]
            checkpoints = [f"train.checkpoint_every={every or 1}", f"train.keep_checkpoints={kept}"]
            return [*self.options, f"seed={job.seed}", *until, *checkpoints]
        own = self.arms[job.arm].options if self.arms[job.arm].own_start else ()
        return [*self.options, *own, f"seed={job.seed}", "train.iterations=0"]

    def _fork_options(self, job: Job, branch: Branch) -> list[str]:
        assert self.fork is not None
        own = self.arms[job.arm].options
        [*_, seed] = [branch.seed, *(yaml.safe_load(one[5:]) for one in own if one.startswith("seed="))]
        other = random_stream(seed, "repeat", branch.repeat).integers(2**32)
        config = load(self.config, self.options)
        # A fork that regresses is a result, and none that may be missing.
        ends = ["train.stop_on_alarm=off", *(["train.stop_on_regression=0"] if config.train.stop_on_regression else [])]
        until = [f"train.until={branch.at + self.fork.length if self.fork.length else 0}"]
        if self.fork.run:  # it has its own end
            ends += until if self.fork.length else []
        else:  # a run from the warm start alone has no iterations
            ends += [*until, f"train.iterations={config.train.iterations}"]
        return [*ends, *own, *([f"seed={other}"] if branch.repeat else []), *KEPT]

    def _arm_options(self, job: Job) -> list[str]:
        iterations = load(self.config, self.options).train.iterations
        return [f"train.iterations={iterations}", *self.arms[job.arm].options]

    def folders(self, jobs: Sequence[Job], out: Path) -> dict[str, dict[int | Branch, Path]]:
        """The folders of runs and their starts, by arm and by seed or branch; starts first."""
        found: dict[str, dict[int | Branch, Path]] = {}
        for job in jobs if not (self.fork and self.fork.run) else ():
            found.setdefault(job.start_arm, {})[job.seed] = self._start_folder(job, out)
        for job in jobs:
            start = out / f"seed{job.seed}" / "fork" if self.fork else self._start_folder(job, out)
            often = f"-repeat{job.branch.repeat}" if job.branch and job.branch.repeat else ""
            length = f"+{self.fork.length}" if self.fork and self.fork.length else ""
            place = f"{job.branch.at}{length}{often}-" if job.branch else "-"
            found.setdefault(job.arm, {})[job.key] = start.with_name(f"{start.name}{place}{folder_name(job.arm)}")
        return found

    def _start_folder(self, job: Job, out: Path) -> Path:
        if self.fork:
            return user_path(self.fork.run) if self.fork.run else out / f"seed{job.seed}" / "run"
        own = f"-{folder_name(job.arm)}" if self.arms[job.arm].own_start else ""
        return out / f"seed{job.seed}" / f"start{own}"


def with_unchanged(given: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of a plan of forks with the arm :data:`UNCHANGED`, with which the others are compared.

    >>> with_unchanged({"arms": {"without AIW": {"options": ["aiw=off"]}}})["arms"]
    {'unchanged': {}, 'without AIW': {'over': ['unchanged'], 'options': ['aiw=off']}}
    """
    arms = given["arms"]
    if not isinstance(arms, Mapping) or not all(isinstance(arm, Mapping) for arm in arms.values()):
        return dict(given)
    compared = {name: {"over": [UNCHANGED], **arm} for name, arm in arms.items() if name != UNCHANGED}
    return {**given, "arms": {UNCHANGED: arms.get(UNCHANGED, {}), **compared}}


def shipped() -> list[str]:
    """Names of the experiments that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def find_plan(name: str) -> Path:
    """The file of an experiment.

    Args:
        name: a path, or the name of a shipped experiment.

    Raises:
        ConfigError: there is none.

    >>> find_plan("genenv_toy").name
    'genenv_toy.yaml'
    """
    path = user_path(name)
    if path.is_file():
        return path
    if name in shipped():
        return SHIPPED / f"{name}.yaml"
    hint = nearest(name, shipped()) or f"; shipped: {', '.join(shipped())}"
    raise ConfigError(f"there is no experiment {name!r}: give a file or the name of a shipped one{hint}")


def read_mapping(path: Path, what: str) -> dict[str, Any]:
    """The keys and values of a YAML file.

    Raises:
        ConfigError: ``what`` cannot be read, or is something else.
    """
    try:
        given = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {what} {path}: {' '.join(str(error).split())}") from error
    if not isinstance(given, dict):
        raise ConfigError(f"{path} must hold {what} as keys and values, not a {type(given).__name__}")
    return given


def own_start(arm: str) -> str:
    """The name of an arm's own warm start.

    >>> own_start("H 20 %")
    'warm start of H 20 %'
    """
    return f"{START} of {arm}"


def folder_name(arm: str) -> str:
    """An arm's name in paths.

    >>> folder_name("Role-Agent without AIW")
    'role-agent_without_aiw'
    """
    return "".join(sign if sign.isalnum() or sign == "-" else "_" for sign in arm.lower())


__all__ = [
    "FORKED_RUN",
    "START",
    "SUCCESS",
    "UNCHANGED",
    "Arm",
    "Branch",
    "Evaluation",
    "Forks",
    "Job",
    "PaperItem",
    "Plan",
    "find_plan",
    "folder_name",
    "own_start",
    "read_mapping",
    "shipped",
]

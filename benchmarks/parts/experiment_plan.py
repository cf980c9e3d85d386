"""An experiment's arms, seeds, order of runs and folders."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import yaml
from parts.training_runs import ROOT, Run

from roleagent.config import ConfigError, load

START = "warm start"
"""The arm that every other one goes on from: what the demonstrations alone give."""

SUCCESS = "success"
"""The measure that every environment has."""


@dataclass(frozen=True)
class Stage:
    """Arms with common seeds, seed by seed; stages run one after the other."""

    arms: tuple[str, ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Evaluation:
    """How the final policies are evaluated, on the whole split.

    Attributes:
        temperature: at which they play.
        repeats: how often they play each task.
        in_training: that this is what training ends with anyway, and is not played again.
    """

    temperature: float
    repeats: int = 1
    in_training: bool = False


@dataclass(frozen=True)
class Job:
    """One run of an experiment.

    Attributes:
        seed: of the run, and of the warm start that it goes on from.
        arm: its arm.
        apart: whether that warm start has the arm's own options.
    """

    seed: int
    arm: str
    apart: bool = False

    @property
    def name(self) -> str:
        """What the run is called."""
        return f"{self.arm}, seed {self.seed}"

    @property
    def start_arm(self) -> str:
        """The arm that its warm start is a run of."""
        return own_start(self.arm) if self.apart else START

    @property
    def start(self) -> str:
        """What the warm start is called that it goes on from."""
        return f"{self.start_arm}, seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """An experiment as its file describes it.

    Attributes:
        title: of the report.
        config: the configuration file of all runs.
        options: of ``train.py``, for all runs.
        arms: by name, the options that define them. All arms of a seed start from the same warm start.
        apart: arms that need a warm start of their own, since their policy answers in another form. What such a start
            comes to is an arm too, ``warm start of`` and its name.
        stages: what is run, in this order.
        pairs: which arms are compared with which.
        evaluations: how the policies are measured in the end.
        measure: what its arms are about: ``success``, or a metric of the environment, in [0, 1], where success is rare.
        threshold: of the measure, for sample efficiency.
        core_minutes: what a run took where that was measured: of each arm, and of the warm starts.
        note: what a reader must know, in Markdown.
        needs: environment variables without which it cannot be run.
    """

    title: str
    config: str
    arms: Mapping[str, Sequence[str]]
    stages: Sequence[Stage]
    options: Sequence[str] = ()
    apart: Sequence[str] = ()
    pairs: Sequence[tuple[str, str]] = ()
    evaluations: Sequence[Evaluation] = (Evaluation(1.0),)
    measure: str = SUCCESS
    threshold: float = 0.5
    core_minutes: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    needs: Sequence[str] = ()
    source: Path | None = None  # the file

    @classmethod
    def read(cls, path: Path) -> Plan:
        """The plan in a YAML file.

        Raises:
            ConfigError: one line that names the mistake.
        """
        try:
            given = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"cannot read the experiment {path}: {' '.join(str(error).split())}") from error
        known = {f.name for f in fields(cls)} - {"source"}
        if not isinstance(given, dict) or set(given) - known:
            raise ConfigError(f"{path} is no experiment: its keys must be among {', '.join(sorted(known))}")
        try:
            given["stages"] = [Stage(tuple(stage["arms"]), tuple(stage["seeds"])) for stage in given["stages"]]
            given["pairs"] = [(one, other) for one, other in given.get("pairs", ())]
            given["evaluations"] = [Evaluation(**row) for row in given.get("evaluations", ({"temperature": 1.0},))]
            plan = cls(**given, source=path)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path} is no experiment: {error}") from error
        ends = Evaluation(load(ROOT / plan.config, plan.options).rollout.eval_temperature, in_training=True)
        if any(one.in_training and one != ends for one in plan.evaluations):
            raise ConfigError(
                f"{path}: in_training an evaluation is of each task once, at temperature {ends.temperature:g}"
            )
        named = {arm for stage in plan.stages for arm in stage.arms} | {a for pair in plan.pairs for a in pair}
        if unknown := named - set(plan.reported):
            raise ConfigError(f"{path} names arms that it does not describe: {', '.join(sorted(unknown))}")
        return plan

    @property
    def reported(self) -> list[str]:
        """All arms in the report's order, with warm starts before the arms that use them."""
        return [START, *map(own_start, self.apart), *self.arms]

    def check(self) -> None:
        """Refuses to begin what could not be finished.

        Raises:
            ConfigError: data is missing.
        """
        for name in self.needs:
            if not os.environ.get(name):
                raise ConfigError(
                    f"{name} is not set: this experiment needs the data that it names (docs/environments.md)"
                )

    def jobs(self, seeds: Sequence[int] = (), arms: Sequence[str] = ()) -> list[Job]:
        """The runs in their order; of some seeds or arms only, if they are given."""
        return [
            Job(seed, arm, arm in self.apart)
            for stage in self.stages
            for seed in stage.seeds
            for arm in stage.arms
            if (not seeds or seed in seeds) and (not arms or arm in arms)
        ]

    def start(self, job: Job, out: Path) -> Run:
        """The warm start that a run goes on from, a training run without iterations."""
        own = self.arms[job.arm] if job.apart else ()
        options = [*self.options, *own, f"seed={job.seed}", "train.iterations=0"]
        return Run(self._start_folder(job, out), ROOT / self.config, options, quiet=True)

    def folder(self, job: Job, out: Path) -> Path:
        """Where a run lies."""
        start = self._start_folder(job, out)
        return start.with_name(f"{start.name}-{folder_name(job.arm)}")

    def folders(self, jobs: Sequence[Job], out: Path) -> dict[str, dict[int, Path]]:
        """Where some runs and the warm starts that they go on from lie, by arm and seed; the warm starts first."""
        found: dict[str, dict[int, Path]] = {}
        for job in jobs:
            found.setdefault(job.start_arm, {})[job.seed] = self._start_folder(job, out)
        for job in jobs:
            found.setdefault(job.arm, {})[job.seed] = self.folder(job, out)
        return found

    def _start_folder(self, job: Job, out: Path) -> Path:
        return out / f"seed{job.seed}" / ("start" + (f"-{folder_name(job.arm)}" if job.apart else ""))

    def run(self, job: Job, out: Path) -> Run:
        """The run itself, which begins with the weights of its warm start.

        Raises:
            ConfigError: that is not finished.
        """
        if self.start(job, out).start() is None:
            raise ConfigError(f"its warm start ({job.start}) is not finished")
        iterations = load(ROOT / self.config, self.options).train.iterations
        options = [f"train.iterations={iterations}", *self.arms[job.arm]]
        return self.start(job, out).control(folder_name(job.arm), *options)


def own_start(arm: str) -> str:
    """What the warm start of an arm is called that shares none.

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

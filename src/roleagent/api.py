"""``roleagent.train`` and ``roleagent.evaluate``: what ``train.py`` and ``evaluate.py`` do, as functions."""

from __future__ import annotations

import inspect
import json
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roleagent.callbacks import Callback
from roleagent.commands import from_zero, natural, whole
from roleagent.imports import searched_first
from roleagent.options import ConfigError, shown
from roleagent.program import EVAL, TRAIN, check_packages, tune_cpu

if TYPE_CHECKING:  # loaded by the functions: `import roleagent` stays light
    from roleagent.agents.evaluation.records import Record


@dataclass(frozen=True)
class Summary:
    """Success on a task split.

    Attributes:
        success: share of episodes won, in [0, 1].
        interval: its 95 % interval over tasks.
        episodes: number of episodes with an outcome.
        errors: number of episodes without one.
        by_type: success by task type.
        metrics: means of the environment's own measures, by name.
    """

    success: float
    interval: tuple[float, float]
    episodes: int
    errors: int
    by_type: Mapping[str, float] = field(repr=False)
    metrics: Mapping[str, float] = field(repr=False)

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Summary:
        """From the dictionary of an evaluation (:func:`roleagent.agents.evaluation.statistics.summarize`)."""
        return cls(
            success=found["success"],
            interval=tuple(found["interval"]),
            episodes=found["n"],
            errors=found["errors"],
            by_type={name: part["success"] for name, part in found["by_type"].items()},
            metrics={name: one["mean"] for name, one in found["metrics"].items()},
        )


@dataclass(frozen=True)
class TrainingResult:
    """A finished training run.

    Attributes:
        folder: of the run; :func:`evaluate` takes it as an agent.
        before: success on held-out tasks before training, behind the warm start.
        after: success after training.
        before_sampled, after_sampled: at the temperature ``rollout.eval_sampled``; None without it.
    """

    folder: Path
    before: Summary
    after: Summary
    before_sampled: Summary | None = None
    after_sampled: Summary | None = None


@dataclass(frozen=True)
class EvaluationResult:
    """A finished evaluation.

    Attributes:
        summary: of all episodes.
        records: one per episode.
        file: the records on disk; the same call continues in it.
    """

    summary: Summary
    records: tuple[Record, ...] = field(repr=False)
    file: Path = field(repr=False)


def train(
    config: str | Path | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    resume: bool | str | Path = False,
    **options: Any,
) -> TrainingResult:
    """Trains an agent, as ``train.py`` does.

    Args:
        config: a YAML file; None: ``configs/default.yaml``.
        callbacks: called by the training loop.
        resume: True continues the run that these options began; a folder continues the run in it with its own options.
        options: any options of the configuration, on top of the file; those of a section as a dictionary, e.g.
            ``train={"iterations": 5}``.

    Returns:
        the result, when the run is finished; a run that was finished before is not trained again.

    Raises:
        ConfigError: one line that explains what to change. Other errors are those of the training.
        MissingPackage: the extra ``train`` is not installed.
    """
    check_packages("roleagent.train", "train", TRAIN)
    tune_cpu()
    from roleagent.learners.run.options import open_config
    from roleagent.programs.train import run_training

    if not isinstance(config, str | Path | None):
        raise ConfigError(
            f"config is a YAML file, not {shown(config)}: options are keywords, roleagent.train(**options)"
        )
    if not isinstance(callbacks, Sequence):
        raise ConfigError(f"callbacks is a list of callbacks, not {shown(callbacks)}")
    for one in callbacks:
        if not isinstance(one, Callback):
            raise ConfigError(f"{type(one).__name__} is no callback: derive it from roleagent.Callback")
    overrides = list(as_overrides(options))
    with searched_first():
        chosen = open_config(Namespace(config=config, resume=_resumed(resume), overrides=overrides))
        run_training(chosen, bool(resume), overrides, callbacks)
    names = ("before", "after", "before-sampled", "after-sampled")
    found = {name.replace("-", "_"): _summary(chosen.folder / f"{name}.json") for name in names}
    return TrainingResult(folder=chosen.folder, **found)  # type: ignore[arg-type] - the first two are always there


def evaluate(
    agent: str | Path | Callable[..., Any] | None = None,
    *,
    env_id: str | None = None,
    split: str | None = None,
    tasks: int | None = None,
    repeats: int = 1,
    temperature: float | None = None,
    seed: int = 0,
    model: str | Path = "",
    base_url: str = "",
    config: str | Path | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> EvaluationResult:
    """Evaluates an agent on a task split, as ``evaluate.py`` does.

    Args:
        agent: a run folder, a Hugging Face folder or hub name, a named agent such as ``expert`` or ``react``,
            ``module:NAME``, or a class or function at the top of a module: a function of ``(observation, info)`` that
            returns a command, or a class with ``reset`` and ``act``.
        env_id: a Gymnasium id; None: the run's or the ``config``'s, else ``RoleAgent/ALFWorld-v0``.
        split: None: the run's or the ``config``'s evaluation split, else ``valid_seen`` of ALFWorld and the held-out
            split of others.
        tasks: only so many tasks of the split of each environment, of all its types.
        repeats: episodes per task.
        temperature: of sampling; None: the run's or the ``config``'s, else 0.
        seed: of repeat 0; repeat r uses seed + r.
        model: of a prompting agent: a run folder, a Hugging Face folder or a hub name; with ``base_url`` the model's
            name on the server.
        base_url: of an OpenAI-compatible server.
        config: a YAML file with environment, prompts and limits.
        out: the record file; None: a name under ``evaluations/``.
        options: other options of the configuration, as of :func:`train`, e.g. ``env={"kwargs": {"size": "tiny"}}``.

    Returns:
        the result; an evaluation that was interrupted continues, and a finished one is not played again.

    Raises:
        ConfigError, ValueError: one line that explains what to change.
        MissingPackage: the extra ``eval`` is not installed, or for a local model ``train``.
    """
    check_packages("roleagent.evaluate", "eval", EVAL)
    tune_cpu()
    from roleagent.agents.evaluation.options import evaluation_parser
    from roleagent.agents.evaluation.records import read_records
    from roleagent.programs.evaluate import evaluate as play

    for name, value, kind in (("tasks", tasks, natural), ("repeats", repeats, natural), ("seed", seed, whole)):
        _check(name, value, kind)
    _check("temperature", temperature, from_zero)
    given = evaluation_parser("", "roleagent.evaluate").parse_args([])
    is_run = bool(model) and (Path(model) / "config.yaml").exists()
    vars(given).update(
        {"agent": None if agent is None else _agent_name(agent), "env": env_id, "split": split, "tasks": tasks},
        repeats=repeats,
        temperature=temperature,
        seed=seed,
        run=Path(model) if is_run else None,
        model_path="" if is_run or base_url else str(model),
        model=str(model) if base_url else "",
        base_url=base_url,
        config=None if config is None else Path(config),
        set=list(as_overrides(options)),
        out=None if out is None else Path(out),
    )
    with searched_first():
        found = play(given)
    file = Path(found["records"])
    _, records, _ = read_records(file)
    last = {record.attempt: record for record in records if record.repeat < repeats}
    return EvaluationResult(Summary.of(found), tuple(last.values()), file)


def as_overrides(options: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Options as the words of a command line.

    >>> list(as_overrides({"method": "gigpo", "train": {"iterations": 5}, "env": {"kwargs": {}}}))
    ['method="gigpo"', 'train.iterations=5', 'env.kwargs={}']
    >>> import numpy
    >>> list(as_overrides({"seed": numpy.int64(3), "optim": {"lr": numpy.float32(0.5)}, "run_dir": Path("runs/a")}))
    ['seed=3', 'optim.lr=0.5', 'run_dir="runs/a"']
    """
    for name, value in options.items():
        if isinstance(value, Mapping) and value:
            yield from as_overrides(value, f"{prefix}{name}.")
        else:
            try:
                text = json.dumps(value, default=_plain)
            except (AttributeError, TypeError):
                raise ConfigError(
                    f"{prefix}{name} must be a number, a text, a list or a mapping, not {value!r}; a function or class "
                    "is given by its name, such as my_file:NAME"
                ) from None
            yield f"{prefix}{name}={text}"


def _plain(value: Any) -> Any:
    """What JSON has for a path, or what NumPy or PyTorch made."""
    return str(value) if isinstance(value, Path) else value.tolist()


def _check(name: str, value: Any, kind: Callable[[str], Any]) -> None:
    """Refuses a number that the command line would refuse."""
    try:
        if value is not None:
            kind(str(value))
    except ArgumentTypeError as error:
        raise ConfigError(f"{name}: {error}") from None


def _resumed(resume: bool | str | Path) -> bool | str:
    return resume if isinstance(resume, bool) else str(resume)


def _summary(file: Path) -> Summary | None:
    return Summary.of(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


def _agent_name(agent: str | Path | Callable[..., Any]) -> str:
    """The agent as the command line names it."""
    if isinstance(agent, str | Path):
        return str(agent)
    if not (inspect.isfunction(agent) or inspect.isclass(agent)) or not agent.__qualname__.isidentifier():
        raise ConfigError(f"the agent {agent!r} must be a class or a function at the top of a module, or a name")
    return f"{agent.__module__}:{agent.__qualname__}"


__all__ = ["EvaluationResult", "Summary", "TrainingResult", "evaluate", "train"]

"""The start and the end of a training program: checks, the open run, and errors as exit statuses."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from roleagent.agents.builders import (
    EnvSplit,
    analyst_class,
    check_agent,
    check_rollout_backend,
    endpoint_analyst,
)
from roleagent.agents.chat.types import EndpointError
from roleagent.agents.gateway.rollout import check_start
from roleagent.agents.policies.hf import PolicyError, check_path
from roleagent.agents.policies.scratch_model import check_size
from roleagent.callbacks import Callback
from roleagent.config import Config, ConfigError, check_lengths
from roleagent.config.settings import EnvMemberConfig
from roleagent.curricula.library import FailureLibrary, LibraryError
from roleagent.curricula.suite import Suite
from roleagent.env_card import card_of
from roleagent.envs.retrieval.passages import RetrievalError
from roleagent.imports import place_of
from roleagent.learners.distillation import check_teacher, check_tokenizer
from roleagent.learners.engine.engine import check_deepspeed
from roleagent.learners.engine.lora import check_rank
from roleagent.learners.lessons import check_lessons
from roleagent.learners.method import method_of
from roleagent.learners.run.checkpoints import CheckpointError
from roleagent.learners.run.conflicts import check_learning
from roleagent.learners.run.display import Display
from roleagent.learners.run.evaluation import Regression
from roleagent.learners.run.nan_dump import Collapse, dump_nan_batch
from roleagent.learners.run.ranks import Ranks
from roleagent.learners.run.run import Run
from roleagent.learners.run.trackers import check_trackers
from roleagent.learners.sft.demonstrations import sized
from roleagent.slow_notice import waiting
from roleagent.tasks.split import few_tasks, split_text


@contextlib.contextmanager
def open_run(
    config: Config, split: EnvSplit, display: Display, resume: bool, callbacks: Sequence[Callback] = ()
) -> Iterator[Run]:
    """The run of this process, with its ranks, folder and trackers.

    Args:
        config: of the run.
        split: the training tasks, with a warm start of their size. They are opened first, so that a refused run leaves
            no folder behind.
        display: shows the progress.
        resume: whether to continue from the run folder.
        callbacks: a user's.

    Raises:
        ConfigError and others: see :func:`check_run` and :class:`~roleagent.learners.run.run.Run`.
        Collapse: an update was not finite.
    """
    with Ranks.join() as ranks:
        ranks.once(lambda: (check_ranks(config, ranks.size), check_run(split, resume)))
        with Run(config, ranks, display, resume, callbacks) as run, run.stopping, run.tracking, dump_nan_batch(run):
            run.config = split.config  # the folder keeps what was asked for
            yield run


def keep_tasks(run: Run, split: EnvSplit, held_out: EnvSplit) -> None:
    """Writes which tasks and data a run has; one that is resumed, or a fork, must have the same.

    Raises:
        ConfigError: they have changed.
    """

    def keep() -> None:
        file, known = "splits.json", run.folder.read_json("splits.json")
        found = json.loads(json.dumps({"training": split.manifest(), "evaluation": held_out.manifest()}))
        if known is None:
            run.folder.write_json(file, found)
        for name, tasks in (known or {}).items():
            if tasks != found[name]:
                raise ConfigError(
                    f"the tasks, data or tools of the {name} have changed since {run.folder.path} began: "
                    f"{split_text(tasks)} became {split_text(found[name])}; continue with what it began with"
                )

    run.ranks.once(keep)


def size_warm_start(split: EnvSplit, say: Callable[[str], None]) -> EnvSplit:
    """The training tasks with a warm start of their size (:func:`roleagent.learners.sft.demonstrations.sized`).

    Each of several environments has its share of the episodes.

    Args:
        say: receives a line if the warm start becomes smaller.
    """
    if split.parts:
        parts = {name: size_warm_start(_shared(part), say) for name, part in split.parts.items()}
        own = [part.config.warmstart for part in parts.values()]
        episodes, rounds = sum(one.episodes for one in own), sum(one.round_episodes for one in own)
        warmstart = replace(split.config.warmstart, episodes=episodes, round_episodes=rounds)
        return replace(split, config=replace(split.config, warmstart=warmstart), parts=parts)
    given, tasks = split.config.warmstart, len(split.task_split)
    warmstart = sized(given, tasks)
    if warmstart != given:
        rounds = f" and {given.rounds} rounds of {warmstart.round_episodes} episodes" if given.rounds else ""
        of = f" of {split.config.env.name}" if isinstance(split.config.env, EnvMemberConfig) else ""
        say(f"the warm start fits {tasks} tasks{of}: {warmstart.episodes} demonstrations{rounds}")
    return replace(split, config=replace(split.config, warmstart=warmstart))


def _shared(part: EnvSplit) -> EnvSplit:
    """The split of one of several environments, with its share of the warm start."""
    given, share = part.config.warmstart, part.config.env.share
    least = min(1, given.episodes)
    warmstart = replace(
        given,
        episodes=max(least, round(share * given.episodes)),
        round_episodes=max(1, round(share * given.round_episodes)),
    )
    return replace(part, config=replace(part.config, warmstart=warmstart))


def exit_status(error: BaseException, name: str, run: Path | None = None) -> int:
    """Prints an expected error as one line on stderr and returns the program's exit status; raises any other.

    Args:
        error: that ended the program.
        name: of the program.
        run: the folder of its run, if it got so far; whatever it holds can be continued.
    """
    again = f"continue with --resume {run}" if run is not None and os.path.exists(run / "config.yaml") else ""
    if isinstance(error, KeyboardInterrupt):
        print(f"{name}: stopped{'; ' * bool(again)}{again}", file=sys.stderr)
        return 130
    if isinstance(error, (ConfigError, PolicyError, CheckpointError, EndpointError, LibraryError, ValueError)):
        place = place_of(error).replace("(", f"({type(error).__name__} in ", 1)
        print(f"{name}: {error}{place}", file=sys.stderr)
        return 2
    if isinstance(error, Collapse):
        print(f"{name}: {error}", file=sys.stderr)
        return 3
    if isinstance(error, Regression):
        print(f"{name}: {error}", file=sys.stderr)
        return 4
    if isinstance(error, (OSError, RetrievalError)):  # a full disk, a server that ended; the last checkpoint is safe
        print(f"{name}: {error}{'; when that is fixed, ' * bool(again)}{again}", file=sys.stderr)
        return 1
    raise error


def check_ranks(config: Config, ranks: int) -> None:
    """Refuses more ranks than episodes.

    Raises:
        ConfigError: some ranks would have nothing to play.
    """
    episodes = config.rollout.num_groups * config.rollout.group_size
    if method_of(config).reinforces and ranks > episodes:
        raise ConfigError(
            f"{ranks} ranks for the {episodes} episodes of an iteration: raise rollout.num_groups or "
            "rollout.group_size, or start fewer processes"
        )


def check_run(split: EnvSplit, resume: bool) -> None:
    """Refuses configurations that would only fail later.

    Args:
        split: the training tasks.
        resume: whether the run exists already, with a model of its own.

    Raises:
        ConfigError, CheckpointError, PolicyError, EndpointError, LibraryError, ValueError: one line that explains what
            to change.
    """
    config = split.config
    imitates = config.warmstart.episodes > 0
    for part in split.environments.values() if imitates else ():
        if not card_of(part.base).expert:
            raise ConfigError(
                f"{part.config.environment} has no expert to imitate: set policy.path and warmstart.episodes=0"
            )
    if not imitates and not config.policy.path:
        raise ConfigError("a policy from scratch needs a warm start: set warmstart.episodes or policy.path")
    check_lengths(config, split.horizon)
    check_learning(config)
    check_teacher(split)
    check_lessons(split)
    method = method_of(config)
    method.check_tasks(split)
    check_suite(split)
    check_machine(config, resume)
    if not resume:
        check_tokenizer(config)
    if config.aiw and config.curriculum.analyst == "frozen" and not resume:
        raise ConfigError(
            "curriculum.analyst=frozen keeps the choices of a checkpoint: it is an arm of `roleagent fork`"
        )
    for part in split.environments.values() if config.aiw and config.curriculum.analyst == "types" else ():
        if part.task_type is None:
            raise ConfigError(
                f"curriculum.analyst=types draws over the types of tasks, and {part.config.environment} has no "
                "task_type(task_id): choose another analyst"
            )
    if config.aiw and ":" in config.curriculum.analyst:
        analyst_class(config.curriculum.analyst)
    if config.aiw and config.curriculum.analyst == "endpoint":
        with waiting("the server of endpoint.url to answer"):
            endpoint_analyst(config).check()
    if config.aiw and config.curriculum.library:
        with waiting("the database of curriculum.library to answer"):
            FailureLibrary(config.curriculum.library).close()
    if config.agent.command:
        check_start(config.agent)


def check_machine(config: Config, resume: bool) -> None:
    """Refuses what this machine cannot do: packages, an agent program or a model that are not here.

    Args:
        resume: whether the run exists already, with a model of its own.

    Raises:
        ConfigError, PolicyError: one line that explains what to change.
    """
    check_deepspeed(config)
    check_trackers(config)
    check_rollout_backend(config)
    check_agent(config)
    if config.policy.path and not resume:
        check_path(config.policy.path)
        check_rank(config.lora.rank, config.policy.path)
    if not config.policy.path:
        check_size(config.policy)


def check_held_out(split: EnvSplit, held_out: EnvSplit, warn: Callable[[str], None]) -> None:
    """Warns of few tasks of the evaluation, and of those that are trained on, or refuses them (``disjoint_splits``).

    Raises:
        ConfigError: one line that explains what to change.
    """
    for name, part in split.environments.items():
        env, evaluated = part.config.env, set(held_out.environments[name].task_split.task_ids)
        of = f"{name}: " if name else ""
        if both := len(evaluated.intersection(part.task_split.task_ids)):
            found = f"{both} tasks of env.eval_split={env.eval_split} are also in env.train_split={env.train_split}"
            found = of + found
            if method_of(split.config).disjoint_splits:
                method = split.config.method
                raise ConfigError(f"{found}, and method={method} allows none: choose splits without common tasks")
            warn(f"{found}: success there is not that on held-out tasks")
        if not env.eval_tasks and (few := few_tasks(env.eval_split, len(evaluated))):
            warn(f"{of}{few}")


def check_suite(split: EnvSplit) -> None:
    """Refuses a frozen suite that cannot be played.

    Raises:
        ConfigError: one line that explains what to change.
    """
    options = split.config.train
    if not options.suite:
        return
    if not method_of(split.config).reinforces:
        raise ConfigError(
            f"train.suite is played by the evaluations between iterations, and method={split.config.method} has none: "
            "leave it out"
        )
    if not options.evaluate_every:
        raise ConfigError("train.suite is played by the evaluations between: set train.evaluate_every")
    for task in Suite.read(Path(options.suite)).tasks:
        if task.task_id not in split.task_split:
            raise ConfigError(
                f"train.suite={options.suite} is of other data: the training split has no task {task.task_id!r}"
            )

"""One training run: configuration, folder, progress, random streams and display."""

from __future__ import annotations

import errno
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from roleagent.agents.policies.hf import HFPolicy, PolicyError, own_device
from roleagent.agents.policies.protocol import NO_TEMPLATE
from roleagent.callbacks import Callback
from roleagent.config import Config, ConfigError
from roleagent.files import Lock, damage, make_folder, make_whole, write_checksums
from roleagent.learners.engine.engine import Learner
from roleagent.learners.engine.logprobs import find_scoring
from roleagent.learners.engine.lora import adapt
from roleagent.learners.engine.prefix_sharing import layers_to_compile
from roleagent.learners.engine.routers import Routers
from roleagent.learners.method import method_of
from roleagent.learners.run.checkpoints import Checkpoints, Progress, save_policy
from roleagent.learners.run.display import Display
from roleagent.learners.run.folder import AFTER_WARM_START, RunFolder
from roleagent.learners.run.ranks import Ranks
from roleagent.learners.run.stopping import Stopping
from roleagent.learners.run.trackers import Tracking
from roleagent.random_streams import random_stream
from roleagent.timer import Timer

_UNUSABLE = (  # another name helps
    *(errno.EEXIST, errno.ENOTDIR, errno.ENOENT, errno.ENAMETOOLONG),
    *(errno.EACCES, errno.EPERM, errno.EROFS),
)
_PRETRAINED = 5e7  # parameters; policies from scratch have fewer
LOST_START = (
    "the run needs the weights that it began with; restore a copy, or start a new run in another folder (run_dir=…)"
)


class Run:
    """The state that all stages of a run share.

    Args:
        config: the configuration.
        ranks: the processes of the run; all of them see the run folder, the first one writes into it.
        display: shows the progress.
        resume: whether to continue from the run folder.
        callbacks: a user's, called by the first rank.

    Attributes:
        held_out: the evaluation of the present policy, until an iteration has logged it; None without one.
        latest: the newest checkpoint; None before the first.
        method: of the configuration.
        resumed: whether it continues from the run folder.
        stopped: ``reason``, and how many steps of its last stage are ``done`` ``of`` all; None unless it ended early.
        stopping: knows when to end early; to be entered.
        timer: of the parts of the present iteration.
        tracking: other loggers of the metrics; to be closed at the end.

    Raises:
        ConfigError: see :class:`RunFolder`.
        CheckpointError: the newest checkpoint cannot be read.
    """

    def __init__(
        self, config: Config, ranks: Ranks, display: Display, resume: bool, callbacks: Sequence[Callback] = ()
    ):
        self.callbacks = callbacks if ranks.first else ()
        self.method = method_of(config)
        self.config, self.ranks, self.display, self.resumed = config, ranks, display, resume
        self._lock: Lock | None = None  # the first rank's
        self._made = False  # whether this rank has made the folder, or found it empty
        kept = config.train.keep_checkpoints, config.train.keep_warmstart
        self.checkpoints = Checkpoints(config.folder / "checkpoints", *kept)
        self.folder, self.latest, self.progress = ranks.once(lambda: self._open(resume))
        if self.latest is not None:
            display.say(f"resuming from {self.latest} ({self.progress.stage}, step {self.progress.step})")
        elif resume:
            display.say(f"{self.folder.path} has no checkpoint yet: the run starts from the beginning")
        self.held_out: Mapping[str, Any] | None = None
        self.stopping = Stopping(config.train.stop_after)
        self.stopped: dict[str, Any] | None = None
        self.timer = Timer()
        display.part = lambda: self.timer.part
        self.tracking = Tracking(config, self.folder, display.warn, quiet=not ranks.first)
        self._started = time.monotonic()

    def _open(self, resume: bool) -> tuple[RunFolder, Path | None, Progress]:
        path = self.config.folder
        if not resume:
            try:
                self._made = not path.is_dir() or not any(path.iterdir())
                make_folder(path)
            except OSError as error:
                if error.errno not in _UNUSABLE:
                    raise
                reason = error.strerror or error
                raise ConfigError(
                    f"cannot create the folder {str(path)[:200]} ({reason}): name another with run_dir=…"
                ) from error
        if path.is_dir():
            try:
                self._lock = Lock(path)
            except BlockingIOError as error:
                raise ConfigError(f"{error}: wait for it, or name another folder with run_dir=…") from error
        try:
            return self._read(RunFolder(path, self.config, resume), resume)
        except BaseException:
            self.close()
            raise

    def _read(self, folder: RunFolder, resume: bool) -> tuple[RunFolder, Path | None, Progress]:
        progress, latest = Progress(), self.checkpoints.latest() if resume else None
        if latest is not None:
            self.checkpoints.check(latest)
            progress = self.checkpoints.progress(latest, ("warmstart", "train", self.method.stage))
        self.checkpoints.tidy()
        folder.rewind(progress.stage, progress.step)
        return folder, latest, progress

    def stream(self, *name: str | int) -> np.random.Generator:
        """A random stream by name, the same on every rank; a resumed run draws the same numbers."""
        return random_stream(self.config.seed, *name)

    def own_stream(self, *name: str | int) -> np.random.Generator:
        """As :meth:`stream`, with different numbers on every rank."""
        return random_stream(self.config.seed, "rank", self.ranks.rank, *name)

    def open_policy(self) -> HFPolicy | None:
        """The policy from the newest checkpoint or the configured path; None if it is still to be built."""
        generator, options = self._policy_generator(), self.config.policy
        if self.config.lora.rank:
            policy = self._open_adapted(generator)
        elif self.latest is not None:
            policy = self.checkpoints.policy(self.latest, generator, options)
        elif options.path:
            policy = HFPolicy.from_path(options.path, generator, options.dtype, options.context)
        else:
            return None
        return self._opened(policy)

    def build_policy(self, new: Callable[[torch.Generator], HFPolicy]) -> HFPolicy:
        """A ``new`` policy."""
        return self._opened(new(self._policy_generator()))

    def _policy_generator(self) -> torch.Generator:
        return torch.Generator(own_device()).manual_seed(self.config.seed)

    def _opened(self, policy: HFPolicy) -> HFPolicy:
        policy.version = self.progress.version
        size = sum(parameter.numel() for parameter in policy.model.parameters())
        self.display.say(f"policy: {size / 1e6:.2f} M parameters, vocabulary {len(policy.tokenizer)}")
        # Before the warm start: all of them may refuse the model.
        sampler = policy.sampling_path if self.config.rollout.backend == "local" else self.config.rollout.backend
        learner = find_scoring(policy.model, policy.context_length)
        self.display.say(f"sampler: {sampler}; learner: {learner}")
        if self.config.optim.compile:
            layers_to_compile(policy.model)
        if (routers := Routers(policy.model)).experts:
            self.display.say(f"routers: {routers}")
        if self.config.policy.path and not policy.tokenizer.chat_template:
            self.display.say(NO_TEMPLATE)
        for rate in self._high_rates() if size > _PRETRAINED and not self.config.lora.rank else ():
            self.display.warn(f"{rate} suits a small policy from scratch: docs/pretrained.md has the rates of others")
        return policy

    def _high_rates(self) -> Iterator[str]:
        """Learning rates in use that a pretrained model hardly survives."""
        config, method = self.config, self.method
        if self.progress.stage == "warmstart" and config.warmstart.episodes and config.warmstart.lr > 1e-3:
            yield f"warmstart.lr={config.warmstart.lr:g}"
        if method.reinforces and config.optim.lr > 2e-4:
            yield f"optim.lr={config.optim.lr:g}"
        if method.critic and config.critic.lr > 2e-4:
            yield f"critic.lr={config.critic.lr:g}"

    def _open_adapted(self, generator: torch.Generator) -> HFPolicy:
        """The model of the configured path, saved in the run folder once, with the newest checkpoint's adapter."""
        base, options = self.folder.path / "base", self.config.policy
        path = base if self.ranks.once(base.exists) else options.path
        policy = HFPolicy.from_path(path, generator, options.dtype, options.context)

        def keep() -> None:
            if not base.exists():
                make_whole(base, lambda partial: (save_policy(policy, partial), write_checksums(partial)))
            elif wrong := damage(base):
                raise ConfigError(f"the model in {base} is damaged ({wrong}): put back a copy of the folder")

        self.ranks.once(keep)
        policy.model.config._name_or_path = options.path  # written into the adapter's configuration
        adapt(policy.model, self.config.lora, generator)
        if self.latest is not None:
            self.checkpoints.adapter(self.latest).put_into(policy.model)
        return policy

    def needs_start(self, path: Path) -> bool:
        """Whether a folder of weights that the run begins with is still to be written. Every rank must ask.

        Args:
            path: the folder, which the first iteration finds, and later ones need.

        Raises:
            ConfigError: the run has begun to learn, and the folder is missing; or the folder is damaged.
        """

        def needed() -> bool:
            if not path.exists():
                if self.progress.step:
                    raise ConfigError(f"{path} is missing: {LOST_START}")
                return True
            if wrong := damage(path):
                raise ConfigError(f"{path} is damaged ({wrong}): {LOST_START}")
            return False

        return self.ranks.once(needed)

    def enter(self, stage: str) -> None:
        """Starts a stage at its first step, unless the run is in it already."""
        if stage != self.progress.stage:
            if self.progress.stage == "warmstart":
                self.progress.imitation_seconds = self.seconds
            self.progress.stage, self.progress.step, self.progress.seconds = stage, 0, 0.0
            self._started = time.monotonic()

    def begin(self, total: int) -> None:
        """Shows the present stage, of ``total`` steps, and resumes its clock."""
        self._started = time.monotonic() - self.progress.seconds
        self.show(total)

    def show(self, total: int) -> None:
        """As :meth:`begin` without the clock, after another stage was shown."""
        self.display.stage(self.progress.stage, total, self.progress.step)

    @property
    def iteration(self) -> int:
        """The number of the present iteration, from 1."""
        return self.progress.step + 1

    @property
    def seconds(self) -> float:
        """Time spent in the present stage, including earlier processes up to their last checkpoint.

        It is the first rank's clock, so all ranks stop at the same step. Every rank must ask.
        """
        return self.ranks.once(lambda: time.monotonic() - self._started)

    def stops(self, done: int, total: int) -> bool:
        """Whether the stage ends with ``done`` of its ``total`` steps (``train.stop_after``, SIGUSR1); every rank must
        ask. If so, it says what is left out."""
        reason = next(filter(None, self.ranks.everywhere(self.stopping.reason)), "")
        if reason:
            self.stopped = {"reason": reason, "done": done, "of": total}
            step = "iteration" if self.method.reinforces else "step"
            self.display.say(
                f"{reason} ends the run after {done} of {total} {step}s: {total - done} are left out, and --resume "
                "continues with them"
            )
        return bool(reason)

    def log(self, metrics: Mapping[str, Any], **shown: Any) -> None:
        """Logs the metrics of the present step; ``shown`` are for the display."""
        if self.ranks.first:
            self.folder.log(self.progress.stage, self.progress.step, metrics)
            self.tracking.log(self.progress.stage, self.progress.step, metrics)
        self.advance(self.progress.step, **shown)
        for callback in self.callbacks:
            callback.on_log(self.progress.stage, self.progress.step, metrics)

    def advance(self, done: float, **shown: Any) -> None:
        """Shows the progress of the stage."""
        self.display.advance(done, **shown)

    def inner(self, name: str, done: float, total: int) -> None:
        """Shows progress within a step of the stage."""
        self.display.inner(name, done, total)

    @property
    def library(self) -> tuple[str | Path, str]:
        """Where the failure library is, and the name under which a shared one knows this run; its own needs none."""
        shared = self.config.curriculum.library
        return (shared, self.folder.identity) if shared else (self.folder.path / "failures.db", "")

    def save(self, learner: Learner) -> None:
        """Writes a checkpoint of the policy and the progress.

        Raises:
            ConfigError: the state of the method is nothing that JSON holds.
        """
        self.progress.seconds, self.progress.version = self.seconds, learner.policy.version
        begun = self.progress.stage != "warmstart" and self.progress.step  # before, nothing is set up
        state = self.method.state_dict() if begun else {}
        try:
            json.dumps(state)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the state_dict of method={self.config.method} must hold numbers, texts, lists and dictionaries "
                f"({error}); another model belongs into learner.beside (docs/write_a_method.md)"
            ) from error
        self.progress.method = {self.config.method: state} if state else {}
        number = self.progress.step + (0 if self.progress.stage == "warmstart" else AFTER_WARM_START)
        self.ranks.once(self.folder.settle)
        self.latest = self.checkpoints.save(number, learner, vars(self.progress))
        for callback in self.callbacks:
            callback.on_save(self.latest)

    def restore(self, learner: Learner) -> None:
        """Loads the last checkpoint of the present stage into a learner; nothing at the stage's start."""
        if self.latest is not None and self.progress.step:
            self.checkpoints.restore(self.latest, learner)

    def finished(self) -> dict[str, Any] | None:
        """The result of a finished run; None if it is not finished, and then an earlier end's result is removed."""
        done = self.progress

        def result() -> dict[str, Any] | None:
            after = self.folder.read_json("after.json") if self.method.finished(done) else None
            if after and after["policy_version"] == done.version:
                return self.folder.read_json("result.json")
            (self.folder.path / "result.json").unlink(missing_ok=True)
            return None

        return self.ranks.once(result)

    def close(self) -> None:
        """Releases the run folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Closes the run. One that was refused before its first checkpoint removes its folder: it cannot be resumed
        with other options, and would block the next attempt."""
        refused = kind is not None and issubclass(kind, (ConfigError, PolicyError))
        if refused and self._made and self.latest is None:
            shutil.rmtree(self.folder.path, ignore_errors=True)
        self.close()

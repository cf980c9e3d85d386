"""Evaluates an agent on a task split: success per task type, with 95 % intervals.

Every episode is one line of a file under evaluations/. The same command continues an interrupted evaluation. The result
is saved as JSON beside that file; where the output is no terminal, it is also its last line. docs/evaluation.md
explains the figures.

examples:
  the newest checkpoint of a training run, on the run's own evaluation split
      python evaluate.py --agent runs/role_agent-alfworld-v0-seed0
  the same policy on official games, three times, sampling at temperature 1
      python evaluate.py --agent runs/role_agent-alfworld-v0-seed0 --split valid_seen --data-dir ~/alfworld \\
          --temperature 1 --repeats 3
  a Hugging Face model, from a folder or the hub, with the shipped prompts and the published settings
      python evaluate.py --agent Qwen/Qwen2.5-1.5B-Instruct --config configs/published/alfworld.yaml
  a model behind an OpenAI-compatible server (key in OPENAI_API_KEY), with prices per million tokens
      python evaluate.py --base-url http://127.0.0.1:8000/v1 --env RoleAgent/WebShop-v0 --split test --prices 0.5 1.5
  prompting agents (plain, react, reflexion) with a server, a model or a run's policy
      python evaluate.py --agent react --base-url http://127.0.0.1:8000/v1 --split valid_seen
      python evaluate.py --agent reflexion --model-path ~/models/small --split valid_seen
  revision test: two policies go on from the failures of a fixed one (docs/agent_r.md)
      python evaluate.py --agent runs/warmstart --keep-failures failures.jsonl
      python evaluate.py --agent runs/agent_r --cut-failures failures.jsonl
      python evaluate.py --agent runs/sft --cut-failures failures.jsonl
  baselines: random commands, the scripted expert, the oracle
      python evaluate.py --env RoleAgent/ALFWorld-v0 --split valid_seen --agent random
      python evaluate.py --env RoleAgent/ALFWorld-v0 --split valid_seen --agent expert
      python evaluate.py --env RoleAgent/ALFWorld-v0 --split valid_seen --agent oracle --env-arg size=small
  your own agent: a function of (observation, info) that returns a command, or a class with reset and act
      python evaluate.py --env RoleAgent/ALFWorld-v0 --split valid_seen --agent my_module:MyAgent
  right single steps after the expert's history, and no episodes (GenEnv's measure of ALFWorld)
      python evaluate.py --agent runs/role_agent-alfworld-v0-seed0 --single-step
  a minus b, task by task (record files or run folders); all agents on all splits as a table
      python evaluate.py compare evaluations/a.jsonl --against evaluations/b.jsonl
      python evaluate.py table evaluations/*.jsonl --format latex
  the same episodes with another judge: a function of yours that reads a transcript
      python evaluate.py rescore evaluations/a.jsonl --judge my_judges:strict
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roleagent.agents.evaluation.options import options_of
from roleagent.commands import pairs, print_result
from roleagent.program import EVAL, TRAIN, MissingPackage, begin, called, check_packages, require, tune_cpu

if __name__ == "__main__":  # help, and what is wrong with the command, need not wait for packages
    begin(called("evaluate"))
    options_of(sys.argv[1:], __doc__, called("evaluate"))
    require(called("evaluate"), "eval", EVAL)
    tune_cpu()

from roleagent.agents.builders import EnvSplit, check_agent, check_rollout_backend
from roleagent.agents.chat.endpoint import Endpoint, EndpointError
from roleagent.agents.chat.models import PolicyChatModel
from roleagent.agents.episode import EpisodeResult
from roleagent.agents.evaluation.baselines import build_prompting_agent
from roleagent.agents.evaluation.header import header_of
from roleagent.agents.evaluation.play import Keep, agent_attempts, chat_attempts, policy_attempts
from roleagent.agents.evaluation.records import Attempt, Record, RecordFile, default_file
from roleagent.agents.evaluation.rescore import Rescoring, changed
from roleagent.agents.evaluation.revision import begin_failures, keep_revisions, read_failures
from roleagent.agents.evaluation.single_step import single_step
from roleagent.agents.evaluation.statistics import spending, summarize
from roleagent.agents.evaluation.targets import STANDARD, EvalTarget, eval_target
from roleagent.agents.evaluation.transcripts import TranscriptFile, transcript
from roleagent.agents.gateway.rollout import check_start
from roleagent.agents.policies.protocol import NO_TEMPLATE, Policy, PolicyError
from roleagent.agents.prompting.standard import ChatAgent
from roleagent.config import Config, ConfigError, from_dict, load, to_dict
from roleagent.config.effects import of_training
from roleagent.envs.mixture import joined, parted
from roleagent.files import make_folder, write_whole
from roleagent.imports import searched_first
from roleagent.learners.run.display import Display
from roleagent.learners.run.folder import CheckpointError, library_of, read_config
from roleagent.reports.eval_display import report, run_comparison, so_far
from roleagent.reports.tables import run_table
from roleagent.slow_notice import waiting
from roleagent.tasks.split import few_tasks
from roleagent.types import Trajectory

if TYPE_CHECKING:  # torch takes seconds to load: only a local model needs it
    from roleagent.agents.policies.hf import HFPolicy
    from roleagent.curricula.lessons import Lessons

PRETRAINED = (
    *("env.eval_split=valid_seen", "wia=off", "prompt.style=window", "prompt.think=optional"),
    *("rollout.action_tokens=512", "rollout.eval_batch=16", "policy.context=8192"),
)
"""How a pretrained model plays without --config."""


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: an agent, the model behind it, and a task split.

    Attributes:
        model: a local policy, a server, or None for an agent without a model.
        checkpoint: the checkpoint that the model was read from, or None.
        sampler: what samples with the weights of a local policy: itself, or that of ``--set rollout.backend=…``.
        notes: lines for the log about what was chosen.
    """

    options: argparse.Namespace
    target: EvalTarget
    env_split: EnvSplit
    model: HFPolicy | Endpoint | None
    checkpoint: Path | None
    sampler: Policy | None = None
    notes: Sequence[str] = ()

    @classmethod
    def open(cls, options: argparse.Namespace) -> Evaluation:
        """Loads what the command line names."""
        target = eval_target(options.agent, options.run, options.model_path, options.base_url)
        if options.agent_arg and target.plays == STANDARD:
            raise ConfigError("--agent-arg is for a named agent; change the standard prompts with --set")
        for needed, there, given in (
            ("a model", target.prompts, ("temperature", "max_tokens", "batch")),
            ("a server (--base-url)", target.url, ("model",)),
            ("a local model; with a server it is --concurrency", not target.url, ("batch",)),
            (
                "episodes",
                not options.single_step,
                ("keep_failures", "keep_signals", "cut_failures"),
            ),
        ):
            if not there and (unused := next((name for name in given if getattr(options, name)), None)):
                raise ConfigError(f"--{unused.replace('_', '-')} is for {needed}")
        if options.checkpoint and target.run is None:
            raise ConfigError("--checkpoint names one of a run: give the run with --agent or --run")
        config = configuration(options, target)
        if config.rollout.backend != "local" and (target.url or not target.prompts):
            raise ConfigError(
                f"rollout.backend={config.rollout.backend} samples for a local policy: remove it from --set"
            )
        check_rollout_backend(config)
        if config.agent.command and target.prompts and not target.url and target.plays == STANDARD:
            check_agent(config)
            check_start(config.agent)
        env_split = EnvSplit.held_out(config)
        cuts = options.cut_failures or options.keep_failures or options.keep_signals
        if cuts and (target.url or target.plays != STANDARD):
            raise ConfigError(
                "--keep-failures, --keep-signals and --cut-failures need a local policy: a run or a folder"
            )
        if options.cut_failures:
            whole = env_split.task_split
            env_split = env_split.only([whole.require(one.task_id) for one in read_failures(options.cut_failures)])
        model, checkpoint = open_model(options, target, config)
        notes: list[str] = []
        sampler = None
        if model is not None and not isinstance(model, Endpoint):
            env_split = env_split.with_calls_of(model, notes.append)
            sampler = open_sampler(model, config)
        env_split = env_split.reading(open_lessons(options, target, env_split, checkpoint))
        return cls(options, target, env_split, model, checkpoint, sampler, notes)

    def header(self) -> dict[str, Any]:
        """The header of the record file."""
        return header_of(self.options, self.target, self.env_split, self.model, self.checkpoint)

    def play(self, missing: set[Attempt], display: Display, transcripts: TranscriptFile | None) -> Iterator[Record]:
        """Plays the missing attempts with the target's agent, one environment after another."""
        played: dict[str, Iterator[Record]] = {}  # all first: an agent that one environment refuses plays in none
        for name, part in self.env_split.environments.items():
            own = {attempt for attempt in missing if self.env_split.of(attempt.task_id) is part}
            keep = partial(self.keep_episode, missing, transcripts, name)
            bare = {Attempt(one.repeat, parted(name, one.task_id)) for one in own}
            if own:
                played[name] = replace(self, env_split=part)._play(name, bare, display, keep)
        for name, records in played.items():
            for record in records:
                yield replace(record, task_id=joined(name, record.task_id), task_type=joined(name, record.task_type))

    def _play(self, name: str, missing: set[Attempt], display: Display, keep: Keep) -> Iterator[Record]:
        """Plays attempts in one environment."""

        def progress(done: float, episodes: int) -> None:
            display.inner("episodes under way", done, episodes, steps=episodes)

        env_split, target, seed = self.env_split, self.target, self.options.seed
        model = self.sampler or self.model
        config = env_split.config
        if model is None:
            agents = self.options.concurrency
            return agent_attempts(
                env_split, target.plays, missing, seed, agents, keep, progress, **pairs(self.options.agent_arg)
            )
        if isinstance(model, Endpoint):
            model.check(config.rollout.eval_temperature)
        if target.plays == STANDARD:
            if not isinstance(model, Endpoint):
                cut = self.options.cut_failures
                kept = read_failures(cut) if cut else ()
                own = (replace(one, task_id=parted(name, one.task_id)) for one in kept)
                failures = {one.task_id: one for one in own} if cut else None
                return policy_attempts(env_split, model, missing, seed, keep, progress, failures)
            plain = env_split.without_predictions()
            agent: Any = ChatAgent(config.prompt, env_split.guide, plain.reader)
            return chat_attempts(env_split, agent, model, plain.make_wrapped, missing, seed, keep, progress)
        calls = config.prompt.call_format
        agent = build_prompting_agent(target.plays, env_split.base, calls, **pairs(self.options.agent_arg))
        if isinstance(model, Endpoint):
            return chat_attempts(env_split, agent, model, env_split.make_base, missing, seed, keep, progress)
        chat_model = PolicyChatModel(model, config.rollout.eval_batch)
        return chat_attempts(
            env_split, agent, chat_model, env_split.make_base, missing, seed, keep, progress, policy=model
        )

    def keep_episode(
        self,
        missing: set[Attempt],
        file: TranscriptFile | None,
        name: str,
        episode: Trajectory | EpisodeResult,
        repeat: int,
    ) -> None:
        """Writes an episode to the transcripts; to ``--keep-failures`` if it failed, its cut drawn for the task; and to
        ``--keep-signals`` if it has a revision signal."""
        if isinstance(episode, Trajectory):
            task = episode.task
            task_id, task_type = joined(name, task.task_id), joined(name, task.task_type)
            episode = replace(episode, task=replace(task, task_id=task_id, task_type=task_type))
        else:
            task_id, task_type = joined(name, episode.task_id), joined(name, episode.task_type)
            episode = replace(episode, task_id=task_id, task_type=task_type)
        place = self.env_split.task_split.position(task_id)
        if file is not None and Attempt(repeat, task_id) in missing:
            policy = None if isinstance(self.model, Endpoint) else self.model
            file.append(transcript(episode, place, repeat, policy))
        if isinstance(episode, Trajectory):
            rng = np.random.default_rng([self.options.seed, 1, place])
            keep_revisions(episode, rng, self.options.keep_failures, self.options.keep_signals)


def evaluate(options: argparse.Namespace) -> dict[str, Any]:
    """Evaluates an agent; returns the result."""
    evaluation = Evaluation.open(options)
    header = evaluation.header()
    if options.single_step:
        return evaluate_single_step(evaluation, header)
    with RecordFile.alone(options.out or default_file(header), header) as file:
        return complete(evaluation, file)


def evaluate_single_step(evaluation: Evaluation, header: dict[str, Any]) -> dict[str, Any]:
    """Measures single-step accuracy, prints it per task type, returns the result."""
    model, split = evaluation.model, evaluation.env_split.task_split
    if model is None or isinstance(model, Endpoint) or evaluation.target.plays != STANDARD:
        raise ConfigError("--single-step needs a local model with the standard prompts: a run, a folder, or a hub name")
    if evaluation.env_split.parts:
        raise ConfigError("--single-step measures one environment: name it with --env")
    if evaluation.options.repeats > 1:
        raise ConfigError("--single-step measures every step once: remove --repeats")
    path = evaluation.options.out or default_file({**header, "measure": "single-step"}).with_suffix(".single-step.json")
    title = f"{header['agent']['name']} on {split.env_id}:{split.split}, single steps after the expert's history"
    with Display(title) as display:
        sampler, seed = evaluation.sampler or model, evaluation.options.seed
        found = single_step(evaluation.env_split, sampler, seed, partial(display.inner, "tasks"))
        for kind, part in {"all": found, **found["by_type"]}.items():
            low, high = part["interval"]
            shown = f"{100 * part['accuracy']:.1f} % [{100 * low:.1f}, {100 * high:.1f}] of {part['steps']} steps"
            display.say(f"right single steps, {kind}: {shown}")
    result = {**header, "measure": "single-step", "single_step": found, "records": str(path)}
    make_folder(path.parent)
    write_whole(path, json.dumps(result, indent=1))
    return result


def complete(evaluation: Evaluation, file: RecordFile) -> dict[str, Any]:
    """Plays the attempts that the file lacks, prints the table, returns the result."""
    options, split = evaluation.options, evaluation.env_split.task_split
    missing = set(file.missing(split, options.repeats))
    total = options.repeats * len(split)
    for path in (options.keep_failures, options.keep_signals):
        if path is not None:
            begin_failures(path, total - len(missing))
    name = file.header["agent"]["name"]
    title = f"{name} on {split.env_id}:{split.split}, records in {file.path}"
    with Display(title) as display:
        done = total - len(missing)
        if not options.tasks and not options.cut_failures and (few := few_tasks(split.split, len(split))):
            display.warn(few)
        display.stage("evaluate", total, done)
        if done:
            display.say(
                f"continuing: {done} of {total} episodes are done"
                if missing
                else f"all {total} episodes are there, so nothing is played; remove {file.path} to play them again"
            )
        display.part = lambda: so_far(file, options.prices)
        if missing:
            if evaluation.model is not None and not isinstance(evaluation.model, Endpoint):
                backend = evaluation.env_split.config.rollout.backend
                sampler = evaluation.model.sampling_path if backend == "local" else backend
                for line in (f"sampler: {sampler}", *evaluation.notes):
                    display.say(line)
                if evaluation.target.run is None and not evaluation.model.tokenizer.chat_template:
                    display.say(NO_TEMPLATE)
            transcripts = None if options.no_transcripts else TranscriptFile(file.path, done)
            for record in evaluation.play(missing, display, transcripts):
                file.append(record)
                done += record.sound
                display.advance(done)
        return conclude(display, file, options.repeats, options.prices)


def conclude(
    display: Display, file: RecordFile, repeats: int, prices: tuple[float, float] | None = None
) -> dict[str, Any]:
    """Prints the table of a record file, saves the result beside it, and returns it."""
    counting = [record for record in file.records if record.repeat < repeats]
    summary = summarize(sorted(counting, key=lambda record: record.attempt))
    if not summary["n"]:
        raise ValueError(f"every episode failed, the first with {counting[0].error}")
    summary["usage"] = spending(file.header, [record for record in file.written if record.repeat < repeats], prices)
    report(display, file.header["agent"]["name"], summary, counting, file.header)
    result = {**file.header, "records": str(file.path), **summary, "tasks": file.header["tasks"]}  # of the split
    stem = file.path.name.removesuffix(".jsonl")  # any other dot is part of the name
    write_whole(file.path.with_name(f"{stem}.result.json"), json.dumps(result, indent=1))
    return result


def rescore(options: argparse.Namespace) -> dict[str, Any]:
    """Judges saved episodes again; returns the result."""
    source, (_, _, function) = options.records, options.judge.partition(":")
    if not function:
        raise ConfigError(f"--judge must be module:function, not {options.judge!r}")
    rescoring = Rescoring(source, options.judge)
    path = options.out or source.with_name(f"{source.name.removesuffix('.jsonl')}.{function}.jsonl")
    if path.resolve() == source.resolve():
        raise ConfigError(f"--out names the records that are judged, {source}: name another file")
    title = f"{options.judge} judges {source}, records in {path}"
    with RecordFile.alone(path, rescoring.header) as file, Display(title) as display:
        sound = {record.attempt for record in file.records if record.sound} - rescoring.stale(path)
        done, missing = len(sound), rescoring.old.keys() - sound
        display.stage("judge", len(rescoring.old), done)
        for record in rescoring.judged(missing, TranscriptFile(path, done)):
            file.append(record)
            done += 1
            display.advance(done)
        result = conclude(display, file, 1 + max(attempt.repeat for attempt in rescoring.old))
        won, lost = changed(file, rescoring.old)
        display.say(f"against {source}: {won} lost episodes are won, {lost} won ones are lost")
    return result


def configuration(options: argparse.Namespace, target: EvalTarget) -> Config:
    """The run's configuration, --config or the defaults, with the options of the command line applied."""
    if target.run is not None:
        if options.config is not None:
            raise ConfigError("a run has its own configuration: remove --config, or change options with --set")
        read_config(target.run)  # refuses a damaged one
        path, given = target.run / "config.yaml", ()
    else:
        path, given = options.config, () if options.config else PRETRAINED
    if idle := of_training(options.set):
        raise ConfigError(f"--set {idle[0]} has no effect in an evaluation: remove it")
    if options.env and options.env != load(path, given).environment:
        given = tuple(one for one in given if not one.startswith("env."))  # a split and arguments of another one
        given = (*given, f"env.id={options.env}")
    config = load(path, [*given, *options.set])
    tree = to_dict(config)
    if not any(one.startswith("rollout.backend=") for one in options.set):
        tree["rollout"]["backend"] = "local"  # a run may be evaluated where its sampler is not
    data = {} if options.data_dir is None else {"data_dir": str(options.data_dir)}
    arguments, each = {**pairs(options.env_arg), **data}, tree["env"]
    if arguments and not isinstance(each, dict):
        raise ConfigError(
            "--env-arg and --data-dir are for one environment; of several use --set env.0.kwargs.NAME=VALUE"
        )
    each = [each] if isinstance(each, dict) else each
    for one in each:
        one["kwargs"] |= arguments
        one |= {"eval_split": options.split} if options.split is not None else {}
        one |= {"eval_tasks": options.tasks} if options.tasks is not None else {}
    if options.lessons is not None and tree["lessons"]["show"] == "none":
        if any(one.startswith("lessons.show=") for one in options.set):
            raise ConfigError("--lessons shows lessons, and lessons.show=none shows none: leave one of them out")
        tree["lessons"]["show"] = "retrieved"
    for section, name, value in (
        ("rollout", "eval_temperature", options.temperature),
        ("rollout", "eval_batch", options.batch),
        ("rollout", "action_tokens", options.max_tokens),
    ):
        if value is not None:
            tree[section][name] = value
    return from_dict(tree)


def open_model(
    options: argparse.Namespace, target: EvalTarget, config: Config
) -> tuple[HFPolicy | Endpoint | None, Path | None]:
    """The model behind the target, or None; and the checkpoint of a run that it is read from, or None."""
    if not target.prompts:
        return None, None
    if not target.url:
        return open_local(options, target, config)
    # A conversation may need all of its attempts, and the pauses between them.
    deadline = 8 * options.timeout + 120
    server = Endpoint(
        target.url, options.model, concurrency=options.concurrency, timeout=options.timeout, deadline=deadline
    )
    if not server.model:
        server.check(config.rollout.eval_temperature)  # asks for the model's name
    return server, None


def open_local(options: argparse.Namespace, target: EvalTarget, config: Config) -> tuple[HFPolicy, Path | None]:
    """The model of a run's checkpoint (the newest, or the one that is named), of a folder, or of the hub."""
    check_packages(called("evaluate"), "train", TRAIN)
    with waiting("PyTorch and transformers to load"):
        import torch
        import transformers

        from roleagent.agents.policies.hf import HFPolicy, own_device
        from roleagent.learners.run.checkpoints import Checkpoints

    transformers.logging.disable_progress_bar()  # our display shows progress
    generator, policy = torch.Generator(own_device()), config.policy
    torch.set_float32_matmul_precision(policy.matmul_precision)
    if target.run is None:
        path, dtype = target.model, policy.dtype
        return HFPolicy.from_path(path, generator, dtype, policy.context), None
    found = {path.name: path for path in Checkpoints(target.run / "checkpoints").all()}
    if not found:
        raise CheckpointError(f"the run {target.run} has no checkpoint yet; continue its training with --resume")
    name = options.checkpoint or max(found)
    if name not in found:
        raise CheckpointError(f"the run {target.run} has no checkpoint {name!r}; there are {', '.join(found)}")
    Checkpoints.check(found[name], "policy/")
    return Checkpoints.policy(found[name], generator, policy), found[name]


def open_sampler(model: HFPolicy, config: Config) -> Policy:
    """What samples with the model's weights: itself, or another sampler (``rollout.backend``)."""
    if config.rollout.backend == "local":
        return model
    from roleagent.learners.rl import open_actor

    return open_actor(config, model)


def open_lessons(
    options: argparse.Namespace, target: EvalTarget, env_split: EnvSplit, checkpoint: Path | None
) -> Lessons | None:
    """The lessons of ``--lessons``, or those that the run knew when it saved the checkpoint; None without any."""
    shown, source = env_split.config.lessons, options.lessons
    local = target.plays == STANDARD and not (target.url or options.single_step or env_split.config.agent.command)
    if not local and (source is not None or any(one.startswith("lessons.") for one in options.set)):
        raise ConfigError(
            "lessons are for the episodes of a local policy with the standard prompts; a program of agent.command "
            "writes its own"
        )
    if not local or (source is None and (shown.show == "none" or not shown.evaluate)):
        return None
    if source is None and checkpoint is None:
        raise ConfigError(f"lessons.show={shown.show} needs a failure library: name it with --lessons")
    from roleagent.curricula.cli.failures import open_source  # here: others need no SQLAlchemy
    from roleagent.curricula.library import LibraryError
    from roleagent.learners.lessons import read_lessons
    from roleagent.learners.run.checkpoints import Checkpoints

    name, until = "", None
    if source is None and target.run is not None and checkpoint is not None:
        source, progress = str(target.run), Checkpoints.progress(checkpoint)
        if progress.stage == "warmstart" or not progress.step:  # it knew no failures
            return None
        until = progress.step
        if env_split.config.curriculum.library:  # of several runs
            name = (target.run / "identity").read_text(encoding="utf-8")
    assert source is not None
    try:
        with closing(open_source(source, library_of, name)) as opened:
            lessons = read_lessons(opened, env_split, options.seed, "evaluation", until=until)
    except LibraryError as error:
        raise ConfigError(str(error)) from error
    if options.lessons is not None and not lessons:
        raise ConfigError(f"the failures of --lessons {source} are of other environments: no prompt would have one")
    return lessons


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    name = called("evaluate")
    options = options_of(sys.argv[1:] if arguments is None else arguments, __doc__, name)
    try:
        with searched_first():  # module:Class is looked for in the working directory
            if options.verb == "table":
                print(run_table(options), end="")
                return 0
            result = {"": evaluate, "compare": run_comparison, "rescore": rescore}[options.verb](options)
    except (ConfigError, CheckpointError, PolicyError, EndpointError, MissingPackage, ValueError, OSError) as error:
        print(error if isinstance(error, MissingPackage) else f"{name}: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's; torch may not be installed
            raise
        reason = str(error).partition("\n")[0]
        print(f"{name}: {reason} Lower --batch.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: stopped; the same command continues", file=sys.stderr)
        return 130
    print_result(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

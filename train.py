"""Train an agent. The default: a small policy on generated ALFWorld games, on two cores, in about ten minutes.

Any option of the configuration can be given as key=value; --show-config prints all options with their values.

examples:
    python train.py
    python train.py --config configs/alfworld_official.yaml
    python train.py method=gigpo wia=off seed=3 run_dir=runs/gigpo-3
    python train.py --resume runs/gigpo-3
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import yaml

from roleagent.learners.run.options import check_command, open_config, read_command, training_parser
from roleagent.program import TRAIN, begin, called, require, tune_cpu
from roleagent.slow_notice import waiting

if __name__ == "__main__":  # --help and wrong options need no PyTorch
    begin(called("train"))
    check_command(__doc__, called("train"))
    require(called("train"), "train", TRAIN)
    tune_cpu()

with waiting("PyTorch and transformers to load"):
    import torch
    import transformers


from roleagent.agents.builders import EnvSplit
from roleagent.callbacks import Callback
from roleagent.config import Config, to_dict
from roleagent.config.effects import without_effect
from roleagent.learners.distillation import check_tokenizer
from roleagent.learners.engine.lora import ModuleWeights
from roleagent.learners.information import task_information
from roleagent.learners.method import Iteration, Start
from roleagent.learners.rl import (
    Episodes,
    dynamic_sampling,
    estimate_advantages,
    filter_groups,
    gather,
    make_batch,
    open_actor,
    open_learner,
    open_rollout,
    open_sampler,
    sample_predictions,
    sync_mismatch,
    sync_weights,
    update_policy,
)
from roleagent.learners.run.display import Display
from roleagent.learners.run.evaluation import evaluate_periodically, evaluate_stage, report, show_again
from roleagent.learners.run.iterations import Iterations
from roleagent.learners.run.launch import check_held_out, exit_status, keep_tasks, open_run, size_warm_start
from roleagent.learners.run.run import Run
from roleagent.learners.sft.data import SFTData
from roleagent.learners.sft.imitation import imitate


def train(config: Config, resume: bool, display: Display, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
    """Runs the warm start, training and the evaluation on held-out tasks; returns the result."""
    split = EnvSplit.training(config)
    held_out = EnvSplit.held_out(config)
    check_held_out(split, held_out, display.warn)
    split = size_warm_start(split, display.say)
    with open_run(config, split, display, resume, callbacks) as run:
        if (result := run.finished()) is not None:
            longer = "train.until" if config.train.until else run.method.length
            display.say(f"{run.folder.path} is finished; increase {longer} to continue")
            show_again(run)
            return result
        keep_tasks(run, split, held_out)
        return run_stages(run, split, held_out)


def run_stages(run: Run, split: EnvSplit, held_out: EnvSplit) -> dict[str, Any]:
    """Warm start, first evaluation, RL (or more imitation) and second evaluation; continues a resumed run."""
    config = run.config
    torch.manual_seed(config.seed)  # only for dropout in models of other authors
    torch.set_float32_matmul_precision(config.policy.matmul_precision)
    policy = run.open_policy()  # before the demonstrations: a model that cannot be played is refused at once
    split, held_out = split.with_calls_of(policy, run.display.say), held_out.with_calls_of(policy)
    run.config = split.config
    data = SFTData.collect(run, split)
    policy = policy or run.build_policy(data.new_policy)
    check_tokenizer(config, policy)
    segments = data.tokenize(policy)
    actor = open_actor(run.config, policy) if run.method.plays else policy

    if run.progress.stage == "warmstart":
        actor.offload()
        evaluated = len(held_out.task_split)
        learner = imitate(run, policy, segments, config.warmstart.epochs, data.corrections(actor), evaluated)
        policy.version = 0
        run.enter("train")
        run.save(learner)
        learner.close()
        actor.sync(ModuleWeights(policy.model), policy.version)

    results = evaluate_stage(run, held_out, actor, "before")
    start = Start(run, split, held_out, policy, actor, data, segments)
    train_policy = run.method.training or reinforce  # Agent-R, ETO and the control sft train in another way
    train_policy(start)
    results |= evaluate_stage(run, held_out, actor, "after")
    return report(run, results)


def reinforce(start: Start) -> None:
    """Reinforcement learning with a curriculum. The actor plays with the policy's weights."""
    run, split, policy, actor = start.run, start.split, start.policy, start.actor
    learner = open_learner(run, split, policy, actor)
    sync_weights(run, learner, actor)
    sampler = open_sampler(run, split, actor)
    rollout = open_rollout(run, split, actor)
    episodes = Episodes(run, rollout, sampler, split)
    iterations = Iterations(run, learner, actor)
    evaluate_periodically(run, start.held_out, actor, begins=True)  # if the run was killed before it

    for _ in iterations:
        # Sample tasks, and play a group of episodes of each. With rollout.async_level=1 the next ones begin, too.
        groups = episodes.next()
        groups, replaced = dynamic_sampling(run, rollout, sampler, groups)
        groups, filtered = filter_groups(run, groups)
        groups = sample_predictions(run, rollout, groups)

        # Learn from the comparison of the episodes of a group.
        advantages = estimate_advantages(run, groups)
        batch = make_batch(run, learner, rollout, groups, advantages)
        metrics = task_information(run, learner, [*groups, *filtered])  # before the weights change
        metrics |= update_policy(run, learner, batch) | {"staleness": episodes.staleness}
        episodes.wait()
        sync_weights(run, learner, actor)
        metrics |= sync_mismatch(run, learner, actor, batch)

        # Analyze the failures: they choose the next tasks.
        scored = gather(run, rollout, groups, advantages, batch, [*replaced, *filtered])
        analysis = sampler.observe(scored)

        # Whatever else the method trains, such as a simulator that writes tasks.
        metrics |= run.method.after(Iteration(run, learner, actor, rollout, sampler, scored)) or {}

        iterations.finish(scored, analysis, metrics, rollout.stats)
        evaluate_periodically(run, start.held_out, actor)


def run_training(
    config: Config, resume: bool, overrides: Sequence[str] = (), callbacks: Sequence[Callback] = ()
) -> dict[str, Any]:
    """Shows and runs a training; returns the result. ``overrides`` without an effect are reported."""
    rank = int(os.environ.get("RANK", "0"))  # set by torchrun and deepspeed
    transformers.logging.disable_progress_bar()
    title = f"{config.method} on {config.environment}, seed {config.seed}, run folder {config.folder}"
    with Display(title, quiet=rank > 0) as display:
        for line in without_effect(config, overrides):
            display.warn(line)
        return train(config, resume, display, callbacks)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    rank = int(os.environ.get("RANK", "0"))  # set by torchrun and deepspeed
    name = f"{called('train')}, rank {rank}" if rank else called("train")
    options, folder = read_command(training_parser(__doc__, name), arguments), None
    try:
        config = open_config(options)
        folder = config.folder
        if options.show_config:
            print(yaml.safe_dump(to_dict(config), sort_keys=False), end="")
            return 0
        result = run_training(config, bool(options.resume), options.overrides)
        if options.json and not rank:
            print(json.dumps(result))
    except (Exception, KeyboardInterrupt) as error:
        return exit_status(error, name, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

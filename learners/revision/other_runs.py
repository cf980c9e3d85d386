"""What a run of Agent-R takes from other runs: their search trees, and a policy that judges and does not learn."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from roleagent.agents.analysts.judges import NO_INSTRUCTIONS, judge_name
from roleagent.agents.builders import EnvSplit, load_class
from roleagent.agents.policies.hf import HFPolicy, own_device
from roleagent.agents.policies.protocol import Policy
from roleagent.agents.search.storage import iterations_of, stored_trees
from roleagent.agents.search.tree import Tree
from roleagent.config import Config, ConfigError
from roleagent.learners.revision.general import read_conversations
from roleagent.learners.revision.thoughts import read_thoughts
from roleagent.learners.run.checkpoints import Checkpoints
from roleagent.learners.run.folder import read_config


def judging_policy(config: Config, actor: Policy) -> Policy:
    """The policy that judges: the newest one of the run ``revision.judge_from``, else the acting one.

    Raises:
        ConfigError: the configured judge asks no policy, or the run has no checkpoint.
        CheckpointError: the checkpoint is damaged.
    """
    if not config.revision.judge_from:
        return actor
    policy = _newest_policy(Path(config.revision.judge_from).resolve())
    _check_asks(judge_name(config, bool(getattr(policy.tokenizer, "chat_template", None))), config)
    return policy


def _check_asks(name: str, config: Config) -> None:
    """Refuses a judge that asks no policy, which ``revision.judge_from`` names."""
    if name != "step" and (name, config.curriculum.analyst) != ("reflection", "model"):
        raise ConfigError(
            f"revision.judge_from names a policy, and the judge {name} asks none: set revision.judge=step, or "
            "reflection with curriculum.analyst=model"
        )


@lru_cache(maxsize=1)
def _newest_policy(run: Path) -> HFPolicy:
    config, found = read_config(run), _checkpoint(run)
    return Checkpoints.policy(found, torch.Generator(own_device()), config.policy)


def _checkpoint(run: Path) -> Path:
    found = Checkpoints(run / "checkpoints").latest()
    if found is None:
        raise ConfigError(f"the run {run} has no checkpoint to judge with (revision.judge_from)")
    Checkpoints.check(found, "policy/")
    return found


def check_revision(config: Config) -> None:
    """Refuses files, classes and runs of ``revision`` that cannot be read, and runs that searched the evaluation split.

    Raises:
        ConfigError, CheckpointError: one line that explains what to change.
    """
    options = config.revision
    read_thoughts(options.thoughts)
    if options.general:
        read_conversations(options.general)
    if ":" in options.judge:
        load_class(options.judge, "judge")
    if options.judge == "step" and not (config.policy.path or options.judge_from):
        raise ConfigError(NO_INSTRUCTIONS)
    if options.judge_from:
        if options.judge != "auto":
            _check_asks(options.judge, config)
        run = Path(options.judge_from).resolve()
        read_config(run)
        _checkpoint(run)
    for other in options.also:
        env = read_config(Path(other)).env
        if (env.id, env.train_split) == (config.env.id, config.env.eval_split):
            raise ConfigError(f"{other} searched the tasks that this run is evaluated on: remove it from revision.also")
        there = iterations_of(Path(other))
        if missing := next((n for n in range(1, options.iterations + 1) if n not in there), 0):
            raise ConfigError(f"{other} has no search trees of iteration {missing}: remove it from revision.also")


def searched_tasks(run: str, config: Config) -> set[str]:
    """The tasks that another run searched; none if it is of another environment.

    Raises:
        ConfigError: there is no such run, or its trees are damaged.
    """
    if read_config(Path(run)).env.id != config.env.id:
        return set()
    return {tree.task.task_id for _, tree in stored_trees(Path(run))}


def trees_of(run: str, config: Config, policy: Policy, iteration: int) -> tuple[EnvSplit, list[Tree]]:
    """The trees of an iteration of another run, with replies in the tokens of a policy, and the split they are of.

    Args:
        run: its folder.
        config: of this run; of the other one only the environment counts.
        policy: tokenizes.

    Raises:
        ConfigError: there is no such run, or it has no trees.
    """
    other = read_config(Path(run))
    trees = [tree for _, tree in stored_trees(Path(run), iteration)]
    if not trees:
        raise ConfigError(f"{run} has no search trees of iteration {iteration}: remove it from revision.also")
    split = EnvSplit.open(replace(config, env=other.env), other.env.train_split)
    rollout = replace(split, horizon=0).rollout(policy)
    for node in (node for tree in trees for node in tree.nodes if node.parent is not None):
        node.completion = rollout.text_reply(node.reply, rollout.action_stops)
    return split, trees


__all__ = ["check_revision", "judging_policy", "searched_tasks", "trees_of"]

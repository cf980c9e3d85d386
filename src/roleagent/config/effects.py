"""Options that have no effect in a run, because another option switches off what they are about."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from roleagent.config import Config, method_class
from roleagent.config.curriculum import NEVER_TRAINED

_SIZES = "policy.hidden_size policy.layers policy.heads policy.kv_heads policy.mlp_size policy.vocabulary"
_PREDICTIONS = (
    "prompt.predictions prompt.horizon rollout.prediction_tokens rollout.predicted_turns rollout.eval_predictions "
    "loss.prediction_* "
    "loss.imitated_turns warmstart.predictions"
)
_BY_MODEL = "curriculum.reflection_tokens curriculum.selection_tokens curriculum.candidate_tokens"
_OF_STATES = "estimator.alpha estimator.similarity_threshold estimator.failed_command_state"
_OF_RL = (
    "estimator.* critic.* distill.* loss.clip_* loss.kl loss.importance_* loss.aggregation loss.old_logprobs "
    "loss.action_mask loss.function loss.prediction_credit loss.imitated_turns optim.lr optim.minibatches "
    "optim.minibatch_turns optim.epochs rollout.num_groups rollout.group_size rollout.dynamic_sampling_rounds "
    "rollout.async_level rollout.turns rollout.keep_groups train.iterations train.until train.shuffle "
    "train.information_every train.evaluate_every train.evaluate_tasks train.stop_on_regression"
)
_BY_OUTCOME = ("grpo", "rloo", "dapo", "gspo", "reinforce_pp_baseline", "distill")


def _reinforces(config: Config) -> bool:
    return method_class(config.method).reinforces


RULES: tuple[tuple[str, Callable[[Config], bool], str], ...] = (
    ("lora.alpha", lambda c: c.lora.rank > 0, "lora.rank=0 trains all weights"),
    (_SIZES, lambda c: not c.policy.path, "the model of policy.path has its own sizes"),
    ("prompt.history", lambda c: c.prompt.style != "transcript", "prompt.style=transcript shows all steps"),
    (_PREDICTIONS, lambda c: c.wia, "wia=off asks for no predictions"),
    ("loss.imitated_turns", lambda c: c.loss.prediction_credit == "imitate", "it belongs to prediction_credit=imitate"),
    (
        "warmstart.[!e]* warmstart.epochs",
        lambda c: c.warmstart.episodes > 0 or not _reinforces(c) or c.genenv,
        "warmstart.episodes=0 leaves the warm start out",
    ),
    ("warmstart.round_episodes", lambda c: c.warmstart.rounds > 0, "warmstart.rounds=0 has no rounds"),
    ("agent.[prt]*", lambda c: bool(c.agent.command), "agent.command is empty: the built-in loop plays"),
    (
        "prompt.style prompt.history prompt.templates",
        lambda c: not c.agent.command or c.warmstart.episodes > 0,
        "the program of agent.command writes its own prompts",
    ),
    (
        "loss.action_mask estimator.action_mask",
        lambda c: c.prompt.style != "window" or c.wia or bool(c.agent.command),
        "prompt.style=window has none of the world's text behind a reply",
    ),
    (
        "rollout.dynamic_sampling_rounds",
        lambda c: method_class(c.method).compares_outcomes,
        "the method compares no episodes, and learns from every group",
    ),
    ("estimator.gamma", lambda c: c.method not in _BY_OUTCOME, "the method gives every turn the outcome"),
    (
        "estimator.norm",
        lambda c: c.method not in ("rloo", "ppo", "reinforce_pp", "distill"),
        "the method compares with no mean of a group",
    ),
    (
        "estimator.outcome_level",
        lambda c: c.method not in ("ppo", "reinforce_pp", "distill"),
        "the method compares no outcomes",
    ),
    (
        "loss.importance_cap loss.importance_mode",
        lambda c: c.loss.old_logprobs == "learner" or (c.loss.old_logprobs == "auto" and c.rollout.backend != "local"),
        "ratios start from the sampler's log-probabilities",
    ),
    ("loss.importance_mode", lambda c: c.loss.importance_cap > 0, "loss.importance_cap=0 corrects nothing"),
    ("vllm.*", lambda c: c.rollout.backend == "vllm", "rollout.backend is not vllm"),
    ("distill.*", lambda c: bool(c.distill.teacher), "distill.teacher names no teacher"),
    ("distill.hint", lambda c: c.distill.teacher == "self", "it belongs to distill.teacher=self"),
    ("distill.model", lambda c: "://" in c.distill.teacher, "distill.teacher is no server"),
    ("critic.* estimator.gae_*", lambda c: method_class(c.method).critic, "the method has no critic"),
    (
        _OF_STATES,
        lambda c: method_class(c.method).compares_states,
        "the method compares no states",
    ),
    (
        "estimator.similarity",
        lambda c: c.wia or (method_class(c.method).compares_states and c.estimator.similarity_threshold > 0),
        "wia=off scores no predictions, and states are the same by hash",
    ),
    (
        "estimator.unscored_predictions",
        lambda c: c.wia and method_class(c.method).modulates,
        "only method=role_agent with wia=on modulates returns",
    ),
    (
        "estimator.overlong_buffer",
        lambda c: bool(c.estimator.rewards.get("overlong")),
        "estimator.rewards gives the reward overlong no weight",
    ),
    (
        "estimator.process_*",
        lambda c: any(c.estimator.rewards.get(name) for name in ("tool", "process")),
        "estimator.rewards gives the rewards tool and process no weight",
    ),
    (
        "loss.clip_* loss.importance_level",
        lambda c: not (c.loss.function or method_class(c.method).own_loss),
        "another loss takes the place of the clipped one",
    ),
    ("train.stop_on_regression", lambda c: bool(c.train.suite), "it belongs to train.suite"),
    ("optim.minibatches", lambda c: not c.optim.minibatch_turns, "optim.minibatch_turns takes its place"),
    ("curriculum.*", lambda c: c.aiw, "aiw=off has no curriculum"),
    ("lessons.[!s]* lessons.share", lambda c: c.lessons.show != "none", "lessons.show=none shows no lessons"),
    (
        "curriculum.learnability curriculum.library curriculum.[rsct]*",
        lambda c: c.curriculum.analyst != "types",
        "curriculum.analyst=types reads no failures",
    ),
    (
        "curriculum.[rsct]*",
        lambda c: c.curriculum.analyst not in ("replay", "text", "frozen"),
        "curriculum.analyst=replay, text and frozen read no failures",
    ),
    (f"{_BY_MODEL} curriculum.temperature", lambda c: c.curriculum.analyst != "rule", "rules write no text"),
    (
        "endpoint.*",
        lambda c: (c.aiw and c.curriculum.analyst == "endpoint") or (c.genenv and c.simulator_is_served),
        "neither curriculum.analyst nor simulator.kind is endpoint, and simulator.kind is not static",
    ),
    ("simulator.*", lambda c: c.genenv, "genenv=off writes no tasks"),
    ("simulator.lr simulator.weights", lambda c: c.simulator.kind == "model", "it belongs to simulator.kind=model"),
    (
        "simulator.rwr_lambda simulator.credit",
        lambda c: c.simulator.kind not in NEVER_TRAINED,
        "simulator.kind=base, static and endpoint learn nothing",
    ),
    (
        "simulator.probe",
        lambda c: c.train.evaluate_every > 0,
        "it is played with the evaluations between, and train.evaluate_every=0 has none",
    ),
    ("simulator.tasks", lambda c: c.simulator.kind == "static", "it belongs to simulator.kind=static"),
    (
        "options.revision.judge options.revision.splice options.revision.pairs_per_tree options.revision.pairing "
        "options.revision.separation options.revision.beta",
        lambda c: c.method != "agent_r" or c.options.revision.share > 0,
        "options.revision.share=0 has no revisions",
    ),
    (
        "options.search.uct",
        lambda c: not c.options.search.rollouts or c.options.search.num_children > 1,
        "with rollouts and num_children=1 all rollouts begin at the root",
    ),
    (
        "options.revision.replay",
        lambda c: c.warmstart.episodes > 0,
        "warmstart.episodes=0 leaves no demonstrations to imitate again",
    ),
    (
        "options.revision.eta",
        lambda c: c.method != "agent_r" or bool(c.options.revision.general),
        "options.revision.general names no general data",
    ),
    (
        "options.revision.judge options.revision.splice options.revision.share options.revision.eta "
        "options.revision.epochs options.revision.replay options.revision.general",
        lambda c: c.method != "eto",
        "method=eto prefers paths, and imitates none",
    ),
    ("train.tokens", lambda c: method_class(c.method).imitates, "it belongs to method=sft and agent_r"),
    (_OF_RL, lambda c: _reinforces(c), "the method is no reinforcement"),
    (
        "tracking.project",
        lambda c: any(name != "tensorboard" for name in c.tracking.to),
        "no tracker with projects is on",
    ),
)
"""Patterns of options, when they have an effect, and why they have none otherwise."""


_OF_TRAINING = (
    "run_dir aiw genenv options.* train.* optim.* loss.* estimator.[!s]* estimator.s[!i]* estimator.similarity_* "
    "distill.* critic.* warmstart.* lora.* deepspeed.* tracking.* curriculum.* simulator.* endpoint.* "
    "rollout.num_groups rollout.group_size rollout.temperature rollout.async_level "
    "rollout.dynamic_sampling_rounds rollout.turns rollout.keep_groups rollout.eval_sampled env.train_split "
    "lessons.share"
)


def of_training(overrides: Iterable[str]) -> list[str]:
    """The keys among ``key=value`` that an evaluation does not read.

    >>> of_training(["optim.lr=1", "prompt.think=none"])
    ['optim.lr']
    """
    keys = [override.partition("=")[0] for override in overrides]
    patterns = [*_OF_TRAINING.split(), *(() if "rollout.backend" in keys else ["vllm.*"])]
    return [key for key in keys if any(fnmatchcase(key, pattern) for pattern in patterns)]


def without_effect(config: Config, overrides: Iterable[str]) -> list[str]:
    """A line for each ``key=value`` of a command line that changes nothing in this run, with the reason.

    >>> from roleagent.config import load
    >>> without_effect(load(), ["lora.alpha=2", "estimator.alpha=2"])
    ['lora.alpha has no effect: lora.rank=0 trains all weights']
    """
    found = []
    for key in dict.fromkeys(override.partition("=")[0] for override in overrides):
        fitting = (one for one in RULES if any(fnmatchcase(key, pattern) for pattern in one[0].split()))
        reason = next((reason for _, effective, reason in fitting if not effective(config)), "")
        found += [f"{key} has no effect: {reason}"] if reason else []
    return found


__all__ = ["RULES", "of_training", "without_effect"]

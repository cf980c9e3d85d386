"""Options that contradict each other.

No torch is imported here, unless a method needs it: a plan of forks is shown without.
"""

from __future__ import annotations

from roleagent.agents.prompt_templates import read_templates
from roleagent.agents.rendering import style_of
from roleagent.config import Config, ConfigError
from roleagent.config.curriculum import NEVER_TRAINED
from roleagent.learners.method import loss_of, method_of
from roleagent.similarity import similarity_of


def check_learning(config: Config) -> None:
    """Refuses contradictory options of method and loss.

    Raises:
        ConfigError, ValueError: one line that explains what to change.
    """
    style_of(config.prompt.style)
    read_templates(config.prompt.templates)
    similarity_of(config.estimator.similarity)
    method = method_of(config)
    method.check()
    loss_of(method)
    if config.reads_start and method.reinforces and not method.needs_reference():
        raise ConfigError(
            f"{config.reads_start} needs the policy after the warm start, which method={config.method} does not keep "
            "(needs_reference): leave it out"
        )
    if method.reads_world and not style_of(config.prompt.style).grows:
        raise ConfigError(
            f"method={config.method} trains on what stands between two replies of a prompt, and prompt.style="
            f"{config.prompt.style} writes a new prompt for each: set prompt.style=transcript"
        )
    if config.prompt.think == "required" and config.warmstart.episodes:
        raise ConfigError(
            "prompt.think=required refuses replies without a thought, and demonstrations have none: set "
            "warmstart.episodes=0, or prompt.think=optional"
        )
    _check_predictions(config)
    _check_control(config)
    _check_lessons(config)
    if config.agent.command and not method.reinforces:
        raise ConfigError(f"agent.command works with reinforcement, not with method={config.method}")
    if config.rollout.turns and config.agent.command:
        raise ConfigError("rollout.turns is for the built-in loop: limit an agent program with agent.replies")
    if config.rollout.async_level:
        _check_async(config)


def _check_async(config: Config) -> None:
    """Refuses ``rollout.async_level`` if nothing samples beside the learner, or nothing corrects for older weights."""
    rollout, loss = config.rollout, config.loss
    vllm = config.vllm
    if rollout.backend == "local" or (rollout.backend == "vllm" and not (vllm.url or vllm.engines)):
        raise ConfigError(
            "rollout.async_level=1 samples during the update, so it needs another process: set vllm.engines or vllm.url"
        )
    if rollout.backend == "vllm" and vllm.engines and vllm.sleep:
        raise ConfigError(
            "rollout.async_level=1 samples during the update, when vllm.engines sleep: set vllm.sleep=off"
        )
    if rollout.dynamic_sampling_rounds:
        raise ConfigError(
            "rollout.dynamic_sampling_rounds plays further groups before the update, and rollout.async_level=1 those "
            "of the next iteration: set one of them to 0"
        )
    if loss.old_logprobs != "sampler" and not loss.importance_cap:
        raise ConfigError(
            "rollout.async_level=1 learns from older weights, and nothing corrects for them: set loss.importance_cap, "
            "e.g. to 2, or loss.old_logprobs=sampler"
        )


def _check_lessons(config: Config) -> None:
    """Refuses lessons that no prompt can hold, or that nobody writes."""
    shown, analyst = f"lessons.show={config.lessons.show}", config.curriculum.analyst
    if config.lessons.show == "none":
        return
    if not config.aiw:
        raise ConfigError(
            f"{shown} reads the failure library, and aiw=off keeps none: set aiw=on (curriculum.epsilon=0 leaves the "
            "choice of tasks alone)"
        )
    if analyst in ("replay", "text", "types"):
        raise ConfigError(f"{shown} needs lessons, and curriculum.analyst={analyst} reads no failures: set another one")
    if not method_of(config).reinforces:
        raise ConfigError(f"{shown} works with reinforcement, not with method={config.method}")
    if config.agent.command:
        raise ConfigError(f"{shown} changes the prompts, and agent.command writes its own: set lessons.show=none")


def _check_control(config: Config) -> None:
    """Refuses a ``train.shuffle`` that has nothing to shuffle: such a control is the run that it controls."""
    what, weights = config.train.shuffle, config.estimator.rewards
    if what == "process" and not any(weights.get(name) for name in ("tool", "process")):
        raise ConfigError(
            "train.shuffle=process shuffles the rewards tool and process, to which estimator.rewards gives no weight: "
            "set one, or train.shuffle=advantages"
        )
    if what == "success_rates" and not (config.genenv and config.simulator.kind not in NEVER_TRAINED):
        raise ConfigError(
            "train.shuffle=success_rates is a control of a simulator that learns: set genenv=on and simulator.kind to "
            "model or table"
        )


def _check_predictions(config: Config) -> None:
    """Refuses a rule of ``loss.prediction_credit`` that cannot work with the run's prompts."""
    rule, form = config.loss.prediction_credit, config.prompt.predictions
    if not config.wia or not method_of(config).reinforces:
        return
    if config.rollout.predicted_turns == "compared":
        refused = {
            f"prompt.predictions={form}": form != "detached",
            f"loss.prediction_credit={rule}": rule in ("advantage", "own"),
            "rollout.async_level=1": bool(config.rollout.async_level),
        }
        if option := next((option for option, holds in refused.items() if holds), ""):
            raise ConfigError(
                f"rollout.predicted_turns=compared samples few predictions, behind the episodes; {option} needs all "
                "of them: set rollout.predicted_turns=all"
            )
    if form == "inline" and rule != "advantage":
        raise ConfigError(
            f"loss.prediction_credit={rule} needs predictions apart from the action, and prompt.predictions=inline has "
            "both in one reply: set loss.prediction_credit=advantage, or another prompt.predictions"
        )
    if rule == "imitate" and form == "followup" and style_of(config.prompt.style).grows:
        raise ConfigError(
            "loss.prediction_credit=imitate trains on the true next state, and prompt.predictions=followup keeps the "
            "sampled prediction in the transcript: set prompt.predictions=detached, or another loss.prediction_credit"
        )


__all__ = ["check_learning"]

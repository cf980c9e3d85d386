"""A model under DeepSpeed that is updated on one batch of segments at a time, and the learner: a policy under an
engine, with a critic, a task simulator and the reference of the KL penalty.

The same code runs on one CPU and on many GPUs. All weights of an objective are known before the first forward pass
(:func:`roleagent.learners.loss.token_weights`), so a batch is a sum over micro-batches and ranks. The last micro-batch
of an update is marked by hand.

At ZeRO stage 3 no process holds a whole weight between two calls, and reading one is a collective operation. Rollouts
must not wait for other ranks, so a :class:`Learner` trains a copy there. It gathers the copy's weights into the
policy's own model, parameter after parameter, when they are asked for. Where another sampler plays, that model computes
nothing and stays in main memory. The reference is spread over the ranks as well.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from roleagent.agents.policies.hf import HFPolicy
from roleagent.config import Config, ConfigError, merged, method_class
from roleagent.learners.batch import Column
from roleagent.learners.engine.flops import flop_of_token
from roleagent.learners.engine.logprobs import (
    MicroBatch,
    TokenScorer,
    TokenScores,
    collate,
    copy_on_cpu,
    enable_activation_checkpointing,
    find_scoring,
    gather_into,
    partition,
    token_scores,
)
from roleagent.learners.engine.lora import Adapter, AdapterSwap, plain_weights
from roleagent.learners.engine.optimizer import build_optimizer, rate
from roleagent.learners.engine.prefix_sharing import compile_layers
from roleagent.learners.engine.repartition import load_repartitioned, zero_parts
from roleagent.learners.run.ranks import Ranks
from roleagent.random_streams import random_stream
from roleagent.slow_notice import counting, waiting
from roleagent.types import ACTION, CONTEXT, Segment

_OURS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "optimizer",
    "scheduler",
)
"""What the learner decides itself: it cuts micro-batches by tokens, builds the optimizer and sets its rate."""


def zero_stage(config: Config) -> int:
    """The ZeRO stage that is run. In bfloat16 it is at least 1: stage 0 has no master weights in fp32 and rounds each
    step away."""
    stage = config.deepspeed.zero_stage
    return max(1, stage) if config.policy.dtype == "bfloat16" else stage


def policy_computes(config: Config) -> bool:
    """Whether the policy's own model computes beside the learner: it samples, or an adapter is compared with it."""
    return config.rollout.backend == "local" or config.lora.rank > 0


def deepspeed_settings(config: Config) -> dict[str, Any]:
    """The dictionary for ``deepspeed.initialize``; ``deepspeed.extra`` has the last word."""
    options, stage = config.deepspeed, zero_stage(config)
    settings: dict[str, Any] = {
        # The learner cuts micro-batches itself and marks the one that ends an update.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.optim.max_grad_norm,
        "zero_allow_untested_optimizer": True,
        # DeepSpeed's own optimizer for the CPU is compiled on first use, which pays where there is an accelerator.
        "zero_force_ds_cpu_optimizer": False,
        # Gradients are reduced while the backward pass goes on, as by default at stage 3.
        "zero_optimization": {"stage": stage, "overlap_comm": stage >= 2},
        "wall_clock_breakdown": False,
    }
    if config.policy.dtype == "bfloat16":
        settings["bf16"] = {"enabled": True}
        # The sum over many micro-batches would lose its small terms in bfloat16.
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    return merged(settings, options.extra)


def _check_extra(config: Config) -> None:
    """Has DeepSpeed read the settings, which it would otherwise do after the warm start's demonstrations."""
    from deepspeed.runtime.config import DeepSpeedConfig

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            DeepSpeedConfig(deepspeed_settings(config))
    except Exception as error:  # pydantic's, assertions, and what Python makes of a value where a section should be
        raise ConfigError(f"DeepSpeed refuses deepspeed.extra: {' '.join(str(error).split())[:300]}") from error


def check_deepspeed(config: Config) -> None:
    """Refuses unsupported combinations of optimizer, DeepSpeed and adapters.

    Raises:
        ConfigError: one line with what to change.
    """
    options, stage = config.deepspeed, zero_stage(config)
    own_simulator = config.simulator_is_model and not config.shares_simulator  # which has a warm start
    imitates = config.warmstart.episodes > 0 or method_class(config.method).imitates or own_simulator
    if config.warmstart.optimizer == "muon" and stage > 0 and imitates:
        raise ConfigError(
            "warmstart.optimizer=muon works on whole matrices, which ZeRO (deepspeed.zero_stage > 0, or bfloat16) "
            "takes apart: choose adamw"
        )
    for key in _OURS:
        if key in options.extra:
            raise ConfigError(f"deepspeed.extra cannot set {key}: the learner decides that (see the section optim)")
    zero = options.extra.get("zero_optimization", {})
    if isinstance(zero, Mapping) and zero.get("stage", stage) != stage:
        raise ConfigError("deepspeed.extra cannot set the ZeRO stage: that is deepspeed.zero_stage")
    if config.optim.compile and (stage == 3 or own_simulator or policy_computes(config)):
        raise ConfigError(
            "optim.compile compiles a whole model that does nothing but learn: let vLLM or a server sample, without "
            "lora.rank, ZeRO stage 3, and a task writer with weights of its own"
        )
    if options.extra:
        _check_extra(config)
    if config.lora.rank and not config.policy.path:
        raise ConfigError("lora.rank adapts a model that knows something already: name one with policy.path")
    if config.lora.rank and importlib.util.find_spec("peft") is None:
        raise ConfigError("lora.rank needs the package peft: pip install 'roleagent[lora]'")


Columns = Mapping[str, Column]
"""Columns by name: numbers per segment and token."""

Objective = Callable[[TokenScores], torch.Tensor]
"""From the trained tokens of a micro-batch to a loss that is *summed* over micro-batches and ranks."""


class NotFinite(ArithmeticError):
    """An update that was skipped because its loss or gradient is not finite; raised on all ranks at once.

    Attributes:
        loss: of the whole batch, over all ranks.
        norm: of the gradient; 0 if it was not computed.
        segments: this rank's part of the batch.
        columns: the objective's columns.
        tasks: the task of each ``Segment.trajectory``, if known.
    """

    def __init__(self, loss: float, norm: float, segments: Sequence[Segment], columns: Columns):
        super().__init__(f"loss {loss:g}, gradient norm {norm:g}")
        self.loss, self.norm, self.segments, self.columns = loss, norm, segments, columns
        self.tasks: Sequence[str] = ()


def _spread(values: torch.Tensor, segments: Sequence[Segment], chosen: Sequence[int], into: Column) -> None:
    """Writes the scores of a micro-batch, one trained token after another, to the places of its segments."""
    scores, end = values.detach().double().cpu().numpy(), 0
    for index in chosen:
        scored = np.flatnonzero(segments[index].token_kind)
        start, end = end, end + len(scored)
        into[index][scored] = scores[start:end]


class Engine:
    """A model that scores tokens, and its optimizer, under DeepSpeed.

    Args:
        module: maps a micro-batch, a temperature and whether entropies are wanted to one number per trained token and
            the entropies (a :class:`~roleagent.learners.engine.logprobs.TokenScorer`, or a critic).
        config: the run's configuration (sections ``optim``, ``deepspeed``).
        lr: peak learning rate.
        pad_id: the token that fills the rows.
        optimizer: ``"adamw"`` or ``"muon"`` (see :mod:`roleagent.learners.engine.optimizer`).

    Attributes:
        share: of the stage that is done, in [0, 1], for ``optim.schedule``; set by the caller.
        steps: updates so far.
        flop: floating-point operations of updates and scores, counted from 0 whenever the caller sets it so; stays 0
            where they are not known (:mod:`roleagent.learners.engine.flops`).
    """

    def __init__(self, module: torch.nn.Module, config: Config, lr: float, pad_id: int, optimizer: str = "adamw"):
        import deepspeed

        self.module, self.config, self.lr, self.pad_id = module, config, lr, pad_id
        self.ranks = Ranks.join()
        self.steps, self.share = 0, 0.0
        self.flop, self._flop_of_token = 0.0, (0, 0)
        self.stage = zero_stage(config)
        self.engine: Any
        self.optimizer: Any
        settings = deepspeed_settings(config)
        if self.stage == 3:
            partition(module, settings)
        on_cpu = "offload_optimizer" in settings["zero_optimization"] and torch.cuda.is_available()
        # DeepSpeed prints the memory in use.
        with waiting("DeepSpeed to build the optimizer"), contextlib.redirect_stdout(io.StringIO()):
            self.engine, self.optimizer, _, _ = deepspeed.initialize(
                model=module,
                optimizer=build_optimizer(optimizer, module, lr, config.optim.weight_decay, config.optim.beta2, on_cpu),
                config=settings,
                dist_init_required=False,
            )
        self.device = self.engine.device
        self.ranks.at_exit(self.close)

    def update(
        self,
        segments: Sequence[Segment],
        columns: Columns,
        objective: Objective,
        temperature: float,
        entropy: bool = False,
        keep: Column | None = None,
    ) -> float:
        """Sums ``objective`` over all micro-batches and ranks and steps once; every rank must call it.

        Args:
            segments: those of this rank; may be none if another rank has some.
            columns: the numbers per token that ``objective`` needs.
            objective: must weigh its tokens by the whole batch, of all ranks.
            temperature: of the distributions that tokens are scored under.
            entropy: whether ``objective`` needs entropies.
            keep: an array per segment; receives the scores of its trained tokens, from before the step.

        Returns:
            the gradient's norm before clipping.

        Raises:
            ValueError: no rank has a segment.
            NotFinite: the loss or the gradient is not finite; the weights are unchanged.
        """
        plan = self.module.plan(segments, self.config.optim.micro_batch_tokens)
        rounds = self.ranks.max(len(plan))
        if not rounds:
            raise ValueError("an update needs at least one segment with trained tokens on some rank")
        self.module.train()
        # Dropout is a function of the update, so a resumed run draws the same numbers.
        own = random_stream(self.config.seed, "rank", self.ranks.rank, "dropout", self.steps)
        torch.manual_seed(int(own.integers(2**62)))
        options = self.config.optim
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.lr, options.schedule, self.share, self.steps, options.warmup_steps)
        norm, summed, total = 0.0, 0.0, torch.zeros((), device=self.device)
        for number in range(rounds):
            # All ranks need the same number of micro-batches, or the collective operations of one would wait forever:
            # idle ones of weight 0 fill up.
            batch = self._collate(segments, columns, plan[number]) if number < len(plan) else self._idle(columns)
            # DeepSpeed counts micro-batches to know when to step, and scales the loss by that count. Here every loss is
            # a part of one sum already, and the number of parts varies: the settings say one, and the last is marked.
            self.engine.set_gradient_accumulation_boundary(number == rounds - 1)
            self.flop += self._flop_of_token[1] * batch.prefixes.places.numel()
            with counting("tokens trained", batch.prefixes.places.numel()):
                scores = token_scores(batch, *self.engine(batch, temperature, entropy))
                if keep is not None and number < len(plan):
                    _spread(scores.logprobs, segments, plan[number], keep)
                loss = objective(scores)
                # DeepSpeed averages gradients over ranks; the objective is a sum over them.
                self.engine.backward(loss * self.ranks.size)
                total = total + loss.detach()
                if number == rounds - 1:
                    # Read once per update: on an accelerator reading a number waits for the device.
                    norm, summed = 0.0 if self.partitioned else self._gradient_norm(), self.ranks.sum(float(total))
                    if not (math.isfinite(summed) and math.isfinite(norm)):
                        raise NotFinite(summed, norm, segments, columns)
                self.engine.step()
        if self.partitioned:
            norm = self._gradient_norm()
            if not math.isfinite(norm):
                raise NotFinite(summed, norm, segments, columns)
        self.steps += 1
        self.updated()
        return norm

    def updated(self) -> None:
        """Hook after each update, for what depends on the weights."""

    @torch.no_grad()
    def score(self, segments: Sequence[Segment], temperature: float, module: torch.nn.Module | None = None) -> Column:
        """Scores the trained tokens with the model's present weights, or with another ``module``.

        At ZeRO stage 3 every rank must call it, also for the reference: the ranks need each other's parts of them.

        Returns:
            float64 column, 0 for untrained tokens. (Of a policy: nats, at ``temperature``.)
        """
        asked = self.module if module is None else module
        own = asked is self.module
        scorer = self.engine if own else asked
        asked.eval()
        plan = asked.plan(segments, self.config.optim.micro_batch_tokens)
        scores = [np.zeros(len(segment)) for segment in segments]
        parts = any(hasattr(weight, "ds_id") for weight in asked.parameters())
        missing = self.ranks.max(len(plan)) - len(plan) if parts else 0
        for chosen in plan:
            batch = self._collate(segments, {}, chosen)
            self.flop += self._flop_of_token[0] * batch.prefixes.places.numel()
            with counting("tokens scored", batch.prefixes.places.numel()):
                values = scorer(batch, temperature)[0]
            _spread(values, segments, chosen, scores)
        for _ in range(missing):
            scorer(self._idle({}), temperature)
        return scores

    def _collate(self, segments: Sequence[Segment], columns: Columns, chosen: Sequence[int]) -> MicroBatch:
        part = {name: [rows[i] for i in chosen] for name, rows in columns.items()}
        return collate([segments[i] for i in chosen], self.pad_id, part).to(self.device)

    def _idle(self, columns: Iterable[str]) -> MicroBatch:
        """A micro-batch of weight 0."""
        zeros = np.zeros(2)
        nothing = Segment(np.full(2, self.pad_id), np.array([CONTEXT, ACTION]), zeros, zeros)
        return collate([nothing], self.pad_id, {name: [zeros] for name in columns}).to(self.device)

    @property
    def partitioned(self) -> bool:
        """Whether ZeRO holds the gradients: it knows their norm after its step, and skips a step of non-finite norm."""
        return self.stage > 0

    def _gradient_norm(self) -> float:
        if self.partitioned:
            return float(self.engine.get_global_grad_norm() or 0.0)
        # Stage 0 in fp32 reports no norm; its gradients are at the parameters, already averaged over ranks.
        norms = [p.grad.norm() for p in self.module.parameters() if p.grad is not None]
        return float(torch.stack(norms).norm()) if norms else 0.0

    def save(self, folder: Path) -> None:
        """Writes weights and optimizer state in DeepSpeed's own format, without frozen weights.

        The format is pickled: load only files that you wrote yourself.
        """
        self.engine.save_checkpoint(
            str(folder),
            tag="state",
            client_state={"steps": self.steps},
            save_latest=False,
            exclude_frozen_parameters=True,
        )

    def load(self, folder: Path) -> None:
        """The inverse of :meth:`save`, with any number of ranks."""
        if len(zero_parts(folder / "state")) not in (0, self.ranks.size):
            self.steps = load_repartitioned(self.engine, folder / "state")["steps"]
            return
        with contextlib.redirect_stdout(io.StringIO()):
            _, client = self.engine.load_checkpoint(str(folder), tag="state", load_module_strict=False)
        if client is None:
            raise OSError(f"no learner state in {folder}")
        self.steps = int(client["steps"])

    def close(self) -> None:
        """Releases the model and DeepSpeed's hooks, before the next engine trains it and before the processes end."""
        if self.engine is not None:
            self.engine.destroy()
            self.engine = self.optimizer = None
            del self.module
            self.ranks.cancel_at_exit(self.close)


def spread(module: torch.nn.Module, config: Config) -> torch.nn.Module:
    """Spreads a frozen module over the ranks, which gather it layer by layer when it is called; returns it.

    Every rank must call this, and the module as often as all others.
    """
    import deepspeed

    settings = deepspeed_settings(config)
    partition(module, settings)
    with contextlib.redirect_stdout(io.StringIO()):
        deepspeed.initialize(model=module, config=settings, dist_init_required=False)
    return module


class Learner(Engine):
    """Updates a policy.

    Up to ZeRO stage 2 the policy's own model is trained in place. At stage 3 a copy is, and the policy has the new
    weights from :meth:`weights` on.

    Args:
        policy: the policy whose model is trained; its ``version`` counts updates.
        config: the run's configuration (sections ``loss``, ``optim``, ``deepspeed``).
        lr: peak learning rate.
        reference: of the KL penalty: a model, or an adapter of the policy's model; None for no penalty.
        optimizer: ``"adamw"`` or ``"muon"``.
        computes: whether the policy's own model computes as well (:func:`policy_computes`). If not, at stage 3 it moves
            to main memory, where new weights are collected for the sampler and for checkpoints.

    Raises:
        PolicyError: the learner would not score the model's tokens as the model does, or cannot compile its layers.
    """

    def __init__(
        self,
        policy: HFPolicy,
        config: Config,
        lr: float,
        reference: PreTrainedModel | Adapter | None = None,
        optimizer: str = "adamw",
        computes: bool = True,
    ):
        pad = int(policy.tokenizer.pad_token_id or 0)  # type: ignore[arg-type]
        scoring = find_scoring(policy.model, policy.context_length)
        if zero_stage(config) == 3 and not computes:
            policy.model.to("cpu")
        trained = copy_on_cpu(policy.model) if zero_stage(config) == 3 else policy.model
        if config.deepspeed.activation_checkpointing:
            enable_activation_checkpointing(trained)
        if config.optim.compile:
            compile_layers(trained)
        super().__init__(TokenScorer(trained, scoring), config, lr, pad, optimizer)
        self.policy, self._trained, self._synced_steps = policy, trained, 0
        self._flop_of_token = flop_of_token(trained) or (0, 0)
        self.critic: Engine | None = None  # is saved and loaded with its learner
        self.beside: dict[str, Learner] = {}  # likewise: other models that learn, by name
        self.teacher: Any = None  # scores sampled tokens (roleagent.learners.distillation.Teacher); learns nothing
        self.reference: torch.nn.Module | None = None
        if isinstance(reference, Adapter):
            self.reference = AdapterSwap(TokenScorer(policy.model, scoring), reference)
        elif reference is not None and self.stage == 3:
            self.reference = spread(TokenScorer(reference, scoring), config)
        elif reference is not None:
            self.reference = TokenScorer(reference, scoring).to(self.device)

    def updated(self) -> None:
        """Counts the policy's version and clears its cache."""
        self.policy.version += 1
        self.policy.clear_cache()

    def weights(self, adapted: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        """Every whole weight of the policy by its name in the plain model, one after another.

        Every rank must take them all. The policy's own model has them too, from the first on.

        Args:
            adapted: whether to merge the adapters, if there are any.
        """
        self.sync_policy()
        yield from plain_weights(self.policy.model, adapted)

    def adapter(self) -> Adapter:
        """The trained adapter without its model; every rank must call it."""
        self.sync_policy()
        return Adapter.of(self.policy.model)

    def sync_policy(self) -> None:
        """Copies the trained weights into the policy's own model; every rank must call it."""
        if self._trained is not self.policy.model and self._synced_steps != self.steps:
            gather_into(self.policy.model, self._trained)
            self.policy.clear_cache()
        self._synced_steps = self.steps

    def save(self, folder: Path) -> None:
        """As :meth:`Engine.save`, and the critic and other models beside it, if there are any."""
        super().save(folder)
        for name, other in self._beside():
            other.save(folder / name)

    def load(self, folder: Path) -> None:
        """As :meth:`Engine.load`, for the policy, the critic and other models."""
        super().load(folder)
        for name, other in self._beside():
            other.load(folder / name)
        self._synced_steps = -1
        self.sync_policy()

    def _beside(self) -> Iterator[tuple[str, Engine]]:
        if self.critic is not None:
            yield "critic", self.critic
        yield from self.beside.items()

    def close(self) -> None:
        super().close()
        self._trained = self.policy.model

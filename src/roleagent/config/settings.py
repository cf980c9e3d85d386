"""The options of a run, section by section: frozen dataclasses with every default and its unit.

:mod:`roleagent.config` fills them from files and ``key=value`` overrides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic.dataclasses import dataclass

from roleagent.options import shown
from roleagent.validation import OFF_IS_NONE, ONE_IS_A_LIST, Integer, Number, PathText, Switch, Text


def _interval(value: str) -> str:
    if not re.fullmatch(r"[1-9]\d{0,8}m?", value):
        raise ValueError(
            f"train.checkpoint_every must be a number of iterations, or of minutes such as 15m, not {shown(value)}"
        )
    return value


def _duration(value: str) -> str:
    if value and not re.fullmatch(r"[1-9]\d{0,5}[smh]", value):
        raise ValueError(f"train.stop_after must be a duration such as 90s, 20m or 12h, not {shown(value)}")
    return value


Count = Annotated[Integer, Field(ge=0, le=10**9)]
Size = Annotated[Integer, Field(ge=1, le=10**9)]
Length = Annotated[Integer, Field(ge=1, le=2**20)]
Amount = Annotated[Number, Field(ge=0, le=10**9)]
Positive = Annotated[Number, Field(gt=0, le=10**9)]
Share = Annotated[Number, Field(ge=0, le=1)]
ShareAbove0 = Annotated[Number, Field(gt=0, le=1)]
ShareBelow1 = Annotated[Number, Field(ge=0, lt=1)]
Rate = Annotated[Number, Field(ge=0, le=10)]
Temperature = Annotated[Number, Field(ge=0, le=100)]
Interval = Annotated[Text, AfterValidator(_interval)]
Duration = Annotated[Text, AfterValidator(_duration)]
KNOWN_KEYS = ConfigDict(extra="forbid")
Texts = Annotated[tuple[Text, ...], ONE_IS_A_LIST]
MAX_NOTES = 5
"""Revision notes of an episode."""
_EPISODES = 1_000_000  # most of an iteration


def check_name(option: str, value: str, *names: str) -> None:
    """Refuses a value that is neither a built-in name nor ``module:Class``."""
    if value not in names and not re.fullmatch(r"[\w.]+:\w+", value):
        raise ValueError(f"{option} must be one of {', '.join(names)} or module:Class, not {shown(value)}")


@dataclass(frozen=True, config=KNOWN_KEYS)
class EnvConfig:
    """The environment and its splits."""

    id: Text = "RoleAgent/ALFWorld-v0"  # a Gymnasium id; module:id imports the module first
    train_split: Text = "train"  # the split that is trained on
    eval_split: Text = "valid_unseen"  # the split that is measured on
    eval_tasks: Count = 0  # tasks of the evaluation split, of all types; 0: all of them
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # for gymnasium.make, e.g. size: small
    step_timeout: Amount = 0.0  # seconds of a reset or step, after which the environment counts as failed; 0: no limit


def environment_name(env_id: str) -> str:
    """What an environment is called beside others, if nothing names it.

    >>> environment_name("RoleAgent/TextCraft-v0")
    'textcraft'
    """
    return re.sub(r"^.*[/:]|-v\d+$", "", env_id).lower()


@dataclass(frozen=True, config=KNOWN_KEYS)
class EnvMemberConfig(EnvConfig):
    """One of several environments of a run."""

    name: Text = ""  # its tasks are called name/task; empty: that of the id, e.g. textcraft
    share: ShareAbove0 = 1.0  # of the tasks that are drawn, and of the warm start

    @model_validator(mode="after")
    def _name(self) -> EnvMemberConfig:
        if not self.name:
            object.__setattr__(self, "name", environment_name(self.id))
        if not re.fullmatch(r"[\w.-]+", self.name):
            raise ValueError(f"the name of an environment has letters, digits, '.', '-' and '_': {shown(self.name)}")
        return self


def _members(members: tuple[EnvMemberConfig, ...]) -> tuple[EnvMemberConfig, ...]:
    names = [one.name for one in members]
    if not names:
        raise ValueError("env is an empty list: name at least one environment")
    if twice := next((name for place, name in enumerate(names) if name in names[:place]), ""):
        raise ValueError(f"two environments are called {twice}: give each a name of its own, e.g. name: {twice}2")
    if abs(sum(one.share for one in members) - 1) > 1e-6:
        shares = " + ".join(f"{one.share:g}" for one in members)
        raise ValueError(f"the shares of the environments must sum to 1, not {shares}")
    return members


Environments = Annotated[
    Annotated[EnvConfig, Tag("one")] | Annotated[tuple[EnvMemberConfig, ...], AfterValidator(_members), Tag("several")],
    Discriminator(lambda value: "several" if isinstance(value, list | tuple) else "one"),
]
"""One environment, or a list of several."""


@dataclass(frozen=True, config=KNOWN_KEYS)
class PolicyConfig:
    """The language model: a path or hub name, or a small one built from these sizes."""

    path: PathText = ""  # empty: build one from scratch with a tokenizer of its own
    hidden_size: Length = 160  # of a policy from scratch, as all sizes here
    layers: Length = 4  # transformer blocks
    heads: Length = 5  # of the attention; they divide hidden_size
    kv_heads: Length = 5  # key and value heads; they divide heads
    mlp_size: Length = 480  # inner size of a block
    vocabulary: Annotated[Integer, Field(ge=300, le=2**20)] = 2048  # maximum tokens of the tokenizer
    context: Annotated[Integer, Field(ge=1, le=2**24)] = 1024  # tokens
    dtype: Literal["float32", "bfloat16"] = "float32"  # of weights and arithmetic (docs/scaling.md)
    # of products of float32 matrices, as torch names it: high is TF32 on GPUs, medium bfloat16 on CPUs with AMX
    matmul_precision: Literal["highest", "high", "medium"] = "highest"

    @model_validator(mode="after")
    def _shape(self) -> PolicyConfig:
        size, heads, kv_heads = self.hidden_size, self.heads, self.kv_heads
        if self.path:
            return self
        if size % heads:
            raise ValueError(f"policy.heads must divide policy.hidden_size, but {heads} does not divide {size}")
        if size // heads % 2:
            raise ValueError(
                f"policy.hidden_size / policy.heads must be even, for rotary positions, not {size} / {heads}"
            )
        if heads % kv_heads:
            raise ValueError(f"policy.kv_heads must divide policy.heads, but {kv_heads} does not divide {heads}")
        return self


@dataclass(frozen=True, config=KNOWN_KEYS)
class LoRAConfig:
    """Low-rank adapters in place of training every weight."""

    rank: Annotated[Integer, Field(ge=0, le=4096)] = 0  # 0: all weights are trained
    alpha: Positive = 32.0  # what an adapter adds counts alpha / rank


@dataclass(frozen=True, config=KNOWN_KEYS)
class PromptConfig:
    """The prompt and the form of replies."""

    style: Text = "transcript"  # transcript (one text that only grows), window (a fresh prompt per step), module:Class
    templates: PathText = ""  # a YAML file with texts of your own (docs/write_a_method.md)
    history: Annotated[Integer, Field(ge=0, le=10_000)] = 2  # past steps shown by the window style
    think: Annotated[Literal["none", "optional", "required"], OFF_IS_NONE] = "none"
    # whether thoughts before the action are asked for
    tool_format: Literal[
        "auto",
        "hermes",
        "json",
        "python",
        "llama3",
        "tags",
        "native",
        "qwen3_coder",
        "seed_oss",
        "glm45",
        "minimax_m2",
        "kimi_k2",
        "deepseek_v3",
        "deepseek_v31",
        "deepseek_v32",
        "deepseek_v4",
        "openai",
        "gemma4",
        "mistral",
        "lfm2",
    ] = "auto"  # of calls, with tools; auto: that of the model's chat template, hermes where it has none
    predictions: Literal["detached", "followup", "inline"] = "detached"  # after the action, in no later prompt; after
    # the action, kept in the transcript; or in the same reply
    horizon: Annotated[Integer, Field(ge=0, le=1000)] = 0  # steps ahead; 0: max(1, floor(0.05 T_max + 0.5))
    revisions: Annotated[Literal["none", "note", "action"], OFF_IS_NONE] = "none"  # how a reply takes back a mistake
    # (Agent-R): not at all; by a reply <revise>…</revise>, which goes to no environment; or by the command `wait`

    @model_validator(mode="after")
    def _style(self) -> PromptConfig:
        check_name("prompt.style", self.style, "transcript", "window")
        return self

    @property
    def notes(self) -> int:
        """Revision notes that an episode may have; 0 where replies have none."""
        return MAX_NOTES if self.revisions == "note" else 0

    @property
    def thinks(self) -> bool:
        """Whether replies may contain thoughts."""
        return self.think != "none"

    @property
    def call_format(self) -> str:
        """The format of calls: ``auto`` is the default where no model has chosen another."""
        return "hermes" if self.tool_format == "auto" else self.tool_format


@dataclass(frozen=True, config=KNOWN_KEYS)
class WarmStartConfig:
    """Imitation of a scripted expert that sees only the agent's observations."""

    episodes: Annotated[Integer, Field(ge=0, le=10**6)] = 1200  # demonstrations; with few tasks less,
    # so that no task has more than 40 of them and of the rounds' episodes
    epochs: Annotated[Number, Field(gt=0, le=10_000)] = 3.0  # passes over the demonstrations
    rounds: Annotated[Integer, Field(ge=0, le=100)] = 0  # so often policy and expert take turns in episodes,
    # and the expert's commands are imitated
    round_episodes: Annotated[Integer, Field(ge=1, le=10**6)] = 800  # of each round
    noise: ShareBelow1 = 0.1  # share of steps replaced by the slip of a weak policy (not imitated)
    predictions: Share = 1.0  # share of demonstrations with predictions (detached: one each), of those without a failed
    # command; the others play as wia=off
    text_weight: Amount = 0.3  # of the world's own text in the loss, relative to an action token
    optimizer: Literal["adamw", "muon"] = "muon"  # muon: matrices by Muon, the rest by AdamW
    lr: Rate = 1e-2  # peak
    batch_tokens: Size = 2500  # tokens per update
    failures: Annotated[Number, Field(ge=0, le=100)] = 0.25  # per demonstration an episode failed on purpose:
    # curriculum.analyst=model learns from it
    shares: Mapping[str, Share] = field(default_factory=dict)  # of demonstrations and rounds, by task type or
    # pattern of task ids, such as "*-4-*"; others: 1


@dataclass(frozen=True, config=KNOWN_KEYS)
class RolloutConfig:
    """The episodes of an iteration and of evaluation."""

    num_groups: Length = 12  # groups per iteration
    group_size: Length = 8  # episodes of the same task, G
    temperature: Annotated[Number, Field(gt=0, le=100)] = 1.0  # at which training episodes are sampled
    eval_temperature: Temperature = 0.0  # of measurements; 0: greedy
    eval_sampled: Temperature = 0.0  # a second temperature of measurements, such as 1; 0: none
    eval_batch: Length = 100  # episodes side by side in evaluation
    eval_predictions: Switch = True  # whether evaluations predict, too; greedy play is the same without, for
    # detached predictions stand in no later prompt
    turns: tuple[Length, ...] = ()  # most turns of training episodes in equal parts of the run, fewer first, such as
    # [4, 8, 12] (ScalingInter-RL); empty: the environment's own limit
    action_tokens: Length = 24  # maximum tokens per action reply
    prediction_tokens: Length = 64  # maximum tokens per prediction reply
    predicted_turns: Literal["all", "compared"] = "all"  # turns of training episodes that predict. compared: those
    # whose score changes an advantage: of episodes with a return, in a state that other turns share, in groups with
    # variance
    backend: Text = "local"  # what samples: local (transformers in this process), vllm, or module:Class
    async_level: Annotated[Integer, Field(ge=0, le=1)] = 0  # batches that are played before the update on the last
    # one ends; needs a sampler beside the learner: vllm.url, or module:Class
    dynamic_sampling_rounds: Annotated[Integer, Field(ge=0, le=1000)] = 0  # maximum rounds in which
    # zero-variance groups are replaced by groups of new tasks (DAPO)
    keep_groups: ShareAbove0 = 1.0  # share of the groups that are trained on: those with the highest variance of
    # rewards (RAGEN)

    @model_validator(mode="after")
    def _episodes(self) -> RolloutConfig:
        check_name("rollout.backend", self.backend, "local", "vllm")
        if self.num_groups * self.group_size > _EPISODES:
            raise ValueError(
                f"rollout.num_groups={self.num_groups} and rollout.group_size={self.group_size} make more than "
                f"{_EPISODES} episodes in an iteration: choose less"
            )
        return self


@dataclass(frozen=True, config=KNOWN_KEYS)
class AgentConfig:
    """An agent program that plays the episodes in place of the built-in loop (docs/train_your_agent.md)."""

    command: Text = ""  # starts it, for one episode, e.g. python my_agent.py; empty: the built-in loop
    processes: Annotated[Integer, Field(ge=1, le=10_000)] = 16  # episodes at the same time
    timeout: Positive = 60.0  # seconds of its own for an episode; while it waits for the policy they do not count
    replies: Size = 100  # most replies of the policy in an episode


@dataclass(frozen=True, config=KNOWN_KEYS)
class VLLMConfig:
    """vLLM as the rollout's backend (``rollout.backend=vllm``); see docs/vllm.md."""

    url: Texts = ()  # of servers (python -m roleagent.agents.policies.vllm.server); none: an engine in each process
    engines: Annotated[Integer, Field(ge=0, le=16)] = 0  # engines in processes of their own, for each process of the
    # run and on its accelerator; 0: one engine, within the process
    memory: ShareAbove0 = 0.4  # share of the accelerator's memory, for weights and KV cache of all engines
    sleep: Switch = True  # gives its memory back during updates, on CUDA, without a server
    extra: Mapping[str, Any] = field(default_factory=dict)  # overrides vLLM's engine arguments

    @model_validator(mode="after")
    def _different(self) -> VLLMConfig:
        twice = [url for number, url in enumerate(self.url) if url in self.url[:number]]
        if twice:
            raise ValueError(f"vllm.url names {shown(twice[0])} twice")
        if self.url and self.engines:
            raise ValueError("vllm.url names servers, and vllm.engines starts engines on this machine: choose one")
        return self


@dataclass(frozen=True, config=KNOWN_KEYS)
class EstimatorOptions:
    """Advantages (specification of the method, WIA 3–8)."""

    gamma: Share = 0.95  # discount per turn; of PPO: per gae_level
    gae_level: Literal["token", "turn"] = "token"  # of PPO: one value and advantage per action token, or per turn
    gae_lambda: Share = 1.0  # of PPO: λ, in [0, 1]; 1: Monte Carlo returns
    alpha: Amount = 1.0  # weight of the trajectory advantage (Eq. 8)
    norm: Literal["std", "mean"] = "std"  # a comparison within a group in standard deviations, or as it is
    outcome_level: Literal["trajectory", "turn"] = "trajectory"  # how often an episode counts in the mean and deviation
    # of its group's outcomes (Eq. 1): once, or once per turn, as in verl-agent
    similarity: Text = "lcs"  # of a prediction and the state that came, and of states: lcs (longest common
    # subsequence, Eq. 4), difflib (as in the authors' code and GiGPO's), module:function
    similarity_threshold: Share = 0.0  # 0: states are the same by hash; otherwise at least so similar
    unscored_predictions: Literal["mean", "zero"] = "mean"  # R_pre where no state can be scored: the mean of what
    # was; or 0, Eq. 5 to the letter, by which a winning last step is worth less than the same win later
    failed_command_state: Literal["previous", "text"] = "previous"  # by which turns after a failed command are
    # compared: the state before it, for the world is unchanged; or, as published, its text, one group for all of them
    whiten: Switch = False  # advantages to mean 0 and deviation 1 over the tokens of the whole batch, of all ranks
    action_mask: Switch = True  # off, an ablation: the world's text after a reply carries advantages as well
    rewards: Mapping[str, Annotated[Number, Field(ge=-1e6, le=1e6)]] = field(default_factory=dict)
    # weight of each named reward; task: 1, others: 0
    process_norm: Annotated[Literal["none", "prime"], OFF_IS_NONE] = "prime"  # of the rewards `tool` and `process`:
    # divided by the largest process return of the group (PRIME)
    process_gate: Annotated[Literal["none", "live"], OFF_IS_NONE] = "none"  # live: not in groups of equal outcomes
    overlong_buffer: ShareAbove0 = 0.2  # last share of a reply's token limit, in which the reward `overlong` grows to 1

    @model_validator(mode="after")
    def _similarity(self) -> EstimatorOptions:
        check_name("estimator.similarity", self.similarity, "lcs", "difflib")
        return self


@dataclass(frozen=True, config=KNOWN_KEYS)
class LossConfig:
    """Clipped surrogate with KL penalty (Eq. 9)."""

    function: Text = ""  # module:function of (tokens, options), in place of the method's loss (docs/write_a_method.md)
    clip_low: Share = 0.2  # the ratio counts from 1 - clip_low
    clip_high: Amount = 0.28  # up to 1 + clip_high
    importance_level: Literal["token", "sequence", "product"] = "token"  # a ratio per token, or per segment: mean
    # (GSPO) or product
    aggregation: Literal["trajectory", "token", "constant"] = "trajectory"  # what is averaged over; see token_weights
    kl: Amount = 1e-3  # weight of the distance to the reference, per token; 0: no reference
    prediction_credit: Annotated[Literal["advantage", "own", "imitate", "none"], OFF_IS_NONE] = "imitate"
    # what trains predictions: the turn's advantage; that of their own score in the state group; the likelihood of the
    # states that came; nothing
    imitated_turns: Count = 0  # maximum turns per episode that prediction_credit=imitate trains; 0: all
    action_mask: Switch = True  # off, an ablation: the world's text after the first reply enters the loss as well
    old_logprobs: Literal["auto", "sampler", "learner"] = "auto"  # whose log-probabilities the ratio starts from;
    # auto: the sampler's if it is the local policy, else the learner's
    importance_cap: Amount = 2.0  # bound of the weight exp(learner - sampler), where the ratio starts from the learner;
    # 0: no weight
    importance_mode: Literal["cap", "mask"] = "cap"  # mask: a segment whose product is above the cap is left out


@dataclass(frozen=True, config=KNOWN_KEYS)
class DistillConfig:
    """A teacher that scores the policy's own tokens (docs/distillation.md)."""

    teacher: PathText = ""  # a run, a Hugging Face folder, the URL of a vLLM server, or self, the policy after the warm
    # start with a hint in its prompt; empty: none
    model: Text = ""  # of the server; empty: its only one
    hint: Text = "plan"  # what teacher=self reads in its prompt: plan (of the expert), lesson (the failed episode's),
    # module:function
    weight: Amount = 1.0  # of log teacher - log policy in the advantage of each token

    @model_validator(mode="after")
    def _hint(self) -> DistillConfig:
        check_name("distill.hint", self.hint, "plan", "lesson")
        return self

    @property
    def served(self) -> bool:
        """Whether the teacher is behind a server."""
        return self.teacher.startswith(("http://", "https://"))

    @property
    def reads_plans(self) -> bool:
        """Whether the policy must read the expert's plan, which its warm start then shows it."""
        return self.teacher == "self" and self.hint == "plan"


@dataclass(frozen=True, config=KNOWN_KEYS)
class CriticConfig:
    """The value model of PPO, which begins as a copy of the policy."""

    lr: Rate = 5e-4  # peak; about 1e-5 for a pretrained backbone
    warmup: Count = 0  # iterations, the first ones, in which the critic learns and the policy does not
    clip: Amount = 0.2  # how far a value may move from what it was before the iteration's updates, in units of reward;
    # 0: no limit


@dataclass(frozen=True, config=KNOWN_KEYS)
class OptimConfig:
    """The learner's steps."""

    lr: Rate = 5e-4  # peak; about 1e-6 for a pretrained backbone
    weight_decay: Amount = 0.01  # decoupled from the gradient
    beta2: ShareBelow1 = 0.95  # of AdamW: how slowly the mean of squared gradients changes
    schedule: Literal["constant_then_linear", "constant", "linear", "cosine"] = "constant_then_linear"  # of the rate
    # (learners/engine/optimizer.py)
    warmup_steps: Count = 5  # updates over which the rate grows to its full height
    max_grad_norm: Amount = 1.0  # longer gradients are cut to this
    minibatches: Length = 2  # optimizer steps per pass over an iteration's episodes; each sees whole groups
    minibatch_turns: Count = 0  # turns per optimizer step, of all ranks, in place of `minibatches`; 0: whole groups
    epochs: Length = 1  # passes over an iteration's episodes
    micro_batch_tokens: Size = 8192  # maximum tokens of a forward and backward pass; does not change the result
    compile: Switch = False  # torch.compile of the policy's layers; takes a minute at first, changes rounding alone


@dataclass(frozen=True, config=KNOWN_KEYS)
class DeepSpeedConfig:
    """DeepSpeed's options."""

    zero_stage: Annotated[Integer, Field(ge=0, le=3)] = 0  # what is partitioned over the ranks (docs/scaling.md)
    activation_checkpointing: Switch = False  # layers keep their input alone and are computed again for the gradient
    extra: Mapping[str, Any] = field(default_factory=dict)  # overrides DeepSpeed's configuration


@dataclass(frozen=True, config=KNOWN_KEYS)
class TrainConfig:
    """The length of a run, its checkpoints and logs."""

    iterations: Count = 30  # of reinforcement
    until: Count = 0  # the iteration that ends the run early, without a change to its schedules; 0: the last one
    tokens: Count = 0  # of method=sft: trained tokens of the expert's commands; of agent_r: most trained tokens per
    # iteration, 0: all
    evaluate_every: Count = 0  # iterations; 0: only before and after
    evaluate_tasks: Count = 0  # of the evaluations between, the first so many of all types; 0: all
    checkpoint_every: Interval = "1"  # iterations, or minutes, e.g. 15m: a kill then loses no more than that
    keep_checkpoints: Size = 2  # how many, the newest
    keep_warmstart: Switch = False  # whether the one after the warm start stays, too
    shuffle: Annotated[Literal["none", "advantages", "process", "success_rates"], OFF_IS_NONE] = "none"  # a control:
    # advantages, or only the rewards `tool` and `process`, go to other turns of the batch; or the success rates that
    # train a simulator go to other tasks
    stop_after: Duration = ""  # time from the start, e.g. 20m, after which no iteration begins: the run
    # evaluates, reports and ends, as after SIGUSR1; empty: no limit
    stop_on_alarm: Switch = False  # whether a collapse ends the run; a loss that is no number always does
    information_every: Count = 0  # iterations between estimates of the mutual information of task and reply, a sign of
    # collapse beside entropy (docs/monitoring.md); 0: none
    suite: PathText = ""  # a file of `roleagent failures freeze`, which the evaluations between play as well
    stop_on_regression: Share = 0.0  # share of the suite that may be lost since its best evaluation; more ends the run
    # with exit status 4; 0: any

    @property
    def last(self) -> int:
        """The iteration that ends the run."""
        return min(self.until or self.iterations, self.iterations)


Trackers = Annotated[tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...], ONE_IS_A_LIST]


@dataclass(frozen=True, config=KNOWN_KEYS)
class TrackingConfig:
    """Trackers of metrics besides ``metrics.jsonl``."""

    to: Trackers = ("tensorboard",)  # tensorboard: in the run folder; each other needs the extra of its name
    project: Text = "roleagent"  # under which they file the run; TensorBoard has none

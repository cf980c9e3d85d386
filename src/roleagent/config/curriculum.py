"""The options that choose the next tasks: the failure curriculum (Agent-In-World), its lessons, and task simulators
(GenEnv)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from roleagent.config.settings import (
    KNOWN_KEYS,
    Amount,
    Count,
    Length,
    Positive,
    Rate,
    Share,
    ShareAbove0,
    ShareBelow1,
    Size,
    Switch,
    Temperature,
    Text,
    check_name,
)
from roleagent.validation import OFF_IS_NONE, Integer, Number

NEVER_TRAINED = ("base", "static", "endpoint")
"""Kinds of simulator that learn nothing."""


@dataclass(frozen=True, config=KNOWN_KEYS)
class EndpointConfig:
    """An OpenAI-compatible server, of ``curriculum.analyst=endpoint``, ``simulator.kind=endpoint`` and ``static``.

    Its key is in the environment, as ROLEAGENT_API_KEY or OPENAI_API_KEY.
    """

    url: Text = ""  # e.g. https://host/v1
    model: Text = ""  # empty: the only one that the server offers
    concurrency: Annotated[Integer, Field(ge=1, le=10_000)] = 8  # most questions at the same time
    timeout: Positive = 60.0  # seconds for one attempt
    answer_tokens: Size = 2048  # most tokens of an answer, and of what a model thinks before it
    prices: Annotated[tuple[Amount, ...], Field(max_length=2)] = ()  # money per million tokens, [read, written]

    @model_validator(mode="after")
    def _pair(self) -> EndpointConfig:
        if len(self.prices) == 1:
            raise ValueError("endpoint.prices must be two numbers, [read, written], per million tokens")
        return self


@dataclass(frozen=True, config=KNOWN_KEYS)
class CurriculumConfig:
    """Agent-In-World (AIW 5)."""

    epsilon: ShareBelow1 = 0.5  # share of the tasks that is drawn from what was retrieved, in [0, 1)
    learnability: Switch = True  # what was retrieved is drawn by p (1 - p), too, and a fourth goes
    # to tasks of its type that were not played for long; off: as published
    library: Text = ""  # SQLAlchemy URL; empty: a SQLite file in the run folder
    analyst: Text = "model"  # model (the policy itself), rule (detectors), endpoint (a server), or module:Class;
    # controls, which read no failures: replay (failed tasks at random), text (failed tasks of similar text),
    # types (the share epsilon is drawn over the types of tasks alike), frozen (of a fork: choices stay as they are)
    temperature: Temperature = 0.5  # of an analyst that samples
    reflection_tokens: Size = 256  # most tokens of a reflection by the policy
    selection_tokens: Size = 128  # most tokens of a selection by the policy
    candidates: Length = 32  # most failures that the analyst chooses from
    candidate_tokens: Count = 2048  # most tokens of the question to the policy that lists them

    @model_validator(mode="after")
    def _analyst(self) -> CurriculumConfig:
        check_name("curriculum.analyst", self.analyst, "model", "rule", "endpoint", "replay", "text", "types", "frozen")
        return self


@dataclass(frozen=True, config=KNOWN_KEYS)
class LessonsConfig:
    """Lessons of the failure library in the agent's prompt (docs/failures.md)."""

    show: Annotated[Literal["none", "retrieved", "shuffled"], OFF_IS_NONE] = "none"  # none; those of failures that are
    # like the present task and state; or, a control, those that the task of another failure would read
    most: Length = 2  # lessons in a prompt
    tokens: Length = 64  # most tokens of them, with their heading
    share: ShareAbove0 = 1.0  # of the training tasks that read lessons, drawn anew in each iteration
    evaluate: Switch = True  # whether evaluations read lessons, too; off: in training only


@dataclass(frozen=True, config=KNOWN_KEYS)
class SimulatorConfig:
    """The simulator that writes training tasks (``genenv=on``; docs/genenv.md)."""

    kind: Text = "model"  # model (a second policy), table (a categorical per field), base (never trained), static (a
    # fixed list, which the server of endpoint.url writes if it is set), endpoint (a server), or module:Class
    weights: Literal["own", "shared"] = "own"  # of kind model: its own, without adapters, or the agent's
    alpha: Annotated[Number, Field(gt=0, lt=1)] = 0.5  # success rate of the agent to aim at
    beta: Amount = 8.0  # sharpness of the reward exp(-beta (rate - alpha)^2) (Eq. 3)
    credit: Literal["task", "batch"] = "task"  # whose success rate is compared with alpha: the task's own, or, as
    # published, that of all tasks written for one situation, which trivial and hopeless ones together also bring to 1/2
    k_min: Share = 0.1  # half-width of the band of rates that train the simulator; at least 1 / attempts, which are
    # group_size, with credit=batch times variations
    rwr_lambda: Amount = 1.0  # lambda: a record weighs exp(lambda * reward)
    window: Count = 4  # iterations whose records train the simulator; 0: all
    shares: tuple[Share, Share] = (0.5, 0.25)  # of a batch: new tasks, and ones that were accepted before and not
    # always solved; the rest is base tasks
    variations: Length = 4  # tasks that are written for one situation
    tasks: Length = 256  # of kind static: of its list, which is played again and again
    plan_share: ShareAbove0 = 0.5  # of the environment's max_steps that a task's plan may have; some grammars ignore it
    lr: Rate = 3e-4  # of kind model; about 5e-7 for a pretrained one
    probe: Count = 0  # tasks of the initial and of the present simulator that are played every train.evaluate_every

    @model_validator(mode="after")
    def _consistent(self) -> SimulatorConfig:
        check_name("simulator.kind", self.kind, "model", "table", "base", "static", "endpoint")
        if not self.shares[0]:
            raise ValueError("simulator.shares must begin with a number above 0, or no task is ever written")
        if sum(self.shares) > 1:
            raise ValueError(f"simulator.shares must sum to at most 1, not {sum(self.shares):g}: they are of one batch")
        return self

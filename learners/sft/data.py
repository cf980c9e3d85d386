"""The data of the supervised stages: demonstrations and analyst examples, for new policies and as segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import torch

from roleagent.agents.analysts.prompts import UNLIMITED, AnalystPrompts
from roleagent.agents.builders import EnvSplit, model_analyst
from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.policies.protocol import Policy
from roleagent.agents.policies.scratch_model import SIMULATE, build_policy, train_tokenizer
from roleagent.agents.prompt_templates import read_templates
from roleagent.agents.rendering import style_of
from roleagent.agents.task_simulator import (
    TASK_TAGS,
    ModelSimulator,
    simulator_examples,
    simulator_prompt,
    write_tasks,
)
from roleagent.curricula.rule_analyst import RuleAnalyst
from roleagent.envs.wrappers.notes import REVISED, REVISION_THOUGHTS
from roleagent.failures.analyst_format import FIELDS, TAGS
from roleagent.learners.run.run import Run
from roleagent.learners.sft.analyst import AnalystExample, analyst_examples, collect_failures, tokenize_examples
from roleagent.learners.sft.demonstrations import (
    Corrections,
    Demonstration,
    check_reply_lengths,
    collect_demonstrations,
    plan_of,
    texts_of,
    tokenize,
    tokenize_with_plans,
)
from roleagent.tasks.grammar import TaskGrammar, TaskSpec, grammar_of
from roleagent.types import Segment, Trajectory

_PER_DEMONSTRATION = 3
"""Examples of a task simulator that an agent learns from, if it is the simulator itself."""
_THOUGHTS = 20
"""How often the texts of a new tokenizer hold each revision thought, so that its words are tokens."""
_FAILURE_WEIGHT = 0.3  # of a token of an analysis in the loss, relative to an action token


@dataclass(frozen=True)
class SFTData:
    """Demonstrations and scripted failures, as text. Both are empty if the run imitates nothing any more.

    Attributes:
        demonstrations: episodes of the expert.
        failures: failed episodes for the environment role, if the policy plays it.
    """

    run: Run
    split: EnvSplit
    demonstrations: list[Demonstration] = field(default_factory=list)
    failures: list[Trajectory] = field(default_factory=list)

    @classmethod
    def collect(cls, run: Run, split: EnvSplit) -> SFTData:
        """Plays the episodes; the same on every rank and in every resumed run. A program's prompts are not known."""
        config, split = run.config, split.without_program()
        later = run.method.needs_demonstrations()
        if not config.warmstart.episodes or (run.progress.stage != "warmstart" and not later):
            return cls(run, split)
        taught = config.aiw and config.curriculum.analyst == "model"
        data = cls(run, split, [], [])
        for name, part in split.environments.items():
            stream = partial(run.stream, *filter(None, [name]))
            found = collect_demonstrations(part, stream("demonstrations"), run.display)
            data.demonstrations.extend(one.named(name) for one in found)
            if taught:
                data.failures.extend(collect_failures(part, found, stream("failures"), run.display))
        return data

    def new_policy(self, generator: torch.Generator) -> HFPolicy:
        """A small policy from scratch; the first rank trains its tokenizer on these texts."""
        config, examples = self.run.config, self._examples(UNLIMITED)
        parts = self.split.environments.values()
        tags = [tag for part in parts for tag in part.reader.tags]
        tags += ["</prediction>", *(f'<prediction h="{h}">' for h in range(1, self.split.horizon + 1))]
        tags = list(dict.fromkeys(tags))
        tags += [tag for tag in (*TAGS, *(f"{name}:" for name in FIELDS)) if examples]
        tags += [*TASK_TAGS, SIMULATE] if config.simulator_is_model else []
        style, readers = style_of(config.prompt.style), {id(part): part.reader for part in parts}
        texts = [
            text
            for one in self.demonstrations
            for text in texts_of([one], style, config.prompt.history, readers[id(self.split.of(one.task.task_id))])
        ]
        if config.distill.reads_plans:
            texts += [plan_of(one, readers[id(self.split.of(one.task.task_id))]) for one in self.demonstrations]
        texts += [text for example in examples for text in (example.question, example.answer)]
        if config.prompt.notes:  # each becomes a few tokens
            texts += [*(read_templates(config.prompt.templates).revisions or REVISION_THOUGHTS), REVISED] * _THOUGHTS
        if config.simulator_is_model:
            texts += self._situations()
        tokenizer = self.run.ranks.once(lambda: train_tokenizer(texts, config.policy.vocabulary, tags))
        return build_policy(config.policy, tokenizer, generator)

    def corrections(self, actor: Policy) -> Corrections:
        """The rounds in which the expert corrects the policy, as many as were played; the actor plays the others."""
        return Corrections(self.run, self.split, actor)

    def tokenize(self, policy: HFPolicy) -> list[Segment]:
        """The data as segments.

        Raises:
            ConfigError: most demonstrations have replies that the policy could not finish, or exceed its context.
            PolicyError: the policy's context has no room for a situation and a task of its simulator.
        """
        config, run = self.run.config, self.run
        simulator = ModelSimulator(policy, self._grammar, config.prompt.thinks) if config.simulator_is_model else None
        check_reply_lengths(self.split, policy, self.demonstrations, run.display.warn)
        segments = tokenize(self.split, policy, self.demonstrations, run.stream("segments"), most_fit=True)
        if config.distill.reads_plans:
            segments += tokenize_with_plans(self.split, policy, self.demonstrations)
        if self.failures:
            analyst = model_analyst(config, policy)
            examples = self._examples(analyst.prompts)
            segments += tokenize_examples(analyst, examples, _FAILURE_WEIGHT)
        if simulator and config.shares_simulator and self.demonstrations:
            count = _PER_DEMONSTRATION * len(self.demonstrations)
            segments += [
                simulator.segment(*one)
                for one in simulator_examples(self._grammar, count, run.stream("simulator segments"))
            ]
        return segments

    @property
    def _grammar(self) -> TaskGrammar:
        [written] = self.split.written.values()
        return grammar_of(written.base, plan_share=self.run.config.simulator.plan_share)

    def _situations(self) -> Iterator[str]:
        """Examples of a task simulator, as text: as many as demonstrations, whose words must be tokens too."""
        grammar = self._grammar
        for situation, values in simulator_examples(
            grammar, len(self.demonstrations), self.run.stream("simulator texts")
        ):
            yield simulator_prompt(grammar, situation, explain=False)
            yield write_tasks([grammar.write(TaskSpec(values))])

    def _examples(self, questions: AnalystPrompts) -> list[AnalystExample]:
        return list(analyst_examples(questions, self.failures, RuleAnalyst(), self.run.stream("analyst examples")))


__all__ = ["SFTData"]

"""The data of the supervised stages: demonstrations and analyst examples, for new policies and as segments."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from roleagent.agents.analysts.prompts import UNLIMITED, AnalystPrompts
from roleagent.agents.builders import EnvSplit, model_analyst
from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.policies.scratch_model import build_policy, train_tokenizer
from roleagent.agents.rendering import STYLES
from roleagent.analyst_format import FIELDS, TAGS
from roleagent.curricula.rule_analyst import RuleAnalyst
from roleagent.envs.wrappers.tags import REVISED
from roleagent.learners.revision.thoughts import read_thoughts
from roleagent.learners.run.run import Run
from roleagent.learners.sft.analyst import AnalystExample, analyst_examples, collect_failures, tokenize_examples
from roleagent.learners.sft.demonstrations import Demonstration, collect_demonstrations, texts_of
from roleagent.learners.sft.tokenization import check_reply_lengths, tokenize
from roleagent.types import Segment, Trajectory

_THOUGHTS = 20
"""How often the texts of a new tokenizer hold each revision thought, so that its words are tokens."""


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
        """Plays the episodes; the same on every rank and in every resumed run."""
        config = run.config
        later = config.train.stage == "sft" or (config.train.stage == "revise" and config.revision.replay > 0)
        if not config.warmstart.episodes or (run.progress.stage != "warmstart" and not later):
            return cls(run, split)
        demonstrations = collect_demonstrations(split, run.stream(1), run.display)
        if not (config.aiw and config.curriculum.analyst == "model"):
            return cls(run, split, demonstrations)
        return cls(run, split, demonstrations, collect_failures(split, demonstrations, run.stream(9), run.display))

    def new_policy(self, generator: torch.Generator) -> HFPolicy:
        """A small policy from scratch; the first rank trains its tokenizer on these texts."""
        config, examples = self.run.config, self._examples(UNLIMITED)
        horizon = self.split.horizon
        tags = [*self.split.reader.tags, "</prediction>", *(f'<prediction h="{h}">' for h in range(1, horizon + 1))]
        tags += [tag for tag in (*TAGS, *(f"{name}:" for name in FIELDS)) if examples]
        texts = [*texts_of(self.demonstrations, STYLES[config.prompt.style], config.prompt.history, self.split.reader)]
        texts += [text for example in examples for text in (example.question, example.answer)]
        if config.revision.notes:  # each becomes a few tokens
            texts += [*read_thoughts(config.revision.thoughts), REVISED] * _THOUGHTS
        tokenizer = self.run.ranks.once(lambda: train_tokenizer(texts, config.policy.vocabulary, tags))
        return build_policy(config.policy, tokenizer, generator)

    def tokenize(self, policy: HFPolicy) -> list[Segment]:
        """The data as segments.

        Raises:
            ConfigError: most demonstrations have replies that the policy could not finish.
        """
        config, run = self.run.config, self.run
        check_reply_lengths(self.split, policy, self.demonstrations)
        segments = tokenize(self.split, policy, self.demonstrations, run.stream(7))
        if self.failures:
            analyst = model_analyst(config, policy)
            examples = self._examples(analyst.prompts)
            segments += tokenize_examples(analyst, examples, config.warmstart.failure_weight)
        return segments

    def _examples(self, questions: AnalystPrompts) -> list[AnalystExample]:
        return list(analyst_examples(questions, self.failures, RuleAnalyst(), self.run.stream(10)))


__all__ = ["SFTData"]

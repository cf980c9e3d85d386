"""More imitation as a method: the control of reinforcement."""

from __future__ import annotations

from typing import ClassVar

from roleagent.config import ConfigError
from roleagent.learners.method import Method, Start


class SFT(Method):
    """Imitates as many tokens of the expert's commands as reinforcement would train (``train.tokens``)."""

    stage: ClassVar[str] = "sft"
    length = "train.tokens"
    label = "imitation"
    imitates = True
    plays = False

    def check(self) -> None:
        if not self.config.train.tokens:
            raise ConfigError("method=sft needs a budget: set train.tokens")
        if not self.config.warmstart.episodes:
            raise ConfigError("method=sft imitates demonstrations: set warmstart.episodes")

    def needs_demonstrations(self) -> bool:
        return True

    def training(self, start: Start) -> None:
        """Passes over the demonstrations and the corrections of the warm start's rounds."""
        from roleagent.learners.sft.imitation import imitate, passes

        run, policy = start.run, start.policy
        run.enter(self.stage)
        segments = [*start.segments, *start.data.corrections(start.actor).segments(policy)]
        run.save(imitate(run, policy, segments, passes(segments, self.config.train.tokens)))

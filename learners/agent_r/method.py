"""Agent-R and ETO as methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from roleagent.config import ConfigError
from roleagent.env_card import card_of
from roleagent.learners.agent_r.options import AgentROptions
from roleagent.learners.method import Method, Start

if TYPE_CHECKING:
    from roleagent.agents.builders import EnvSplit
    from roleagent.learners.run.checkpoints import Progress


class AgentR(Method):
    """Agent-R: bad paths of search trees are cut at their first mistake and continued by good ones, and imitated."""

    # Predictions would cost a second reply at every expansion of the search, and change nothing in it. The paper draws
    # the searched tasks at random: with aiw=on half of them would be failed ones.
    settings: ClassVar[Mapping[str, Any]] = {"prompt": {"revisions": "note"}, "wia": False, "aiw": False}
    Options = AgentROptions
    stage: ClassVar[str] = "revise"
    length = "options.revision.iterations"
    label = "Agent-R"
    imitates = True
    disjoint_splits = True

    def check(self) -> None:
        from roleagent.learners.agent_r.data import check_revision

        each = [one.env for one in self.config.environments.values()]
        if any(env.train_split == env.eval_split for env in each):
            raise ConfigError(
                f"{self.label} trains on the tasks that it searches: set env.eval_split to another split than these"
            )
        check_revision(self.config)

    def check_tasks(self, split: EnvSplit) -> None:
        super().check_tasks(split)
        for part in split.environments.values():
            if self.config.options.search.expert_prefix and not card_of(part.base).expert:
                raise ConfigError(
                    f"{part.config.env.id} has no scripted expert that plays the first commands: set "
                    "options.search.expert_prefix=0"
                )
            if self.config.prompt.revisions == "action" and part.base.has_wrapper_attr("tools"):
                raise ConfigError(
                    f"prompt.revisions=action takes back a mistake by the command wait, and a reply in "
                    f"{part.config.env.id} is a call of a tool: set prompt.revisions=none"
                )

    def needs_demonstrations(self) -> bool:
        return self.imitates and self.config.options.revision.replay > 0

    def finished(self, progress: Progress) -> bool:
        return progress.stage == self.stage and progress.revisions >= self.config.options.revision.iterations

    def training(self, start: Start) -> None:
        """Iterations of search, judgement, revision and imitation."""
        from roleagent.learners.agent_r import iterate
        from roleagent.learners.agent_r.learning import learn_examples
        from roleagent.learners.agent_r.search import Search
        from roleagent.learners.rl import open_sampler, sync_weights
        from roleagent.learners.run.evaluation import evaluate_split

        run, split, policy, actor = start.run, start.split, start.policy, start.actor
        run.enter(self.stage)
        needed = self.needs_demonstrations()
        replayed = [*start.segments, *start.data.corrections(actor).segments(policy)] if needed else []
        sampler = open_sampler(run, split, actor)
        searcher = Search.open(split, actor)
        for iteration in iterate.iterations(run):
            # Search every task as a tree; find the first mistakes, and splice good steps behind them.
            for batch in iterate.tree_batches(run, sampler, iteration):
                trees = iterate.search(run, searcher, batch)
                iterate.make_examples(run, split, actor, batch, trees)

            # Imitate good and spliced trajectories. With aiw=on failures choose the next tasks.
            examples = iterate.collect(run, sampler, iteration)
            actor.offload()
            learner = learn_examples(run, policy, examples, replayed)
            sync_weights(run, learner, actor)

            result = evaluate_split(run, start.held_out, actor, f"revision/after-{iteration:03d}")
            iterate.finish(run, learner, result)
        searcher.close()


class ETO(AgentR):
    """ETO (arXiv 2403.02502), a baseline: the good path of a tree is preferred to the bad one."""

    stage: ClassVar[str] = "eto"
    label = "ETO"
    imitates = False

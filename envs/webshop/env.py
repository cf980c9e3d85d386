"""``RoleAgent/WebShop-v0``: shopping by instruction. The action is a bare command, the observation a page."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import gymnasium

from roleagent.envs.webshop.engine.goals import ENV_ID, task_splits, twins
from roleagent.envs.webshop.engine.nouns import described
from roleagent.envs.webshop.engine.pages import RENDERINGS
from roleagent.envs.webshop.engine.session import Session
from roleagent.envs.webshop.engine.shop import open_shop
from roleagent.envs.webshop.engine.written import find_goal, open_task_split
from roleagent.envs.webshop.oracle import walkthrough
from roleagent.sharing import Restorable
from roleagent.spaces import Unicode, check_render_mode
from roleagent.tasks.split import TaskSplit, TaskSplitEnv

REWARDS = ("success", "score")


class WebShopEnv(Restorable, TaskSplitEnv):
    """The shop of WebShop (Yao et al. 2022): ``search[words]``, ``click[name]``, until something is bought.

    The observations ``text`` and ``text_rich``, the clickables and, with the original's nouns, the scores are exactly
    those of the original; docs/exactness.md lists the exceptions. An episode ends with the purchase, and is truncated
    after ``max_steps`` commands, invalid ones included. It is won if the score is 1.

    ``info`` holds, besides the keys of :mod:`roleagent.types`:

    ==================  ================================================================================================
    ``clickables``      what can be clicked, lower-cased, in the page's order (``admissible_actions`` are the clicks
                        on them; searches are free text and are not listed)
    ``has_search_bar``  whether the page has one; ``search[…]`` works on every page
    ``score``           of the purchase, in [0, 1]; 0 until there is one
    ``goal_id``         the same as ``task_id``
    ``asin``            the product that is open or bought, ``""`` if there is none
    ``noun_source``     where the nouns come from that the score compares
    ==================  ================================================================================================

    ``state`` is None after the purchase: that page contains the score, which cannot be known.

    ``env.unwrapped.twins`` names the goals whose request is also that of a goal in another split. Official splits have
    them, as the original's; those of generated products do not.

    Copies share the shop. A pickle (some 10 KB) holds the shopper and the arguments by which the shop is opened.

    Args:
        split: ``"train"``, ``"valid"`` or ``"test"``.
        data_dir: a folder with official files or a store; None: what ``WEBSHOP_DATA`` names, else a generated
            catalogue; ``"generated"``: that in any case.
        num_products: only the first so many entries of the data.
        goals: ``"synthetic"`` or ``"human"``.
        search: ``"bm25"``, or ``"pyserini"`` for a real Lucene index: the same answers, with Java.
        observation: ``"text"``, ``"text_rich"`` or ``"html"`` (pages of our own, not the original's).
        nouns: ``"spacy"``, ``"heuristic"``, a noun file, or None for the best there is.
        seed: of prices and price caps.
        max_steps: steps until the episode is truncated, ≥ 1.
        reward: what the purchase earns: ``"success"`` (1 if its score is 1, else 0) or ``"score"``.
        show_attributes: whether products have a page of attributes, which reveals much of the goal.
        generated_tasks: whether tasks of :class:`~roleagent.envs.webshop.task_grammar.ShopGrammar` can be played; of
            the training split and of synthetic goals only.
        render_mode: ``"ansi"`` renders the last observation.

    Raises:
        ValueError: an argument has no meaning, or there are no such data; the message explains what to do.
    """

    episode_attributes = ("_session", "_text", "_steps")

    def __init__(
        self,
        split: str = "train",
        data_dir: str | os.PathLike[str] | None = None,
        num_products: int | None = None,
        goals: Literal["synthetic", "human"] = "synthetic",
        search: Literal["bm25", "pyserini"] = "bm25",
        observation: Literal["text", "text_rich", "html"] = "text",
        nouns: str | os.PathLike[str] | None = None,
        seed: int = 7,
        max_steps: int = 15,
        reward: Literal["success", "score"] = "success",
        show_attributes: bool = False,
        generated_tasks: bool = False,
        render_mode: str | None = None,
    ):
        if observation not in RENDERINGS:
            raise ValueError(f"unknown observation {observation!r}; there are {', '.join(RENDERINGS)}")
        if reward not in REWARDS:
            raise ValueError(f"unknown reward {reward!r}; there are {' and '.join(REWARDS)}")
        if max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, not {max_steps}")
        self.render_mode = check_render_mode(render_mode, self.metadata)
        self.shop = open_shop(data_dir, num_products, goals, search, nouns, seed, show_attributes)
        self._generated_tasks = generated_tasks
        self.task_split = self._find_task_split(split)
        self.max_steps = max_steps
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self._observation, self._reward = observation, reward
        self._session: Session | None = None
        self._text = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Plays ``options["task_id"]``, or a task of the split drawn with ``np_random``.

        Raises:
            ValueError: the split has no such task.
        """
        super().reset(seed=seed)
        task_id = self.task_split.requested(options, self.np_random)
        self._session = session = Session(self.shop, find_goal(self.shop, self.task_split.require(task_id)))
        self._text = session.observe(self._observation)
        self._steps = 0
        return self._text, self._info(True, {})

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carries out one command; one that cannot be done now changes nothing and still costs a step."""
        session = self._session
        if self._steps is None or session is None:
            raise gymnasium.error.ResetNeeded("the episode is over or has not begun: call reset() before step()")
        valid = session.act(action)
        if valid:
            self._text = session.observe(self._observation)
        self._steps += 1
        reward = 0.0
        if session.score is not None:
            reward = session.score.total if self._reward == "score" else float(session.score.total == 1)
        truncated = self._steps >= self.max_steps and not session.done
        if session.done or truncated:
            self._steps = None
        return self._text, reward, session.done, truncated, self._info(valid, {"task": reward})

    def check_ready(self) -> None:
        """Searches once, before a run begins: Lucene starts Java with its first search.

        Raises:
            gymnasium.error.DependencyNotInstalled: Java is missing.
            RetrievalError: the index cannot be read.
        """
        self.shop.index.search("ready", 1)

    def walkthrough(self) -> tuple[str, ...]:
        """Commands that reach a score of 1 from the start; ``()`` where we know of none (see the oracle)."""
        if self._session is None:
            raise gymnasium.error.ResetNeeded("there is no goal yet: call reset() before walkthrough()")
        return walkthrough(self.shop, self._session.goal)

    @property
    def data_info(self) -> dict[str, str]:
        """The products, and the source of the nouns that scores compare."""
        shop = self.shop
        goods = shop.catalogue
        source = {"source": "generated"} if goods.generated else {"source": "official", "version": goods.name}
        return {**source, "products": str(len(goods)), "digest": goods.digest, "nouns": described(shop.nouns)}

    @property
    def twins(self) -> Mapping[str, str]:
        """See :func:`~roleagent.envs.webshop.engine.goals.twins`."""
        return twins(self.shop.catalogue, self.shop.goals.kind)

    def task_type(self, task_id: str) -> str:
        """The product category of a task's goal, without playing it."""
        return find_goal(self.shop, task_id).category

    def _find_task_split(self, split: str) -> TaskSplit:
        found = task_splits(self.shop.catalogue, self.shop.goals.kind)
        if split not in found:
            raise ValueError(f"unknown split {split!r} of {ENV_ID}; there are {', '.join(found)}")
        if not self._generated_tasks:
            return found[split]
        return open_task_split(self.shop, split)

    def _info(self, valid: bool, rewards: dict[str, float]) -> dict[str, Any]:
        session = self._session
        assert session is not None
        goal, page, score = session.goal, session.page, session.score
        return {
            "task_id": goal.goal_id,
            "goal": goal.instruction,
            "task_type": goal.category,
            "split": self.task_split.split,
            "admissible_actions": list(page.commands),
            "won": score is not None and score.total == 1,
            "valid_action": valid,
            "state": None if session.done else self._text,
            "grouping_state": None if session.done else self._text,  # a failed command leaves the page as it is
            "rewards": rewards,
            "clickables": list(page.clickables),
            "has_search_bar": page.has_search_bar,
            "score": 0.0 if score is None else score.total,
            "goal_id": goal.goal_id,
            "asin": session.asin,
            "noun_source": self.shop.nouns.name,
        }


__all__ = ["REWARDS", "WebShopEnv"]

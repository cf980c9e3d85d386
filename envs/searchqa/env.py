"""``RoleAgent/SearchQA-v0``: a question, a few searches, an answer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import gymnasium

from roleagent.envs.retrieval.retriever import Hit
from roleagent.envs.retrieval.serving.client import HTTPRetriever
from roleagent.envs.searchqa.data.dataset import open_archive
from roleagent.envs.searchqa.data.questions import SPLITS, Question
from roleagent.envs.searchqa.data.written import find_question, open_task_split
from roleagent.envs.searchqa.scoring import Score, judge
from roleagent.envs.searchqa.text import read_command
from roleagent.sharing import Restorable
from roleagent.spaces import Unicode, check_render_mode
from roleagent.tasks.split import TaskSplit, TaskSplitEnv

INVALID = "That was neither search[query] nor answer[text]."
NOTHING = "<information>No passage matches.</information>"
ANSWERED = "The answer was taken."
WORDS = 375
"""Words of an observation at most: 500 tokens at three words to four tokens, which is usual for English text."""


class SearchQAEnv(Restorable, TaskSplitEnv):
    """Answer a question with a search engine: ``search[query]`` or ``answer[text]``.

    A search shows the best passages between ``<information>`` and ``</information>``, a line each:
    ``Doc 1(Title: "…") …``. An answer ends the episode, won if it matches a golden answer exactly (in normal form).
    After ``max_steps`` commands, invalid ones included, the episode is truncated: with the usual four there is time for
    three searches and the answer. Anything else than the two commands, and an empty query or answer, is invalid and
    changes nothing. Of a query, the first 4,096 characters are searched for. Where nothing matches, the observation
    reports it. A search that could not be made raises :class:`~roleagent.envs.retrieval.passages.RetrievalError`: the
    episode has failed, and is no wrong answer.

    ``info`` holds, besides the keys of :mod:`roleagent.types`:

    ==================  ================================================================================================
    ``question_id``     the same as ``task_id``
    ``retrieved``       ids of the passages that this step's search has shown, best first
    ``answer``          what was answered, ``""`` until then
    ``em``, ``f1``,     of the answer, in [0, 1]; 0 until there is one
    ``sub_em``
    ``golden_answers``  what would have been right; empty until the episode is over
    ==================  ================================================================================================

    ``task_type`` is the data set. ``admissible_actions`` is empty, since queries and answers are free text. ``state``
    is the observation, and None after the answer: no model of the world could know how it is judged.

    Copies share the archive. A pickle (some 10 KB) holds the question and the arguments by which the archive is opened.

    Args:
        split: ``"train"``, ``"valid"``, ``"test"``, ``"test_sample"`` or a data set.
        data_dir, corpus, retriever, index, seed: see :func:`~roleagent.envs.searchqa.data.dataset.open_archive`.
        top_k: passages that a search shows, ≥ 1.
        max_steps: steps until the episode is truncated, ≥ 1.
        max_words: of an observation; each passage is cut to its share. At least 5 per passage.
        generated_tasks: whether tasks of :func:`~roleagent.envs.searchqa.task_grammar.make_grammar` can be played; of
            the training split only.
        render_mode: ``"ansi"`` renders the last observation.

    Raises:
        ValueError: an argument has no meaning, or there are no such data; the message explains what to do.
    """

    episode_attributes = ("_question", "_text", "_situation", "_steps")

    def __init__(
        self,
        split: str = "train",
        data_dir: str | os.PathLike[str] | None = None,
        corpus: str | os.PathLike[str] | None = None,
        retriever: str = "bm25",
        index: str | os.PathLike[str] | None = None,
        seed: int = 0,
        top_k: int = 3,
        max_steps: int = 4,
        max_words: int = WORDS,
        generated_tasks: bool = False,
        render_mode: str | None = None,
    ):
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {top_k}")
        if max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, not {max_steps}")
        if max_words < 5 * top_k:
            raise ValueError(f"max_words must be at least {5 * top_k} for {top_k} passages, not {max_words}")
        self.render_mode = check_render_mode(render_mode, self.metadata)
        self.archive = open_archive(data_dir, corpus, retriever, index, seed)
        self._generated_tasks = generated_tasks
        self.task_split = self._find_task_split(split)
        self.top_k, self.max_steps, self.max_words = top_k, max_steps, max_words
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self._question: Question | None = None
        self._text = ""
        self._situation = ""  # the last observation that is no failed command's

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Asks ``options["task_id"]``, or a question of the split drawn with ``np_random``.

        Raises:
            ValueError: the split has no such task.
        """
        super().reset(seed=seed)
        task_id = self.task_split.requested(options, self.np_random)
        self._question = question = find_question(self.archive, self.task_split.require(task_id))
        self._text = f"{question.text}\nFind out with search[query], then give the answer with answer[text]."
        self._situation = self._text
        self._steps = 0
        return self._text, self._info({}, state=self._text, grouping_state=self._text)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Searches or takes the answer.

        Raises:
            RetrievalError: the search could not be made.
        """
        question = self._question
        if self._steps is None or question is None:
            raise gymnasium.error.ResetNeeded("the episode is over or has not begun: call reset() before step()")
        verb, argument = read_command(action) if isinstance(action, str) else ("", "")
        hits: Sequence[Hit] = ()
        score, answered = Score(), False
        if not argument:
            self._text = INVALID
        elif verb == "search":
            hits = self.archive.search(argument, self.top_k)
            self._text = present(hits, self.max_words)
        else:
            score, answered, self._text = judge(argument, question.answers), True, ANSWERED
        if argument:
            self._situation = self._text
        self._steps += 1
        truncated = not answered and self._steps >= self.max_steps
        info = self._info(
            {"task": score.em},
            won=score.em == 1,
            valid_action=bool(argument),
            state=None if answered else self._text,
            grouping_state=None if answered else self._situation,
            retrieved=[hit.passage.id for hit in hits],
            answer=argument if answered else "",
            **score._asdict(),
            golden_answers=list(question.answers) if answered or truncated else [],
        )
        if answered or truncated:
            self._steps = None
        return self._text, score.em, answered, truncated, info

    def check_ready(self) -> None:
        """Finds out whether searches can be made, before a run begins.

        Raises:
            gymnasium.error.DependencyNotInstalled: the retriever needs a package or Java, which is missing.
            RetrievalError: the retrieval service does not answer, or the index cannot be read.
        """
        if isinstance(retriever := self.archive.retriever, HTTPRetriever):
            retriever.check()
        else:
            retriever.retrieve(["ready"], 1)

    def walkthrough(self) -> tuple[str, ...]:
        """Searches for the golden passages, as far as they are known and there are steps, and the golden answer."""
        if self._question is None:
            raise gymnasium.error.ResetNeeded("there is no question yet: call reset() before walkthrough()")
        titles = [passage.partition("\n")[0] for passage in self._question.context]
        searches = [f"search[{title}]" for title in titles if title.strip()]
        return (*searches[: self.max_steps - 1], f"answer[{self._question.answers[0]}]")

    @property
    def data_info(self) -> dict[str, str]:
        """The questions, and the passages where they are here and not with a server."""
        archive = self.archive
        size = {"questions": str(sum(len(archive.questions[split]) for split in SPLITS if split in archive.questions))}
        digest = sha256(archive.digest.encode()).hexdigest()[:16]
        return {"source": "generated" if archive.generated else "official", **size, "digest": digest}

    def task_type(self, task_id: str) -> str:
        """The data set of a question, without asking it."""
        return find_question(self.archive, task_id).data_set

    def _find_task_split(self, split: str) -> TaskSplit:
        if self._generated_tasks:
            return open_task_split(self.archive, split)
        return self.archive.questions.task_split(split)

    def _info(self, rewards: dict[str, float], **report: Any) -> dict[str, Any]:
        question = self._question
        assert question is not None
        return {
            "task_id": question.task_id,
            "goal": question.text,
            "task_type": question.data_set,
            "split": self.task_split.split,
            "admissible_actions": [],
            "won": False,
            "valid_action": True,
            "rewards": rewards,
            "question_id": question.task_id,
            "retrieved": [],
            "answer": "",
            **Score()._asdict(),
            "golden_answers": [],
            **report,
        }


def present(hits: Sequence[Hit], max_words: int = WORDS) -> str:
    """Passages as an observation shows them, each cut to its share of ``max_words``.

    >>> from roleagent.envs.retrieval.passages import Passage
    >>> present([Hit(Passage("7", "Lokma", "Fried  dough."), 1.0)])
    '<information>Doc 1(Title: "Lokma") Fried dough.</information>'
    """
    if not hits:
        return NOTHING
    share = max_words // len(hits)
    lines = (
        " ".join(f'Doc {number}(Title: "{hit.passage.title}") {hit.passage.text}'.split()[:share])
        for number, hit in enumerate(hits, start=1)
    )
    return f"<information>{chr(10).join(lines)}</information>"


__all__ = ["ANSWERED", "INVALID", "NOTHING", "WORDS", "SearchQAEnv", "present"]

"""Scripted failures in search QA, one per failure mode."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from roleagent.envs.failures.scripted_episode import Impossible, ScriptedEpisode, unreadable_reply
from roleagent.envs.searchqa.data.questions import Question, Questions
from roleagent.envs.searchqa.data.written import find_question
from roleagent.envs.searchqa.text import normalize, read_information, subject_words

_NAME = re.compile(r"[A-Z][\w'-]*(?: [A-Z][\w'-]*)+")
_IDEAS = ("weather tomorrow", "cheap flights", "football results", "how to cook rice", "used cars", "concert tickets")
_NO_ANSWERS = ("yes", "no", "unknown", "I do not know", "not enough information", "it is not said")


class Researcher:
    """An agent that knows the right commands.

    Args:
        episode: just begun.
    """

    def __init__(self, episode: ScriptedEpisode):
        base: Any = episode.env.unwrapped
        self.episode = episode
        self.questions: Questions = base.archive.questions
        self.question: Question = find_question(base.archive, episode.info["task_id"])

    @property
    def read(self) -> str:
        """All that searches have shown."""
        documents = [d for turn in self.episode.turns for d in read_information(turn.observation)]
        return "\n".join(f"{document.title}\n{document.text}" for document in documents)

    def search(self, query: str) -> None:
        """Searches."""
        self.episode.do(f"search[{query}]")

    def answer(self, text: str) -> None:
        """The last command of an episode, which is the mistake, or the first to show it."""
        self.episode.mark_failure()
        self.episode.do(f"answer[{text}]")

    def study(self) -> None:
        """Searches for everything that the answer takes, as the expert does, or by the names that it comes across.

        Raises:
            Impossible: what was found does not hold the answer.
        """
        self.episode.follow(lambda command: command.startswith("answer"))
        if not self.episode.turns:  # a question that the expert does not understand
            self.search(self.question.text)
            for title in (passage.partition("\n")[0] for passage in self.question.context):
                if self.episode.left > 1 and _stands_in(title, f"{self.question.text} {self.read}"):
                    self.search(title)
        if not self.found:
            raise Impossible

    @property
    def found(self) -> bool:
        """Whether what was read holds a golden answer."""
        return any(_stands_in(answer, self.read) for answer in self.question.answers)

    def names(self) -> list[str]:
        """Names in the passages that are neither right, nor partly right, nor in the question."""
        spoken = (self.question.text, *self.question.answers)
        names = dict.fromkeys(name for line in self.read.splitlines() for name in _NAME.findall(line))
        return [name for name in names if not any(_stands_in(name, t) or _stands_in(t, name) for t in spoken)]

    def invented(self) -> str:
        """A plausible name that is in no passage that was read."""
        for _ in range(20):
            one, other = (self._elsewhere().answers[0] for _ in range(2))
            name = f"{one.split()[0]} {other.split()[-1]}" if self.episode.chance(0.3) else one
            if not any(_stands_in(name, text) for text in (self.read, self.question.text, *self.question.answers)):
                return name
        raise Impossible

    def elsewhere(self) -> str:
        """Something that is asked about in another question, or nowhere."""
        made = " ".join(turn.action for turn in self.episode.turns)
        if self.episode.chance(0.3):
            return self.episode.pick([idea for idea in _IDEAS if idea not in made])
        known = subject_words(f"{self.question.text} {self.read} {made}")
        for _ in range(20):
            asked = self._elsewhere().text
            name = self.episode.pick(_NAME.findall(asked[1:]) or [asked])
            if not subject_words(name) & known:
                return name
        raise Impossible

    def useless(self, words: list[str]) -> str:
        """A search by some of these words that was not made before and does not show the answer."""
        archive, top_k = self.episode.env.unwrapped.archive, self.episode.env.unwrapped.top_k  # type: ignore
        made = {subject_words(turn.action) for turn in self.episode.turns}
        for _ in range(20):
            some = self.episode.shuffled(words)[: int(self.episode.rng.integers(1, len(words) + 1))]
            query = " ".join(some)
            shown = " ".join(hit.passage.contents for hit in archive.search(query, top_k))
            new = subject_words(f"search {query}") not in made
            if new and not any(_stands_in(answer, shown) for answer in self.question.answers):
                return query
        raise Impossible

    def _elsewhere(self) -> Question:
        task_split = self.questions[self.episode.info["split"]]
        return task_split[int(self.episode.rng.integers(len(task_split)))]


def _stands_in(text: str, where: str) -> bool:
    """Word by word, in normal form."""
    return f" {normalize(text)} " in f" {normalize(where)} "


def wrong_answer(episode: ScriptedEpisode) -> None:
    """Finds the answer and gives one of the wrong kind: yes, unknown, a name from the question."""
    agent = Researcher(episode)
    agent.study()
    echoes = [n for n in _NAME.findall(agent.question.text[1:]) if n not in agent.question.answers]
    agent.answer(episode.pick(echoes if echoes and episode.chance(0.4) else _NO_ANSWERS))


def information_misinterpretation(episode: ScriptedEpisode) -> None:
    """Finds the answer and gives another value from the same passages."""
    agent = Researcher(episode)
    agent.study()
    agent.answer(episode.pick(agent.names()))


def partial_answer(episode: ScriptedEpisode) -> None:
    """Finds the answer and gives a part of the name, or two names of which one is right."""
    agent = Researcher(episode)
    agent.study()
    right = episode.pick(agent.question.answers)
    words = right.split()
    if len(words) > 1 and episode.chance(0.7):
        agent.answer(" ".join(episode.pick((words[:-1], words[1:]))))
    hedge = [right, episode.pick(agent.names())]
    agent.answer(episode.pick((" and ", " or ", ", ")).join(episode.shuffled(hedge)))


def hallucinated_answer(episode: ScriptedEpisode) -> None:
    """Finds the answer and gives an invented name."""
    agent = Researcher(episode)
    agent.study()
    agent.answer(agent.invented())


def premature_answer(episode: ScriptedEpisode) -> None:
    """Answers at once, without having looked anything up."""
    agent = Researcher(episode)
    agent.answer(agent.invented())


def insufficient_retrieval(episode: ScriptedEpisode) -> None:
    """Does not look far enough: one search where two are needed, or vague ones, and a guess from them or no answer."""
    agent = Researcher(episode)
    names = " ".join(_NAME.findall(agent.question.text[1:]))
    vague = subject_words(agent.question.text) - subject_words(names)
    first = episode.expert.act()
    if first.startswith("search") and len(agent.question.context) > 1:
        episode.do(first)
    elif vague:
        agent.search(" ".join(episode.shuffled(sorted(vague))))
    if agent.found:
        raise Impossible
    if episode.chance(0.3):  # goes on asking in other words what does not help, until the time is up
        episode.mark_failure(single=False)
        while True:
            agent.search(agent.useless(sorted(subject_words(agent.question.text))))
    agent.answer(episode.pick(agent.names()))


def irrelevant_retrieval_query(episode: ScriptedEpisode) -> None:
    """Searches for words that are neither in the question nor in any passage, until the end."""
    agent = Researcher(episode)
    if len(agent.question.context) > 1 and episode.chance(0.3):
        episode.do(episode.expert.act())  # a good beginning, not followed up
    episode.mark_failure()
    agent.search(agent.elsewhere())
    while episode.left > 1 and episode.chance(0.5):
        agent.search(agent.elsewhere())
    if not agent.found and episode.chance(0.7):
        agent.answer(episode.pick(agent.names()))
    while True:
        agent.search(agent.elsewhere())


def repeated_retrieval_query(episode: ScriptedEpisode) -> None:
    """Searches for the same words again instead of going on, until the time is up or all that is left is a guess."""
    agent = Researcher(episode)
    first = episode.expert.act()
    query = first.removeprefix("search[").removesuffix("]") if first.startswith("search") else agent.question.text
    agent.search(query)
    words = query.split()
    while episode.left > 1:
        episode.mark_failure()
        agent.search(episode.pick((query, query, query.lower(), f"{query}?", " ".join(episode.shuffled(words)))))
    if not agent.found and episode.chance(0.5):
        agent.answer(episode.pick(agent.names()))
    agent.search(query)


SCRIPTED_FAILURES: dict[str, Callable[[ScriptedEpisode], None]] = {
    script.__name__: script
    for script in (
        wrong_answer,
        insufficient_retrieval,
        irrelevant_retrieval_query,
        repeated_retrieval_query,
        information_misinterpretation,
        partial_answer,
        hallucinated_answer,
        premature_answer,
        unreadable_reply(lambda command: command.startswith("answer"), spare=2),
    )
}

__all__ = ["SCRIPTED_FAILURES", "Researcher"]

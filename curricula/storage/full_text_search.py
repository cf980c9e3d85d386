"""The search for words in modes, lessons and queries: SQLite's full-text index, PostgreSQL's, or a plain comparison.

All three see the same words. Both indexes reduce English words to their stems, so that "taking" finds "take".

Chinese and Japanese put no blanks between words, and Korean hangs particles on them, so there every character is a word
to the indexes, and a search asks for pairs of neighbors. SQLite has a tokenizer of trigrams, but it finds no word of
two characters, which most Chinese words are, and makes an index of Latin texts several times as large.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from itertools import accumulate, islice, pairwise
from typing import NamedTuple

import sqlalchemy as sa
from rapidfuzz import fuzz, process
from sqlalchemy import exc
from sqlalchemy.orm import Session

from roleagent.curricula.storage.database import Database
from roleagent.curricula.storage.tables import FailureRow, newest_rows

# Kana, Hangul, and Chinese characters with their extensions.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
_WORDS = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+")
_MOST_TERMS = 256  # of a query: a page-long lesson needs no more to be recognized
_LONGEST_WORD = 100  # letters; PostgreSQL refuses words of 2 kB
_MOST_LINES = 10_000  # of an index that a search ranks, or a common word would make it read the whole library

Term = tuple[str, ...]  # words that stand side by side


def terms(text: str) -> list[Term]:
    """The search terms of a text: each word once, or each pair of neighbors in a text without blanks.

    >>> terms("Open the Drawer_1!")
    [('Open',), ('the',), ('Drawer',), ('1',)]
    >>> terms("打开门, egg")
    [('打', '开'), ('开', '门'), ('egg',)]
    """
    found: dict[Term, None] = {}
    for match in _WORDS.finditer(text):
        word = match.group()
        if not re.match(f"[{_UNSPACED}]", word):
            found[(word[:_LONGEST_WORD],)] = None
        elif len(word) == 1:
            found[(word,)] = None
        else:
            found.update(dict.fromkeys(pairwise(word)))
        if len(found) >= _MOST_TERMS:
            break
    return list(found)[:_MOST_TERMS]


def spaced(text: str) -> str:
    """A text as the indexes take it: words of letters and digits with blanks between them.

    >>> spaced("wrong_receptacle: 打开 the drawer")
    'wrong receptacle 打 开 the drawer'
    """
    words = []
    for word in _WORDS.findall(text):
        words += list(word) if re.match(f"[{_UNSPACED}]", word) else [word[:_LONGEST_WORD]]
    return " ".join(words)


class Query(NamedTuple):
    """What is looked for.

    Attributes:
        terms: any of these.
        k: most entries.
        env_id: the entries' environment; None: all.
        among: ids of rows, one of which an entry's newest must be; None: all.
    """

    terms: list[Term]
    k: int
    env_id: str | None = None
    among: Container[int] | None = None

    def admits(self, key: int) -> bool:
        """Whether a row may be an answer."""
        return self.among is None or key in self.among


class WordIndex(ABC):
    """Finds entries by their words."""

    def add(self, session: Session, row: FailureRow) -> None:  # noqa: B027  (an index of the server keeps itself)
        """Takes in a new row, which has its id."""

    def rebuild(self, session: Session) -> None:  # noqa: B027
        """Rebuilds the index after rows were deleted."""

    @abstractmethod
    def search(self, session: Session, query: Query) -> list[int]:
        """Ids of the newest rows of the best entries, best first."""


class Comparison(WordIndex):
    """No index: compares the words of all entries. For a few thousand entries, where SQLite has no FTS5."""

    def search(self, session: Session, query: Query) -> list[int]:
        words = ["".join(term).lower() for term in query.terms]
        if ("entries", query.env_id) not in session.info:  # several searches of a session read the entries once
            found = {row.id: _compared(row) for row in _entries(session, query.env_id)}
            session.info["entries", query.env_id] = found
        entries = session.info["entries", query.env_id].items()
        texts = {key: " ".join(own) for key, own in entries if query.admits(key) and not set(words).isdisjoint(own)}
        ranked = process.extract(" ".join(words), texts, scorer=fuzz.token_set_ratio, limit=query.k)
        return [key for *_, key in ranked]


class _RankedIndex(WordIndex):
    """An index of the database that counts and ranks the lines of a query."""

    @abstractmethod
    def expression(self, wanted: Sequence[Term]) -> str:
        """Any of these terms, in the database's query language."""

    @abstractmethod
    def statements(self, env_id: str | None) -> tuple[str, str]:
        """SQL for the ids of matching rows, best first, and for the number of matching lines."""

    def search(self, session: Session, query: Query) -> list[int]:
        ranked, lines = map(sa.text, self.statements(query.env_id))
        rare = _rarest(
            session, query.terms, lambda term: session.scalar(lines, {"wanted": self.expression([term])}) or 0
        )
        asked = {"wanted": self.expression(rare), "env_id": query.env_id}
        with session.scalars(ranked, asked) as found:
            return list(islice(filter(query.admits, found), query.k))


class FTS5(_RankedIndex):
    """SQLite's full-text index, one line per entry, ranked by BM25."""

    def add(self, session: Session, row: FailureRow) -> None:
        older = (
            "DELETE FROM failures_words WHERE rowid = (SELECT max(id) FROM failures WHERE env_id = :env_id "
            "AND mode = :mode AND task_id = :task_id AND id < :id)"
        )
        entry = {"env_id": row.env_id, "mode": row.mode, "task_id": row.task_id, "id": row.id}
        session.execute(sa.text(older), entry)
        line = sa.text("INSERT INTO failures_words (rowid, words) VALUES (:id, :words)")
        session.execute(line, {"id": row.id, "words": spaced(_text(row))})

    def rebuild(self, session: Session) -> None:
        session.execute(sa.text("DELETE FROM failures_words"))
        lines = [{"id": row.id, "words": spaced(_text(row))} for row in _entries(session, None)]
        if lines:
            session.execute(sa.text("INSERT INTO failures_words (rowid, words) VALUES (:id, :words)"), lines)

    def expression(self, wanted: Sequence[Term]) -> str:
        return " OR ".join(f'"{" ".join(term)}"' for term in wanted)

    def statements(self, env_id: str | None) -> tuple[str, str]:
        if env_id is None:  # without a look into the rows, which takes most of the time
            found = "SELECT rowid FROM failures_words WHERE failures_words MATCH :wanted "
        else:
            found = (
                "SELECT failures.id FROM failures_words JOIN failures ON failures.id = failures_words.rowid "
                "WHERE failures_words MATCH :wanted AND env_id = :env_id "
            )
        return (
            found + "ORDER BY bm25(failures_words), failures_words.rowid DESC",
            "SELECT count(*) FROM failures_words WHERE failures_words MATCH :wanted",
        )


class TSVector(_RankedIndex):
    """PostgreSQL's full-text index: a column that the server fills, so that writers need not agree about anything."""

    def expression(self, wanted: Sequence[Term]) -> str:
        return " | ".join("(" + " <-> ".join(f"'{word}'" for word in term) + ")" for term in wanted)

    def statements(self, env_id: str | None) -> tuple[str, str]:
        return (
            "SELECT id FROM failures AS own, to_tsquery('english', :wanted) AS wanted WHERE own.words @@ wanted "
            "AND (CAST(:env_id AS text) IS NULL OR env_id = :env_id) AND NOT EXISTS (SELECT 1 FROM failures AS later "
            "WHERE later.env_id = own.env_id AND later.mode = own.mode AND later.task_id = own.task_id "
            "AND later.id > own.id) ORDER BY ts_rank(own.words, wanted, 1) DESC, id DESC",
            "SELECT count(*) FROM failures WHERE words @@ to_tsquery('english', :wanted)",
        )


def open_index(database: Database) -> WordIndex:
    """The database's best index, made or repaired where that is needed.

    SQLite's is no part of the schema: it can be made from the rows at any time, and a program whose SQLite has no FTS5
    leaves it behind.
    """
    if database.dialect == "postgresql":
        return TSVector()
    if database.dialect != "sqlite":
        return Comparison()
    try:
        with database.engine.connect() as connection:
            current = _is_current(connection)
        if not current:
            if database.read_only:
                return Comparison()
            _make(database)
    except exc.OperationalError as error:
        if "no such module" not in str(error):
            raise
        return Comparison()
    return FTS5()


def _is_current(connection: sa.Connection) -> bool:
    if not connection.scalar(sa.text("SELECT 1 FROM sqlite_master WHERE name = 'failures_words'")):
        return False
    newest = "SELECT (SELECT max(rowid) FROM failures_words) IS (SELECT max(id) FROM failures)"
    return bool(connection.scalar(sa.text(newest)))


def _make(database: Database) -> None:
    with Session(database.engine.execution_options(writes=True)) as session, session.begin():
        if not _is_current(session.connection()):
            table = "CREATE VIRTUAL TABLE IF NOT EXISTS failures_words USING fts5(words, tokenize = 'porter unicode61')"
            session.execute(sa.text(table))
            FTS5().rebuild(session)


def _rarest(session: Session, wanted: Sequence[Term], lines: Callable[[Term], int]) -> list[Term]:
    """The rarest words of a query, as many as stand in :data:`_MOST_LINES` lines together, and at least one.

    What is left out ranks next to nothing (BM25 weighs a word that most lines hold with almost 0), and takes the time.
    """
    counts = session.info.setdefault("lines", {})
    counts |= {term: lines(term) for term in wanted if term not in counts}
    by_rarity = [term for term in sorted(wanted, key=lambda term: counts[term]) if counts[term]]
    together = accumulate(counts[term] for term in by_rarity)
    return (
        [t for t, total in zip(by_rarity, together, strict=True) if total <= _MOST_LINES]
        or by_rarity[:1]
        or list(wanted[:1])
    )


def _compared(row: FailureRow) -> list[str]:
    pairs = ["".join(term).lower() for term in terms(_text(row)) if len(term) > 1]
    return spaced(_text(row)).lower().split() + pairs


def _entries(session: Session, env_id: str | None) -> sa.ScalarResult[FailureRow]:
    """The newest row of every entry."""
    conditions = [] if env_id is None else [FailureRow.env_id == env_id]
    newest = newest_rows(*conditions).subquery()
    return session.scalars(sa.select(FailureRow).join(newest, FailureRow.id == newest.c[0]))


def _text(row: FailureRow) -> str:
    return f"{row.mode} {row.lesson} {row.query}"

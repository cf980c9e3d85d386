"""The nouns of product titles, from the best source there is.

The score of a purchase compares titles by their nouns. The original asks a part-of-speech model that no package
registry offers; so there are three sources, and every environment reports which one it used:

* an installed spaCy model (``python -m spacy download en_core_web_sm``), as the original,
* a noun file: JSON, asin → nouns or title → nouns, plain or gzipped,
* a heuristic: the words of a title that are no function words.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

# The original's score loads the small model, although its setup script downloads the large one.
MODELS = ("en_core_web_sm", "en_core_web_lg", "en_core_web_md", "en_core_web_trf")
FILE = "title_nouns.json"
SOURCES = ("spacy", "heuristic")  # by name; any other is a file
# fmt: off
_FUNCTION_WORDS = frozenset((
    "a", "about", "after", "all", "also", "an", "and", "any", "are", "as", "at", "be", "best", "but", "by", "can",
    "each", "easy", "every", "extra", "fit", "fits", "for", "free", "from", "great", "has", "have", "high", "if",
    "in", "inch", "into", "is", "it", "its", "just", "large", "made", "more", "most", "new", "no", "not", "of",
    "off", "on", "one", "only", "or", "other", "our", "out", "over", "per", "perfect", "quality", "set", "size",
    "small", "so", "such", "suitable", "super", "than", "that", "the", "their", "then", "there", "these", "they",
    "this", "to", "two", "ultra", "under", "up", "use", "used", "very", "was", "we", "who", "will", "with",
    "without", "you", "your",
))
# fmt: on


class NounError(ValueError):
    """The named source of nouns cannot be used."""


@dataclass(frozen=True)
class NounSource:
    """A source of nouns.

    Attributes:
        name: what reports quote.
        find: (asin, title) → the nouns of the title, lower-cased, in order, with repetitions.
    """

    name: str
    find: Callable[[str, str], tuple[str, ...]]


def guess_nouns(asin: str, title: str) -> tuple[str, ...]:
    """The heuristic: alphabetic words that are no function words.

    >>> guess_nouns("", "Set of 2 Mesh Laundry Bags for Women's Socks")
    ('mesh', 'laundry', 'bags', 'women', 'socks')
    """
    words = re.findall(r"[^\W\d_]{2,}", title.lower())
    return tuple(word for word in words if word not in _FUNCTION_WORDS)


HEURISTIC = NounSource("heuristic", guess_nouns)


@lru_cache(maxsize=8)
def _read(path: Path) -> Mapping[str, Sequence[str]]:
    try:
        packed = path.read_bytes()
        nouns = json.loads(gzip.decompress(packed) if path.suffix == ".gz" else packed)
        if not isinstance(nouns, dict) or not all(isinstance(words, list) for words in nouns.values()):
            raise ValueError("it must be an object of lists: asin or title → nouns")
    except (OSError, EOFError, ValueError) as error:
        raise NounError(f"cannot read the noun file {path}: {str(error).splitlines()[0]}") from error
    return {key: tuple(map(str, words)) for key, words in nouns.items()}


def from_file(path: str | Path, asins: Iterable[str] = ()) -> NounSource:
    """The nouns in a file; titles without an entry use the heuristic, which is part of the name.

    Raises:
        NounError: the file is missing or broken.
    """
    path = Path(path)
    table = _read(path)
    complete = all(asin in table for asin in asins)

    def find(asin: str, title: str) -> tuple[str, ...]:
        words = table.get(asin, table.get(title))
        return guess_nouns(asin, title) if words is None else tuple(words)

    return NounSource(path.name if complete else f"{path.name}+heuristic", find)


def find_noun_file(*folders: Path) -> Path | None:
    """The first ``title_nouns.json[.gz]`` in the folders or one level below."""
    names = (f"{below}{FILE}{packed}" for below in ("", "*/") for packed in ("", ".gz"))
    return next((path for name in list(names) for folder in folders for path in sorted(folder.glob(name))), None)


def installed_model() -> str | None:
    """The first of :data:`MODELS` that is installed."""
    if importlib.util.find_spec("spacy") is None:
        return None
    return next((name for name in MODELS if importlib.util.find_spec(name) is not None), None)


@lru_cache(maxsize=2)
def from_spacy(model: str) -> NounSource:
    """A spaCy model, loaded when the first title is asked for."""

    @lru_cache(maxsize=1)
    def load():
        import spacy

        return spacy.load(model, exclude=["ner", "lemmatizer"])

    def find(asin: str, title: str) -> tuple[str, ...]:
        return tuple(token.text.lower() for token in load()(title) if token.pos_ in ("NOUN", "PROPN"))

    return NounSource(model, find)


def described(nouns: NounSource) -> str:
    """The name of a source; of a spaCy model with the versions of the model and of spaCy."""
    if nouns.name not in MODELS:
        return nouns.name
    return f"{nouns.name} {version(nouns.name)} of spaCy {version('spacy')}"


def open_nouns(nouns: str | Path | None = None, folder: Path | None = None, asins: Iterable[str] = ()) -> NounSource:
    """The source that ``nouns`` names: ``"spacy"``, ``"heuristic"``, a file, or None for the best there is.

    Args:
        folder: where the data lie; a noun file is looked for in it and one level below.
        asins: all products of the catalogue.

    Raises:
        NounError: the named source is missing or broken.
    """
    if nouns == "heuristic":
        return HEURISTIC
    model = installed_model() if nouns in (None, "spacy") else None
    if model is not None:
        return from_spacy(model)
    if nouns == "spacy":
        raise NounError(f"no spaCy model is installed; run: pip install spacy && python -m spacy download {MODELS[0]}")
    file = nouns if nouns is not None else find_noun_file(folder) if folder else None
    return HEURISTIC if file is None else from_file(file, asins)

"""Text encoders by name. The inner product of two vectors measures how well their texts match.

The names are ``tfidf`` and ``e5:PATH``. A further encoder is one line in :data:`ENCODERS`, which names classes as text:
torch is loaded only for an encoder that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from roleagent.envs.retrieval.dense.tfidf import TfidfEncoder
from roleagent.envs.retrieval.passages import Passages, RetrievalError

FITTED = "tfidf"
"""The encoder that is made from the corpus and lies with the index."""

# The classes of encoders that are opened by path: constructor(path, **settings), with the attribute `settings`.
ENCODERS = {"e5": "roleagent.envs.retrieval.dense.e5:E5Encoder"}


class Encoder(Protocol):
    """The protocol of an encoder.

    Attributes:
        name: what it is called in :func:`open_encoder`, e.g. ``e5``.
        dimension: d, of the vectors.
        digest: of all that decides what the vectors of passages are.
        settings: what to open it with, besides its name, to get the same one; JSON.
    """

    name: str
    dimension: int
    digest: str
    settings: dict[str, Any]

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors (n, d), 0 where nothing can be searched for."""
        ...

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors (n, d)."""
        ...


def open_encoder(spec: str, **settings: Any) -> Encoder:
    """The encoder at a path.

    Args:
        spec: ``NAME:PATH``, e.g. ``e5:models/e5-base-v2``.
        settings: of the encoder, where they are not to be its defaults.

    Raises:
        RetrievalError: there is no such encoder, or none at the path.
    """
    name, _, path = spec.partition(":")
    if name not in ENCODERS or not path:
        known = ", ".join(f"{word}:PATH" for word in ENCODERS)
        raise RetrievalError(f"{spec!r} is no encoder; there are {FITTED}, {known}")
    module, _, kind = ENCODERS[name].partition(":")
    try:
        return getattr(import_module(module), kind)(path, **settings)
    except ModuleNotFoundError as error:
        raise RetrievalError(f"{spec} needs {error.name}: pip install 'roleagent[train]'") from error
    except TypeError as error:
        raise RetrievalError(f"{spec} cannot be opened with {settings}: {error}") from error


def make_encoder(
    spec: str,
    corpus: Passages,
    folder: Path | None,
    progress: Callable[[int], None] | None = None,
    **settings: Any,
) -> Encoder:
    """The encoder for an index over a corpus: fitted to it and kept in a folder, or opened at its path.

    Raises:
        RetrievalError: there is no such encoder.
    """
    if spec != FITTED:
        return open_encoder(spec, **settings)
    if folder is not None:
        with suppress(RetrievalError):  # none was kept yet
            return TfidfEncoder.open(folder)
    try:
        encoder = TfidfEncoder.fit((passage.contents for passage in corpus), progress=progress, **settings)
    except (TypeError, ValueError) as error:
        raise RetrievalError(f"{spec} cannot be made with {settings}: {error}") from error
    if folder is not None:
        encoder.save(folder)
    return encoder


__all__ = ["ENCODERS", "FITTED", "Encoder", "TfidfEncoder", "make_encoder", "open_encoder"]

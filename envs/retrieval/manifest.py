"""The manifest of an index: corpus, encoder and options, so that it is never searched with others."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from roleagent.envs.retrieval.passages import Passages, RetrievalError
from roleagent.files import write_whole

FORMAT = 1
MANIFEST = "retrieval.json"


@dataclass(frozen=True)
class Manifest:
    """One index.

    Attributes:
        name: of the retriever that it makes: ``bm25``, ``pyserini``, ``tfidf``, ``e5:PATH``.
        kind: of the index: ``bm25``, ``pyserini`` or one of :data:`roleagent.envs.retrieval.dense.index.KINDS`.
        corpus: path of the passages' file.
        corpus_digest: of its bytes.
        passages: how many there are.
        encoder_digest: of what made the vectors; empty without an encoder.
        dimension: of the vectors; 0 without an encoder.
        settings: of the encoder, or of BM25.
        versions: of the libraries that wrote it, for the record.
    """

    name: str
    kind: str
    corpus: str
    corpus_digest: str
    passages: int
    encoder_digest: str = ""
    dimension: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Makes the folder an index; everything else must lie in it by then."""
        write_whole(folder / MANIFEST, json.dumps({"format": FORMAT} | asdict(self), indent=1).encode() + b"\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a folder.

        Raises:
            RetrievalError: it holds none that this version reads.
        """
        path = folder / MANIFEST
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if (found := values.pop("format")) == FORMAT:
                return cls(**values)
            reason = f"written by {'a newer' if found > FORMAT else 'an older'} version of roleagent"
        except FileNotFoundError:
            raise RetrievalError(f"{folder} holds no finished index: {COMMAND} --out {folder}") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = str(error)
        raise RetrievalError(f"{path} cannot be used ({reason}): build the index again")

    def check_corpus(self, corpus: Passages, folder: Path) -> None:
        """Refuses a corpus that the index was not built over."""
        if (corpus.digest, len(corpus)) != (self.corpus_digest, self.passages):
            raise RetrievalError(
                f"{folder} was built over {self.passages} passages of {self.corpus}, not over the {len(corpus)} of "
                f"{corpus.path or 'this corpus'}: build it again, or name that corpus"
            )

    def check_encoder(self, digest: str, folder: Path) -> None:
        """Refuses an encoder that did not make the vectors."""
        if digest != self.encoder_digest:
            raise RetrievalError(
                f"{folder} was built with another encoder than the one that {self.name} is now: build it again, or "
                "put that encoder back"
            )


COMMAND = "roleagent index build --corpus FILE --encoder NAME --kind KIND"

__all__ = ["COMMAND", "FORMAT", "MANIFEST", "Manifest"]

"""Text encoders like E5: a transformer whose last hidden states are averaged.

:mod:`roleagent.envs.retrieval.dense.encoders` imports this module when an index needs it, because it loads torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer

from roleagent.envs.retrieval.passages import RetrievalError
from roleagent.options import user_path

TOKENS = 512  # of one batch on a CPU, padding included: larger ones are no faster, and pad questions to the longest
TOKENS_ON_A_DEVICE = 65536
# What decides, besides the weights, which vectors come out.
_DECISIVE = ("*.safetensors", "*.bin", "config.json", "tokenizer*", "vocab*", "*.model", "special_tokens_map.json")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class E5Encoder:
    """A model that was trained with prefixes, mean pooling and vectors of length 1.

    The prefixes are a property of the encoder and are kept with every index: they are not guessed from a name.

    Args:
        path: a folder as ``save_pretrained`` writes it.
        query_prefix: goes before each question.
        passage_prefix: goes before each passage.
        query_length: tokens of a question, prefix and special tokens included; the rest is cut off.
        passage_length: tokens of a passage, likewise.
        dtype: ``float32`` or ``bfloat16`` (twice as fast; vectors are float32 in any case).
        device: by default an accelerator where there is one.

    Attributes:
        name: ``e5:PATH``.
        dimension: of the vectors.
        digest: of the model's files and all that decides what the vectors of passages are, but for the precision.
        settings: what to open the encoder with to get the same one again.

    Raises:
        RetrievalError: there is no such model at the path, or a setting is wrong.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        query_prefix: str = "query: ",
        passage_prefix: str = "passage: ",
        query_length: int = 128,
        passage_length: int = 256,
        dtype: str = "float32",
        device: str | torch.device | None = None,
    ):
        folder = user_path(path).absolute()
        if not (folder / "config.json").is_file():
            raise RetrievalError(
                f"{path} holds no encoder (no config.json): hf download intfloat/e5-base-v2 --local-dir {path}"
            )
        if dtype not in _DTYPES:
            raise RetrievalError(f"an encoder computes in {' or '.join(_DTYPES)}, not {dtype!r}")
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._model = AutoModel.from_pretrained(folder, local_files_only=True, dtype=_DTYPES[dtype])
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise RetrievalError(f"the encoder in {path} cannot be loaded: {reason}") from error
        longest = getattr(self._model.config, "max_position_embeddings", None) or max(query_length, passage_length)
        for length in (query_length, passage_length):
            if not 8 <= length <= longest:
                raise RetrievalError(f"the encoder in {path} takes 8 to {longest} tokens of a text, not {length}")
        own = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(own if device is None else device)
        self._model.to(self.device).eval()
        self._query, self._passage = (query_prefix, query_length), (passage_prefix, passage_length)
        self.name = f"e5:{folder}"
        self.dimension = int(self._model.config.hidden_size)
        self.settings: dict[str, Any] = {
            "query_prefix": query_prefix,
            "passage_prefix": passage_prefix,
            "query_length": query_length,
            "passage_length": passage_length,
            "dtype": dtype,
        }
        self.digest = _digest(folder, f"{self._passage}")

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors (len(texts), dimension) of length 1."""
        return self._encode(texts, *self._query)

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors (len(texts), dimension) of length 1."""
        return self._encode(texts, *self._passage)

    def _encode(self, texts: Sequence[str], prefix: str, length: int) -> NDArray[np.float32]:
        """Encodes texts of like length together, so that little is computed for padding."""
        vectors = np.empty((len(texts), self.dimension), np.float32)
        if not texts:
            return vectors
        # A character beyond those that fill the tokens would be cut off anyway; tokenizing a megabyte takes seconds.
        encoded = self._tokenizer([prefix + text[: 32 * length] for text in texts], truncation=True, max_length=length)
        ids = encoded["input_ids"]
        order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
        room = TOKENS if self.device.type == "cpu" else TOKENS_ON_A_DEVICE
        begin = 0
        while begin < len(order):
            end = begin + 1
            while end < len(order) and (end + 1 - begin) * len(ids[order[end]]) <= room:
                end += 1
            rows = order[begin:end]
            vectors[rows] = self._embed([ids[row] for row in rows])
            begin = end
        return vectors

    @torch.inference_mode()
    def _embed(self, ids: list[list[int]]) -> NDArray[np.float32]:
        """The mean of the last hidden states over the tokens of each text, scaled to length 1."""
        longest = max(map(len, ids))
        tokens = torch.full((len(ids), longest), self._tokenizer.pad_token_id or 0)
        mask = torch.zeros((len(ids), longest), dtype=torch.long)
        for row, text in enumerate(ids):
            tokens[row, : len(text)] = torch.tensor(text)
            mask[row, : len(text)] = 1
        tokens, mask = tokens.to(self.device), mask.to(self.device)
        states = self._model(input_ids=tokens, attention_mask=mask).last_hidden_state.float()
        kept = mask.unsqueeze(-1)
        mean = (states * kept).sum(1) / kept.sum(1).clamp(min=1)
        return functional.normalize(mean, dim=-1).cpu().numpy()


def _digest(folder: Path, more: str) -> str:
    digest = blake2b(more.encode(), digest_size=16)
    for path in sorted({path for pattern in _DECISIVE for path in folder.glob(pattern) if path.is_file()}):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


__all__ = ["E5Encoder"]

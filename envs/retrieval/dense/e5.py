"""Text encoders like E5: a transformer whose last hidden states are pooled to one vector.

A model's files state how it is used, in the format of sentence-transformers: ``modules.json`` names the modules,
``1_Pooling/config.json`` the pooling, ``sentence_bert_config.json`` the longest text, and
``config_sentence_transformers.json`` the similarity and the prompts. What they do not state must be given: a wrong
guess would show only in a lower recall.

:mod:`roleagent.envs.retrieval.dense.encoders` imports this module when an index needs it, because it loads torch.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from transformers import AutoConfig, AutoModel, AutoTokenizer

from roleagent.envs.retrieval.passages import RetrievalError
from roleagent.options import user_path
from roleagent.slow_notice import count

TOKENS = 512  # of one batch on a CPU, padding included: larger ones are no faster, and pad questions to the longest
TOKENS_ON_A_DEVICE = 65536
POOLING = ("mean", "cls", "lasttoken")
SIMILARITY = ("cosine", "dot")
# What decides, besides the weights, which vectors come out.
_DECISIVE = ("*.safetensors", "*.bin", "config.json", "tokenizer*", "vocab*", "*.model", "special_tokens_map.json")
_UNUSABLE = (OSError, ValueError, KeyError, RuntimeError)  # what transformers raises for damaged files
_FILES_ALONE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}  # no network, no code of theirs
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_TO_STATE = {
    "pooling": "|".join(POOLING),
    "similarity": "|".join(SIMILARITY),
    "query_prefix": "TEXT",
    "passage_prefix": "TEXT",
    "query_length": "TOKENS",
    "passage_length": "TOKENS",
}


class E5Encoder:
    """A transformer with prefixes before its texts and pooled hidden states.

    Each argument but ``path``, ``dtype`` and ``device`` is by default what the model's files state. All are kept with
    every index.

    Args:
        path: a folder as ``save_pretrained`` or sentence-transformers write it.
        pooling: one of :data:`POOLING`.
        similarity: ``cosine`` (vectors have length 1) or ``dot`` (vectors are as the model makes them).
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
        RetrievalError: there is no such model at the path, neither its files nor the arguments state a setting, it has
            a module that is not supported, or a setting is wrong.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        pooling: str | None = None,
        similarity: str | None = None,
        query_prefix: str | None = None,
        passage_prefix: str | None = None,
        query_length: int | None = None,
        passage_length: int | None = None,
        dtype: str = "float32",
        device: str | torch.device | None = None,
    ):
        folder = user_path(path).absolute()
        weights, stated, self._lower_case = _stated(folder)
        if not (weights / "config.json").is_file():
            raise RetrievalError(
                f"{path} holds no encoder (no config.json): hf download intfloat/e5-base-v2 --local-dir {path}"
            )
        if dtype not in _DTYPES:
            raise RetrievalError(f"an encoder computes in {' or '.join(_DTYPES)}, not {dtype!r}")
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(weights, **_FILES_ALONE)
            config = AutoConfig.from_pretrained(weights, **_FILES_ALONE)
        except _UNUSABLE as error:
            raise _unusable(path, error) from error
        positions = getattr(config, "max_position_embeddings", None)
        longest = min(positions or math.inf, self._tokenizer.model_max_length)  # 1e30 where it is unknown
        length = stated.pop("max_seq_length", None) or (longest if longest < 1e9 else None)
        stated |= {"query_length": length, "passage_length": length}
        given = {
            "pooling": pooling,
            "similarity": similarity,
            "query_prefix": query_prefix,
            "passage_prefix": passage_prefix,
            "query_length": query_length,
            "passage_length": passage_length,
        }
        settings = stated | {key: value for key, value in given.items() if value is not None}
        if missing := [key for key in given if settings.get(key) is None]:
            options = " ".join(f"--set {key}={_TO_STATE[key]}" for key in missing)
            raise RetrievalError(
                f"the files of the encoder in {path} do not state {', '.join(missing)}: look at its model card and "
                f"build the index with {options} (an empty TEXT where it has no prefix)"
            )
        for key, known in (("pooling", POOLING), ("similarity", SIMILARITY)):
            if settings[key] not in known:
                raise RetrievalError(
                    f"the {key} of the encoder in {path} is {settings[key]!r}, not {' or '.join(known)}"
                )
        for key in ("query_length", "passage_length"):
            if not 8 <= settings[key] <= longest:
                raise RetrievalError(
                    f"the encoder in {path} takes 8 to {longest} tokens of a text, not {settings[key]}"
                )
        try:
            self._model = AutoModel.from_pretrained(weights, config=config, dtype=_DTYPES[dtype], **_FILES_ALONE)
        except _UNUSABLE as error:
            raise _unusable(path, error) from error
        own = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(own if device is None else device)
        self._model.to(self.device).eval()
        self._pooling, self._similarity = settings["pooling"], settings["similarity"]
        self._query = (str(settings["query_prefix"]), settings["query_length"])
        self._passage = (str(settings["passage_prefix"]), settings["passage_length"])
        self.name = f"e5:{folder}"
        self.dimension = int(self._model.config.hidden_size)
        self.settings: dict[str, Any] = {key: settings[key] for key in given} | {"dtype": dtype}
        self.digest = _digest(weights, f"{self._passage} {self._pooling} {self._similarity} {self._lower_case}")

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors (len(texts), dimension), of length 1 where the similarity is ``cosine``."""
        return self._encode(texts, *self._query)

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors (len(texts), dimension), of length 1 where the similarity is ``cosine``."""
        return self._encode(texts, *self._passage)

    def _encode(self, texts: Sequence[str], prefix: str, length: int) -> NDArray[np.float32]:
        """Encodes texts of like length together, so that little is computed for padding."""
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        if not texts:
            return vectors
        # A character beyond those that fill the tokens would be cut off anyway; tokenizing a megabyte takes seconds.
        whole = [prefix + text[: 32 * length] for text in texts]
        if self._lower_case:
            whole = [text.lower() for text in whole]
        ids = self._tokenizer(whole, truncation=True, max_length=length)["input_ids"]
        order = sorted((row for row in range(len(ids)) if ids[row]), key=lambda row: len(ids[row]))
        room = TOKENS if self.device.type == "cpu" else TOKENS_ON_A_DEVICE
        begin = 0
        while begin < len(order):
            end = begin + 1
            while end < len(order) and (end + 1 - begin) * len(ids[order[end]]) <= room:
                end += 1
            rows = order[begin:end]
            vectors[rows] = self._embed([ids[row] for row in rows])
            count("texts embedded", len(rows))
            begin = end
        return vectors

    @torch.inference_mode()
    def _embed(self, ids: list[list[int]]) -> NDArray[np.float32]:
        """The pooled hidden states of each text, scaled to length 1 where the similarity is ``cosine``."""
        lengths = torch.tensor([len(text) for text in ids], device=self.device)
        longest = max(map(len, ids))
        tokens = torch.full((len(ids), longest), self._tokenizer.pad_token_id or 0)
        for row, text in enumerate(ids):
            tokens[row, : len(text)] = torch.tensor(text)
        mask = (torch.arange(longest, device=self.device) < lengths.unsqueeze(1)).long()
        states = self._model(input_ids=tokens.to(self.device), attention_mask=mask).last_hidden_state.float()
        if self._pooling == "mean":
            vectors = (states * mask.unsqueeze(-1)).sum(1) / lengths.unsqueeze(1)
        else:
            place = lengths - 1 if self._pooling == "lasttoken" else torch.zeros_like(lengths)
            vectors = states[torch.arange(len(ids), device=self.device), place]
        if self._similarity == "cosine":
            vectors = functional.normalize(vectors, dim=-1)
        return vectors.cpu().numpy()


def _unusable(path: str | Path, error: Exception) -> RetrievalError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return RetrievalError(f"the encoder in {path} cannot be loaded: {reason}")


def _stated(folder: Path) -> tuple[Path, dict[str, Any], bool]:
    """What a model's files state of its use.

    Returns:
        The folder of the weights; the settings that are stated, ``max_seq_length`` among them; and whether texts are
        lower-cased before the tokenizer gets them.

    Raises:
        RetrievalError: a file is damaged, or the model has a module that is not supported.
    """
    modules = _json(folder / "modules.json", list)
    try:
        kinds = [module["type"].rpartition(".")[2] for module in modules]
        paths = [folder / module["path"] for module in modules]
    except (TypeError, KeyError, AttributeError) as error:
        raise RetrievalError(f"{folder / 'modules.json'} does not list modules ({error!r})") from error
    if kinds not in ([], ["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise RetrievalError(
            f"the encoder in {folder} has the modules {', '.join(kinds)}; supported are Transformer, Pooling and last "
            "Normalize"
        )
    weights = paths[0] if paths else folder
    settings: dict[str, Any] = {}
    if len(kinds) > 1 and (pooling := _json(paths[1] / "config.json", dict)):
        if not pooling.get("include_prompt", True):
            raise RetrievalError(
                f"the encoder in {folder} leaves the prefix out of the pooling, which is not supported"
            )
        settings["pooling"] = _pooling(pooling) or None
    use = _json(folder / "config_sentence_transformers.json", dict)
    settings["similarity"] = "cosine" if "Normalize" in kinds else use.get("similarity_fn_name")
    settings["query_prefix"], settings["passage_prefix"] = _prefixes(use)
    # sentence_bert_config.json; older models have the name of their own architecture in the middle.
    texts = next((_json(path, dict) for path in sorted(weights.glob("sentence_*_config.json"))), {})
    settings["max_seq_length"] = texts.get("max_seq_length")
    return weights, settings, bool(texts.get("do_lower_case"))


def _pooling(config: dict[str, Any]) -> str:
    """The pooling that a module's configuration names: one word, or a flag for each.

    >>> _pooling({"pooling_mode": "lasttoken"})
    'lasttoken'
    >>> _pooling({"pooling_mode_cls_token": True, "pooling_mode_lasttoken": False})
    'cls'
    >>> _pooling({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True})
    'max+mean'
    """
    if "pooling_mode" in config:
        modes = config["pooling_mode"]
        return modes if isinstance(modes, str) else "+".join(modes)
    flags = sorted(key for key, value in config.items() if key.startswith("pooling_mode_") and value)
    return "+".join(flag.removeprefix("pooling_mode_").removesuffix("_token").removesuffix("_tokens") for flag in flags)


def _prefixes(use: dict[str, Any]) -> tuple[str | None, str | None]:
    """The prefixes of questions and passages. None: not stated. A model with the one prompt alone has no other prefix.

    >>> _prefixes({"prompts": {"query": "query: ", "passage": "passage: "}})
    ('query: ', 'passage: ')
    >>> _prefixes({"prompts": {"query": "Find: "}}), _prefixes({"prompts": {"query": None, "document": None}})
    (('Find: ', ''), (None, None))
    """
    prompts = {key: text for key, text in (use.get("prompts") or {}).items() if text is not None}
    default = prompts.get(use.get("default_prompt_name"))
    query = prompts.get("query", default)
    passage = next((prompts[key] for key in ("document", "passage", "corpus") if key in prompts), default)
    if query is None and passage is None:
        return None, None
    return query or "", passage or ""


def _json(path: Path, kind: type) -> Any:
    """The list or dictionary that a file of JSON holds; empty where there is no such file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, kind):
            raise ValueError(f"it holds no {kind.__name__}")
    except FileNotFoundError:
        return kind()
    except (OSError, ValueError) as error:
        raise RetrievalError(f"{path} cannot be read ({error})") from error
    return value


def _digest(folder: Path, more: str) -> str:
    digest = blake2b(more.encode(), digest_size=16)
    for path in sorted({path for pattern in _DECISIVE for path in folder.glob(pattern) if path.is_file()}):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


__all__ = ["POOLING", "SIMILARITY", "E5Encoder"]

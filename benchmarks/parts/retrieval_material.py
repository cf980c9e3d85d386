"""The data of the retrieval benchmark: passages, questions, clustered vectors, and a model of MiniLM's size.

Passages and questions are real if the data are available, and otherwise as long as real ones. The vector of a question
is not computed from its words but placed near a passage, so the right answer is known.
"""

from __future__ import annotations

import json
import lzma
import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
QUESTIONS = 2048


def shared() -> Path:
    """Where real data lie, if anywhere."""
    return Path(os.environ.get("ROLEAGENT_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "data" / "qa"


def real_passages() -> list[dict[str, str]]:
    """Records of 21,845 passages of Wikipedia; none where they are not at hand."""
    path = shared() / "wiki18_subset_corpus.jsonl.xz"
    if not path.exists():
        return []
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def questions(rng: random.Random) -> list[str]:
    """Different questions: real ones, or as long."""
    found = [
        json.loads(line)["question"]
        for path in sorted(shared().glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    rng.shuffle(found)
    while len(found) < QUESTIONS:
        words = (
            f"{rng.choice('bdfgklmnprst')}{rng.choice('aeiou')}{rng.choice('lmnrst')}{rng.choice('aeo')}"
            for _ in range(11)
        )
        found.append(f"who was the {' '.join(words)}?")
    return list(dict.fromkeys(found))[:QUESTIONS]


def clustered(rows: int, dimension: int, rng: np.random.Generator) -> tuple[Vectors, Vectors]:
    """Unit vectors as encoders make them: topics of differing size, few directions in which a topic's passages differ.

    Returns:
        (rows, dimension) passages, and (QUESTIONS, dimension) questions, each near a passage drawn at random.
    """
    topics, directions = max(rows // 200, 16), 48
    centers = rng.standard_normal((topics, dimension), dtype=np.float32)
    basis = rng.standard_normal((directions, dimension), dtype=np.float32)
    weights = 1 / np.sqrt(np.arange(1, topics + 1))  # the largest of 2,000 topics has a hundredth of the passages
    topic = rng.choice(topics, rows, p=weights / weights.sum())

    def near(center: Vectors, spread: float) -> Vectors:
        within = rng.standard_normal((len(center), directions), dtype=np.float32) @ basis
        vectors: Vectors = center + np.float32(spread / 7) * within
        vectors += 0.3 * spread * rng.standard_normal(vectors.shape, dtype=np.float32)
        return vectors

    def unit(vectors: Vectors) -> Vectors:
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    passages = np.empty((rows, dimension), dtype=np.float32)
    for start in range(0, rows, 1 << 15):
        part = slice(start, min(start + (1 << 15), rows))
        passages[part] = unit(near(centers[topic[part]], 0.8))
    return passages, unit(near(passages[rng.integers(rows, size=QUESTIONS)] * np.sqrt(dimension), 0.4))


def write_model(folder: Path, texts: Sequence[str]) -> None:
    """A BERT of MiniLM's size (6 layers of 384) with random weights, and a tokenizer that knows the texts' words."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    counts = Counter(word for text in texts for word in text.lower().split() if word.isalpha())
    letters = [chr(code) for code in range(33, 127)]
    words = [
        *special,
        *letters,
        *(f"##{letter}" for letter in letters),
        *(word for word, _ in counts.most_common(30_000)),
    ]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(word, vocabulary[word]) for word in ("[CLS]", "[SEP]")]
    )
    names = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names).save_pretrained(folder)
    size = BertConfig(
        vocab_size=30_522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(size).save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    for name, value in (
        (
            "modules.json",
            [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()],
        ),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True}),
        ("config_sentence_transformers.json", {"prompts": {"query": "query: ", "passage": "passage: "}}),
    ):
        (folder / name).write_text(json.dumps(value), encoding="utf-8")


def prepare(folder: Path, rows: int, dimension: int, judged: int) -> tuple[Vectors, Vectors, list[str]]:
    """Writes what the servers open, but for the index.

    Args:
        folder: is written to.
        rows: passages.
        dimension: of the vectors.
        judged: questions, the first ones, whose vectors by the model in float32 are kept as the reference.

    Returns:
        (rows, dimension) passages, (questions, dimension) questions, and the questions' texts.
    """
    from roleagent.envs.retrieval.dense.encoders import open_encoder

    rng = random.Random(0)
    texts, records = questions(rng), real_passages()
    if not records:
        records = [
            {"id": str(row), "contents": f'"Passage {row}"\n{" ".join(rng.choices(texts, k=8))}'} for row in range(2000)
        ]
    passages, asked = clustered(rows, dimension, np.random.default_rng(0))
    asked = asked[: len(texts)]
    np.save(folder / "passages.npy", passages)
    np.save(folder / "questions.npy", asked)
    (folder / "questions.json").write_text(json.dumps(texts), encoding="utf-8")
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for row in range(rows):  # as many passages as vectors, of real length
            contents = records[row % len(records)]["contents"]
            file.write(json.dumps({"id": str(row), "contents": contents}) + "\n")
    write_model(folder / "model", [record["contents"] for record in records[:5000]] + texts)
    model = open_encoder(f"e5:{folder / 'model'}", device="cpu")
    np.save(folder / "reference.npy", np.concatenate([model.encode_queries([text]) for text in texts[:judged]]))
    return passages, asked, texts

"""A random BERT with a small vocabulary, as an encoder of the E5 kind."""

import json

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

LETTERS = "abcdefghijklmnopqrstuvwxyz:,"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS, *(f"##{letter}" for letter in "abcdefghijklmnopqrstu")]


MODULES = ("sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling")
NORMALIZE = "sentence_transformers.models.Normalize"
PROMPTS = {"query": "query: ", "passage": "passage: "}


def state_use(folder, modules=(*MODULES, NORMALIZE), pooling="mean_tokens", length=256, **use):
    """Writes how a model is used, as the published folders say it.

    Args:
        modules: classes in ``modules.json``.
        pooling: the flag that is set in the pooling's configuration.
        length: tokens of a text.
        use: of ``config_sentence_transformers.json``.
    """
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    paths = ["", *(f"{number}_{kind.rpartition('.')[2]}" for number, kind in enumerate(modules[1:], 1))]
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (path, kind) in enumerate(zip(paths, modules, strict=True))
    ]
    width = json.loads((folder / "config.json").read_text())["hidden_size"]
    flags = {f"pooling_mode_{kind}": False for kind in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")}
    flags |= {f"pooling_mode_{kind}": True for kind in pooling.split("+")}
    for name, value in (
        ("modules.json", listed),
        ("1_Pooling/config.json", {"word_embedding_dimension": width} | flags),
        ("sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False}),
        ("config_sentence_transformers.json", use),
    ):
        (folder / name).write_text(json.dumps(value))


def save_model(folder, seed=0, dimension=32):
    """Writes it as ``save_pretrained`` and sentence-transformers do. Returns the folder."""
    tokenizer = Tokenizer(models.WordPiece({word: row for row, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 256}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = BertModel(BertConfig(vocab_size=len(WORDS), hidden_size=dimension, **sizes))
    model.save_pretrained(folder)
    state_use(folder, prompts=PROMPTS)
    return folder

"""A small policy from scratch: a model of Qwen2's build and a tokenizer trained on the environment's own text.

Nothing is downloaded. The tokenizer is byte-level BPE over pieces that suit what such a model has to learn, which is
to copy names: ``drawer 12`` is a word and a number in every context, a goal falls into its words, and the fixed
phrases before a numbered thing (``You arrive at``, ``, you see a``) become one token each. That halves the length of
an episode against one token per word. A word after a bracket or a quotation mark is the same token as one after a
blank, so that what a page shows can be copied into ``search[…]``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from roleagent.config.settings import PolicyConfig
from roleagent.options import ConfigError

if TYPE_CHECKING:  # prompts need the marks below, and torch takes seconds to load
    import torch
    from transformers import PreTrainedTokenizerFast, SeedOssForCausalLM

    from roleagent.agents.policies.hf import HFPolicy

_JOINER = "\u2060"  # stands, within the tokenizer, where the blank before a word does not count
_OPENERS = {"[": r"\[(?![A-Z]+\])(?=[A-Za-z0-9<])", "(": r"\((?=[A-Za-z0-9])", '"': r"\"(?=[A-Za-z0-9])"}
_OPENER = r"[\[(\"]"
_PIECES = (
    # A phrase, up to a numbered thing on the same line. "using 3 log" is an amount: what is made stands before it.
    r"[^\n0-9\[\]]+?(?= (?!using )[a-z]+ [0-9]+(?![0-9]|\.[0-9]))"
    r"| ?\[[A-Z]+\]"  # a mark between texts, as [SEP]
    rf"| ?{_OPENER}{_JOINER}"
    r"| ?[A-Za-z']+| ?[0-9]+|\n+| ?[^\sA-Za-z0-9]|\s+"
)
END, PAD, PREDICT = "<|end|>", "<|pad|>", "<|predict|>"
ANSWER_TOKENS = {"reflection": "<|reflect|>", "selection": "<|select|>"}
"""What stands between a question to the environment role and its answer."""
SIMULATE = "<|simulate|>"
"""The same between a situation and the task that a simulator writes; a token where a model is the simulator."""


def train_tokenizer(texts: Iterable[str], vocabulary: int, tags: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer for these texts that can still spell any other.

    Args:
        texts: observations and replies.
        vocabulary: most tokens in it (256 bytes and the special ones included).
        tags: texts that become one token each, e.g. ``<action>``.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(opening), f"{sign}{_JOINER} ") for sign, opening in _OPENERS.items()]
    )
    words = pre_tokenizers.Split(Regex(_PIECES), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteLevel(), decoders.Replace(Regex(rf"(?<={_OPENER}){_JOINER} ?"), "")]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, END, PREDICT, *ANSWER_TOKENS.values(), *tags],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD)


LOOKS_BACK = 2
"""Heads of the first layer that begin by attending 1, 2, … tokens back."""


def _attend_back(model: SeedOssForCausalLM, head: int, distance: int) -> None:
    """Sets a head of the first layer to attend to the token ``distance`` places back, whatever the tokens are.

    Names are copied by finding where the last tokens stood before and reading on from there (induction heads: Olsson et
    al. 2022, arXiv 2209.11895). The half of this circuit that takes a small model longest to find is the head that
    attends to the previous token. Here it is a matter of biases: rotary embeddings turn a constant query and a constant
    key into a score that depends on their distance alone, a sum of cosines that is highest at ``distance``.
    """
    attention, width = model.model.layers[0].self_attn, model.config.head_dim
    shared = head * model.config.num_key_value_heads // model.config.num_attention_heads
    query, key = head * width, shared * width
    attention.q_proj.weight[query : query + width] *= 0.1
    attention.k_proj.weight[key : key + width] *= 0.1
    # Each pair adds 8 cos(frequency · (offset - distance)) to a score. The fastest four have one high peak in common,
    # and the tokens beside it get 1 % of its weight.
    length = math.sqrt(8.0 * math.sqrt(width))
    for pair, frequency in enumerate(model.model.rotary_emb.inv_freq.tolist()[:4]):
        attention.k_proj.bias[key + pair] = length
        attention.q_proj.bias[query + pair] = length * math.cos(distance * frequency)
        attention.q_proj.bias[query + width // 2 + pair] = -length * math.sin(distance * frequency)


def check_size(config: PolicyConfig) -> None:
    """Refuses a policy whose weights alone are more than the memory of this machine.

    Raises:
        ConfigError: one line with what to change.
    """
    size, groups = config.hidden_size, config.heads // config.kv_heads
    block = 2 * size * size + 2 * size * size // groups + 3 * size * config.mlp_size
    needed = 4 * (config.vocabulary * size + config.layers * block)  # built in fp32
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise ConfigError(
            f"a policy of these sizes has weights of {needed / 2**30:,.0f} GiB, but this machine has a memory of "
            f"{memory / 2**30:,.0f} GiB: make policy.layers, policy.hidden_size or policy.mlp_size smaller"
        )


def build_policy(config: PolicyConfig, tokenizer: PreTrainedTokenizerFast, generator: torch.Generator) -> HFPolicy:
    """A randomly initialized policy of the configured sizes, on the device of ``generator``, which draws the weights.

    It is built like Qwen2 and named Seed-OSS, which without biases behind the attention is the same model: where a
    folder has the type ``qwen2``, transformers' ``AutoTokenizer`` ignores the folder's tokenizer and cuts texts by
    Qwen2's rules. The policy would read other tokens than those it was trained on.
    """
    import torch
    from transformers import SeedOssConfig, SeedOssForCausalLM

    from roleagent.agents.policies.hf import HFPolicy

    model_config = SeedOssConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=config.mlp_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.hidden_size // config.heads,
        attention_out_bias=False,
        attention_dropout=0.0,
        residual_dropout=0.0,
        max_position_embeddings=config.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,  # type: ignore[arg-type]
        pad_token_id=tokenizer.pad_token_id,  # type: ignore[arg-type]
        dtype=config.dtype,
    )
    model = SeedOssForCausalLM(model_config).to(generator.device)  # type: ignore[arg-type]
    # transformers initializes from the global generator; draw everything again from ours, by the same rule.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                # The usual 0.02 suits widths of some thousand; at 128 it learns several times more slowly.
                scale = config.hidden_size**-0.5
                # Projections that add to the residual stream start smaller, so that depth does not blow it up.
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    scale /= (2 * config.layers) ** 0.5
                parameter.normal_(0.0, scale, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()
        for head in range(min(LOOKS_BACK, config.heads, config.kv_heads)):
            _attend_back(model, head, head + 1)
    return HFPolicy(model, tokenizer, generator, config.context)

"""A language model of one layer with random weights and a token per byte, for the examples."""

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A token per byte, with the marks of Qwen's chat template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>")
    made.chat_template = TEMPLATE
    return made


class TinyModel:
    """Samples replies of random bytes."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int = 0):
        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            head_dim=16,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=1 << 15,
            bos_token_id=None,
            eos_token_id=len(tokenizer) - 1,
            pad_token_id=len(tokenizer) - 1,
        )
        self.model: Any = Qwen3ForCausalLM(config).eval()

    @torch.no_grad()
    def sample(self, prompt: list[int], most: int = 24) -> tuple[list[int], list[float]]:
        """A reply to a prompt: its tokens and their log-probabilities."""
        found = self.model.generate(
            torch.tensor([prompt]),
            do_sample=True,
            max_new_tokens=most,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens = found.sequences[0, len(prompt) :].tolist()
        steps = [torch.log_softmax(logits[0].float(), -1) for logits in found.logits]
        return tokens, [float(step[token]) for step, token in zip(steps, tokens, strict=True)]

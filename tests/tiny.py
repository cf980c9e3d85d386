"""Policies small enough to be made for one test: random weights, a tokenizer of kitchen words."""

from typing import NamedTuple

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AddedToken, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Tokenizer

from roleagent.agents.builders import EnvSplit
from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.policies.scratch_model import build_policy, train_tokenizer
from roleagent.config import load
from roleagent.config.settings import PolicyConfig

WORDS = (
    "You are in a kitchen. There are: basket, cupboard 1, drawer 2, counter, table, tray, stove, fridge, sink.",
    "Your task is to: put a hot egg on the table.",
    "You arrive at cupboard 1. It is closed. You carry nothing.",
    "You open the cupboard 1. You see egg, potato. You carry nothing.",
    "go to cupboard 1",
    "take egg from cupboard 1",
    "move egg to table",
    "heat egg with stove",
)
TEMPLATE = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are helpful.<|end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TASKS = ("bring-egg-table-1", "heat-fish-tray-2", "cool-apple-counter-3")
TAGS = ("<action>", "</action>", "</prediction>", '<prediction h="1">')


def tokenizer(chat_template=None):
    made = train_tokenizer(WORDS, 360, TAGS)
    made.chat_template = chat_template
    return made


def qwen2_tokenizer(chat_template=None):
    """A tokenizer of Qwen2's own kind: byte-level BPE, chat marks, and added tokens that are not declared special."""
    made = Qwen2Tokenizer().train_new_from_iterator(WORDS * 3, 400)
    made.add_tokens([AddedToken(mark, special=True) for mark in ("<|im_start|>", "<|im_end|>")])
    marks = [f"<{slash}{name}>" for name in ("tool_call", "think") for slash in ("", "/")]
    made.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    made.eos_token, made.chat_template = "<|im_end|>", chat_template
    return made


def llama3_tokenizer(chat_template=None):
    """A tokenizer of Llama 3's kind: byte-level BPE without a normalizer, headers and turns as special tokens."""
    made = Tokenizer(models.BPE(ignore_merges=True))
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    cut = pre_tokenizers.Split(Regex(words + r"|\s+(?!\S)|\s+"), behavior="isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    names = ("begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eom_id", "eot_id", "python_tag")
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[f"<|{name}|>" for name in names],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(WORDS * 3, trainer)
    ends = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, chat_template=chat_template, **ends)


def around(words, context):
    """A Qwen2-type policy with a tokenizer of another kind."""
    config = PolicyConfig(hidden_size=32, layers=2, heads=4, kv_heads=2, mlp_size=64, context=context)
    return build_policy(config, words, torch.Generator().manual_seed(0))


def qwen(context=256, heads=4, kv_heads=2, seed=0, chat_template=None):
    """A Qwen2-type policy; two query heads share a key head unless told otherwise."""
    config = PolicyConfig(hidden_size=32, layers=2, heads=heads, kv_heads=kv_heads, mlp_size=64, context=context)
    return build_policy(config, tokenizer(chat_template), torch.Generator().manual_seed(seed))


def llama(context=256, seed=0):
    """A Llama-type policy."""
    words = tokenizer()
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
    )
    generator = torch.Generator().manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 0.2, generator=generator)
    return HFPolicy(model, words, generator)


class Plain(NamedTuple):
    """A segment whose columns are tuples, so that it can be compared and hashed."""

    token_ids: tuple
    token_kind: tuple
    sampler_logprobs: tuple
    advantages: tuple
    trajectory: int


def plain(segments):
    """Segments with tuples as columns."""
    names = ("token_ids", "token_kind", "sampler_logprobs", "advantages")
    return [Plain(*(tuple(getattr(one, name).tolist()) for name in names), one.trajectory) for one in segments]


class Script:
    """A policy that says what it is told to, in whatever tokens its tokenizer makes of that.

    Args:
        reply: from the text of a prompt and the slot to the text of the reply. A reply that does not end in a stop
            token is ended by the end token, or cut off at the limit.
    """

    version = 0

    def __init__(self, reply, context=16384, chat_template=None):
        self._inner = qwen(context=context, chat_template=chat_template)
        self.context_length = context
        self.reply = reply
        self.prompts = []
        self.tokenizer = self._inner.tokenizer
        self.end_ids, self.eos_id = self._inner.end_ids, self._inner.eos_id
        self.encode, self.decode = self._inner.encode, self._inner.decode
        self.literal, self.single_token = self._inner.literal, self._inner.single_token

    def speak_as(self, policy):
        """Uses the tokens of another policy from here on."""
        for name in ("tokenizer", "end_ids", "eos_id", "encode", "decode", "literal", "single_token"):
            setattr(self, name, getattr(policy, name))
        return self

    def clear_cache(self):
        pass

    def generate(self, requests, temperature):
        from roleagent.types import Completion

        completions = []
        for request in requests:
            prompt = self.tokenizer.decode(list(request.prompt_ids), skip_special_tokens=False)
            self.prompts.append(prompt)
            ids = self.encode(self.reply(prompt, request.slot))
            stops = [position for position, token in enumerate(ids) if token in request.stop_ids]
            ids = ids[: stops[0] + 1] if stops else [*ids, self.eos_id]
            stopped = len(ids) <= request.max_tokens
            ids = ids[: request.max_tokens]
            completions.append(Completion(tuple(ids), (-0.5,) * len(ids), "stop" if stopped else "length"))
        return completions


def world_of(*overrides):
    settings = ("env.id=RoleAgent/Toy-v0", "env.eval_split=valid", "rollout.prediction_tokens=80")
    return EnvSplit.open(load(overrides=[*settings, *overrides]), "train")


def play(policy, world, task_ids=TASKS[:1], copies=2, temperature=1.0, **options):
    rollout = world.rollout(policy)
    return rollout, rollout.play(task_ids, copies, temperature, **options)

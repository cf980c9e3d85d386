"""The tokens that end a reply, and tokenizers that put a blank in front of a text."""

import json

import pytest
import torch
from tiny import WORDS, qwen2_tokenizer
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AddedToken, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from roleagent.agents.analysts.models import ModelAnalyst
from roleagent.agents.chat.models import PolicyChatModel
from roleagent.agents.chat_renderer import ChatRenderer
from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.policies.vllm.policy import VLLMPolicy
from roleagent.agents.rendering import STYLES
from roleagent.agents.rollout import Rollout
from roleagent.config.settings import PromptConfig, RolloutConfig
from roleagent.env_card import UNKNOWN
from roleagent.learners.run.checkpoints import save_policy
from roleagent.types import Completion

PHI = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
NAMES = ("<|endoftext|>", "<|end|>", "<|other|>")


def policy_of(words, named=None, context=4096):
    """A policy of random weights for a tokenizer; ``named`` are the end tokens of its generation configuration."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    if named is not None:
        model.generation_config.eos_token_id = named
    return HFPolicy(model, words, torch.Generator().manual_seed(0), context)


@pytest.fixture(scope="module")
def phi():
    words = qwen2_tokenizer(PHI)
    words.add_tokens([AddedToken(mark, special=True) for mark in (*NAMES, "<|user|>", "<|assistant|>")])
    words.eos_token = NAMES[0]
    return policy_of(words, words.convert_tokens_to_ids([NAMES[0], NAMES[2]]))


def ids_of(policy, *names):
    return frozenset(policy.tokenizer.convert_tokens_to_ids(list(names)))


def asked_for(policy, monkeypatch, act):
    """The stop tokens that are asked for while something acts."""
    stops = []

    def generate(requests, temperature):
        stops.extend(request.stop_ids for request in requests)
        return [Completion((policy.eos_id,), (0.0,), "stop") for _ in requests]

    monkeypatch.setattr(policy, "generate", generate)
    act()
    return stops


def test_every_end_token_that_is_named_stops_everywhere(phi, monkeypatch):
    """Named by the tokenizer, by the model's configuration for generation, and by the turns of the template."""
    ends = ids_of(phi, *NAMES)
    assert phi.end_ids == ends and phi.eos_id in ids_of(phi, "<|end|>")
    rollout = Rollout(phi, None, "RoleAgent/Toy-v0", PromptConfig(), RolloutConfig(), 2)
    assert ends <= rollout.action_stops and ends <= rollout.prediction_stops
    talk = [{"role": "user", "content": "Go."}]
    stops = asked_for(phi, monkeypatch, lambda: PolicyChatModel(phi).chat([talk], max_tokens=5, temperature=0.0))
    assert stops == [ends] and ends <= ModelAnalyst(phi, reflection_tokens=20, selection_tokens=20).stops("reflection")
    assert VLLMPolicy(None, phi).end_ids == ends


@pytest.mark.parametrize("name", NAMES)
def test_the_end_token_that_came_is_kept_and_no_second_one_follows(phi, name):
    [end] = ids_of(phi, name)
    reply = [*phi.encode("go to stove"), end]
    renderer = ChatRenderer(phi)
    assert renderer.read(reply) == "go to stove"
    assert phi.tokenizer.decode([*reply, *renderer.next_message("A pan.", reply)]) == (
        f"go to stove{name}\n<|user|>\nA pan.<|end|>\n<|assistant|>\n"
    )


def test_sampling_ends_at_any_of_them(phi):
    """Every token but these is made impossible."""
    ends = sorted(phi.end_ids)
    policy = policy_of(phi.tokenizer, ends)
    head = policy.model.get_output_embeddings()
    with torch.no_grad():
        head.weight.zero_()
    likely = torch.nn.Linear(head.in_features, head.out_features)
    with torch.no_grad():
        likely.weight.zero_()
        likely.bias.fill_(-100.0)
        likely.bias[ends] = 0.0
    policy.model.set_output_embeddings(likely)
    speaker, found = PolicyChatModel(policy), set()
    for _ in range(40):
        [answer] = speaker.chat([[{"role": "user", "content": "Go."}]], max_tokens=5, temperature=1.0)
        assert (answer.text, answer.finish_reason, answer.completion_tokens) == ("", "stop", 1)
        found.add(tuple(speaker._slots.popitem()[1][1])[-1])
    assert found == set(ends)


def test_a_checkpoint_keeps_the_end_tokens(phi, tmp_path):
    """Also beside settings of sampling, as published configurations have them."""
    save_policy(policy_of(phi.tokenizer, sorted(phi.end_ids)), tmp_path / "one")
    path = tmp_path / "one" / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "temperature": 0.6}))
    loaded = HFPolicy.from_path(tmp_path / "one", torch.Generator())
    save_policy(loaded, tmp_path / "two")
    again = HFPolicy.from_path(tmp_path / "two", torch.Generator())
    assert loaded.end_ids == again.end_ids == phi.end_ids and again.eos_id == phi.eos_id


# --- tokenizers of Llama 2's kind -------------------------------------------------------------------------------------

LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
LINES = (
    "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)


def llama2_tokenizer(template, scheme):
    """BPE over words that begin with a blank, with bytes for other letters; a blank is put before a text."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.pre_tokenizer = pre_tokenizers.Split(Regex("▁|\n"), behavior="merged_with_next")
    trained.train_from_iterator(
        [*WORDS * 3, "[INST] [/INST] <user> <assistant>"] * 3,
        trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False),
    )
    built = json.loads(trained.to_str())["model"]
    vocabulary = dict(built["vocab"])
    for byte in range(256):
        vocabulary.setdefault(f"<0x{byte:02X}>", len(vocabulary))
    merges = [tuple(pair) for pair in built["merges"]]
    made = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    if scheme == "legacy":
        made.normalizer = trained.normalizer
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    blank = decoders.Replace("▁", " ")
    made.decoder = decoders.Sequence([blank, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, chat_template=template, **names)


@pytest.fixture(scope="module", params=["legacy", "first", "always"])
def scheme(request):
    return request.param


@pytest.mark.parametrize("template", [LLAMA2, LINES])
@pytest.mark.parametrize("ended", [True, False])
def test_a_transcript_has_the_tokens_of_the_whole_text(template, scheme, ended):
    """No blank too many before the end token and after it, nor at the beginning of a reply."""
    policy = policy_of(llama2_tokenizer(template, scheme))
    renderer, words = ChatRenderer(policy), policy.tokenizer
    transcript = STYLES["transcript"](renderer, 0, "none", "a kitchen", {}, 0)
    head = renderer.instructions(0, "none", UNKNOWN.rules, UNKNOWN.form)
    reply = [*renderer.write("<action>take egg</action>"), *([policy.eos_id] if ended else [])]
    transcript.advance((*transcript.action_prompt(), *reply), reply, "take egg", "You see egg.", {})
    contents = ("user", f"{head}\n\na kitchen"), ("assistant", "<action>take egg</action>"), ("user", "You see egg.")
    messages = [{"role": role, "content": text} for role, text in contents]
    whole = words.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    whole = whole.replace(" </s>", "</s>") if ended else whole  # where the model itself ends its reply, none is before
    assert list(transcript.action_prompt()) == words.encode(whole, add_special_tokens=False)


def test_quoted_marks_gain_no_blank(scheme):
    policy = policy_of(llama2_tokenizer(LLAMA2, scheme))
    for text in ("a </s> b", "egg</s>", "<s></s>", "the <s>table</s> <unk>"):
        ids = policy.encode(policy.literal(text))
        assert policy.decode(ids) == text and not set(ids) & set(policy.tokenizer.all_special_ids)

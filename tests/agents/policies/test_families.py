"""Any causal language model is sampled from and scored as its own forward says, by the fast path or the general one."""

import re
from pathlib import Path

import pytest
import torch
from programs import load
from tiny import qwen, tokenizer
from transformers import BertConfig, BertLMHeadModel, Phi3Config, Phi3ForCausalLM

from roleagent.agents.policies.hf import HFPolicy, PolicyError
from roleagent.config.settings import LoRAConfig, PolicyConfig
from roleagent.learners.critic import Critic
from roleagent.learners.engine.logprobs import TokenScorer, collate, find_scoring
from roleagent.learners.engine.lora import adapt, plain_weights
from roleagent.learners.run.checkpoints import Checkpoints, save_policy
from roleagent.learners.run.export import export
from roleagent.types import Request, Segment

WORDS = tokenizer()
NEVER = frozenset({-1})
families, train = load("benchmarks/parts/tiny_families"), load("train").main

# What each kind of family needs: its own forward and cache, its own head, and what its cache cannot do.
FAST = ("Llama 3", "Qwen3-MoE", "DeepSeek-V3, Kimi-K2", "GPT-2")
SCALED = ("Granite 3", "Cohere", "nanochat")
WINDOWED = ("Mistral with a window", "Gemma 2", "Gemma 3", "Gemma 4", "gpt-oss", "Llama 4", "GPT-Neo")
IMAGES = ("Gemma 3 with images", "Gemma 4 with images", "Qwen3-VL", "Mistral 3 with images")
RECURRENT = ("Qwen3-Next", "Qwen3.5", "LFM2", "Mamba 2", "Falcon-H1", "Nemotron-H", "Granite 4 hybrid")
OTHER = ("BLOOM", "GLM-5", "DeepSeek-V4")
LIMITED = {
    "Mamba": "every prompt is read as a whole",
    "RWKV 4": "one episode after another",
    "MiniMax": "texts of equal length together",  # its cache has states beside its layers
}


def opened(model, context=256):
    return HFPolicy(model, WORDS, torch.Generator().manual_seed(0), context)


def family(name):
    return opened(families.build(name, len(WORDS), WORDS.eos_token_id))


def ids(count, seed):
    return tuple(torch.randint(len(WORDS), (count,), generator=torch.Generator().manual_seed(seed)).tolist())


@torch.no_grad()
def plain(model, prompt, reply, temperature):
    logits = model(input_ids=torch.tensor([[*prompt, *reply]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    logprobs = (logits.float() / (temperature or 1.0)).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(reply)[:, None])[:, 0].tolist(), logprobs.argmax(-1).tolist()


def ask(policy, prompts, temperature=0.0, limit=4, stops=NEVER):
    """Asks, and compares with the model's own forward; ``prompts``: (slot, tokens)."""
    requests = [Request(prompt, slot, limit + slot % 3, stops) for slot, prompt in prompts]
    answers = policy.generate(requests, temperature)
    for answer, (_, prompt) in zip(answers, prompts, strict=True):
        logprobs, best = plain(policy.model, prompt, answer.token_ids, temperature)
        assert answer.logprobs == pytest.approx(logprobs, abs=1e-3)  # rounding; a wrong mask or state is 0.05 and more
        if not temperature:
            assert list(answer.token_ids) == best
    return answers


@pytest.mark.parametrize(
    "name", [*FAST, *SCALED, *WINDOWED, *RECURRENT, *OTHER, *LIMITED, *IMAGES[:3], "RecurrentGemma"]
)
def test_every_turn_is_sampled_as_the_models_own_forward_says(name):
    policy = family(name)
    assert (policy.sampling_path.means is None) == (name in (*FAST, *SCALED, "Qwen3-VL"))
    assert policy.sampling_path.own_head == (name in SCALED)
    # Two tasks that begin alike, three copies of the first, a window is crossed from the second turn on.
    stem = ids(14, 1)
    texts = {slot: (*stem, *ids(5, 2)) for slot in range(3)} | {3: (*stem, *ids(11, 3))}
    for turn in range(3):
        answers = ask(policy, list(texts.items()), temperature=1.0)
        asked = [(slot, (*text[:cut], 7, 8)) for slot, text in texts.items() for cut in (len(text) // 2, len(text))]
        ask(policy, asked)  # questions beside the conversations, which stay as they are
        for (slot, text), answer in zip(texts.items(), answers, strict=True):
            texts[slot] = (*text, *answer.token_ids, *ids(4 + 3 * slot + 5 * turn, 10 * turn + slot))
    ask(policy, [(slot, text[:-9]) for slot, text in texts.items()])  # a prompt that goes back
    ask(policy, [(slot, (*text[:3], *ids(40, slot))) for slot, text in texts.items()])  # and one that begins anew


@pytest.mark.parametrize("name", ["Gemma 3", "Qwen3.5", "Mamba 2", "GLM-5"])
def test_what_is_known_is_not_read_again_and_rows_are_sampled_together(name, monkeypatch):
    policy = family(name)
    assert str(policy.sampling_path).startswith("the model's own forward and cache (")
    texts = {slot: ids(20 + 4 * slot, slot) for slot in range(4)}
    answers = ask(policy, list(texts.items()), limit=4)
    read, forward = [], type(policy.model).forward

    def counted(self, *given, input_ids, **options):
        read.append(tuple(input_ids.shape))
        return forward(self, *given, input_ids=input_ids, **options)

    texts = {
        slot: (*text, *answer.token_ids, 7, 8) for (slot, text), answer in zip(texts.items(), answers, strict=True)
    }
    requests = [Request(text, slot, 3, NEVER) for slot, text in texts.items()]
    monkeypatch.setattr(type(policy.model), "forward", counted)
    policy.generate(requests, 1.0)
    assert sorted(read) == [(1, 3)] * 4 + [(4, 1)] * 2


@pytest.mark.parametrize("name", ["Gemma 3", "Qwen3.5", "RWKV 4"])
def test_replies_that_end_early_leave_the_others_alone(name):
    policy = family(name)
    prompts = [(slot, ids(9 + 5 * slot, slot)) for slot in range(4)]
    long = ask(policy, prompts, temperature=1.0, limit=12)
    policy.clear_cache()
    policy.reseed(0)
    stops = frozenset(answer.token_ids[3 * slot] for slot, answer in enumerate(long))
    again = ask(policy, prompts, temperature=1.0, limit=12, stops=stops)
    assert len({len(answer.token_ids) for answer in again}) > 1
    for answer in again:
        assert answer.finish_reason == ("stop" if answer.token_ids[-1] in stops else "length")
    grown = [(slot, (*prompt, *answer.token_ids, 9)) for (slot, prompt), answer in zip(prompts, again, strict=True)]
    ask(policy, grown)


def test_a_full_context_beside_longer_replies():
    """GPT-Neo has no position behind its last one."""
    model = families.build("GPT-Neo", len(WORDS), WORDS.eos_token_id)
    model.transformer.wpe = torch.nn.Embedding.from_pretrained(model.transformer.wpe.weight[:64].detach())
    policy = opened(model, 64)
    requests = [Request(ids(40 if slot else 62, slot), slot, 99, NEVER) for slot in range(8)]
    assert [len(answer.token_ids) for answer in policy.generate(requests, 1.0)] == [2, *[24] * 7]


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_shorter_products_do_not_hide_the_fast_path(precision):
    """TF32, or bfloat16 on a CPU with AMX, rounds by more than two paths may differ: they are compared without."""
    torch.set_float32_matmul_precision(precision)
    try:
        assert family("Llama 3").sampling_path.means is None
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(("name", "limit"), LIMITED.items())
def test_what_a_cache_cannot_do_is_said(name, limit):
    assert limit in str(family(name).sampling_path)


def test_positions_that_change_with_the_length_are_refused():
    """Long rope: a token has other positions behind it once the text is long, and was sampled with the short ones."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [3.0] * 4,
        "factor": 4,
    }
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"eos_token_id": 1, "bos_token_id": None, "pad_token_id": None, "original_max_position_embeddings": 64}
    sizes |= {"vocab_size": len(WORDS), "max_position_embeddings": 256, "rope_parameters": rope}
    torch.manual_seed(0)
    model = Phi3ForCausalLM(Phi3Config(**sizes, **ends)).eval()
    with pytest.raises(PolicyError, match=r"positions in texts of more than 64 tokens: .*policy\.context=64"):
        assert opened(model).sampling_path
    assert opened(model, 64).sampling_path.means is None


def segment(tokens):
    kinds = [int(place > 2 and place % 3 != 1) for place in range(len(tokens))]
    return Segment(tokens, kinds, (0.0,) * len(tokens), (0.0,) * len(tokens))


@pytest.mark.parametrize("name", [*FAST, *SCALED, *WINDOWED, *RECURRENT, *OTHER, *LIMITED, *IMAGES])
def test_the_learner_scores_as_the_models_own_forward_does(name):
    """Log-probabilities and gradients, of rows that begin alike and cross a window."""
    model = family(name).model
    stem, temperature = ids(30, 1), 0.7
    rows = [segment((*stem, *ids(20, 2))), segment((*stem, *ids(9, 3))), segment(ids(26, 4))]
    scoring = find_scoring(model, 256)
    assert scoring.shares == (name in (*FAST, *SCALED, *IMAGES[2:]))
    found, _ = TokenScorer(model, scoring)(collate(rows, 0), temperature)
    wanted = []
    for row in rows:
        logits = model(input_ids=torch.tensor(row.token_ids)[None], use_cache=False).logits[0].float() / temperature
        at = torch.tensor(row.token_kind).nonzero()[:, 0]
        wanted.append(logits.log_softmax(-1)[at - 1, torch.tensor(row.token_ids)[at]])
    wanted = torch.cat(wanted)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    slopes = []
    for values in (found, wanted):
        model.zero_grad()
        (values * torch.linspace(-1, 2, len(values))).sum().backward()
        slopes.append(
            {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
        )
    assert slopes[0].keys() == slopes[1].keys()
    for name, slope in slopes[1].items():
        torch.testing.assert_close(slopes[0][name], slope, atol=1e-4 * max(1.0, float(slope.abs().max())), rtol=1e-3)


@pytest.mark.parametrize("name", ["Gemma 2", "GPT-Neo", "Mamba"])
def test_16_bits_hide_no_difference(name):
    """A cap, a window and a state are rounded away there: what is compared are the same weights in 32 bits."""
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        model = families.build(name, len(WORDS), WORDS.eos_token_id).to(dtype)
        types = [weight.dtype for weight in model.parameters()]
        policy = HFPolicy(model, WORDS, torch.Generator().manual_seed(0), 256)
        scoring = find_scoring(model, 256)
        found.append((policy.sampling_path, scoring))
        assert [weight.dtype for weight in model.parameters()] == types
        batch = collate([segment(ids(40, 1)), segment(ids(30, 2))], 0)
        for scorer in (TokenScorer(model, scoring), Critic(model, scoring.shares)):
            assert scorer(batch, 1.0)[0].isfinite().all()
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "name",
    [
        *(*IMAGES, "Gemma 3", "gpt-oss", "Qwen3.5", "Qwen3-MoE"),
        *("Mamba 2", "Nemotron-H", "Falcon-H1", "Granite 3", "GPT-2"),
    ],
)
def test_an_adapter_trains_the_text_part_and_is_exported_with_its_model(name, tmp_path):
    pytest.importorskip("peft")
    model = families.build(name, len(WORDS), WORDS.eos_token_id)
    if name == "Nemotron-H":
        model.config.time_step_min = 0.0  # transformers keeps it in whole texts alone
    model.save_pretrained(tmp_path / "model")
    WORDS.save_pretrained(tmp_path / "model")
    policy = HFPolicy.from_path(tmp_path / "model", torch.Generator().manual_seed(0), context_length=256)
    adapt(policy.model, LoRAConfig(rank=2), policy.generator)
    for weight_name, weight in policy.model.named_parameters():
        assert weight.requires_grad == (".lora_" in weight_name)
        if "lora_B" in weight_name:
            torch.nn.init.normal_(weight, 0.0, 0.3, generator=policy.generator)
            assert "vision" not in weight_name
    ask(policy, [(slot, ids(20 + 7 * slot, slot)) for slot in range(3)])
    batch = collate([segment(ids(40, 1)), segment(ids(30, 2))], 0)
    scores, _ = TokenScorer(policy.model.train(), find_scoring(policy.model, 256))(batch, 1.0)
    scores.sum().backward()
    assert all(weight.grad.any() for weight in policy.model.parameters() if weight.requires_grad)
    save_policy(policy, tmp_path / "out", dict(plain_weights(policy.model)))
    again = HFPolicy.from_path(tmp_path / "out", torch.Generator(), context_length=256)
    text = torch.tensor([ids(40, 3)])
    torch.testing.assert_close(again.model(text).logits, policy.model.eval()(text).logits, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ["DeepSeek-V4", "GLM-4.5", "Llama 4", "Falcon with ALiBi"])
def test_routers_experts_and_grouped_layers_get_no_adapter(name):
    pytest.importorskip("peft")
    model = families.build(name, len(WORDS), WORDS.eos_token_id).eval()
    text = torch.tensor([ids(40, 3)])
    plain = model(text).logits
    adapt(model, LoRAConfig(rank=2), torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(text).logits, plain)
    layers = [name for name, module in model.named_modules() if hasattr(module, "lora_A")]
    assert layers and not [
        name for name in layers if re.search(r"experts$|experts\.base_layer|gate$|router|o_a_proj", name)
    ]


@pytest.mark.parametrize("name", ["Gemma 3 with images", "Qwen3-VL", "Llama 3"])
def test_a_run_is_exported_as_its_card_says(name, tmp_path, monkeypatch):
    """Transformers loads it by the class of the card, with the same numbers, and finds how images are read."""
    monkeypatch.chdir(tmp_path)
    families.build(name, len(WORDS), WORDS.eos_token_id).save_pretrained("model")
    WORDS.save_pretrained("model")
    Path("model/preprocessor_config.json").write_text('{"do_resize": true}')
    episodes = ["rollout.num_groups=1", "rollout.group_size=2", "rollout.action_tokens=4", "env.kwargs={max_steps: 2}"]
    options = ["policy.path=model", "policy.context=2048", "env.id=RoleAgent/Toy-v0", "env.eval_tasks=1", "run_dir=run"]
    assert train([*options, *episodes, "warmstart.episodes=0", "train.iterations=1", "wia=off", "aiw=off"]) == 0
    export(Path("run"), Path("out"))
    found: dict = {}
    exec(Path("out/README.md").read_text().partition("```python\n")[2].partition("```")[0], found)
    trained = Checkpoints.policy(
        Checkpoints(Path("run/checkpoints")).latest(), torch.Generator(), PolicyConfig(path="model")
    )
    text = torch.tensor([ids(40, 3)])
    torch.testing.assert_close(found["model"].eval()(text).logits, trained.model.eval()(text).logits)
    assert Path("out/preprocessor_config.json").exists() == (name != "Llama 3")


@pytest.mark.parametrize("name", ["Seed-OSS", "GPT-2", "OPT", "Phi-3.5-MoE"])
def test_a_model_computes_the_same_in_training_as_in_sampling(name, tmp_path):
    """Dropout and noise of routers put learner and sampler 3.5 nats apart."""
    families.build(name, len(WORDS), WORDS.eos_token_id).save_pretrained(tmp_path)
    WORDS.save_pretrained(tmp_path)
    model, text = HFPolicy.from_path(tmp_path, torch.Generator()).model, torch.tensor([ids(40, 3)])
    torch.testing.assert_close(model.train()(text).logits, model.eval()(text).logits)


def test_what_stands_beside_the_text_part_is_frozen(tmp_path):
    families.build(IMAGES[0], len(WORDS), WORDS.eos_token_id).save_pretrained(tmp_path)
    WORDS.save_pretrained(tmp_path)
    model = HFPolicy.from_path(tmp_path, torch.Generator()).model
    for name, weight in model.named_parameters():
        assert weight.requires_grad == ("vision" not in name and "projector" not in name), name


@pytest.mark.parametrize("name", ["Gemma 3", "Qwen3.5", "Granite 3"])
def test_a_critic_reads_any_family(name):
    model = family(name).model
    critic, rows = Critic(model, find_scoring(model, 256).shares), [segment(ids(20, 1)), segment(ids(35, 2))]
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
    found, _ = critic(collate(rows, 0), 1.0)
    alone = torch.cat([critic(collate([row], 0), 1.0)[0] for row in rows])
    torch.testing.assert_close(found, alone, atol=1e-4, rtol=1e-4)
    assert found.std() > 0.1


def test_a_context_of_ones_own_is_kept_where_a_model_has_no_positions():
    """Mamba has no max_position_embeddings."""
    model = families.build("Mamba", len(WORDS), 1)
    assert opened(model, 9000).context_length == 9000
    assert opened(qwen().model, 9000).context_length == 256


def test_a_model_that_looks_ahead_is_refused_in_one_line():
    sizes = {"vocab_size": len(WORDS), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = BertLMHeadModel(BertConfig(**sizes, intermediate_size=64, eos_token_id=1)).eval()
    with pytest.raises(PolicyError, match=r"BertLMHeadModel looks ahead in .*choose a causal") as caught:
        assert opened(model).sampling_path
    assert len(str(caught.value).splitlines()) == 1

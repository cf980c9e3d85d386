"""Continuing many prompts: what any architecture reports, what is read once, who leaves when, and what is drawn."""

import contextlib
import inspect

import pytest
import torch
from tiny import qwen, tokenizer
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, Qwen3Config, Qwen3ForCausalLM

from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.policies.sampling import Decoder, draw
from roleagent.types import Request

NEVER = frozenset({-1})


def qwen3():
    config = Qwen3Config(
        vocab_size=len(tokenizer()),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
    )
    return grown(Qwen3ForCausalLM(config))


def neox():
    """Nothing of the family: layer norms, a partial rotation, queries and keys and values in one matrix."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = GPTNeoXConfig(vocab_size=len(tokenizer()), max_position_embeddings=256, **sizes)
    return grown(GPTNeoXForCausalLM(config))


def eager():
    """Attention that adds its mask to what it compares."""
    policy = neox()
    policy.model.set_attn_implementation("eager")
    return policy


def grown(model):
    """Larger weights than a new model has, and norms and biases that are not one and zero, so that all of them show."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0.0, 0.15, generator=generator))
    return HFPolicy(model, tokenizer(), torch.Generator())


def biased():
    policy = qwen()
    with torch.no_grad():  # some begin so large that float32 alone exceeds the tolerance
        for name, parameter in policy.model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    return grown(policy.model)


def ids(n, seed=0):
    return tuple(torch.randint(5, 300, (n,), generator=torch.Generator().manual_seed(seed)).tolist())


def ask(policy, prompts, n=6, temperature=1.0, seed=0, stops=NEVER):
    policy.generator.manual_seed(seed)
    return policy.generate([Request(p, slot, n, stops) for slot, p in prompts.items()], temperature)


@torch.no_grad()
def whole(policy, prompt, reply, temperature=1.0):
    logits = policy.model(input_ids=torch.tensor([[*prompt, *reply]]), use_cache=False).logits[0]
    scores = torch.log_softmax(logits[len(prompt) - 1 : -1] / temperature, -1)
    return scores.gather(1, torch.tensor(reply)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("make", [qwen3, neox, eager, biased], ids=["qwen3", "neox", "eager", "biased"])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_any_architecture_reports_what_it_sampled(make, temperature):
    policy = make()
    prompts = {slot: ids(4 + 5 * slot, slot) for slot in range(3)}
    for _ in range(2):
        answers = ask(policy, prompts, temperature=temperature)
        for slot, answer in enumerate(answers):
            expected = whole(policy, prompts[slot], answer.token_ids, temperature)
            assert answer.logprobs == pytest.approx(expected, abs=1e-5)
        prompts = {slot: prompts[slot] + answer.token_ids + ids(2 + slot) for slot, answer in enumerate(answers)}


def test_the_keys_of_grouped_heads_are_not_copied(monkeypatch):
    """Neither for a turn nor for several questions about one conversation; and the copies would give the same bits."""
    from transformers.integrations import sdpa_attention

    if "FORCE_GQA" not in inspect.getsource(sdpa_attention):
        pytest.skip("this version of transformers always copies them")
    policy, copies = qwen3(), []
    assert policy.sampling_path.means is None  # the comparison that finds it copies, too
    inner = sdpa_attention.repeat_kv

    def repeat_kv(states, groups):
        copies.append(groups)
        return inner(states, groups)

    monkeypatch.setattr(sdpa_attention, "repeat_kv", repeat_kv)
    stem = ids(40)
    requests = [Request(stem + ids(3, place), 0, 4, NEVER) for place in range(3)]

    def answers():
        policy.clear_cache()
        turn = ask(policy, {0: stem, 1: ids(9)})
        policy.generator.manual_seed(1)
        return turn + policy.generate(requests, 1.0)

    found = answers()
    assert not copies
    monkeypatch.setattr("roleagent.agents.policies.sampling._grouped_heads", contextlib.nullcontext)
    assert found == answers() and copies


def adapt(model):
    """As a learner does it: the type of the model stays, and so does what its layers say their weights are."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    peft.inject_adapter_in_model(config, model)


def wrap(model):
    inner = model.model.norm.forward
    model.model.norm.forward = lambda hidden: 1.5 * inner(hidden)


def hook(model):
    model.model.layers[1].mlp.register_forward_hook(lambda module, inputs, output: 2 * output)


@pytest.mark.parametrize("change", [adapt, hook, wrap])
def test_a_model_that_changes_is_followed(change):
    """In the middle of a policy's life, as a learner does it."""
    policy, prompts = qwen(), {0: ids(9), 1: ids(5)}
    before = ask(policy, prompts)
    change(policy.model)
    policy.clear_cache()
    after = ask(policy, prompts)
    assert after != before
    for slot, answer in enumerate(after):
        assert answer.logprobs == pytest.approx(whole(policy, prompts[slot], answer.token_ids), abs=1e-5)


# --- prompts that begin alike -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [qwen, neox])
def test_what_prompts_share_is_read_once(make, monkeypatch):
    """Groups of four whose tasks begin alike: the beginning once, the rest once per group, nothing per episode."""
    policy, read = make(), []
    assert policy.sampling_path.means is None  # found before the reads are counted
    inner = Decoder.read

    def counted(self, cache, tokens, starts, counts, *rest):
        read.append(tokens.shape[0] if counts is None else int(counts.sum()))
        return inner(self, cache, tokens, starts, counts, *rest)

    monkeypatch.setattr(Decoder, "read", counted)
    stem = ids(20)
    prompts = {slot: stem + ids(3 + slot // 4, 50 + slot // 4) for slot in range(12)}
    answers = ask(policy, prompts, n=2)
    assert read == [20, 3 + 4 + 5, 12]
    assert len({answer.token_ids for answer in answers[:4]}) > 1  # each of a group draws for itself
    grown = {slot: prompts[slot] + answer.token_ids + ids(slot + 1) for slot, answer in enumerate(answers)}
    later = ask(policy, grown)
    for slot, answer in enumerate(later):
        assert answer.logprobs == pytest.approx(whole(policy, grown[slot], answer.token_ids), abs=1e-5)


def test_a_long_observation_does_not_fill_up_the_others(monkeypatch):
    """Rows of like lengths are read together: of one that got a page of text and seven that got a line, two passes."""
    policy, read = qwen3(), []
    inner = Decoder.read

    def counted(self, cache, tokens, starts, counts, *rest):
        read.append(tokens.numel())
        return inner(self, cache, tokens, starts, counts, *rest)

    prompts = {slot: ids(4 + slot, slot) for slot in range(8)}
    answers = ask(policy, prompts, n=2)
    grown = {slot: prompts[slot] + answer.token_ids + ids(2 + slot) for slot, answer in enumerate(answers)}
    grown[3] += ids(150)
    monkeypatch.setattr(Decoder, "read", counted)
    later = ask(policy, grown, n=2)
    assert len(read) == 3 and sum(read[:2]) < 300  # where all are filled up: more than 1,200
    for slot, answer in enumerate(later):
        assert answer.logprobs == pytest.approx(whole(policy, grown[slot], answer.token_ids), abs=1e-5)


@pytest.mark.parametrize("make", [qwen, neox])
def test_what_a_reply_draws_does_not_depend_on_the_others(make):
    """Others that end early leave the batch, at whatever time: the random numbers stay each row's own."""
    policy = make()
    prompts = {slot: ids(6 + slot, slot) for slot in range(12)}
    free = ask(policy, prompts, n=12)
    policy.clear_cache()
    policy.generator.manual_seed(0)
    limits = [12, 1, 2, 1, 3, 1, 12, 1, 2, 1, 1, 7]
    cut = policy.generate([Request(p, s, limits[s], NEVER) for s, p in prompts.items()], 1.0)
    for answer, limit, other in zip(cut, limits, free, strict=True):
        assert answer.token_ids == other.token_ids[:limit]
        assert answer.logprobs == pytest.approx(other.logprobs[:limit], abs=1e-5)


# --- drawing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", [3, 64, 65, 1000])
def test_every_token_gets_its_share_of_the_unit_interval(vocabulary):
    """The inverse of the distribution function, on a fine grid: exact, and never a token without probability."""
    generator = torch.Generator().manual_seed(vocabulary)
    logits = 3 * torch.randn(1, vocabulary, generator=generator)
    logits[0, ::7] = -torch.inf
    n = 40_000
    uniform = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    tokens, logprobs = draw(logits.expand(n, -1), 0.8, uniform)
    odds = torch.softmax(logits[0].double() / 0.8, -1)
    shares = torch.bincount(tokens, minlength=vocabulary) / n
    assert (shares - odds).abs().max() < 2 / n
    assert torch.equal(tokens, tokens.sort().values)
    assert torch.allclose(logprobs.double(), odds.log()[tokens], atol=1e-5)

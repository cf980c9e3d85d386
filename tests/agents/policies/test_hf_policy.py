"""The local policy: whatever is cached, tokens and log-probabilities are those of a plain forward pass."""

import json

import pytest
import torch
from tiny import TAGS, WORDS, llama, qwen
from transformers import AddedToken, AutoModelForCausalLM, AutoTokenizer

from roleagent.agents.policies import hf
from roleagent.agents.policies.hf import HFPolicy, PolicyError
from roleagent.agents.policies.kv_cache import SlotLayer
from roleagent.learners.batch import segments_of
from roleagent.learners.engine.logprobs import TokenScorer, collate
from roleagent.types import Request, Task, Trajectory, Turn

KINDS = {"grouped heads": qwen, "one head each": lambda: qwen(kv_heads=4), "llama": llama}
NEVER = frozenset({-1})


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def made(request):
    return request.param()


@pytest.fixture
def policy(made):
    made.clear_cache()
    return made


def ask(policy, prompts, n=8, temperature=0.0, stops=NEVER, seed=0):
    """``prompts``: {slot: token ids}."""
    policy.generator.manual_seed(seed)
    requests = [Request(tuple(prompt), slot, n, stops) for slot, prompt in prompts.items()]
    return dict(zip(prompts, policy.generate(requests, temperature), strict=True))


@torch.no_grad()
def plain(policy, prompt, reply, temperature):
    """Log-probabilities of a reply and the most probable tokens in its places, by one forward pass without a cache."""
    logits = policy.model(input_ids=torch.tensor([[*prompt, *reply]]), use_cache=False).logits[0]
    scores = torch.log_softmax(logits[len(prompt) - 1 : -1].float() / (temperature or 1.0), dim=-1)
    return scores.gather(1, torch.tensor(reply)[:, None])[:, 0].tolist(), scores.argmax(-1).tolist()


def check(policy, prompts, answers, temperature=0.0):
    """The answers are what a plain forward pass says."""
    for slot, answer in answers.items():
        logprobs, best = plain(policy, prompts[slot], answer.token_ids, temperature)
        assert answer.logprobs == pytest.approx(logprobs, abs=1e-5)
        if not temperature:
            assert list(answer.token_ids) == best


def afresh(policy, prompts, **options):
    """The same question to a policy that remembers nothing."""
    policy.clear_cache()
    return ask(policy, prompts, **options)


def turns(policy, lengths=(3, 17, 9), seed=5):
    """Prompts of several lengths and endless further tokens for them."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary = len(policy.tokenizer)
    return {slot: torch.randint(5, vocabulary, (n,), generator=generator).tolist() for slot, n in enumerate(lengths)}


# --- the cache --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_growing_conversation_is_read_as_if_at_once(policy, temperature):
    """Rows of different lengths, each growing by its reply and an observation of its own length."""
    prompts = turns(policy)
    history = []
    for turn in range(4):
        answers = ask(policy, prompts, temperature=temperature, seed=turn)
        check(policy, prompts, answers, temperature)
        history.append((dict(prompts), answers))
        prompts = {
            slot: [*prompt, *answers[slot].token_ids, *turns(policy, (2 + 3 * slot,), turn)[0]]
            for slot, prompt in prompts.items()
        }
    for turn, (asked, answers) in enumerate(history):
        again = afresh(policy, asked, temperature=temperature, seed=turn)
        for slot, answer in answers.items():
            assert again[slot].token_ids == answer.token_ids
            assert again[slot].logprobs == pytest.approx(answer.logprobs, abs=1e-5)


def test_going_back_to_a_shorter_prompt_forgets_what_came_after(policy):
    prompts = turns(policy, (20, 20))
    ask(policy, prompts, n=12)
    shorter = {slot: prompt[:8] for slot, prompt in prompts.items()}
    check(policy, shorter, ask(policy, shorter))
    regrown = {slot: [*prompt[:8], *reversed(prompt)] for slot, prompt in prompts.items()}
    check(policy, regrown, ask(policy, regrown))


def test_a_row_that_stops_early_does_not_disturb_the_others(policy):
    prompts = turns(policy)
    free = ask(policy, prompts, n=10)
    stop = free[1].token_ids[0]
    ended = ask(policy, prompts, n=10, stops=frozenset({stop}))
    assert ended[1].token_ids == (stop,)
    assert ended[1].finish_reason == "stop"
    for slot in (0, 2):
        expected = free[slot].token_ids
        cut = expected.index(stop) + 1 if stop in expected else len(expected)
        assert ended[slot].token_ids == expected[:cut]
    grown = {slot: [*prompts[slot], *ended[slot].token_ids, 6, 7] for slot in prompts}
    check(policy, grown, ask(policy, grown))


# --- sampling ---------------------------------------------------------------------------------------------------------


def test_the_generator_alone_decides(policy):
    prompts = turns(policy)
    torch.manual_seed(1)
    one = afresh(policy, prompts, temperature=1.0, seed=3)
    torch.manual_seed(2)
    assert afresh(policy, prompts, temperature=1.0, seed=3) == one
    assert afresh(policy, prompts, temperature=1.0, seed=4) != one


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_the_learner_sees_the_probabilities_that_were_sampled(policy, temperature):
    """The sampler's log-probabilities are those of the learner's own scorer, through segments and padding."""
    prompts = turns(policy)
    answers = ask(policy, prompts, temperature=temperature)
    segments = []
    for slot, answer in answers.items():
        turn = Turn(tuple(prompts[slot]), answer, "look", "text")
        segments += segments_of(Trajectory(Task("e", "t"), (turn,), True, False, "won"), [1.0], slot)
    batch = collate(segments, 1, {"sampler": [segment.sampler_logprobs for segment in segments]})
    with torch.no_grad():
        logprobs, entropies = TokenScorer(policy.model)(batch, temperature, entropy=True)
    assert logprobs.shape == entropies.shape == (24,)
    assert torch.allclose(logprobs, batch.columns["sampler"], atol=1e-5)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_reply_ends_at_its_limit_and_at_the_context(policy):
    prompts = turns(policy, (4,))
    [answer] = ask(policy, prompts, n=5).values()
    assert (len(answer.token_ids), answer.finish_reason) == (5, "length")
    full = turns(policy, (policy.context_length - 3, 4))
    answers = ask(policy, full, n=20)
    assert [len(answer.token_ids) for answer in answers.values()] == [3, 20]
    check(policy, full, answers)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_weights_that_are_no_numbers_are_told_in_one_line(temperature):
    policy = qwen()
    prompts = turns(policy)
    sound = policy.model.model.norm.weight.data.clone()
    policy.model.model.norm.weight.data.fill_(torch.nan)
    with pytest.raises(PolicyError, match="no numbers"):
        ask(policy, prompts, temperature=temperature)
    policy.model.model.norm.weight.data.copy_(sound)
    check(policy, prompts, ask(policy, prompts))


def test_what_an_interrupted_call_left_is_not_trusted(monkeypatch):
    """Ctrl-C within the first layer: other tokens lie there than the cache says."""
    policy = qwen()
    prompts = turns(policy)
    ask(policy, prompts)
    other = {slot: [*prompt[:2], *reversed(prompt[2:])] for slot, prompt in prompts.items()}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(SlotLayer, "update", interrupted(SlotLayer.update))
        ask(policy, other)
    check(policy, prompts, ask(policy, prompts))


def interrupted(inner):
    def update(*arguments, **options):
        inner(*arguments, **options)
        raise KeyboardInterrupt

    return update


@pytest.mark.parametrize("length", [0, 256, 300])
def test_a_prompt_that_does_not_fit_is_refused(policy, length):
    with pytest.raises(ValueError, match=f"a prompt of {length} tokens does not fit a context of 256"):
        ask(policy, {0: [5] * length})


# --- saving and loading -----------------------------------------------------------------------------------------------


def save(policy, folder):
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


def test_a_saved_policy_is_the_same_policy(policy, tmp_path):
    read = HFPolicy.from_path(save(policy, tmp_path), torch.Generator())
    assert read.eos_id == policy.eos_id
    assert read.context_length == policy.context_length
    prompts = turns(policy)
    assert ask(read, prompts) == afresh(policy, prompts)
    assert HFPolicy.from_path(tmp_path, torch.Generator(), context_length=40).context_length == 40


def test_every_program_reads_the_tokenizer_as_it_was_saved(policy, tmp_path):
    """For some model types (Qwen2) transformers would put one of its own in its place."""
    read = AutoTokenizer.from_pretrained(save(policy, tmp_path))
    for text in (*WORDS, " ".join(TAGS), "a word 17 never seen ☀\n\n"):
        ids = policy.encode(text)
        assert read.encode(text, add_special_tokens=False) == ids
        assert read.decode(ids) == text
    assert (read.eos_token_id, read.pad_token_id) == (policy.eos_id, policy.tokenizer.pad_token_id)
    assert read.backend_tokenizer.to_str() == policy.tokenizer.backend_tokenizer.to_str()


@pytest.mark.parametrize("damage", ["nothing there", "no weights", "half the weights", "no model"])
def test_what_cannot_be_loaded_is_one_line(policy, tmp_path, damage):
    folder = save(policy, tmp_path / "policy")
    if damage == "nothing there":
        folder = tmp_path / "elsewhere"
    elif damage == "no weights":
        (folder / "model.safetensors").unlink()
    elif damage == "half the weights":
        whole = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    else:
        (folder / "config.json").write_text("{}")
    with pytest.raises(PolicyError, match="cannot load a causal language model from") as caught:
        HFPolicy.from_path(folder, torch.Generator())
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def config_of(**options):
    def change(folder):
        known = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(known | options))

    return change


def with_words(*words, special=False):
    def change(folder):
        words_of = AutoTokenizer.from_pretrained(folder)
        words_of.add_tokens([AddedToken(word, special=special) for word in words])
        words_of.save_pretrained(folder)

    return change


def in_pieces(spoil):
    def change(folder):
        AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="60KB")
        (folder / "model.safetensors").unlink()
        spoil(sorted(folder.glob("model-*"))[1])

    return change


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


PARTS = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 12\n"
WRONG_FOLDERS = {
    **{f"empty {name}": (lambda folder, name=name: (folder / name).write_text(""), name) for name in PARTS},
    **{f"half {name}": (lambda folder, name=name: halve(folder / name), name) for name in PARTS},
    **{
        f"LFS {name}": (lambda folder, name=name: (folder / name).write_text(POINTER), "git lfs pull") for name in PARTS
    },
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer"),
    "half a piece": (in_pieces(halve), "model-00002-of"),
    "a piece too few": (in_pieces(lambda path: path.unlink()), "model-00002-of"),
    "more words": (
        with_words("frying pan", "egg timer"),
        r"tokens that \w+ lacks \('egg timer', 'frying pan'.*360 rows",
    ),
    "a longer vocabulary": (config_of(vocab_size=424), r"weight is \[360, 32\] and not \[424, 32\]"),
    "a shorter one": (config_of(vocab_size=350), r"weight is \[360, 32\] and not \[350, 32\]"),
    "an adapter alone": (
        lambda folder: (folder / "config.json").rename(folder / "adapter_config.json"),
        "an adapter without its model.*folder policy",
    ),
    "more layers": (config_of(num_hidden_layers=4), "the weights lack model.layers.2"),
    "fewer layers": (config_of(num_hidden_layers=1), r"have more layers \(model\.layers\.1"),
}


@pytest.mark.parametrize("case", WRONG_FOLDERS)
def test_files_that_are_damaged_or_of_another_model_are_one_line(policy, tmp_path, case, capfd):
    """Each is named; nothing is played with random weights, another end of replies or fewer layers."""
    change, words = WRONG_FOLDERS[case]
    change(save(policy, tmp_path / "policy"))
    capfd.readouterr()
    with pytest.raises(PolicyError, match=words) as caught:
        HFPolicy.from_path(tmp_path / "policy", torch.Generator())
    assert "\n" not in str(caught.value)
    assert "LOAD REPORT" not in capfd.readouterr().err


def test_a_tokenizer_of_another_model_is_refused():
    with pytest.raises(PolicyError, match=r"360 tokens and \w+ 1000: it belongs to another model"):
        policy = qwen()
        policy.model.resize_token_embeddings(1000, mean_resizing=False)
        HFPolicy(policy.model, policy.tokenizer, policy.generator)


def test_a_special_token_that_no_text_has_may_be_missing(policy, tmp_path):
    """Gemma 3's models of text lack the mark of pictures, which is in their tokenizer."""
    folder = save(policy, tmp_path / "policy")
    with_words("<picture>", special=True)(folder)
    read = HFPolicy.from_path(folder, torch.Generator())
    assert read.encode(read.literal("go to <picture>"))[-1] < 360


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("branches", [False, True])
def test_a_padded_vocabularys_further_tokens_are_never_sampled(temperature, branches):
    """However probable they are; the log-probabilities are the model's own, as the learner computes them."""
    policy = qwen()
    known = len(policy.tokenizer)
    policy.model.resize_token_embeddings(known + 64, mean_resizing=False)
    policy.model.tie_weights()
    with torch.no_grad():
        policy.model.get_output_embeddings().weight[known:] = (
            3 * policy.model.get_output_embeddings().weight[:known][:64]
        )
    policy = HFPolicy(policy.model, policy.tokenizer, policy.generator)
    prompts = turns(policy, (4, 12, 7, 20))
    slots = [0] * 4 if branches else range(4)
    requests = [Request(tuple(p), slot, 30, NEVER) for p, slot in zip(prompts.values(), slots, strict=True)]
    for request, answer in zip(requests, policy.generate(requests, temperature), strict=True):
        assert max(answer.token_ids) < known
        assert answer.logprobs == pytest.approx(
            plain(policy, request.prompt_ids, answer.token_ids, temperature)[0], abs=1e-4
        )


# --- devices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_tensor_is_made_where_the_model_is(policy, temperature):
    """Under a default device of its own, which has no numbers: what is not put on the model's device breaks here."""
    prompts = turns(policy, (4, 12, 7, 20))

    def conversation():
        policy.clear_cache()
        answers = ask(policy, prompts, temperature=temperature, stops=frozenset(range(100)))
        grown = {slot: [*prompts[slot], *answers[slot].token_ids, 6, 7] for slot in (3, 1, 0)}
        return answers, ask(policy, grown, n=20, temperature=temperature)

    expected = conversation()
    with torch.device("meta"):
        assert conversation() == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("drawn_on", ["cpu", "cuda"])
def test_on_an_accelerator(made, tmp_path, drawn_on):
    save(made, tmp_path)
    policy = HFPolicy.from_path(tmp_path, torch.Generator("cuda"))
    policy.generator = torch.Generator(drawn_on)
    assert policy.device.type == "cuda"
    prompts = turns(policy)
    assert ask(policy, prompts, temperature=1.0) == afresh(policy, prompts, temperature=1.0)
    for slot, answer in ask(policy, prompts).items():
        logprobs, _ = plain(made, prompts[slot], answer.token_ids, 0.0)
        assert answer.logprobs == pytest.approx(logprobs, abs=1e-3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch can use this machine's GPU")
def test_a_gpu_that_torch_cannot_use_is_refused_unless_the_cpu_is_asked_for(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name in ("DS_ACCELERATOR", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    hf._refuse_unused_gpu.cache_clear()
    words = r"GPU \(NVIDIA H100 80GB HBM3\), but torch .* cannot use it: .*DS_ACCELERATOR"
    with pytest.raises(PolicyError, match=words):
        hf.own_device()
    for name, value in (("DS_ACCELERATOR", "cpu"), ("CUDA_VISIBLE_DEVICES", "")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert hf.own_device() == torch.device("cpu")
    hf._refuse_unused_gpu.cache_clear()

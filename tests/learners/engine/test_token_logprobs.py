"""The scorer agrees with the plain model, for any batch layout and any shared prefixes."""

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from roleagent.learners.critic import Critic
from roleagent.learners.engine.logprobs import TokenScorer, collate, plan_by_length
from roleagent.learners.engine.prefix_sharing import can_share, find_prefixes, plan_by_prefix
from roleagent.types import Segment

PROMPT = (7, 8, 9, 10, 11, 12)
ROWS = {
    "one": [PROMPT],
    "apart": [(3, *PROMPT), (4, 5, *PROMPT, 6), (20, 21)],
    "a group": [
        (*PROMPT, 30, 31, 32, 33, 34),
        (*PROMPT, 30, 31, 35, 36),
        (*PROMPT, 30, 31),  # ends within another
        (*PROMPT, 40, 41, 42, 43, 44, 45, 46, 47),
        (*PROMPT, 30, 31, 35, 36),  # the same twice
        (50, 51, 52),
    ],
    "beside": [  # a transcript, and what was asked beside it after some turns
        (*PROMPT, *range(30, 50)),
        *((*PROMPT, *range(30, 30 + said), 60, 61, 62 + said) for said in (14, 10, 6)),
    ],
}


def segments(rows, seed=0):
    """Every second token from the third on was sampled, and the last."""
    made = []
    for row in rows:
        mask = tuple(int(i > 0 and ((i >= 2 and i % 2 == 0) or i == len(row) - 1)) for i in range(len(row)))
        made.append(Segment(tuple(row), mask, (0.0,) * len(row), (0.0,) * len(row)))
    return made


def plainly(model, rows, temperature):
    """Each row by itself, all its logits, log_softmax."""
    values, entropies = [], []
    for segment in rows:
        logits = model(input_ids=torch.tensor(segment.token_ids)[None], use_cache=False).logits[0].float() / temperature
        logprobs = logits.log_softmax(-1)
        at = [i for i, kind in enumerate(segment.token_kind) if kind]
        values.append(torch.stack([logprobs[i - 1, segment.token_ids[i]] for i in at]))
        entropies.append(torch.stack([-(logprobs[i - 1].exp() * logprobs[i - 1]).sum() for i in at]))
    return torch.cat(values), torch.cat(entropies).detach()


def gradients(values, model):
    model.zero_grad()
    (values * torch.linspace(-1, 2, len(values))).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def qwen():
    return tiny.qwen().model


def padded():
    """A model whose attention cannot be told what is shared."""
    model = tiny.qwen().model
    model.set_attn_implementation("eager")
    return model


def llama():
    return tiny.llama().model


def adapted():
    from peft import LoraConfig, inject_adapter_in_model

    model = tiny.qwen().model
    inject_adapter_in_model(LoraConfig(r=2, target_modules=["q_proj", "up_proj", "lm_head"]), model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.2, generator=generator)
    return model


def recomputing():
    model = tiny.qwen().model
    model.gradient_checkpointing_enable({"use_reentrant": True})
    model.enable_input_require_grads()
    return model.train()


@pytest.mark.parametrize("make", [qwen, padded, llama, adapted, recomputing])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_entropies_and_gradients_are_the_plain_models(make, rows, temperature):
    if make is adapted:
        pytest.importorskip("peft")
    model, given_rows = make(), segments(ROWS[rows])
    assert can_share(model.base_model) == (make is not padded)
    expected, undecided = plainly(model, given_rows, temperature)
    slopes = gradients(expected, model)
    assert len(slopes) >= 10
    found, entropies = TokenScorer(model)(collate(given_rows, 1), temperature, entropy=True)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(entropies, undecided, atol=1e-5, rtol=1e-4)
    mine = gradients(found, model)
    assert mine.keys() == slopes.keys()
    for name, slope in slopes.items():
        rounding = 2e-5 * max(1.0, float(slope.abs().max()))  # of sums whose terms cancel
        torch.testing.assert_close(mine[name], slope, atol=rounding, rtol=1e-3, msg=lambda text, n=name: f"{n}: {text}")


def test_a_critic_reads_the_same_states():
    critic, rows = Critic(qwen(), shares=True), segments(ROWS["a group"])
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
    found, _ = critic(collate(rows, 1), 1.0)
    alone = [critic(collate([row], 1), 1.0)[0] for row in rows]
    torch.testing.assert_close(found, torch.cat(alone), atol=1e-5, rtol=1e-4)
    assert found.std() > 0.1


def test_gradients_repeat_on_several_threads():
    """A hundred rows go on from one token: the parts of its gradient are always added up in the same order."""
    batch = collate(segments([(*PROMPT, *range(20 + row, 60 + row)) for row in range(100)]), 1)
    scorer, threads = TokenScorer(qwen()), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first, *others = (gradients(scorer(batch, 1.0)[0], scorer) for _ in range(10))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[name], first[name]) for found in others for name in first)


def test_a_model_that_tells_its_attention_nothing_is_refused(monkeypatch):
    model = qwen()
    layer = type(model.base_model.layers[0])
    plain = layer.forward
    monkeypatch.setattr(layer, "forward", lambda self, *given, shared, **options: plain(self, *given, **options))
    with pytest.raises(TypeError, match="does not pass options on to its attention"):
        TokenScorer(model)(collate(segments(ROWS["one"]), 1), 1.0)


def test_a_window_of_attention_is_not_shared():
    model = qwen()
    model.config.layer_types = ["full_attention", "sliding_attention"]
    assert not can_share(model.base_model)


def test_shared_beginnings_are_computed_once():
    model, seen = qwen(), []
    model.base_model.layers[0].mlp.register_forward_hook(lambda _, given, __: seen.append(given[0].shape[:2].numel()))
    rows = segments(ROWS["a group"])
    TokenScorer(model)(collate(rows, 1), 1.0)
    beginnings = {tuple(row.token_ids[: i + 1]) for row in rows for i in range(len(row))}
    assert seen == [len(beginnings)]
    assert seen[0] < 0.6 * sum(map(len, rows))


few_tokens = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)


@given(few_tokens)
def test_tokens_are_the_same_if_and_only_if_their_beginnings_are(rows):
    found = find_prefixes(rows)
    width = max(map(len, rows))
    numbers = {}
    for r, row in enumerate(rows):
        for c in range(len(row)):
            numbers.setdefault(tuple(row[: c + 1]), set()).add(int(found.numbers[r, c]))
    assert all(len(seen) == 1 for seen in numbers.values())
    assert sorted(number for seen in numbers.values() for number in seen) == list(range(len(found.places)))
    for number, place in enumerate(found.places.tolist()):
        assert found.numbers[place // width, place % width] == number
    assert sum(rectangle.rows for rectangle in found.rectangles) == len(rows)
    if found.whole is None:
        assert sum(map(len, rows)) == len(found.places)
    else:
        assert found.asking.index[found.firsts.index].tolist() == list(range(len(found.places)))
        assert len(found.whole.order) == sum(map(len, rows))  # the padding is no part of any gradient


@given(few_tokens, st.integers(1, 30))
def test_plan_by_prefix_hold_every_segment_once_and_keep_the_budget(rows, budget):
    made = segments(rows)
    batches = plan_by_prefix(made, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(rows)))
    for batch in batches:
        distinct = len(find_prefixes([made[index].token_ids for index in batch]).places)
        assert distinct <= budget or len(batch) == 1
        assert sum(len(made[index]) for index in batch) <= 4 * budget or len(batch) == 1


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 100))
def test_plans_by_length_hold_every_segment_once_and_keep_the_budget(lengths, budget):
    batches = plan_by_length(segments([(0,) * n for n in lengths]), budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) * max(lengths[index] for index in batch) <= budget or len(batch) == 1

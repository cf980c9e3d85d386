"""Replies to several prompts of one conversation at once: each is what it would be alone."""

import pytest
from test_sampling import NEVER, biased, eager, ids, neox, whole
from tiny import qwen

from roleagent.agents.policies.branches import Branches
from roleagent.agents.policies.kv_cache import SlotCache
from roleagent.types import Request


def branches(slots=5, question=(7,), places=(3, 9, 14)):
    """Prompts that leave a text of each slot at some places, later slots at fewer of them, with a question."""
    texts = {slot: ids(12, 0) + ids(8 + slot, 1 + slot) for slot in range(slots)}
    return [
        (slot, text[:place] + question) for slot, text in texts.items() for place in places[: len(places) - slot % 3]
    ]


PROMPTS = {
    "one question": branches(),
    "a long question": branches(question=ids(6, 99)),
    "one conversation": branches(slots=1),
    "nothing in common": [(slot, ids(4 + 3 * slot + turn, 10 * slot + turn)) for slot in range(3) for turn in range(4)],
    "equal prompts": [(slot, ids(9)) for slot in (0, 0, 1)],
    "single tokens": [(0, (5,)), (0, (6,)), (1, (5, 6, 7)), (1, (5,))],
}


def ask(policy, prompts, limits=(6,), temperature=1.0, stops=NEVER):
    policy.generator.manual_seed(0)
    requests = [Request(p, slot, limits[i % len(limits)], stops) for i, (slot, p) in enumerate(prompts)]
    return policy.generate(requests, temperature)


@pytest.mark.parametrize("make", [qwen, neox, eager, biased], ids=["qwen", "neox", "eager", "biased"])
@pytest.mark.parametrize("prompts", PROMPTS.values(), ids=PROMPTS)
def test_a_branch_is_sampled_as_if_it_were_alone(make, prompts):
    policy = make()
    for answer, (_, prompt) in zip(ask(policy, prompts), prompts, strict=True):
        assert answer.logprobs == pytest.approx(whole(policy, prompt, answer.token_ids), abs=3e-5)


@pytest.mark.parametrize("context", [40, 256], ids=["in parts", "at once"])
def test_replies_of_any_length_equal_those_of_single_requests(context):
    policy, prompts, limits = qwen(), branches(slots=9), (12, 1, 2, 7, 3)
    policy.context_length = context
    ask(policy, [(slot, ids(context - 16)) for slot in range(9)])  # branches get a share of this memory
    free = ask(policy, prompts, (12,), 0.0)
    stops = frozenset({answer.token_ids[slot % 5] for slot, answer in enumerate(free[:8])})
    found = ask(policy, prompts, limits, 0.0, stops)
    assert {answer.finish_reason for answer in found} == {"stop", "length"}
    for number, (answer, (_, prompt)) in enumerate(zip(found, prompts, strict=True)):
        policy.clear_cache()
        [alone] = policy.generate([Request(prompt, 0, limits[number % len(limits)], stops)], 0.0)
        assert (answer.token_ids, answer.finish_reason) == (alone.token_ids, alone.finish_reason)


def test_what_is_read_again_has_one_writer(monkeypatch):
    """Of two tokens that are written to one place in one pass, that of either thread may be the last."""
    read, write_at, written = Branches._read, SlotCache.write_at, []

    def noting(table, *given):
        with monkeypatch.context() as patch:
            patch.setattr(SlotCache, "write_at", write)
            return read(table, *given)

    def write(cache, positions, used, rows=None):
        written.extend([place for place in row if place < used] for row in positions.tolist())
        write_at(cache, positions, used, rows)

    monkeypatch.setattr(Branches, "_read", noting)
    policy = qwen()
    ask(policy, [(slot, ids(240)) for slot in range(9)])
    ask(policy, branches(slots=9), (12, 1, 2, 7, 3))
    assert len(written) > 20 and all(len(set(places)) == len(places) for places in written)


def test_a_slot_that_knows_more_than_its_branches_have_room_for():
    policy, prompts = qwen(), [(0, ids(20, 1)), (0, ids(20, 2))]
    wanted = ask(policy, prompts, (5,), 0.0)
    policy.clear_cache()
    ask(policy, [(0, ids(240))], (4,), 0.0)
    assert [one.token_ids for one in ask(policy, prompts, (5,), 0.0)] == [one.token_ids for one in wanted]


def test_conversations_go_on_behind_their_branches():
    """What is known of them is used, and stays as it was."""
    policy = qwen()
    texts = {slot: ids(10 + slot, slot) for slot in range(4)}
    first = ask(policy, list(texts.items()))
    asked = [(slot, (*text[:n], 7)) for slot, text in texts.items() for n in (4, len(text))]
    for answer, (_, prompt) in zip(ask(policy, asked), asked, strict=True):
        assert answer.logprobs == pytest.approx(whole(policy, prompt, answer.token_ids), abs=3e-5)
    grown = [(slot, text + answer.token_ids) for (slot, text), answer in zip(texts.items(), first, strict=True)]
    held = list(policy._cache.tokens)
    for answer, (_, prompt) in zip(ask(policy, grown), grown, strict=True):
        assert answer.logprobs == pytest.approx(whole(policy, prompt, answer.token_ids), abs=3e-5)
        assert list(prompt[:-1]) in held

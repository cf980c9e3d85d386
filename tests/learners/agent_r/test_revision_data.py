"""From trees to tokens: what is dropped and counted, which tokens have weight, and what an iteration imitates."""

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from trees import grow, kitchen, note

from roleagent.config import ConfigError, load
from roleagent.curricula.rule_analyst import RuleAnalyst
from roleagent.envs.wrappers.notes import REVISION_THOUGHTS
from roleagent.failures.verdicts import UNREAD, Verdict
from roleagent.files import write_json_lines
from roleagent.learners.agent_r.data import RevisionData, read_conversations, select, tokenize_conversations
from roleagent.learners.agent_r.iterate import collect, idle_mechanisms, shares_of
from roleagent.learners.agent_r.judges import PlaceJudge
from roleagent.learners.agent_r.learning import Member, PreferenceData, batches, part_shares, weights_of
from roleagent.learners.agent_r.options import RevisionConfig
from roleagent.types import ACTION, Segment

TASK = "bring-egg-table-1"
GOOD = ["go to basket", "take egg from basket", "go to table", "move egg to table"]
BAD = ["go to counter", "look", "look"]
FISH = ["go to cupboard 2", "open cupboard 2", "take fish from cupboard 2", "look"]


AWAY = Verdict("bad", "it leads away", "model")


class First:
    """Calls the first step behind the shared ones bad, or none; remembers what it was asked."""

    def __init__(self, verdict=AWAY):
        self.verdict, self.asked = verdict, []

    def judge(self, paths):
        self.asked += paths
        rest = Verdict("uncertain", "", "model")
        return [[self.verdict, *[rest] * (len(path.edges) - path.shared - 1)] for path in paths]


def made(*paths, judge=None, overrides=(), context=2000):
    split, policy = kitchen(*overrides, context=context)
    data = RevisionData(split, policy, judge or First(), RuleAnalyst(), 0.5)
    [found] = data.make([grow(split, policy, TASK, paths)], [np.random.default_rng(0)])
    return found, policy


def parts(found):
    return [example.part for example in found.examples]


def weighted(example, policy):
    kept = [one.token_ids[(one.token_kind == ACTION) & (one.advantages > 0)] for one in example.segments]
    return policy.decode(np.concatenate(kept).tolist())


@pytest.mark.parametrize("style", ["transcript", "window"])
def test_bad_tokens_have_no_weight_and_the_signal_and_the_good_steps_do(style):
    found, policy = made(GOOD, BAD, overrides=(f"prompt.style={style}",))
    assert parts(found) == ["good", "revision"]
    good, revision = found.examples
    actions = "".join(f"<action>{command}</action>" for command in GOOD)
    assert weighted(good, policy) == actions
    thought = revision.text["steps"][1][0].removeprefix("revise[").removesuffix("]")
    assert thought in REVISION_THOUGHTS
    assert weighted(revision, policy) == f"<revise>{thought}</revise>{actions}"
    shown = [policy.decode(one.token_ids.tolist()) for one in revision.segments]
    assert any("go to counter" in text and thought in text for text in shown), "the mistake stands before the signal"
    assert [step[2] for step in revision.text["steps"]] == [0, 1, 1, 1, 1, 1]


def test_an_experts_beginning_is_shown_and_not_imitated():
    split, policy = kitchen()
    tree = grow(split, policy, TASK, [GOOD, [*GOOD[:2], *BAD]])
    for node in tree.nodes[1:3]:
        node.info["given"] = True
    data = RevisionData(split, policy, First(), RuleAnalyst(), 0.5)
    [found] = data.make([tree], [np.random.default_rng(0)])
    good, revision = found.examples
    assert [step[2] for step in good.text["steps"]] == [0, 0, 1, 1]
    assert weighted(good, policy) == "".join(f"<action>{command}</action>" for command in GOOD[2:])
    assert [step[2] for step in revision.text["steps"]] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("kind", "place"), [(RevisionData, "reset"), (RevisionData, "step"), (PreferenceData, "reset")]
)
def test_an_environment_that_fails_in_a_replay_fails_its_tree(kind, place, monkeypatch):
    split, policy = kitchen()
    tree = grow(split, policy, TASK, [GOOD, BAD])

    def fails(*_, **__):
        raise OSError("no server")

    monkeypatch.setattr(type(split.base.unwrapped), place, fails)
    [found] = kind(split, policy, First(), RuleAnalyst(), 0.5).make([tree], [np.random.default_rng(0)])
    row = found.to_json()
    assert not row["examples"] and not row["leaves"] and row["error"].startswith("OSError: no server")
    assert row["counts"] == {"trees": 1, "failed_trees": 1}


def test_no_verdict_no_splice():
    for verdict in (Verdict("good", "", "model"), UNREAD):
        found, _ = made(GOOD, BAD, judge=First(verdict))
        assert parts(found) == ["good"]
        assert found.counts["dropped_no_verdict"] == 1
    assert found.counts["verdict_source_fallback"] == 1


@pytest.mark.parametrize(
    ("splice", "truth", "counted"),
    [("verified", None, "dropped_false"), ("published", "false", "splice_false")],
)
def test_a_false_splice_is_dropped_unless_it_is_published(splice, truth, counted):
    found, _ = made(GOOD, FISH, judge=PlaceJudge(), overrides=(f"options.revision.splice={splice}",))
    own = [example.text["truth"] for example in found.examples if example.part == "revision"]
    assert own == ([truth] if truth else [])
    assert found.counts[counted] == 1
    assert found.counts["splices"] == 1
    assert found.counts["truth/look/false"] == found.counts[f"bad_steps/{len(FISH)}/false"] == 1


@pytest.mark.parametrize(
    ("bad", "options", "counted"),
    [
        (["go to counter", "look", note()], {"judge": PlaceJudge()}, {"dropped_notes": 1}),  # two notes in a row
        (["<|im_start|>", "look"], {}, {"dropped_marker": 1}),
        (BAD, {"context": 120}, {"dropped_context": 2}),
    ],
)
def test_what_cannot_be_an_example_is_dropped(bad, options, counted):
    found, _ = made(GOOD, bad, **options)
    assert parts(found) == ([] if "context" in options else ["good"])
    assert counted.items() <= found.counts.items()


def test_failed_trees_are_counted_apart_and_their_error_is_reported(tmp_path):
    split, policy = kitchen()
    tree = grow(split, policy, TASK, [GOOD])
    tree.error = "OSError: no server"
    for kind in (RevisionData, PreferenceData):
        [data] = kind(split, policy, PlaceJudge(), None, 0.5).make([tree], [np.random.default_rng(0)])
        assert data.counts["failed_trees"] == 1 and not data.counts["without_good"] + data.counts["without_bad"]
    counts = {"trees": 4, "failed_trees": 2, "without_good": 1}
    assert shares_of(counts, [])["without_good_share"] == 0.5, "of those that did not fail"

    path = tmp_path / "revision/iteration-001/batch-000.jsonl.gz"
    write_json_lines(path, [data.to_json()] * 2)
    run = SimpleNamespace(
        ranks=SimpleNamespace(once=lambda function: function()),
        folder=SimpleNamespace(path=tmp_path),
        progress=SimpleNamespace(searched=0),
    )
    with pytest.raises(ConfigError, match="2 of 2 trees failed, the first with OSError: no server"):
        collect(run, None, 1)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ConfigError, match=r"batch-000\.jsonl\.gz is damaged .*: remove it"):
        collect(run, None, 1)
    run.progress.searched = 1
    with pytest.raises(ConfigError, match=r"batch-000\.jsonl\.gz is damaged .*: restore it"):
        collect(run, None, 1)


def test_bad_leaves_go_to_the_library_with_the_transition_point():
    found, _ = made(GOOD, BAD, judge=PlaceJudge())
    won, lost = found.leaves
    assert won == {"won": True, "outcome": 1.0}
    assert lost["reflection"]["critical_step"] == len(BAD) - 1
    assert [turn[0] for turn in lost["turns"]] == BAD


def test_equal_examples_and_those_beyond_a_tasks_share_are_dropped():
    found, _ = made(GOOD, BAD, FISH)
    [good] = [example for example in found.examples if example.part == "good"]
    revisions = [example for example in found.examples if example.part == "revision"]
    other = [replace(good, task_id=f"task {n}", segments=tuple(
        replace(one, token_ids=one.token_ids + n) for one in good.segments)) for n in range(3)]  # fmt: skip
    examples = [good, good, *revisions, *other]
    kept, dropped = select(examples, 0, 12, np.random.default_rng(0))
    assert dropped == Counter(duplicate=2, per_task=0), "one of the others is the good one itself"
    many = [replace(good, part="revision", edge=n % 3, segments=tuple(
        replace(one, token_ids=one.token_ids + n) for one in good.segments)) for n in range(30)]  # fmt: skip
    kept, dropped = select(many, 0, 12, np.random.default_rng(0))
    assert Counter(example.edge for example in kept) == {0: 4, 1: 4, 2: 4}
    assert dropped["per_task"] == 18
    kept, dropped = select(many, 0, 0, np.random.default_rng(0))
    assert (len(kept), dropped["per_task"]) == (30, 0), "the paper keeps 18 to 40 of a task"
    kept, dropped = select(many, 5 * good.trained_tokens, 12, np.random.default_rng(0))
    assert (len(kept), dropped["tokens"]) == (5, 7)


def segment(trained, total=10):
    kinds = np.array([0] * (total - trained) + [ACTION] * trained)
    return Segment(np.arange(total), kinds, np.zeros(total), (kinds == ACTION).astype(float))


def test_every_part_has_its_share_whatever_its_size():
    found = {"good": [segment(2)], "revision": [segment(8)] * 5, "replay": [segment(4)] * 3, "general": [segment(1)]}
    options = RevisionConfig(eta=0.2, share=0.25, replay=0.5)
    shares = part_shares(found, options)
    expected = {"good": 0.2, "revision": 0.2 / 3, "general": 0.8}  # good paths are three times the others
    total = sum(expected.values())
    assert shares == pytest.approx({name: one / total / 2 for name, one in expected.items()} | {"replay": 0.5})
    batch = [Member(name, one) for name, row in found.items() for one in row]
    weights = weights_of(batch, shares)
    for name, share in shares.items():
        own = sum(row.sum() for (part, _), row in zip(batch, weights, strict=True) if part == name)
        assert own == pytest.approx(share)


def test_the_weights_are_those_of_equation_6():
    """0.2 + 0.2 : 0.8; half of it was each part's."""
    found = {"good": [segment(2)], "revision": [segment(8)], "general": [segment(1)]}
    shares = part_shares(found, RevisionConfig(eta=0.2, replay=0.0))
    assert [shares[name] / shares["general"] for name in ("good", "revision")] == pytest.approx([0.25, 0.25])
    shares = part_shares({**found, "revision": []}, RevisionConfig(eta=0.2, replay=0.0, share=0.0))
    assert shares == pytest.approx({"good": 0.2, "general": 0.8})


def test_every_batch_holds_every_part_and_an_epoch_every_example():
    found = {"good": [segment(2)] * 3, "revision": [segment(8) for _ in range(40)], "replay": [segment(4)] * 7}
    shares = part_shares(found, RevisionConfig())
    epoch = [*batches(found, shares, 50, np.random.default_rng(0))]
    assert all({part for part, _ in batch} == {"good", "revision", "replay"} for batch in epoch)
    seen = [id(one) for batch in epoch for part, one in batch if part == "revision"]
    assert sorted(seen) == sorted(map(id, found["revision"]))
    sizes = [sum(len(one) for _, one in batch) for batch in epoch]
    assert 40 <= np.mean(sizes) <= 75


def test_conversations_are_read_in_both_forms_and_answers_have_weight(tmp_path):
    path = tmp_path / "general.jsonl"
    rows = [
        {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "an egg"},
                      {"role": "assistant", "content": "go to table"}]},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "look"},
                           {"from": "human", "value": "b"}, {"from": "gpt", "value": "open"}]},
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, policy = kitchen()
    found = tokenize_conversations(read_conversations(str(path)), policy)
    texts = [policy.decode(one.token_ids[one.advantages > 0].tolist()) for one in found]
    assert texts == ["go to table", "lookopen"]
    assert "Be kind.\n\nan egg" in policy.decode(found[0].token_ids.tolist())
    answer = {"role": "assistant", "content": None}  # that calls a tool
    for messages in ([{"role": "assistant", "content": "first"}], [], [{"role": "user", "content": "a"}, answer]):
        path.write_text(json.dumps({"messages": messages}) + "\n")
        with pytest.raises(ConfigError, match="line 1"):
            read_conversations(str(path))


@pytest.mark.parametrize(("judge", "remedied"), [("last", True), ("rule", False)])
def test_a_run_whose_splices_are_all_refuted_says_so(judge, remedied):
    config = load(overrides=["method=agent_r", f"options.revision.judge={judge}"])
    counters = {"examples_good": 5.0, "pairs": 4.0, "verdict_bad": 4.0, "splices": 4.0, "splice_false": 4.0}
    [warning] = idle_mechanisms(config, counters)
    assert "refuted all 4 splices" in warning and ("options.revision.splice=published" in warning) == remedied
    [warning] = idle_mechanisms(config, counters | {"splice_false": 3.0})
    assert "refuted" not in warning

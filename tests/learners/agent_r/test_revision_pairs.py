"""Pairs of good and bad paths, the conditions on their rewards, and splices that the world is asked about."""

from dataclasses import replace

import numpy as np
import pytest
from programs import ROOT
from tiny import world_of
from trees import grow, kitchen, note

from roleagent.config import ConfigError, load
from roleagent.learners.agent_r.options import RevisionConfig
from roleagent.learners.agent_r.search import common_ancestor
from roleagent.learners.agent_r.splice import (
    continued,
    good_leaves,
    leaves_of,
    make_pairs,
    replay,
    search_on,
    signal_of,
    splice,
)
from roleagent.learners.run.launch import check_held_out, check_run

TASK = "bring-egg-table-1"
GOOD = ["go to basket", "take egg from basket", "go to table", "move egg to table"]
HARMLESS = ["go to counter", "look", "look"]
OPENED = ["go to cupboard 2", "open cupboard 2", "look"]
FISH = ["go to cupboard 2", "open cupboard 2", "take fish from cupboard 2", "look"]
VISIT = ["go to cupboard 2", "go to table", "go to cupboard 2", *GOOD]
RNG = np.random.default_rng
OPTIONS = RevisionConfig(beta=0.2)


@pytest.fixture(scope="module")
def world():
    return kitchen()


def tree_of(world, *paths):
    return grow(*world, TASK, paths)


def leaf(tree, path):
    node = tree.root
    for command in path:
        node = next(one for one in node.children if one.command == command)
    return node


def rewarded(tree, **rewards):
    """The tree with other final rewards, by the last command of a leaf."""
    for node in tree.nodes:
        node.outcome = rewards.get(node.command.replace(" ", "_"), node.outcome)
    return tree


def test_the_evaluation_split_is_not_searched():
    with pytest.raises(ConfigError, match="another split"):
        check_run(world_of("method=agent_r", "env.eval_split=train"), resume=False)


def test_splits_with_common_tasks_are_refused(tmp_path):
    split = world_of("method=agent_r")
    ids = split.task_split.task_ids
    held_out = replace(split, task_split=replace(split.task_split, task_ids=("another", ids[3], ids[5])))
    with pytest.raises(ConfigError, match=r"2 tasks of .* are also in env"):
        check_held_out(split, held_out, pytest.fail)
    others = tuple(f"another {number}" for number in range(20))
    held_out = replace(split, task_split=replace(split.task_split, task_ids=others))
    check_held_out(split, held_out, pytest.fail)
    check_held_out(world_of("method=grpo"), held_out, pytest.fail)


def test_other_stages_only_warn_of_common_tasks():
    split, said = world_of("method=grpo"), []
    same = replace(split.task_split, task_ids=split.task_split.task_ids[:3])
    check_held_out(split, replace(split, task_split=same), said.append)
    assert said[0].startswith("3 tasks of env.eval_split=")
    assert "has 3 tasks: the 95 % interval" in said[1] and "add tasks" in said[1] and len(said) == 2


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("judge=foo:Bar", "cannot load 'foo:Bar'"),
        ("general={}/nope", "cannot read"),
        ("general={}/lines", "line 1"),
    ],
)
def test_what_cannot_be_read_is_refused_before_the_run(option, words, tmp_path):
    (tmp_path / "lines").write_text("{}\n")
    for method in ("agent_r", "eto"):
        split = world_of(f"method={method}", f"options.revision.{option.format(tmp_path)}")
        with pytest.raises(ConfigError, match=words):
            check_run(split, resume=False)


def test_alpha_and_beta_are_numbers_of_one_scale():
    given = ["method=agent_r", "options.revision.alpha=[0.5,1]", "options.revision.beta=0.1"]
    assert load(None, given).options.revision.alpha == (0.5, 1.0)
    for option in (
        "options.revision.alpha=[half]",
        "options.revision.alpha=[50]",
        "options.revision.alpha=[]",
        "options.revision.beta=high",
    ):
        with pytest.raises(ConfigError, match=option.partition("=")[0]):
            load(None, ["method=agent_r", option])


def test_an_alpha_of_one_keeps_optimal_trajectories(world):
    tree = tree_of(world, GOOD, HARMLESS)
    [pair] = make_pairs(tree, 1.0, OPTIONS, RNG(0))
    assert pair.good is leaf(tree, GOOD) and pair.good.outcome == 1.0


def test_below_one_alpha_is_a_strict_bound_and_beta_a_gap(world):
    tree = rewarded(tree_of(world, GOOD, ["go to sink"]), go_to_sink=0.5)
    assert [len(good_leaves(leaves_of(tree), alpha)) for alpha in (0.5, 0.4, 1.0)] == [1, 2, 1]
    assert len(make_pairs(tree, 0.9, OPTIONS, RNG(0))) == 1
    assert not make_pairs(tree, 0.9, RevisionConfig(beta=0.5), RNG(0))


def test_beta_is_a_bound_where_the_paper_is_followed(world):
    """Eq. 4: a bad reward lies below β, and a good one above."""
    bound = RevisionConfig(beta=0.2, separation="bound")
    tree = rewarded(tree_of(world, GOOD, ["go to sink"]), go_to_sink=0.3)
    assert len(make_pairs(tree, 0.5, OPTIONS, RNG(0))) == 1 and not make_pairs(tree, 0.5, bound, RNG(0))
    tree = rewarded(tree_of(world, GOOD, ["go to sink"]), go_to_sink=0.1)
    assert len(make_pairs(tree, 0.5, bound, RNG(0))) == 1


def test_rewards_of_another_scale_are_refused(world):
    tree = rewarded(tree_of(world, GOOD, ["go to sink"]), move_egg_to_table=100.0)
    with pytest.raises(ConfigError, match=r"100.*\[0, 1\]"):
        make_pairs(tree, 0.5, OPTIONS, RNG(0))


def test_the_partner_shares_most_steps_and_then_is_the_shorter(world):
    far = ["go to table", *GOOD]
    long = [*GOOD[:2], "go to sink", *GOOD[2:]]
    bad = [*GOOD[:2], "go to tray", "look"]
    tree = tree_of(world, far, long, GOOD, bad)
    [pair] = make_pairs(tree, 0.5, OPTIONS, RNG(0))
    assert pair.shared == common_ancestor(pair.bad, pair.good).depth == 2
    assert pair.good is leaf(tree, GOOD)
    assert [node.command for node in pair.bad.path()] == bad


def test_leaves_that_differ_in_their_last_step_alone_are_one(world):
    tree = tree_of(world, GOOD, ["go to sink", "look"], ["go to sink", "go to tray"], ["go to tray"])
    assert len(make_pairs(tree, 0.5, OPTIONS, RNG(0))) == 2
    assert len(make_pairs(tree, 0.5, replace(OPTIONS, pairs_per_tree=1), RNG(0))) == 1


def test_the_published_pairs_are_all_of_bad_and_good_leaves(world):
    """One partner for each bad leaf gives 5 pairs of a tree; the paper has 18 to 40 revisions of a task."""
    bad = [["go to sink", step] for step in ("look", "go to tray")] + [["go to tray"]]
    tree = tree_of(world, GOOD, ["go to counter", *GOOD], *bad)
    published = load(ROOT / "configs" / "published" / "agent_r_textcraft.yaml").options.revision
    pairs = make_pairs(tree, 0.5, published, RNG(0))
    ends = {(pair.bad.number, pair.good.number) for pair in pairs}
    assert len(pairs) == len(ends) == 3 * 2 and {pair.shared for pair in pairs} == {0}


def test_trees_without_a_good_or_a_bad_leaf_have_no_pair(world):
    assert not make_pairs(tree_of(world, HARMLESS, FISH), 0.5, OPTIONS, RNG(0))
    assert not make_pairs(tree_of(world, GOOD), 0.5, OPTIONS, RNG(0))


def spliced(world, bad, good, cut, played=True, form="note"):
    split, policy = world
    tree = tree_of(world, bad, good)
    signal = signal_of(form, "I look again.", split.rollout(policy))
    pair = leaf(tree, bad), leaf(tree, good)
    return splice(split.base, *map(tree.trajectory, pair), common_ancestor(*pair).depth, cut, signal, played)


@pytest.mark.parametrize(
    ("bad", "good", "cut", "truth", "outcome"),
    [
        (HARMLESS, GOOD, 1, "same", 1.0),
        (OPENED, VISIT, 2, "valid", 1.0),
        (FISH, VISIT, 3, "false", 0.0),
        (["look"] * 12, GOOD, 12, "false", 0.0),  # three steps are left, and the good path needs four
    ],
)
def test_the_world_is_asked_whether_a_splice_is_true(world, bad, good, cut, truth, outcome):
    made = spliced(world, bad, good, cut)
    assert (made.truth, made.outcome) == (truth, outcome)
    if truth == "same":
        assert [step.command for step in made.demonstration.steps] == [*bad[:cut], note(), *good]


def test_kept_splices_replay_to_their_reward_with_the_observations_that_come(world):
    for bad, good, cut in ((HARMLESS, GOOD, 1), (OPENED, VISIT, 2)):
        made = spliced(world, bad, good, cut)
        env, steps, total = world[0].base, made.demonstration.steps, 0.0
        env.reset(options={"task_id": TASK})
        for step in steps:
            if not step.info.get("revision"):
                observation, reward, *_ = env.step(step.command)
                assert observation == step.observation
                total += reward
        assert total == made.outcome == 1.0


def test_bad_steps_are_shown_and_the_signal_and_the_good_ones_imitated(world):
    made = spliced(world, FISH, VISIT, 3, played=False)
    assert [step.imitated for step in made.demonstration.steps] == [False] * 3 + [True] * (len(VISIT))
    assert [step.command for step in made.demonstration.steps][3] == note()
    recorded = [step.observation for step in made.demonstration.steps[4:]]
    tree = tree_of(world, VISIT)
    assert recorded == [turn.observation for turn in tree.trajectory(leaf(tree, VISIT)).turns[1:]], "as published"
    assert made.truth == "false", "what is published is known to be false here"


def test_the_cut_lies_behind_the_divergence(world):
    with pytest.raises(ValueError, match=r"\(1, 4\]"):
        spliced(world, FISH, VISIT, 1)


@pytest.mark.parametrize(("form", "command", "answer"), [("note", note(), "OK."), ("action", "wait", "ok.")])
def test_forms_of_the_signal(world, form, command, answer):
    step = spliced(world, HARMLESS, GOOD, 1, form=form).demonstration.steps[1]
    assert (step.command, step.observation, step.imitated) == (command, answer, True)
    assert len(spliced(world, HARMLESS, GOOD, 1, form="none").demonstration.steps) == 5


def test_a_note_on_a_path_is_replayed_without_the_world(world):
    path = ["go to counter", note(), *GOOD]
    tree = tree_of(world, path)
    turns = tree.trajectory(leaf(tree, path)).turns
    assert turns[1].observation == "OK."
    found = replay(world[0].base, "RoleAgent/Toy-v0", TASK, turns)
    assert [answer for answer, _ in found.answers] == [turn.observation for turn in turns]
    assert found.outcome == 1.0


def test_a_false_splice_is_searched_on_from_the_true_state(world, monkeypatch):
    split, policy = world
    rollout = split.rollout(policy)
    tree = tree_of(world, FISH, VISIT)
    bad = tree.trajectory(leaf(tree, FISH))
    signal = signal_of("note", "I look again.", rollout)
    way = iter(["go to tray", "move fish to tray", *GOOD])
    asked = []

    def generate(requests, temperature):
        asked.append(len(requests))
        text = rollout.reader.write(next(way))
        return [rollout.text_reply(text, rollout.action_stops) for _ in requests]

    monkeypatch.setattr(policy, "generate", generate)
    [[episode]] = search_on(rollout, [(bad, 3, signal)], 1)
    assert asked == [1] * 6, "the bad steps and the signal are given, not sampled"
    assert episode.success
    made = continued(split.base, episode, 3, True)
    assert [step.imitated for step in made.demonstration.steps] == [False] * 3 + [True] * 7
    assert made.demonstration.steps[3].observation == "OK."
    assert made.bad_step == "take fish from cupboard 2"

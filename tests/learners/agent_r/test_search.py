"""Search trees: exact episodes, UCT, what an expansion makes, and restored states."""

import itertools
import json
import math
from collections import Counter
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import TASKS, TEMPLATE, Script, qwen

from roleagent.agents.builders import EnvSplit
from roleagent.config import load
from roleagent.envs.restoring import RecordedStep, ReplayMismatch, Restorer
from roleagent.envs.wrappers import Tags
from roleagent.learners.agent_r.search import Node, Search, Tree, common_ancestor, select, uct_score
from roleagent.learners.agent_r.search_trees import batch_file, read_trees, stored_trees, write_trees
from roleagent.learners.agent_r.search_trees import main as show_trees
from roleagent.learners.run.checkpoints import save_policy
from roleagent.options import ConfigError
from roleagent.sharing import Restorable
from roleagent.types import Task


def opened(policy, *overrides):
    config = load(
        None,
        ["method=agent_r", "env.id=RoleAgent/Toy-v0", "env.train_split=train", "rollout.action_tokens=12", *overrides],
    )
    split = EnvSplit.open(config, "train")
    return split, Search.open(split, policy)


def rngs(n, seed=0):
    return [np.random.default_rng((seed, number)) for number in range(n)]


WAYS = ("go to {}", "open {}", "take {} from {}", "look", "nonsense")
NAMES = ("cupboard 1", "drawer 2", "table", "egg", "stove", "fridge", "counter")


def explorer(seed):
    """A policy that says commands at random, many of which work."""
    rng = np.random.default_rng(seed)

    def reply(prompt, slot):
        command = str(rng.choice(WAYS))
        return f"<action>{command.format(*rng.choice(NAMES, 2))}</action>"

    return Script(reply)


@pytest.mark.parametrize("style", ["transcript", "window"])
def test_a_path_is_the_episode_that_a_rollout_with_the_same_replies_records(style):
    policy = qwen(context=1024)
    split, search = opened(policy, "options.search.simulations=3", "options.search.depth=6", f"prompt.style={style}")
    trees = search.search(TASKS, rngs(len(TASKS)))
    for tree in trees:
        for leaf in tree.leaves()[:4]:
            found = tree.trajectory(leaf)
            opening = [node.completion for node in leaf.path()]
            rollout = split.rollout(policy)
            rollout.config = search.rollout.config
            group = rollout.play([tree.task.task_id], 1, 1.0, openings=[opening])[0]
            played = group.trajectories[0]
            assert len(played.turns) >= len(found.turns) > 0
            assert played.turns[: len(found.turns)] == found.turns, "token for token"
            assert played.initial_observation == found.initial_observation
            assert found.task == played.task


@pytest.mark.parametrize("rollouts", [0, 2])
def test_snapshots_and_replay_give_the_same_trees(rollouts):
    def searched(replay):
        _, search = opened(explorer(1), f"options.search.rollouts={rollouts}")
        search.search(TASKS, rngs(3))  # makes the worlds
        for world in search._worlds:
            world.restorer.replay = replay
        search.rollout.policy.reply = explorer(2).reply
        trees = search.search(TASKS, rngs(3, seed=5))
        return search.stats, [
            [
                (n.number, n.parent and n.parent.number, n.command, n.observation, n.outcome, n.visits)
                for n in tree.nodes
            ]
            for tree in trees
        ]

    by_snapshot, trees = searched(replay=False)
    by_replay, same = searched(replay=True)
    assert trees == same
    assert by_snapshot.snapshots > 100
    assert by_snapshot.replays == 0
    assert by_replay.replays > 100
    assert by_replay.mismatches == 0


def test_a_world_without_snapshots_is_replayed(monkeypatch):
    monkeypatch.delattr(Restorable, "snapshot")
    _, search = opened(explorer(1))
    trees = search.search(TASKS, rngs(3))
    assert {tree.error for tree in trees} == {""} and all(tree.leaves() for tree in trees)
    assert search.stats.replays > 100 and search.stats.snapshots == search.stats.mismatches == 0


def test_a_world_without_snapshots_takes_none_from_the_next_one(monkeypatch):
    """Worlds are used again: behind a tree in ScienceWorld those of TextCraft were replayed, too."""
    env = gymnasium.make("RoleAgent/Toy-v0")
    env.reset(seed=0)
    restorer = Restorer(env)
    with monkeypatch.context() as patched:
        patched.setattr(Restorable, "snapshot", Mock(side_effect=NotImplementedError))
        assert restorer.save() is None
    assert restorer.save() is not None


def test_a_limit_of_steps_goes_back_with_the_state():
    env = gymnasium.make("RoleAgent/Toy-v0", max_episode_steps=3)
    env.reset(seed=0)
    restorer = Restorer(env)
    start = restorer.save()
    for _ in range(2):
        assert not any(env.step("look")[3] for _ in range(2))
        assert env.step("look")[3]
        restorer.restore(start, "", ())


def test_a_search_may_begin_where_an_expert_has_come_to():
    policy = explorer(3)
    for head in (0.0, 0.5):
        split, search = opened(policy, f"options.search.expert_prefix={head}", "options.search.simulations=4")
        trees = search.search(TASKS, rngs(len(TASKS)))
        for tree in trees:
            given = [node for node in tree.nodes if node.is_given]
            assert not tree.error and bool(given) == bool(head)
            assert all(one.children == [other] for one, other in zip([tree.root, *given], given, strict=False))
            assert tree.start is (given or [tree.root])[-1] and not any(node.is_given for node in tree.leaves())
            leaf = tree.leaves()[-1]
            assert all(node in leaf.path() for node in given) and leaf.depth > len(given)
            opening = [node.completion for node in leaf.path()]
            played = split.rollout(policy).play([tree.task.task_id], 1, 1.0, openings=[opening])[0].trajectories[0]
            turns = tree.trajectory(leaf).turns
            assert [turn.observation for turn in played.turns[: len(turns)]] == [turn.observation for turn in turns]
    last = Script(lambda prompt, slot: "<action>move egg to table</action>")
    for head, wins in ((0.0, False), (0.99, True)):
        [tree] = opened(last, f"options.search.expert_prefix={head}")[1].search(["bring-egg-table-1"], rngs(1))
        assert any(leaf.outcome for leaf in tree.leaves()) == wins


def test_replies_with_one_command_are_one_child_and_malformed_ones_too():
    policy = Script(lambda prompt, slot: ("<action>look</action>", "<action> look </action>", "oops", "what")[slot % 4])
    _, search = opened(policy, "options.search.simulations=1", "options.search.depth=1")
    (tree,) = search.search(TASKS[:1], rngs(1))
    look, malformed = tree.root.children
    assert (look.command, look.multiplicity) == ("look", 2)
    assert (malformed.command, malformed.multiplicity) == ("", 2)


def test_no_path_is_longer_than_the_depth_and_ends_there():
    _, search = opened(explorer(0), "options.search.depth=3", "options.search.simulations=5")
    (tree,) = search.search(TASKS[:1], rngs(1))
    assert {leaf.stop_reason for leaf in tree.leaves()} <= {"depth", "won"}
    assert max(node.depth for node in tree.nodes) == 3, "not one level more"
    assert all(leaf.depth == 3 for leaf in tree.leaves() if leaf.stop_reason == "depth")
    assert tree.trajectory(tree.leaves()[0]).truncated


def test_every_leaf_counts_once_for_every_node_above_it():
    _, search = opened(explorer(3), "options.search.simulations=6")
    for tree in search.search(TASKS, rngs(3)):
        leaves = tree.leaves()
        for node in tree.nodes:
            below = [leaf for leaf in leaves if node in leaf.ancestors()]
            assert (node.visits, node.value_sum) == (len(below), sum(leaf.outcome for leaf in below))
        assert tree.simulations == 6 or tree.root.exhausted


@pytest.mark.parametrize("rollouts", [1, 3])
def test_rollouts_are_unbranched_paths_that_selection_does_not_see(rollouts):
    _, search = opened(explorer(4), f"options.search.rollouts={rollouts}", "options.search.simulations=3")
    (tree,) = search.search(TASKS[:1], rngs(1))
    simulated = [node for node in tree.nodes if node.simulated]
    assert all(len(node.children) <= 1 for node in simulated)
    assert all(child.simulated for node in simulated for child in node.children)
    begun = [node.parent for node in simulated if not node.parent.simulated]
    assert set(Counter(id(node) for node in begun).values()) == {rollouts} and len(begun) == 3 * rollouts
    assert sum(node.is_leaf for node in simulated) == len(begun)
    assert not any(node.simulated for above in tree.nodes for node in above.open_children)


def test_rollouts_without_a_tree_begin_anew_each_time():
    options = (
        "options.search.rollouts=1",
        "options.search.num_children=1",
        "options.search.simulations=32",
        "options.search.depth=4",
    )
    _, search = opened(explorer(4), *options)
    trees = search.search(TASKS, rngs(3))
    for tree in trees:
        assert tree.simulations == len(tree.leaves()) == len(tree.root.children) == tree.root.visits == 32
        assert len({node.command for node in tree.root.children}) > 5, "their first replies are independent"
    assert search.stats.requests == sum(len(tree.nodes) - 1 for tree in trees)


def test_one_call_samples_for_all_trees():
    policy = explorer(0)
    _, search = opened(policy, "options.search.simulations=2", "options.search.depth=4")
    search.search(TASKS, rngs(3))
    stats = search.stats
    assert stats.calls <= 2 * 4, "a call for each level of a simulation"
    assert stats.requests == 4 * stats.expansions > 3 * 4 * 4
    assert stats.errors == 0


def test_an_episode_without_room_for_another_reply_is_a_leaf():
    policy = explorer(0)
    policy.context_length = 150
    _, search = opened(policy)
    (tree,) = search.search(TASKS[:1], rngs(1))
    assert "context" in {leaf.stop_reason for leaf in tree.leaves()}


def test_a_world_that_fails_ends_its_own_tree_alone():
    _, search = opened(explorer(0), "options.search.simulations=1")
    search.search(TASKS, rngs(3))

    def fail(action):
        raise RuntimeError("the stove\nburns")

    search._worlds[1].env.unwrapped.step = fail
    first, second, third = search.search(TASKS, rngs(3))
    assert second.error.startswith("RuntimeError: the stove burns")
    assert first.leaves()
    assert third.leaves()
    assert search.stats.errors == 1


# --- selection --------------------------------------------------------------------------------------------------------


def family(numbers):
    """A node with children of these (visits, value sum, is leaf)."""
    tree = Tree(Task("x", "y"), Node())
    for visits, value, leaf in numbers:
        child = Node(parent=tree.root, visits=visits, value_sum=value, stop_reason="won" if leaf else "")
        tree.add(child)
        tree.root.visits += visits
    return tree


child_numbers = st.integers(0, 6).flatmap(
    lambda visits: st.tuples(st.just(visits), st.floats(0, visits), st.booleans())
)


@given(st.lists(child_numbers, min_size=1, max_size=5), st.floats(0, 2))
def test_the_chosen_child_has_the_largest_score(numbers, exploration):
    tree = family(numbers)
    chosen = select(tree, tree.root, exploration, np.random.default_rng(0))
    total = sum(visits for visits, _, _ in numbers)
    scores = [
        -math.inf
        if leaf
        else value / visits + exploration * math.sqrt(math.log(total) / visits)
        if visits
        else math.inf
        for visits, value, leaf in numbers
    ]
    if max(scores) == -math.inf:
        assert chosen is None
        assert tree.root.exhausted
    else:
        assert scores[tree.root.children.index(chosen)] == max(scores)


def test_ties_and_unvisited_children_are_drawn_and_a_worthless_root_is_searched():
    tree = family([(0, 0.0, False)] * 3)
    found = {select(tree, tree.root, 0.25, np.random.default_rng(n)).number for n in range(40)}
    assert found == {1, 2, 3}
    assert tree.chosen_by_uct == 0, "a first visit is no choice by UCT"
    tree = family([(2, 0.0, False), (1, 0.0, False)])
    assert select(tree, tree.root, 0.25, np.random.default_rng(0)).number == 2, "the less visited one"
    assert tree.chosen_by_uct == 1
    assert uct_score(tree.root.children[1], 0.25) == 0.25 * math.sqrt(math.log(3))


def test_exhaustion_moves_up():
    tree = family([(1, 0.0, False)])
    (child,) = tree.root.children
    tree.add(Node(parent=child, stop_reason="lost"))
    assert select(tree, child, 0.25, np.random.default_rng(0)) is None
    assert child.exhausted
    assert tree.root.exhausted


def test_the_common_ancestor_is_where_two_paths_part():
    tree = family([(1, 0.0, False), (1, 0.0, False)])
    left, right = tree.root.children
    tree.add(deep := Node(parent=left))
    tree.add(other := Node(parent=left))
    assert common_ancestor(deep, other) is left
    assert common_ancestor(deep, right) is tree.root
    assert common_ancestor(deep, left) is left


# --- restoring --------------------------------------------------------------------------------------------------------


def test_a_replay_that_differs_is_a_mismatch_unless_only_the_wording_does():
    env = Tags(gymnasium.make("RoleAgent/Toy-v0", disable_env_checker=True))
    restorer = Restorer(env, replay=True)
    env.reset(options={"task_id": TASKS[0]})
    text = env.step("<action>look</action>")[0]
    restorer.restore(None, TASKS[0], [RecordedStep("<action>look</action>", text, 0.0, False)])
    assert (restorer.replays, restorer.mismatches) == (1, 0)
    with pytest.raises(ReplayMismatch, match="step 1 of bring-egg-table-1"):
        restorer.restore(None, TASKS[0], [RecordedStep("<action>look</action>", "another", 0.0, False)])
    env.unwrapped.observations_repeat = False
    restorer.restore(None, TASKS[0], [RecordedStep("<action>look</action>", "another", 0.0, False)])
    with pytest.raises(ReplayMismatch):
        restorer.restore(None, TASKS[0], [RecordedStep("<action>look</action>", text, 1.0, True)])
    assert restorer.mismatches == 2


def test_notes_are_part_of_a_snapshot():
    env = Tags(gymnasium.make("RoleAgent/Toy-v0", disable_env_checker=True), revisions=5)
    env.reset(options={"task_id": TASKS[0]})
    restorer = Restorer(env)
    start, note, look = restorer.save(), "<revise>I was wrong.</revise>", "<action>look</action>"
    futures = []
    for first, second in itertools.product((note, look), repeat=2):
        restorer.restore(start, TASKS[0], [])
        env.step(first)
        futures.append(env.step(second)[4]["format_error"] is None)
    assert futures == [False, True, True, True], "only two notes in a row are malformed"


# --- storage ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """A run folder with two batches."""
    _, search = opened(explorer(7), "options.search.simulations=3")
    for batch in (0, 1):
        write_trees(batch_file(tmp_path, 1, batch), search.search(TASKS[: 2 - batch], rngs(2 - batch)))
    return tmp_path


def test_a_stored_tree_is_the_same_tree(tmp_path):
    _, search = opened(explorer(7), "options.search.simulations=3")
    trees = search.search(TASKS, rngs(3))
    path = batch_file(tmp_path, 2, 0)
    write_trees(path, trees)
    again = read_trees(path)
    for tree, same in zip(trees, again, strict=True):
        assert same.task == tree.task
        assert (same.simulations, same.expansions, same.chosen_by_uct) == (
            tree.simulations,
            tree.expansions,
            tree.chosen_by_uct,
        )
        for node, copied in zip(tree.nodes, same.nodes, strict=True):
            assert [child.number for child in copied.children] == [child.number for child in node.children]
            assert (copied.visits, copied.value, copied.stop_reason) == (node.visits, node.value, node.stop_reason)
            if node.completion is not None:
                assert copied.completion.token_ids == node.completion.token_ids
        leaf = tree.leaves()[0]
        played, stored = tree.trajectory(leaf), same.trajectory(same.nodes[leaf.number])
        assert [turn.action for turn in stored.turns] == [turn.action for turn in played.turns]
        assert stored.outcome == played.outcome
        assert [turn.state for turn in stored.turns] == [turn.state for turn in played.turns]
    write_trees(path, again)
    assert [one.name for one in stored_trees(tmp_path)] == ["2.1", "2.2", "2.3"]


def test_the_command_lists_and_shows_trees(run, capsys):
    assert show_trees(["list", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["1.1", "1.2", "1.3"]
    assert lines[3].endswith(TASKS[0])
    tree = next(tree for name, tree in stored_trees(run) if name == "1.2")
    assert show_trees(["show", str(run), "1.2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(tree.nodes) - 1
    assert tree.root.children[0].command in lines[2]
    for wrong in (["show", str(run), "9.9"], ["list", str(run / "none")]):
        assert show_trees(wrong) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("verb", ["list", "lengths"])
def test_the_command_names_the_iterations_that_are_there(verb, run, capsys):
    assert show_trees([verb, str(run), "--iteration", "7"]) == 2
    shown = capsys.readouterr()
    assert not shown.out and shown.err.endswith("has no iteration 7; there are 1\n")
    assert show_trees([verb, str(run), "--iteration", "1"]) == 0


def test_the_command_measures_where_a_judge_cuts_lost_paths(run, capsys):
    lost = [leaf for _, tree in stored_trees(run) for leaf in tree.leaves() if not leaf.outcome]
    assert show_trees(["lengths", str(run), "--judge", "last"]) == 0
    mean = sum(leaf.depth for leaf in lost) / len(lost)
    expected = f"last: a mistake in 100.0% of {len(lost)} lost paths; its step in the mean {mean:.2f}, relative"
    assert capsys.readouterr().out.startswith(expected)
    assert show_trees(["lengths", str(run)]) == 0
    assert show_trees(["lengths", str(run), "--judge", "step"]) == 2
    assert "needs --policy" in capsys.readouterr().err


@pytest.mark.parametrize("template", [TEMPLATE, None])
def test_a_model_can_be_the_judge_if_it_follows_instructions(template, run, tmp_path, capsys):
    save_policy(qwen(context=2048, chat_template=template), tmp_path / "judge")
    words = ["lengths", str(run), "--judge", "step", "--policy", str(tmp_path / "judge")]
    assert show_trees(words) == (0 if template else 2)
    shown = capsys.readouterr()
    assert "step: a mistake in " in shown.out if template else "has no template" in shown.err


def test_the_command_shows_what_iterations_found(run, capsys):
    assert show_trees(["counts", str(run)]) == 2 and "no finished iteration" in capsys.readouterr().err
    (run / "revision").mkdir()
    for number, found in ((1, {"pairs": 7, "truth/look/same": 1, "uct_share": 0.03}), (2, {"pairs": 12})):
        (run / f"revision/iteration-{number:03d}.json").write_text(json.dumps(found))
    assert show_trees(["counts", str(run)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["iteration", "1", "2"], ["pairs", "7", "12"], ["uct_share", "0.030", "0"]]


def test_a_damaged_file_is_one_line(run):
    path = batch_file(run, 1, 0)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError, match="cannot be read as search trees"):
        list(stored_trees(run))

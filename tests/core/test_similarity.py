"""LMS against its definition, and groups against comparing all pairs."""

import random
from difflib import SequenceMatcher

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roleagent import similarity
from roleagent.agents.builders import make_wrapped
from roleagent.config import ConfigError, load
from roleagent.learners.advantages import Estimator, states_of
from roleagent.similarity import difflib_ratio, group_states, lms, lms_tokens, similarity_of
from roleagent.types import Completion, Group, Task, Trajectory, Turn

TEXTS = st.text(alphabet="ab 1☀", max_size=12)
STATES = st.lists(st.one_of(st.none(), TEXTS), max_size=25)
THRESHOLDS = st.sampled_from([0.05, 0.5, 0.6, 2 / 3, 0.75, 0.8, 0.9, 1.0])


def lcs(a, b):
    """Length of the longest common subsequence, by the textbook recursion."""
    row = [0] * (len(b) + 1)
    for x in a:
        previous = row
        row = [0]
        for j, y in enumerate(b, 1):
            row.append(previous[j - 1] + 1 if x == y else max(previous[j], row[-1]))
    return row[-1]


def naive_groups(states, threshold, similarity=lms):
    """Connected components by comparing everything with everything."""
    labels = list(range(len(states)))
    for i, a in enumerate(states):
        for j, b in enumerate(states[:i]):
            if a is not None and b is not None and similarity(a, b) >= threshold:
                labels = [labels[j] if label == labels[i] else label for label in labels]
    return labels


def partition(labels, keep=lambda index: True):
    groups = {}
    for index, label in enumerate(labels):
        if keep(index):
            groups.setdefault(label, set()).add(index)
    return {frozenset(group) for group in groups.values()}


@given(TEXTS, TEXTS)
def test_lms_is_its_definition(a, b):
    expected = 2 * lcs(a, b) / (len(a) + len(b)) if a or b else 1.0
    assert lms(a, b) == pytest.approx(expected) and lms(a, b) == lms(b, a)


@given(TEXTS, TEXTS)
def test_difflib_is_what_gigpo_compares_by(a, b):
    assert difflib_ratio(a, b) == SequenceMatcher(None, a, b).ratio() <= lms(a, b) + 1e-9


@given(st.lists(TEXTS, max_size=12), st.sampled_from([0.5, 0.8, 0.9]))
def test_groups_by_any_similarity_are_its_connected_components(states, threshold):
    """difflib looks at the pairs that lms finds alone; a user's function at all."""
    for function in (difflib_ratio, lambda a, b: difflib_ratio(a, b)):
        both = lambda a, b, f=function: max(f(a, b), f(b, a))  # noqa: E731
        found = partition(group_states(states, threshold, function))
        assert found == partition(naive_groups(states, threshold, both))


def test_a_run_scores_predictions_and_groups_states_by_its_similarity():
    config = load(overrides=["env.id=RoleAgent/Toy-v0", "estimator.similarity=difflib"])
    env = make_wrapped(config, "train", 1)
    assert env.get_wrapper_attr("similarity") is difflib_ratio
    turns = tuple(Turn((), Completion((), (), "stop"), "", "", state=state) for state in ("bacbc", "bcabc"))
    group = Group(Task("E-v0", "a"), (Trajectory(Task("E-v0", "a"), turns, True, False, "won"),))
    labels = {}
    for name in ("lcs", "difflib"):
        config = load(overrides=[f"estimator.similarity={name}", "estimator.similarity_threshold=0.7"])
        labels[name] = states_of(group, Estimator.of(config))
    assert labels == {"lcs": [[0, 0]], "difflib": [[0, 1]]}


def test_a_wrong_similarity_is_one_line():
    with pytest.raises(ConfigError, match=r"estimator\.similarity must be one of lcs, difflib or module:"):
        load(overrides=["estimator.similarity=cosine"])
    for name, words in (("math:nothing", "cannot load 'math:nothing'"), ("math:pi", "is no function")):
        with pytest.raises(ConfigError, match=words):
            similarity_of(load(overrides=[f"estimator.similarity={name}"]).estimator.similarity)


@given(TEXTS, TEXTS)
def test_lms_tokens_counts_words(a, b):
    words = a.split(), b.split()
    expected = 2 * lcs(*words) / sum(map(len, words)) if any(words) else 1.0
    assert lms_tokens(a, b) == pytest.approx(expected) and lms_tokens(a, b) == lms_tokens(b, a)


def test_the_number_that_made_hashing_the_default():
    assert lms("cabinet 1 is closed", "cabinet 7 is closed") > 0.9
    assert group_states(["cabinet 1 is closed", "cabinet 7 is closed"]) == [0, 1]
    assert group_states(["cabinet 1 is closed", "cabinet 7 is closed"], 0.9) == [0, 0]


def test_labels_count_from_zero_in_order_of_appearance():
    assert group_states(["b", None, "a", "b", None, "c"]) == [0, -1, 1, 0, -1, 2]
    assert group_states(["b", None, "a", "b", None, "c"], 0.9) == [0, -1, 1, 0, -1, 2]
    assert group_states([]) == group_states([], 0.9) == []
    assert group_states(["", None, ""], 0.5) == [0, -1, 0]


@given(STATES, THRESHOLDS)
def test_groups_are_those_of_comparing_all_pairs(states, threshold):
    known = lambda index: states[index] is not None  # noqa: E731
    labels = group_states(states, threshold)
    assert partition(labels, known) == partition(naive_groups(states, threshold), known)
    assert all((label == -1) == (state is None) for label, state in zip(labels, states, strict=True))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000))
def test_texts_in_different_blocks_meet(seed):
    """With blocks of two, nearly every pair lies in different blocks."""
    rng = random.Random(seed)
    states = ["".join(rng.choices("ab", k=rng.randint(0, 9))) for _ in range(30)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(similarity, "_BLOCK", 2)
        assert partition(group_states(states, 0.8)) == partition(naive_groups(states, 0.8))


@pytest.mark.parametrize("threshold", [0, -0.1, 1.01, float("nan")])
def test_a_threshold_is_a_share(threshold):
    with pytest.raises(ValueError, match=r"must be in \(0, 1\]"):
        group_states(["a"], threshold)

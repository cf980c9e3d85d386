"""Any number of ranks: episodes and tokens are dealt evenly, an update is that of one rank, and another number of ranks
goes on with a checkpoint.

What the processes do is in ``any_ranks.py``.
"""

import os
import queue
import socket
import subprocess
import sys
import threading
import types

import numpy as np
import pytest
import torch
from any_ranks import SAVED, UPDATES
from programs import HANGS, ROOT

from roleagent.config import ConfigError, from_dict
from roleagent.learners.dealing import Minibatch, Outline, SharedPolicy, costs, owners_of, partition
from roleagent.learners.run.launch import check_ranks
from roleagent.types import Completion, Request, Segment


def load_of(sizes, ranks):
    """The largest sum over the mean."""
    sums = np.bincount(partition(sizes, ranks), weights=sizes, minlength=ranks)
    return sums.max() / sums.mean()


@pytest.mark.parametrize("ranks", [8, 16, 32])
def test_skewed_lengths_are_an_equal_load_for_every_rank(ranks):
    rng = np.random.default_rng(0)
    for unfinished in (0.0, 0.4):  # episodes that end at the limit of turns
        turns = np.minimum(rng.lognormal(np.log(15), 0.6, 256), 50)
        turns = np.where(rng.random(256) < unfinished, 50, turns)
        assert load_of((300 + 120 * turns).astype(int).tolist(), ranks) <= 1.05


def test_a_shared_prefix_costs_once_and_what_is_not_trained_nothing():
    def of(trajectory, *ids):
        zeros = (0.0,) * len(ids)
        return Segment(ids, (1,) * len(ids), zeros, zeros, trajectory)

    segments = [of(0, 1, 2, 3, 4), of(0, 1, 2, 5), of(1, 1, 2, 3), of(1, 7, 8)]
    assert costs(segments, [True, True, True, False]) == [4, 1, 3, 0]


def test_the_segments_of_a_trajectory_stay_together_where_a_minibatch_has_whole_groups():
    outline = Outline([[2, 1], [1]], ["a", "a", "b"], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 1, 2], [5, 4, 3, 8], [0, 1, 2])
    assert owners_of(outline, [Minibatch([0, 1, 2], 2), Minibatch([3], 1)], 2) == [1, 1, 0, 1]
    assert owners_of(outline, [Minibatch([0, 1, 2, 3], None)], 2) == [0, 0, 1, 1]


def test_more_ranks_than_episodes_are_refused():
    config = from_dict({"rollout": {"num_groups": 2, "group_size": 3}})
    check_ranks(config, 6)
    with pytest.raises(ConfigError, match="7 ranks for the 6 episodes of an iteration"):
        check_ranks(config, 7)


class Threads:
    """Ranks that are threads of this process."""

    def __init__(self, size):
        self.size, self.mail = size, [queue.SimpleQueue() for _ in range(2 * size)]

    def rank(self, number):
        return types.SimpleNamespace(
            once=lambda act: self.once(number, act),
            gather=lambda value: self.gather(number, value),
            share=lambda items: list(items)[number :: self.size],
        )

    def once(self, number, act):
        if number:
            return self.mail[number].get(timeout=20)
        value = act()
        [self.mail[other].put(value) for other in range(1, self.size)]
        return value

    def gather(self, number, value):
        if number:
            self.mail[self.size + number].put(value)
            return []
        return [value, *(self.mail[self.size + other].get(timeout=20) for other in range(1, self.size))]


class Echo:
    """Replies with the first token of each prompt, and counts."""

    asked = cleared = 0

    def generate(self, requests, temperature):
        self.asked += len(requests)
        return [Completion(request.prompt_ids[:1], (temperature,), "stop") for request in requests]

    def clear_cache(self):
        self.cleared += 1


def test_all_ranks_answer_what_the_first_one_asks():
    ranks, policies = Threads(3), [Echo() for _ in range(3)]
    first, *others = (SharedPolicy(policy, ranks.rank(number)) for number, policy in enumerate(policies))
    threads = [threading.Thread(target=one.serve, daemon=True) for one in others]
    [thread.start() for thread in threads]
    requests = [Request((token, 7), token, 4, frozenset()) for token in range(8)]
    for count in (8, 1, 0):
        replies = first.generate(requests[:count], 0.5)
        assert [reply.token_ids for reply in replies] == [(token,) for token in range(count)]
    first.close()
    [thread.join(20) for thread in threads]
    assert not any(thread.is_alive() for thread in threads)
    assert [policy.asked for policy in policies] == [4, 3, 2]
    assert [policy.cleared for policy in policies] == [0, 3, 3]


class Exhausted(Echo):
    def generate(self, requests, temperature):
        raise RuntimeError("out of memory")


@pytest.mark.parametrize("broken", [0, 1])
def test_an_error_of_one_rank_in_an_answer_lets_no_other_wait(broken):
    """The first rank closes the policy on its way out; the others would have waited for it in the exchange."""
    ranks = Threads(2)
    policies = [Exhausted() if number == broken else Echo() for number in range(2)]
    first, second = (SharedPolicy(policy, ranks.rank(number)) for number, policy in enumerate(policies))
    raised = []

    def serve():
        try:
            second.serve()
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with pytest.raises(RuntimeError, match="out of memory"):
        first.generate([Request((1, 7), 1, 4, frozenset())], 0.5)
    if not broken:  # else the second rank is gone, and its launcher ends the first
        first.close()
    thread.join(20)
    assert not thread.is_alive() and bool(raised) == bool(broken)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What one, two and three ranks did; and what three did from two ranks' state, and two from these three's."""
    folder = tmp_path_factory.mktemp("ranks")

    def together(size, *arguments):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        place = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        processes = [
            subprocess.Popen(
                [sys.executable, str(ROOT / "tests" / "any_ranks.py"), str(folder), *arguments],
                env={**os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "LOCAL_RANK": str(rank), **place},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(size)
        ]
        try:
            said = [process.communicate(timeout=HANGS)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert not any(process.returncode for process in processes), "\n".join(said)

    together(1), together(2), together(3), together(3, "2"), together(2, "3")
    return {file.stem: torch.load(file) for file in folder.glob("*-ranks*.pt")}


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 3])
def test_a_group_that_several_ranks_play_comes_together_in_order(found, size):
    groups = {}
    for rank in range(size):
        own = found[f"{size}-ranks-{rank}"]["episodes in turn"]
        assert [int(task.removeprefix("task-")) % size for task, _ in own] == [rank] * len(own)
        groups.update(own)
    for group in range(10):
        numbers = [episode // size for episode in range(5 * group, 5 * group + 5)]  # in the order of one rank
        assert groups[f"task-{group}"] == [str(number) for number in numbers if number != 2]  # which failed
    *others, last = (found[f"{size}-ranks-{rank}"]["episodes to the last"] for rank in range(size))
    assert [task for task, _ in last] == ["task-0", "task-1", "task-2"] and not any(others)


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", UPDATES)
def test_an_update_is_that_of_one_rank(found, name, size):
    alone, first = found["1-ranks-0"][f"update {name}"], found[f"{size}-ranks-0"][f"update {name}"]
    for expected, metrics in zip(alone["metrics"], first["metrics"], strict=True):
        assert expected["grad_norm"] > 1e-3
        assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-6)
    for rank in range(size):
        weights = found[f"{size}-ranks-{rank}"][f"update {name}"]["weights"]
        for weight, expected in alone["weights"].items():
            # A step is 1e-3. AdamW enlarges rounding where a gradient is nearly 0.
            torch.testing.assert_close(weights[weight], expected, rtol=0, atol=3e-4)


@pytest.mark.long
@pytest.mark.parametrize("case", SAVED, ids=str)
def test_another_number_of_ranks_goes_on_with_the_same_weights_and_optimizer(found, case):
    name = "{} {}".format(*case)
    two, three, again = (found[run][name] for run in ("2-ranks-0", "3-ranks-from-2-0", "2-ranks-from-3-0"))
    for run in (three, again):
        assert run["steps"] == two["steps"]
        for weight, kept in two["kept"].items():
            assert torch.equal(run["kept"][weight], kept)
    for weight, expected in two["weights"].items():
        assert torch.equal(again["weights"][weight], expected)  # there and back
        near = 1e-2 if name.startswith("bf16") else 3e-4
        torch.testing.assert_close(three["weights"][weight], expected, rtol=0, atol=near)

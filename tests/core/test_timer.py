"""Where the time goes: the parts add up to the whole, whatever happens within them."""

import pytest

from roleagent.timer import Timer


class Clock:
    """A clock that a test turns."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def spend(watch, clock, name, seconds, within=()):
    """A part that takes some seconds, and then what runs ``within`` it: (name, seconds) one after another."""
    with watch(name):
        clock.now += seconds
        for inner in within:
            spend(watch, clock, *inner)


@pytest.mark.parametrize(
    "parts, expected",
    [
        ([("update", 2.0), ("update", 3.0)], {"update": 5.0}),
        ([("environment", 4.0, [("scoring", 1.5)])], {"environment": 4.0, "scoring": 1.5}),
        ([("update", 1.0, [("sync", 2.0, [("update", 4.0)])])], {"update": 5.0, "sync": 2.0}),
    ],
    ids=["again", "nested", "nested in itself"],
)
def test_every_second_is_booked_once(clock, parts, expected):
    watch, begun = Timer(clock), clock.now
    for part in parts:
        clock.now += 0.25  # nobody's
        spend(watch, clock, *part)
    assert dict(watch.seconds) == expected
    assert sum(watch.seconds.values()) == clock.now - begun - 0.25 * len(parts)


def test_of_those_who_work_at_once_the_slowest_counts(clock):
    one, other = Timer(clock), Timer(clock)
    spend(one, clock, "update", 3.0)
    spend(other, clock, "update", 2.0, [("sync", 1.0)])
    assert Timer.slowest([one, other]) == {"sync": 1.0, "update": 3.0}

"""Constant data that copies of an environment share.

A pickled or deep-copied environment continues the episode exactly like the original, including random tasks. A deep
copy refers to the same data. A pickle contains only the call that opened them. Loading repeats the call once per
process, so the files must exist and be unchanged. A :class:`Restorable` environment also has snapshots in memory, which
cost microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pickle import PicklingError
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")


class DataChanged(ValueError):
    """The data of a pickled environment have changed; the message is one line."""


class Immutable:
    """Never changes once it is made: a deep copy is the object itself."""

    __slots__ = ()

    def __deepcopy__(self: T, memo: Any) -> T:
        return self


class Opened(Immutable):
    """Data that all environments of a process share; pickles as the call that opened them.

    Attributes:
        origin: that call, a cached function and its arguments; None where the object was made without one.
        digest: differs wherever the data differ.

    Raises:
        PicklingError: on pickling, without such a call.
        DataChanged: on loading, where the data are others by now.
    """

    origin: tuple[Callable[..., Any], tuple[Any, ...]] | None = None
    digest: str

    def __reduce__(self) -> tuple[Any, ...]:
        if self.origin is None:
            raise PicklingError(f"this {type(self).__name__} was not opened from data by name, so it cannot be pickled")
        return _reopen, (*self.origin, self.digest)


def _reopen(function: Callable[..., Any], arguments: tuple[Any, ...], digest: str) -> Any:
    opened = function(*arguments)
    if opened.digest != digest:
        raise DataChanged(
            f"the data at {arguments[0]} are not those of the pickled environment: bring the same data, "
            "or make a new environment"
        )
    return opened


class Restorable:
    """An environment that can go back to any state of its episodes, for a search over actions.

    A class names the attributes that change during an episode. They are texts, numbers, immutable objects, containers
    of these, and objects with a method ``copy()``.

    >>> class Counter(Restorable):
    ...     episode_attributes = ("seen",)
    ...
    ...     def __init__(self):
    ...         self.seen = {"steps": [1]}
    >>> env = Counter()
    >>> before = env.snapshot()
    >>> env.seen["steps"].append(2)
    >>> env.restore(before)
    >>> env.seen
    {'steps': [1]}
    """

    episode_attributes: ClassVar[tuple[str, ...]] = ()

    def snapshot(self) -> dict[str, Any]:
        """The state of the episode, the step count and the end included; without the generator of random tasks.

        It shares constant data with the environment and does not change when the episode goes on.

        Raises:
            NotImplementedError: this episode cannot be copied; replay its commands instead.
        """
        return {name: _copied(self.__dict__[name]) for name in self.episode_attributes if name in self.__dict__}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Goes back to a snapshot of an environment with the same arguments, any number of times."""
        for name in self.episode_attributes:
            self.__dict__.pop(name, None)
        self.__dict__.update({name: _copied(value) for name, value in snapshot.items()})


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_copied(inner) for inner in value]
    return value.copy() if hasattr(value, "copy") else value


__all__ = ["DataChanged", "Immutable", "Opened", "Restorable"]

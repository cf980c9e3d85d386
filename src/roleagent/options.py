"""Errors in a configuration: one line that names the option and, for a misspelled one, the nearest that exists.

And :func:`differing`: where two configurations differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class ConfigError(ValueError):
    """The configuration cannot be used; the message is one line with the change to make."""


def shown(value: object) -> str:
    """A value as an error shows it, in one line that can be read.

    >>> shown("fast"), len(shown("x" * 10_000))
    ("'fast'", 100)
    """
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:99]}…"


def check_finite(value: Any, key: str) -> None:
    """Refuses infinity and NaN anywhere in a value of any type: JSON cannot write them, and no option means them.

    Raises:
        ConfigError: one line that names the key.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key} must be a finite number, not {value}")
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, item in inner:
        check_finite(item, f"{key}.{name}")


def differing(left: Mapping[str, Any], right: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys that differ between two nested mappings.

    >>> differing({"seed": 0, "kwargs": {"size": "tiny"}}, {"seed": 0, "kwargs": {"size": "small"}, "batch": 4})
    ['batch', 'kwargs.size']
    """
    found = []
    for key in sorted({*left, *right}):
        a, b = left.get(key), right.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differing(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(prefix + key)
    return found

"""What a user gives: errors in one line, paths, and where two configurations differ."""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml


class ConfigError(ValueError):
    """The configuration cannot be used; the message is one line with the change to make."""


class UnknownOption(ConfigError):
    """An option that this version does not have."""


def shown(value: object) -> str:
    """A value as an error shows it, in one line that can be read.

    >>> shown("fast"), len(shown("x" * 10_000))
    ("'fast'", 100)
    """
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:99]}…"


class _Loader(yaml.SafeLoader):
    """Refuses a mapping that has a key twice: the first value would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
        seen: set[str] = set()
        for key in (key for key in keys if isinstance(key, yaml.ScalarNode) and key.value != "<<"):
            if key.value in seen:
                problem = f"the key {shown(key.value)} stands twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> Any:
    """The value of a YAML text, without any Python objects.

    Raises:
        yaml.YAMLError: it has none, or a mapping has a key twice.

    >>> parse_yaml("optim: {lr: 1}")
    {'optim': {'lr': 1}}
    """
    return yaml.load(text, Loader=_Loader)


def user_path(path: str | os.PathLike[str]) -> Path:
    """A path as a user gives it: ``~`` at its beginning is the home folder, whatever program passed it on.

    A shell expands ``~/x`` only where it begins a word, so not in ``run_dir=~/x`` or ``--out=~/x``. Taken as it is, it
    would make a folder named ``~``.

    Raises:
        ConfigError: ``~name`` names no user of this machine.

    >>> user_path("~/runs") == Path.home() / "runs", str(user_path("runs/a~b"))
    (True, 'runs/a~b')
    """
    found = os.path.expanduser(path)
    if found.startswith("~"):
        raise ConfigError(f"{shown(found)} names the home of no user here; a name that begins with ~ is written ./~…")
    return Path(found)


def home_expanded(text: str) -> str:
    """A text that may be a path or something else, such as a hub name: as :func:`user_path` if it begins with ``~``."""
    return str(user_path(text)) if text.startswith("~") else text


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

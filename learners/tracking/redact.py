"""A flat configuration without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names.

    >>> flat({"optim": {"lr": 1e-4}, "seed": 0})
    {'optim.lr': 0.0001, 'seed': 0}
    """
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found


# Up to the last @ where there is a password: such URLs may contain a / or an @ in it.
_IN_URL = re.compile(r"(?<=://)(?:[^/:\s]*:\S*|[^/\s]*)@")
_IN_QUERY = re.compile(r"((?:password|passwd|secret|token|key)=)[^&\s]+", re.IGNORECASE)
_SECRET_NAME = re.compile(r"(password|passwd|secret|token|key)$", re.IGNORECASE)


def without_secrets(value: Any, name: str = "") -> Any:
    """A configuration without user names and passwords.

    >>> without_secrets({"library": "postgresql://me:pw@host/db?password=x", "env": {"api_key": "abc"}, "tokens": 3})
    {'library': 'postgresql://***@host/db?password=***', 'env': {'api_key': '***'}, 'tokens': 3}
    """
    if isinstance(value, Mapping):
        return {key: without_secrets(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(item, name) for item in value]
    if not isinstance(value, str):
        return value
    if value and _SECRET_NAME.search(name):
        return "***"
    return _IN_QUERY.sub(r"\1***", _IN_URL.sub("***@", value))

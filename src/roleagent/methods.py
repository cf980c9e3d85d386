"""What ``method=NAME`` stands for: options that it sets, below whatever a file or the command line says of them.

A method is one line here. Where it needs an advantage of its own, that is a function in
:mod:`roleagent.learners.advantages`, named by ``estimator.kind``; all else about it is options that any method may
take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METHODS: dict[str, Mapping[str, Any]] = {
    "role_agent": {"estimator": {"kind": "role_agent"}},
    "gigpo": {"estimator": {"kind": "gigpo"}},
    "grpo": {"estimator": {"kind": "grpo"}},
}

"""Curricula: the failure library, its analysts and the task samplers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roleagent.curricula.failure_sampler import CurriculumSampler
    from roleagent.curricula.library import FailureLibrary, LibraryError
    from roleagent.curricula.rule_analyst import RuleAnalyst
    from roleagent.curricula.samplers import UniformSampler

_PLACES = {
    "CurriculumSampler": "failure_sampler",
    "FailureLibrary": "library",
    "LibraryError": "library",
    "RuleAnalyst": "rule_analyst",
    "UniformSampler": "samplers",
}
__all__ = ["CurriculumSampler", "FailureLibrary", "LibraryError", "RuleAnalyst", "UniformSampler"]


def __getattr__(name: str) -> Any:
    """Imports a name at its first use, because not every module here needs SQLAlchemy."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)

"""Curricula: the failure library, its analysts and the task samplers."""

from typing import TYPE_CHECKING

from roleagent.imports import lazy_names

if TYPE_CHECKING:
    from roleagent.curricula.failure_sampler import CurriculumSampler
    from roleagent.curricula.generated_sampler import GeneratedSampler
    from roleagent.curricula.library import FailureLibrary, LibraryError
    from roleagent.curricula.rule_analyst import RuleAnalyst
    from roleagent.curricula.samplers import TypeSampler, UniformSampler
    from roleagent.curricula.simulators import TableSimulator

__all__ = [
    "CurriculumSampler",
    "FailureLibrary",
    "GeneratedSampler",
    "LibraryError",
    "RuleAnalyst",
    "TableSimulator",
    "TypeSampler",
    "UniformSampler",
]
__getattr__ = lazy_names(
    __name__,
    {
        "CurriculumSampler": "failure_sampler",
        "FailureLibrary": "library",
        "GeneratedSampler": "generated_sampler",
        "LibraryError": "library",
        "RuleAnalyst": "rule_analyst",
        "TableSimulator": "simulators",
        "TypeSampler": "samplers",
        "UniformSampler": "samplers",
    },
)

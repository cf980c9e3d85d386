"""What to play next: the failure library, its analysts and the task samplers."""

from roleagent.curricula.curriculum import CurriculumSampler
from roleagent.curricula.library import FailureLibrary, LibraryError
from roleagent.curricula.rules import RuleAnalyst
from roleagent.curricula.samplers import UniformSampler

__all__ = ["CurriculumSampler", "FailureLibrary", "LibraryError", "RuleAnalyst", "UniformSampler"]

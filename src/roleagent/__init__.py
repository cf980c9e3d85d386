"""RoleAgent: Gymnasium environments for language-model agents, and a trainer for them.

Importing this package registers the ``RoleAgent/…`` environments and those of installed packages. It loads neither
torch nor any environment:

>>> import gymnasium, roleagent
>>> "RoleAgent/ALFWorld-v0" in gymnasium.registry
True
"""

import sys
from pkgutil import resolve_name

if sys.platform == "win32":  # before anything that needs fcntl, or is a link that Git checks out as a text file here
    sys.exit(
        "RoleAgent runs on Linux and macOS. On Windows use WSL: run 'wsl --install', and clone and install the project "
        "inside it (https://learn.microsoft.com/windows/wsl/install)"
    )

from roleagent.api import EvaluationResult, Summary, TrainingResult, evaluate, train
from roleagent.callbacks import Callback
from roleagent.env_card import (
    CommandForm,
    EnvCard,
    ExampleStep,
    Instructions,
    card_of,
    make_expert,
    register_env,
    register_installed,
)
from roleagent.options import ConfigError
from roleagent.types import (
    Completion,
    Failure,
    Group,
    Prediction,
    Reflection,
    Segment,
    Selection,
    Task,
    Trajectory,
    Turn,
)

__version__ = "0.1.0"
__all__ = [
    "Callback",
    "CommandForm",
    "Completion",
    "ConfigError",
    "EnvCard",
    "EvaluationResult",
    "ExampleStep",
    "Failure",
    "Group",
    "Instructions",
    "Prediction",
    "Reflection",
    "Segment",
    "Selection",
    "Summary",
    "Task",
    "TrainingResult",
    "Trajectory",
    "Turn",
    "__version__",
    "card_of",
    "evaluate",
    "make_expert",
    "register_env",
    "train",
]

# The environments of RoleAgent, one line each. A card is strings only: gymnasium.make imports the environment.
register_env(resolve_name("roleagent.envs.toy.card:CARD"))
register_env(resolve_name("roleagent.envs.alfworld.card:CARD"))
register_env(resolve_name("roleagent.envs.webshop.card:CARD"))
register_env(resolve_name("roleagent.envs.searchqa.card:CARD"))
register_env(resolve_name("roleagent.envs.textcraft.card:CARD"))
register_env(resolve_name("roleagent.envs.scienceworld.card:CARD"))
register_env(resolve_name("roleagent.envs.textworldexpress.card:CARD"))
register_env(resolve_name("roleagent.envs.textworld.card:CARD"))
register_env(resolve_name("roleagent.envs.tools.card:CARD"))
register_env(resolve_name("roleagent.envs.office.card:CARD"))
register_env(resolve_name("roleagent.envs.bfcl.card:CARD"))
register_env(resolve_name("roleagent.envs.apibank.card:CARD"))
register_env(resolve_name("roleagent.envs.travelplanner.card:CARD"))
register_installed()

"""RoleAgent: Gymnasium environments for language-model agents, and a trainer for them.

Importing this package registers the ``RoleAgent/…`` environments and those of installed packages. It loads neither
torch nor any environment:

>>> import gymnasium, roleagent
>>> "RoleAgent/ALFWorld-v0" in gymnasium.registry
True
"""

from pkgutil import resolve_name

from roleagent.env_spec import EnvSpec, register, register_installed, spec_of
from roleagent.types import Completion, Group, Prediction, Segment, Task, Trajectory, Turn

__version__ = "0.1.0"
__all__ = [
    "Completion",
    "EnvSpec",
    "Group",
    "Prediction",
    "Segment",
    "Task",
    "Trajectory",
    "Turn",
    "__version__",
    "register",
    "spec_of",
]

# The environments of RoleAgent, one line each. A spec is strings only: gymnasium.make imports the environment.
register(resolve_name("roleagent.envs.toy.spec:SPEC"))
register(resolve_name("roleagent.envs.alfworld.spec:SPEC"))
register(resolve_name("roleagent.envs.webshop.spec:SPEC"))
register(resolve_name("roleagent.envs.searchqa.spec:SPEC"))
register(resolve_name("roleagent.envs.textcraft.spec:SPEC"))
register(resolve_name("roleagent.envs.scienceworld.spec:SPEC"))
register(resolve_name("roleagent.envs.tools.spec:SPEC"))
register(resolve_name("roleagent.envs.office.spec:SPEC"))
register(resolve_name("roleagent.envs.bfcl.spec:SPEC"))
register(resolve_name("roleagent.envs.apibank.spec:SPEC"))
register_installed()

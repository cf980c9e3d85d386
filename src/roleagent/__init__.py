"""RoleAgent: Gymnasium environments and a trainer for agents that are also their own world model.

Importing this package registers the ``RoleAgent/…`` environments and loads neither torch nor any environment:

>>> import gymnasium, roleagent
>>> "RoleAgent/ALFWorld-v0" in gymnasium.registry
True
"""

import gymnasium

from roleagent.types import Completion, Group, Prediction, Segment, Task, Trajectory, Turn

__version__ = "0.1.0"
__all__ = ["Completion", "Group", "Prediction", "Segment", "Task", "Trajectory", "Turn", "__version__"]

# String entry points: the module is imported by gymnasium.make, not here. The step limits are the environments' own
# (``max_steps=``), because they are part of the task and of ``info``.
gymnasium.register("RoleAgent/Toy-v0", entry_point="roleagent.envs.toy:ToyKitchen")
gymnasium.register("RoleAgent/ALFWorld-v0", entry_point="roleagent.envs.alfworld.env:ALFWorldEnv")
gymnasium.register("RoleAgent/WebShop-v0", entry_point="roleagent.envs.webshop.env:WebShopEnv")
gymnasium.register("RoleAgent/SearchQA-v0", entry_point="roleagent.envs.searchqa.env:SearchQAEnv")

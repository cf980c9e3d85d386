"""The worlds: Gymnasium environments, wrappers that fit all of them, and adapters to other libraries.

``roleagent.envs.adapters`` has a module for each trainer, such as ``roleagent.envs.adapters.trl``.
"""

from typing import TYPE_CHECKING

from roleagent.imports import lazy_names

if TYPE_CHECKING:
    from roleagent.envs.adapters.chat import ChatEpisode, GroupObserver
    from roleagent.envs.adapters.remote import RemoteEnv
    from roleagent.envs.adapters.vector import make_vector
    from roleagent.envs.registry import make
    from roleagent.envs.tools import ToolEnv, ToolError, tool
    from roleagent.envs.tools.views import ToolView
    from roleagent.envs.wrappers import FailureCurriculum, PredictedState, Tags, ToolTags

__all__ = [
    "ChatEpisode",
    "FailureCurriculum",
    "GroupObserver",
    "PredictedState",
    "RemoteEnv",
    "Tags",
    "ToolEnv",
    "ToolError",
    "ToolTags",
    "ToolView",
    "make",
    "make_vector",
    "tool",
]
__getattr__ = lazy_names(
    __name__,
    {
        "ChatEpisode": "adapters.chat",
        "FailureCurriculum": "wrappers",
        "GroupObserver": "adapters.chat",
        "PredictedState": "wrappers",
        "RemoteEnv": "adapters.remote",
        "Tags": "wrappers",
        "ToolEnv": "tools",
        "ToolError": "tools",
        "ToolTags": "wrappers",
        "ToolView": "tools.views",
        "make": "registry",
        "make_vector": "adapters.vector",
        "tool": "tools",
    },
)

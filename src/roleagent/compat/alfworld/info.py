"""The location of ALFWorld's data, as in the ``alfworld`` package."""

import os

from roleagent.options import home_expanded

ALFWORLD_DATA = os.getenv("ALFWORLD_DATA", os.path.expanduser("~/.cache/alfworld"))
"""The folder at the time of the import. The folder is not created, and the environment variable is not set."""


def expand(path: str) -> str:
    """The path with ``~`` and its environment variables replaced.

    ``ALFWORLD_DATA`` is alfworld's cache folder where it is unset.

    >>> expand("a folder")
    'a folder'
    """
    if "ALFWORLD_DATA" not in os.environ:
        default = os.path.expanduser("~/.cache/alfworld")
        path = path.replace("${ALFWORLD_DATA}", default).replace("$ALFWORLD_DATA", default)
    return home_expanded(os.path.expandvars(path))


__all__ = ["ALFWORLD_DATA", "expand"]

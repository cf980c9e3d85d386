"""Imports of a user's own modules, the places of their errors, and names that are imported at their first use."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roleagent.options import ConfigError

_PACKAGE = Path(__file__).parent
_SELF_EXPLAINING = (ImportError, AttributeError, SyntaxError)  # of an import


@contextmanager
def searched_first(folder: str | None = None) -> Iterator[None]:
    """Modules are searched in a folder first, for as long as the context lasts; None: in the working directory."""
    place = os.getcwd() if folder is None else folder
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.path.remove(place)


def load_object(name: str) -> Any:
    """What ``module:NAME`` names; the working directory is searched first.

    Raises:
        ConfigError: it cannot be imported.
    """
    module, _, attribute = name.partition(":")
    if module.startswith((".", "/")) or module.endswith(".py"):
        raise ConfigError(f"cannot load {name!r}: write the module's name, such as my_file:Name for my_file.py")
    try:
        with searched_first():
            return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # whatever a user's module does while it is imported
        raise ConfigError(f"cannot load {name!r}: {error_line(error, _SELF_EXPLAINING)}") from error


def place_of(error: BaseException) -> str:
    """Where a user's own code raised an error, or called what raised it, as ``" (FILE:LINE)"``; else empty."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [Path(frame.filename).is_relative_to(_PACKAGE) for frame in frames]
    called = frames[ours.index(True) :] if any(ours) else []  # before it stands the program that called this package
    others = (str(_PACKAGE), "site-packages", "dist-packages", sysconfig.get_paths()["stdlib"], "<")
    users = [frame for frame in called if not any(other in frame.filename for other in others)]
    return f" ({users[-1].filename}:{users[-1].lineno})" if users else ""


def error_line(error: BaseException, plain: tuple[type[BaseException], ...] = ()) -> str:
    """``"TYPE: MESSAGE (FILE:LINE)"``, in one line; the place as :func:`place_of` says it.

    Args:
        plain: types of errors whose messages need no type before them.
    """
    kind = "" if isinstance(error, plain) else f"{type(error).__name__}: "
    return " ".join(f"{kind}{error}{place_of(error)}".split())


def load_class(name: str, *methods: str) -> type:
    """The class that ``module:Class`` names; the working directory is searched first.

    Args:
        methods: what the class must have.

    Raises:
        ConfigError: the class cannot be imported or lacks a method.
    """
    found = load_object(name)
    missing = [method for method in methods if not callable(getattr(found, method, None))]
    if not isinstance(found, type):
        raise ConfigError(f"{name!r} is not a class")
    if missing:
        raise ConfigError(f"the class {name!r} has no method {missing[0]}: it needs {', '.join(methods)}")
    return found


def lazy_names(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's ``__getattr__``, which imports a name at its first use, because not everybody needs every module.

    Args:
        package: the name of the package.
        places: the module of each name, relative to the package.
    """

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{places[name]}"), name)

    return load


__all__ = ["error_line", "lazy_names", "load_class", "load_object", "place_of", "searched_first"]

"""A user's texts of prompts (``prompt.templates=FILE``): a YAML file with any of the keys of :data:`PLACEHOLDERS`.

A text names what stands at a place in braces, such as ``{observation}``; ``{{`` and ``}}`` are braces. Texts that the
file leaves out are the project's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from string import Formatter
from typing import Any

import yaml

from roleagent.options import ConfigError, parse_yaml, shown, user_path

PLACEHOLDERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "instructions": ((), ("rules", "form", "thoughts")),
    "first_turn": (("observation",), ("task", "commands")),
    "later_turn": (("observation",), ("task", "commands", "history", "steps")),
    "prediction": (("form",), ("horizon",)),
    "reflection": ((), ("types",)),
    "selection": ((), ("most",)),
    "verdict": ((), ()),
}
"""By text what it must name, and what it may name, too:

================  ====================================================================================================
``instructions``  what the first message begins with: the environment's rules, the form of a reply, and of thoughts
``first_turn``    the first message behind it: task, observation, possible commands
``later_turn``    each later one; in a window with the last steps, and how many steps were taken
``prediction``    asks for the next states: how many, and in which form
``reflection``    asks why an episode failed; the episode follows. ``{types}`` lists the types of failures
``selection``     asks which earlier failures to train on; the list follows. ``{most}``: how many at most
``verdict``       asks whether one action helped; the episode follows
================  ====================================================================================================

A list ``revisions`` has the texts with which Agent-R takes steps back.
"""


@dataclass(frozen=True)
class PromptTemplates:
    """The texts of a file, and none without one.

    Attributes:
        texts: by name.
        revisions: Agent-R's revision thoughts; empty: the project's own.
    """

    texts: Mapping[str, str]
    revisions: tuple[str, ...] = ()

    def fill(self, name: str, **values: object) -> str | None:
        """The text of that name with these values; None if the file has none.

        >>> PromptTemplates({"verdict": "Did {action} help?"}).fill("verdict", action="look")
        'Did look help?'
        """
        text = self.texts.get(name)
        return None if text is None else text.format(**values)


NO_TEMPLATES = PromptTemplates({})


@lru_cache
def read_templates(path: str) -> PromptTemplates:
    """The templates of a file; those of an empty path are none.

    Raises:
        ConfigError: it cannot be read, has an unknown key, or a text lacks a placeholder or names an unknown one.
    """
    if not path:
        return NO_TEMPLATES
    where = f"prompt.templates={path}"
    try:
        tree = parse_yaml(user_path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{where} cannot be read: {' '.join(str(error).split())}") from error
    known = [*PLACEHOLDERS, "revisions"]
    if not isinstance(tree, Mapping) or not tree:
        raise ConfigError(f"{where} must hold texts under the keys {', '.join(known)}")
    if unknown := [key for key in tree if key not in known]:
        raise ConfigError(f"{where} has the unknown key {shown(unknown[0])}: there are {', '.join(known)}")
    revisions = tree.get("revisions", [])
    if not isinstance(revisions, list) or not all(isinstance(text, str) and text.strip() for text in revisions):
        raise ConfigError(f"{where}: revisions must be a list of texts")
    texts = {str(name): text for name, text in tree.items() if name != "revisions"}
    for name, text in texts.items():
        _check_text(f"{where}: {name}", text, *PLACEHOLDERS[name])
    return PromptTemplates(texts, tuple(revisions))


def _check_text(where: str, text: Any, needed: tuple[str, ...], others: tuple[str, ...]) -> None:
    if not isinstance(text, str):
        raise ConfigError(f"{where} must be a text, not {shown(text)}")
    try:
        parts = [part for part in Formatter().parse(text) if part[1] is not None]
    except ValueError as error:
        raise ConfigError(f"{where} is no template ({error}): write {{{{ and }}}} for braces") from error
    known = (*needed, *others)
    for _, name, form, conversion in parts:
        if name not in known or form or conversion:
            listed = ", ".join(f"{{{one}}}" for one in known) or "no placeholder"
            raise ConfigError(f"{where} names {{{name}}}; it may name {listed}")
    for name in needed:
        if name not in [part[1] for part in parts]:
            raise ConfigError(f"{where} lacks {{{name}}}")


__all__ = ["NO_TEMPLATES", "PLACEHOLDERS", "PromptTemplates", "read_templates"]

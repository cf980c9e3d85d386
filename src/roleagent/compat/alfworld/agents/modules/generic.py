"""``alfworld.agents.modules.generic``: the configuration of a command line."""

from __future__ import annotations

import argparse
from typing import Any

import yaml


def load_config() -> dict[str, Any]:
    """The configuration file that the command line names, with the settings of ``-p section.key=value`` in it.

    The values of ``-p`` are strings, as in the original.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("config_file", help="path of the configuration, a YAML file")
    parser.add_argument("-p", "--params", nargs="+", metavar="my.setting=value", default=[], help="override settings")
    arguments = parser.parse_args()
    try:
        with open(arguments.config_file, encoding="utf-8-sig") as file:
            config = yaml.safe_load(file)
    except (OSError, yaml.YAMLError) as error:
        parser.error(f"cannot read {arguments.config_file}: {str(error).splitlines()[0]}")
    for setting in arguments.params:
        name, found, value = setting.partition("=")
        *sections, key = name.split(".")
        section = config
        for part in sections:
            section = section.get(part) if isinstance(section, dict) else None
        if not found or not isinstance(section, dict):
            parser.error(f"-p {setting}: expected section.key=value with a section of {arguments.config_file}")
        section[key] = value
    return config


__all__ = ["load_config"]

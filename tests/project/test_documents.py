"""What documents, scripts and plans name exists: options, thresholds, files, functions."""

import dataclasses
import importlib.util
import operator
import re
import sys

import pytest
from commands import PAGES
from gymnasium.error import DependencyNotInstalled
from programs import ROOT

from roleagent.config import Config
from roleagent.learners.agent_r.options import AgentROptions

SECTIONS = [
    field.name
    for field in dataclasses.fields(Config)
    if dataclasses.is_dataclass(getattr(Config(), field.name)) and field.name != "options"  # the method's own
]


def is_option(path):
    """Whether a configuration has something at a dotted path; below a mapping anything may be."""
    place = Config()
    for name in path.split("."):
        if isinstance(place, dict):
            return True
        if not hasattr(place, name):
            return False
        place = getattr(place, name)
    return True


SHELL = [path for path in (*(ROOT / ".ci").iterdir(), *ROOT.glob("benchmarks/*.sh"))]
PLANS = [*(ROOT / "configs").rglob("*.yaml")]
PYTHON = [path for folder in ("benchmarks", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]
OPTION = rf"(?<![\w./-])((?:{'|'.join(SECTIONS)})(?:\.[a-z][a-z_]*)+)"


def relative(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", [*PAGES, *SHELL, *PLANS, *PYTHON], ids=relative)
def test_every_option_that_is_named_exists(page):
    ends = "=" if page in PYTHON else r"(?![\w(.])"  # a program has variables with names of sections
    text = re.sub(r"^EARLIER = .*", "", page.read_text("utf-8"), flags=re.MULTILINE)  # of an earlier program
    named = set(re.findall(OPTION + ends, text))
    others = re.compile(r".*\.(py|jsonl?|md|parquet)|env\.unwrapped(\..*)?")  # files, and the environment itself
    assert {path for path in named if not is_option(path) and not others.fullmatch(path)} == set()


PROGRAMS = [*ROOT.glob("*.py"), *(path for room in ("agents", "src") for path in (ROOT / room).rglob("*.py"))]


def test_no_text_calls_our_prompts_published():
    """They are our own words: what a model does with them is no finding about a paper's prompts."""
    wrong = re.compile(r"published\s+(?:#\s*)?prompts|prompts\s+of\s+the\s+papers?\b")
    pages = (*PAGES, *PLANS, *PYTHON, *PROGRAMS)
    assert [relative(page) for page in pages if wrong.search(page.read_text("utf-8"))] == []


def without_code(page):
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def resolved(name):
    """What a full name stands for: a module, or something within one."""
    parts, rest = name.split("."), []
    while True:
        try:
            module = importlib.import_module(".".join(parts))
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            rest.insert(0, parts.pop())
        else:
            return operator.attrgetter(".".join(rest))(module) if rest else module


NAMES = {name: page for page in PAGES for name in re.findall(r"`(roleagent(?:\.\w+)+)`", without_code(page))}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_what_a_page_names_in_full_exists(name):
    try:
        resolved(name)
    except DependencyNotInstalled as error:  # the adapter to a trainer
        pytest.skip(str(error))


def building(name):
    spec = importlib.util.spec_from_file_location(f"building_{name}", ROOT / "docs" / "building" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_the_page_of_options_has_every_option_with_its_default():
    def options(place, prefix=""):
        for field in dataclasses.fields(place):
            value = getattr(place, field.name)
            if field.name == "options":  # the method's own
                yield field.name, {}
            elif dataclasses.is_dataclass(value):
                yield from options(value, f"{prefix}{field.name}.")
            else:
                yield f"{prefix}{field.name}", value

    reported = {
        f"{section}.{option.name}" if section else option.name: option.default
        for section, _, listed in building("pages").sections()
        for option in listed
    }
    known = {**dict(options(Config())), **dict(options(AgentROptions(), "options."))}
    assert reported.keys() == known.keys()
    shown = {False: "off", True: "on"}
    for name, value in known.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert float(reported[name]) == value, name
        else:
            assert reported[name] == (shown[value] if isinstance(value, bool) else str(value)), name

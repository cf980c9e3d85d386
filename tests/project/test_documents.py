"""What documents, scripts and plans name exists: options, thresholds, files, functions."""

import dataclasses
import doctest
import html
import importlib.util
import operator
import re
import sys

import pytest
import yaml
from commands import PAGES
from gymnasium.error import DependencyNotInstalled
from programs import ROOT

from roleagent.config import Config, from_dict
from roleagent.config.settings import WatchdogConfig
from roleagent.learners.run.watchdog import SIGNS

SECTIONS = [
    field.name for field in dataclasses.fields(Config) if dataclasses.is_dataclass(getattr(Config(), field.name))
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


@pytest.mark.parametrize("script", SHELL, ids=relative)
def test_a_shell_script_names_options_and_files_that_exist(script):
    text = script.read_text("utf-8").replace("\\\n", " ")
    for _, written in re.findall(r"\.yaml\"? <<'(\w+)'\n(.*?)\n\1\n", text, re.DOTALL):
        from_dict(yaml.safe_load(written))
    programs = [*ROOT.glob("*.py"), *PYTHON, *(ROOT / "src").glob("roleagent/*.py"), *ROOT.glob("learners/run/*.py")]
    defined = {flag for path in programs for flag in re.findall(r'"(--[a-z][\w-]*)"', path.read_text("utf-8"))}
    for line in text.splitlines():
        for arguments in re.findall(r"\w+\.py\b(.*)", line):
            assert set(re.findall(r"(?<=\s)--[a-z][\w-]*", arguments)) <= defined, line
    named = re.findall(r"(?<![\w./$-])(?:configs|benchmarks|examples|tests|docs)/[\w/]+(?:\.\w+)?", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_page_on_monitoring_knows_every_alarm_and_its_thresholds():
    page = (ROOT / "docs" / "monitoring.md").read_text("utf-8").split("## The watchdog")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| .* \| (`.*) \|$", page, re.MULTILINE)
    assert {name for names, _ in rows for name in re.findall(r"`(\w+)`", names)} == set(SIGNS)
    reported = {name: float(value) for _, options in rows for name, value in re.findall(r"`(\w+)` \(([\d.]+)", options)}
    reported |= {name: float(value) for name, value in re.findall(r"`(window|patience)` (?:is )?(\d+)", page)}
    reported |= {name: float(value) for name, value in re.findall(r"`(solved)`\s+\(([\d.]+)\)", page)}
    assert reported | {"stop": False} == dataclasses.asdict(WatchdogConfig())


def without_code(page):
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_points_to_exists(page):
    text = without_code(page)
    links = {page.parent / link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link}
    links -= {ROOT / "docs" / "options.md"}  # made when the site is built
    named = re.findall(
        r"(?<![\w./])(?:configs|benchmarks|examples|tests|learners|agents|envs|curricula|reports|src)/[\w/]+\.\w+", text
    )
    assert [str(path) for path in sorted(links | {ROOT / name for name in named}) if not path.exists()] == []


def test_the_tests_that_pages_name_exist():
    """Such as those of the defects of published code, which are promised to stay."""
    written = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = {name for page in PAGES for name in re.findall(r"`(test_[a-z]+_\w+)`", page.read_text("utf-8"))}
    assert named and {name for name in named if f"def {name}(" not in written} == set()


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


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert set(re.findall(r"([\w/]+\.md)$", navigation, re.MULTILINE)) == pages | {"options.md"}


def test_the_page_of_options_has_every_option_with_its_default():
    def options(place, prefix=""):
        for field in dataclasses.fields(place):
            value = getattr(place, field.name)
            if dataclasses.is_dataclass(value):
                yield from options(value, f"{prefix}{field.name}.")
            else:
                yield f"{prefix}{field.name}", value

    reported = {
        f"{section}.{option.name}" if section else option.name: option.default
        for section, _, listed in building("pages").sections()
        for option in listed
    }
    known = dict(options(Config()))
    assert reported.keys() == known.keys()
    shown = {False: "off", True: "on"}
    for name, value in known.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert float(reported[name]) == value, name
        else:
            assert reported[name] == (shown[value] if isinstance(value, bool) else str(value)), name


def test_the_forest_plot_has_a_line_per_row_of_the_table_of_results():
    drawn = (ROOT / "docs" / "pictures" / "forest.svg").read_text("utf-8")
    missing = [row.label for row in building("forest").rows() if html.escape(row.label, quote=False) not in drawn]
    assert not missing, "run: python docs/building/forest.py"


@pytest.mark.parametrize("name", ["docstrings", "forest", "pages"])
def test_the_doctests_of_what_builds_the_site(name):
    pytest.importorskip("griffe", reason="the extra roleagent[docs] is not installed")
    result = doctest.testmod(building(name))
    assert result.attempted > 2 and result.failed == 0

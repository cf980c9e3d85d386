"""What the pages under ``docs/`` name exists: options, thresholds, files."""

import dataclasses
import re

import pytest
from programs import ROOT

from roleagent.config import Config
from roleagent.learners.watchdog import SIGNS
from roleagent.settings import WatchdogConfig

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_option_that_a_page_names_exists(page):
    named = set(re.findall(rf"(?<![\w./-])((?:{'|'.join(SECTIONS)})(?:\.[a-z_]+)+)(?![\w(.])", page.read_text("utf-8")))
    others = re.compile(r".*\.(py|json)|env\.unwrapped\..*")  # files, and the environment itself
    assert {path for path in named if not is_option(path) and not others.fullmatch(path)} == set()


def test_the_page_on_monitoring_knows_every_alarm_and_its_thresholds():
    page = (ROOT / "docs" / "monitoring.md").read_text("utf-8").split("## The watchdog")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| .* \| (`.*) \|$", page, re.MULTILINE)
    assert {name for names, _ in rows for name in re.findall(r"`(\w+)`", names)} == set(SIGNS)
    told = {name: float(value) for _, options in rows for name, value in re.findall(r"`(\w+)` \(([\d.]+)", options)}
    told |= {name: float(value) for name, value in re.findall(r"`(window|patience)` (?:is )?(\d+)", page)}
    told |= {name: float(value) for name, value in re.findall(r"`(solved)`\s+\(([\d.]+)\)", page)}
    assert told | {"stop": False} == dataclasses.asdict(WatchdogConfig())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_points_to_exists(page):
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    links = {page.parent / link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link}
    named = re.findall(
        r"(?<![\w./])(?:configs|benchmarks|examples|tests|learners|agents|envs|curricula|src)/[\w/]+\.\w+", text
    )
    assert [str(path) for path in sorted(links | {ROOT / name for name in named}) if not path.exists()] == []

"""A failure library full of what nobody should write: filed, searched, listed, exported, shown."""

import csv
import io
import json
import re

import pytest
import yaml
from failures import story
from hostile import ODD, TAGS

from roleagent.cli import main
from roleagent.config import Config, to_dict
from roleagent.curricula.library import FailureLibrary
from roleagent.curricula.storage.tables import clean
from roleagent.types import Reflection

HOSTILE = (*ODD, *TAGS, "</script><script>alert(1)</script>", "<!--<script>", "[bold red]x[/]", "=1+1", "\u2028{{x}}")
IDS = [f"{clean(text, 200)} {number}" for number, text in enumerate(HOSTILE)]
"""Ids are the split's, and stay as they are: text that a database takes."""
OBEYED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What a terminal would do rather than show; its own line breaks are fine."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder whose library has every text in every place, in two iterations."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "config.yaml").write_text(yaml.safe_dump(to_dict(Config())))
    library = FailureLibrary(f"sqlite:///{folder}/failures.db")
    filed = []
    for number, text in enumerate(HOSTILE):
        reported = story(("look", text), (text, text), goal=text, task_id=IDS[number], task_type=text)
        filed.append((reported, Reflection(text, text, number % 3, text, text)))
        reported = story((text, "a kitchen"), goal=text, task_id=f"egg-{number}")
        filed.append((reported, Reflection("navigation_loop", text, None, text, text)))
    for iteration in (1, 2):
        assert library.record(filed, iteration) == len(filed)
    library.record_retrievals(2, [(text, IDS[number], "egg-1", text) for number, text in enumerate(HOSTILE)])
    library.close()
    return folder


def said(capsys, *arguments):
    assert main(["failures", *map(str, arguments)]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("verb", [["list", "--limit", "999"], ["modes"], ["growth"]], ids=lambda verb: verb[0])
def test_listings_have_no_control_characters(run, verb, capsys):
    text = said(capsys, verb[0], run, *verb[1:])
    assert len(text.splitlines()) > len(HOSTILE) / 2 and not OBEYED.search(text)


def test_shown_failures_have_no_control_characters(run, capsys):
    for number in range(1, 2 * len(HOSTILE), 7):
        text = said(capsys, "show", run, number)
        assert "look" in text or "a kitchen" in text
        assert not OBEYED.search(text), number


def test_an_export_is_read_back(run, capsys):
    rows = [json.loads(line) for line in said(capsys, "export", run, "--trajectories").split("\n")[:-1]]
    table = list(csv.DictReader(io.StringIO(said(capsys, "export", run, "--format", "csv"))))
    assert len(rows) == len(table) == 4 * len(HOSTILE)
    assert [row["task_id"] for row in rows] == [row["task_id"] for row in table]
    assert {len(row["trajectory"]) for row in rows} == {2, 3}  # the first is what was there at the start
    grown = list(csv.DictReader(io.StringIO(said(capsys, "growth", run, "--csv"))))
    assert len(grown) == len(json.loads(said(capsys, "growth", run, "--json")))

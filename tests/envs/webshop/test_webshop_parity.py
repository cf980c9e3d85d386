"""The shop against recordings of the original: every answer of every recorded step, prices, goals, colors."""

import json
from dataclasses import replace
from html import escape

import pytest
from programs import load

from roleagent.envs.webshop.engine.reward import COLORS
from roleagent.envs.webshop.engine.session import Session

parity = load("benchmarks/parts/webshop_recordings")

RECORDED = {"traces_human.jsonl.gz": (60, 795), "traces_synthetic.jsonl.gz": (220, 3005)}


@pytest.fixture(scope="module")
def stage(webshop_data):
    return parity.Stage(data_dir=webshop_data, nouns=webshop_data / "reference" / "title_nouns.json.gz")


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_step_agrees(stage, webshop_data, name):
    recordings = parity.read_recordings(webshop_data / "reference" / name)
    steps, purchases = 0, 0
    for recording in recordings:
        for differences in parity.replay(stage, recording):
            assert not differences, "\n".join(map(str, differences))
            steps += 1
        purchases += recording.steps[-1]["done"]
    assert (len(recordings), steps) == RECORDED[name] and purchases >= 40


TAGS = {
    "text": "<p>{0}</p>",
    "button": '<button class="btn">{0}</button>',
    "link": '<h4><a class="product-link" href="/">{0}</a></h4>',
    "option": '<input type="radio" value="{0}"><label>{0}</label>',
}


def read_as_the_original(bs4, session):
    """Both readings of the page, ``text`` and ``text_rich``, by the original's rules for strings in HTML."""
    page, instruction = session.page, escape(session.goal.instruction)
    above = "" if page.name == "done" else f"<h4>Instruction:<br>{instruction}</h4>"
    if page.name == "index":
        above = f"<h2>WebShop</h2>\n<h4>Instruction: <br>{instruction}</h4>"
    lines = [above, *(TAGS[part.kind].format(escape(part.text)) for part in page.parts)]
    strings = bs4.BeautifulSoup("\n".join(lines), "html.parser").find_all(string=True)
    rich, strings = "", [string for string in strings if string != "\n"]
    for string in strings:
        line = f"[button] {string} [button_]"
        if string.parent.name == "label":
            line = f"  {line}"
            if f'"{string}"' in session.url:
                rich, line = f"You have clicked {string}.\n{rich}", line.replace("button", "clicked button")
        elif string.parent.name == "a":
            line = "\n" + (line.replace("button", "clicked button") if string in session.visited else line)
        elif string.parent.name != "button":
            line = string
        rich += f"{line}\n"
    return " [SEP] ".join(string.strip() for string in strings), rich


@pytest.mark.slow
def test_rich_text_of_every_recorded_step_is_the_originals(stage, webshop_data):
    bs4 = pytest.importorskip("bs4", reason="needs beautifulsoup4")
    recordings = parity.read_recordings(webshop_data / "reference" / "traces_human.jsonl.gz")
    steps = clicked = 0
    for recording in recordings:
        shop = stage.reset(recording)[0].shop
        session = Session(shop, shop.goals[recording.goal])
        for step in ({"action": None, **recording.start}, *recording.steps):
            session.act(step["action"])
            rich = session.observe("text_rich")
            assert (step["observation"], rich) == read_as_the_original(bs4, session), step["action"]
            steps, clicked = steps + 1, clicked + ("clicked button" in rich)
    assert steps > 800 and clicked > 50


def test_the_replay_sees_every_kind_of_difference(stage, webshop_data):
    """Each answer of a recorded purchase is falsified in turn."""
    recordings = parity.read_recordings(webshop_data / "reference" / "traces_human.jsonl.gz")
    recording = next(r for r in recordings if r.steps[-1]["done"] and len(r.steps) > 4)
    false = {"observation": "WebShop", "reward": 0.123, "done": None, "clickables": ["x"], "has_search_bar": None}
    assert tuple(false) == parity.ANSWERS
    for what, value in false.items():
        for index in (0, len(recording.steps) - 1):
            steps = list(recording.steps)
            steps[index] = {**steps[index], what: value}
            found = [differences for differences in parity.replay(stage, replace(recording, steps=tuple(steps)))]
            assert [len(differences) for differences in found] == [int(i == index) for i in range(len(steps))]
            (difference,) = found[index]
            assert (difference.what, difference.recorded) == (what, value)
            assert len(difference.actions) == index + 1 and f"goal {recording.goal}: {what} after" in str(difference)
    for what in ("observation", "clickables"):
        first, *_ = parity.replay(stage, replace(recording, start={**recording.start, what: None}))
        assert [difference.what for difference in first] == [what]
    first, *_ = parity.replay(stage, replace(recording, instruction="something else"))
    assert first[0].what == "instruction"
    with pytest.raises(parity.RecordingError, match="no goal 1000000"):
        list(parity.replay(stage, replace(recording, goal=1_000_000)))


def test_colors_are_those_of_the_original(webshop_data):
    assert list(COLORS) == json.loads((webshop_data / "reference" / "colours.json").read_text())

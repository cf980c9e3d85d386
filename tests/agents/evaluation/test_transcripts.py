"""Transcripts of an evaluation: every episode is beside its records, and a report shows it."""

import json
import re

import pytest
from fake_openai import KEY, MODEL, message, serving
from programs import load

from roleagent.agents.evaluation.transcripts import read_transcripts, transcripts_of
from roleagent.reports.data.load_evaluation import load_evaluation
from roleagent.reports.data.load_trajectories import RunDataError
from roleagent.reports.report import main as report

evaluate = load("evaluate")
TOY = ("--env", "RoleAgent/Toy-v0", "--split", "valid", "--tasks", "4", "--out", "x.jsonl")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return tmp_path


def play(here, *arguments):
    """The record lines and the transcripts."""
    assert evaluate.main([*TOY, *arguments]) == 0
    path = here / "x.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()[1:]], read_transcripts(path)


def shown(here, capsys):
    """The episodes in the report's file."""
    capsys.readouterr()
    assert report([str(here / "x.jsonl")]) == 0
    page = (here / "x.html").read_text()
    data = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    [run] = json.loads(data[1])["runs"]
    assert run["kind"] == "evaluation" and run["state"] == "finished"
    assert run["evaluations"]["after"]["task_split"]["data"] == {"source": "built in"}
    return run["episodes"]


def test_a_scripted_agents_episodes_agree_with_its_records(here, capsys):
    records, episodes = play(here, "--agent", "expert", "--repeats", "2")
    assert len(episodes) == len(records) == 8
    by_attempt = {(one["repeat"], one["task_id"]): one for one in records}
    for episode in episodes:
        record = by_attempt[episode["member"], episode["task_id"]]
        assert (episode["won"], len(episode["turns"])) == (record["won"], record["steps"])
        assert episode["goal"] and episode["initial_observation"]
        assert all(turn["action"] and turn["observation"] for turn in episode["turns"])
    cards = shown(here, capsys)
    assert {(card["member"], card["task_id"]) for card in cards} == set(by_attempt)
    assert cards[0]["turns"][0]["advantage"] is None


@pytest.mark.parametrize("agent", [(), ("--agent", "plain"), ("--agent", "reflexion", "--agent-arg", "trials=2")])
def test_a_prompted_agents_thoughts_and_usage_are_kept(here, capsys, agent):
    """Of every answer, also of the note that Reflexion writes between two trials."""
    said = message("<think>Aha.</think><action>look</action>", usage=(100, 10), reasoning_content="Look first.")
    with serving(lambda body, number: said, key=KEY) as fake:
        records, episodes = play(here, "--base-url", fake.url, "--model", MODEL, *agent)
    by_task = {record["task_id"]: record for record in records}
    assert len(episodes) == len(by_task) == 4
    for episode in episodes:
        record = by_task[episode["task_id"]]
        asked = [turn["usage"] for turn in episode["turns"]]
        assert sum(one["answers"] for one in asked) == record["usage"]["answers"] == episode["usage"]["answers"]
        assert sum(one["prompt_tokens"] for one in asked) == 100 * record["usage"]["answers"]
        assert {turn["trial"] for turn in episode["turns"]} == set(range(1, record["trials"] + 1))
        assert all("Look first." in turn["thoughts"] and "Aha." in turn["reply"] for turn in episode["turns"])
        if "reflexion" not in agent:  # its form of a command is another
            assert {turn["action"] for turn in episode["turns"]} == {"look"}
    for card in shown(here, capsys):
        assert card["usage"]["completion_tokens"] == 10 * card["usage"]["answers"]
        assert card["turns"][0]["thoughts"].startswith("Look first.")


def test_an_interrupted_evaluation_has_every_episode_once(here):
    _, whole = play(here, "--agent", "random")
    path, log = here / "x.jsonl", transcripts_of(here / "x.jsonl")
    for file, left in ((path, 3), (log, 4)):  # killed between an episode and its record, in the middle of a line
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(lines[:left]) + lines[left - 1][:20])
    _, again = play(here, "--agent", "random")
    assert again == whole
    path.unlink()
    _, other = play(here, "--agent", "expert")  # another evaluation under the same name
    assert len(other) == 4 and other != whole


@pytest.mark.parametrize(
    ("records", "log", "words"),
    [
        ("hello\n", "", "cannot be shown"),
        (None, "{}\n", "damaged"),
        (None, '{"group": 0, "member": 0}\n', "lacks 'turns'"),
    ],
)
def test_what_cannot_be_shown_is_one_line(here, records, log, words):
    play(here, "--agent", "random")
    if records is not None:
        (here / "x.jsonl").write_text(records)
    transcripts_of(here / "x.jsonl").write_text(log)
    with pytest.raises(RunDataError, match=words) as caught:
        load_evaluation(here / "x.jsonl", 150)
    assert "\n" not in str(caught.value)

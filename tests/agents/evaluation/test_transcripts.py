"""Transcripts of an evaluation: every episode is beside its records, and a report shows it."""

import json
import re
from dataclasses import replace

import pytest
from fake_openai import KEY, MODEL, message, serving
from programs import load

from roleagent.agents.evaluation.records import read_records
from roleagent.agents.evaluation.statistics import spending
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


JUDGES = """
asked = []

def short(episode):
    asked.append(episode["task_id"])
    return episode["won"] and len(episode["turns"]) <= 8

def half(episode):
    return 0.5 + 0.5 * episode["won"]

def mixed(episode):
    return True if len(episode["turns"]) <= 8 else 0.25

def fails(episode):
    if episode["group"] == 0:
        raise KeyError("answer")
    return 2
"""


def test_saved_episodes_are_judged_again_and_nothing_is_played(here, capsys, monkeypatch):
    monkeypatch.syspath_prepend(here)
    (here / "judges_of_a_user.py").write_text(JUDGES)
    records, episodes = play(here, "--agent", "expert")
    rescored = ["rescore", "x.jsonl", "--judge", "judges_of_a_user:short"]
    assert evaluate.main(rescored) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    short = sum(record["won"] and record["steps"] <= 8 for record in records)
    assert 0 < short < len(records) and result["success"] == short / len(records)
    judged = read_transcripts(here / "x.short.jsonl")
    assert [one["won"] for one in judged] == [one["won"] and len(one["turns"]) <= 8 for one in episodes]
    assert judged[0]["turns"] == episodes[0]["turns"]
    assert report([str(here / "x.short.jsonl")]) == 0
    # A killed one asks about the rest only.
    import judges_of_a_user

    lines = (here / "x.short.jsonl").read_text().splitlines(keepends=True)
    (here / "x.short.jsonl").write_text("".join(lines[:-1]))
    judges_of_a_user.asked.clear()
    assert evaluate.main(rescored) == 0
    assert judges_of_a_user.asked == [json.loads(lines[-1])["task_id"]]
    assert {one["stop_reason"] for one in judged if not one["won"]} <= {"lost", "max_steps"}
    # What was played anew is judged anew.
    path = here / "x.transcripts.ndjson"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    saved, rows[0]["turns"][0]["action"] = path.read_text(), "another one"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    judges_of_a_user.asked.clear()
    assert evaluate.main(rescored) == 0 and judges_of_a_user.asked == [rows[0]["task_id"]]
    path.write_text(saved)
    assert evaluate.main(rescored) == 0
    capsys.readouterr()
    # It is no other seed of the agent.
    assert evaluate.main(["table", "x.jsonl", "x.short.jsonl"]) == 0
    assert "| expert, judged by judges_of_a_user:short |" in capsys.readouterr().out
    assert evaluate.main(["compare", "x.short.jsonl", "--against", "x.jsonl"]) == 0
    shown = capsys.readouterr().out
    assert "not the same on both sides: judge" in shown
    [found] = json.loads(shown.splitlines()[-1])["comparisons"]
    assert found["success"]["only_second"] == len(records) - short
    assert "judge" not in found["metrics"], "the other side was never judged"
    assert evaluate.main([*rescored[:-1], "judges_of_a_user:half"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["metrics"]["judge"]["mean"] == 1.0
    assert evaluate.main([*rescored[:-1], "judges_of_a_user:mixed"]) == 0
    mean = json.loads(capsys.readouterr().out.splitlines()[-1])["metrics"]["judge"]["mean"]
    assert mean == pytest.approx(0.25 + 0.75 * short / len(records)), "True counts as 1 among scores"


def test_a_judge_that_is_asked_again_spends_no_tokens_again(here):
    play(here, "--agent", "expert")
    header, [first, second, *_], _ = read_records(here / "x.jsonl")
    first, second = (replace(one, usage={"answers": 3, "prompt_tokens": 70}) for one in (first, second))
    failed = replace(first, stop_reason="error", error="judge: KeyError: 'answer'")
    assert spending(header, [failed, second, first])["prompt_tokens"] == 210, "it was played again"
    assert spending({**header, "judge": {"name": "a:b"}}, [failed, second, first])["prompt_tokens"] == 140


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("x.jsonl", "--judge", "judges_of_a_user:nothing"), "cannot load"),
        (("x.jsonl", "--judge", "judges_of_a_user:asked"), "no function"),
        (("x.jsonl", "--judge", "judges_of_a_user:short", "--out", "x.jsonl"), "name another file"),
        (("x.jsonl", "--judge", "judges_of_a_user:fails"), "KeyError: 'answer'"),
        (("y.jsonl", "--judge", "judges_of_a_user:short"), "No such file"),
        (("bare.jsonl", "--judge", "judges_of_a_user:short"), "no transcript"),
    ],
)
def test_what_cannot_be_judged_is_one_line(here, capsys, monkeypatch, arguments, words):
    monkeypatch.syspath_prepend(here)
    (here / "judges_of_a_user.py").write_text(JUDGES)
    play(here, "--agent", "expert")
    (here / "bare.jsonl").write_text((here / "x.jsonl").read_text())
    before = (here / "x.jsonl").read_bytes()
    capsys.readouterr()
    assert evaluate.main(["rescore", *arguments]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
    assert (here / "x.jsonl").read_bytes() == before

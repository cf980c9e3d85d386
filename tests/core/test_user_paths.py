"""What a user gives as a path: ``~`` is the home folder wherever it reaches a program, and a BOM is no content."""

import codecs
import json
from pathlib import Path

import gymnasium
import pytest

from roleagent.agents.evaluation.options import compare_parser, evaluation_parser
from roleagent.agents.evaluation.revision import read_failures
from roleagent.cli import main as roleagent
from roleagent.commands import Parser, out_file, out_folder
from roleagent.config import load
from roleagent.curricula.library import FailureLibrary
from roleagent.envs.adapters.serving import _read_ids
from roleagent.envs.retrieval.passages import Passages
from roleagent.envs.tools.tasks import open_tasks
from roleagent.learners.agent_r.data import read_conversations


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder of its own; the working directory is another one."""
    folder, work = tmp_path / "home", tmp_path / "work"
    folder.mkdir()
    work.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(work)
    yield folder
    assert not list(work.iterdir())  # above all no folder named ~


@pytest.mark.parametrize(
    "option",
    ["run_dir", "policy.path", "options.revision.general"],
)
def test_options_that_are_paths_begin_at_the_home_folder(home, option):
    value = load(overrides=["method=agent_r", f"{option}=~/x"])
    for name in option.split("."):
        value = getattr(value, name)
    assert value in (str(home / "x"), (str(home / "x"),))


def test_configuration_files_are_found_in_the_home_folder(home):
    (home / "base.yaml").write_bytes(codecs.BOM_UTF8 + b"seed: 3\n")
    (home / "run.yaml").write_text("base: ~/base.yaml\n")
    assert load("~/run.yaml").seed == 3


def test_every_path_on_a_command_line_begins_at_the_home_folder(home):
    parser = Parser("program")
    for name, kind in (("--a", Path), ("--b", out_file), ("--c", out_folder)):
        parser.add_argument(name, type=kind)
    options = parser.parse_args(["--a=~/x", "--b=~/x", "--c=~/x"])
    assert [options.a, options.b, options.c] == [home / "x"] * 3
    options = evaluation_parser("", "evaluate.py").parse_args(
        ["--run=~/x", "--data-dir=~/x", "--config=~/x", "--out=~/x"]
    )
    assert [options.run, options.data_dir, options.config, options.out] == [home / "x"] * 4
    assert compare_parser("evaluate.py").parse_args(["~/x", "~/y"]).records == [home / "x", home / "y"]
    with pytest.raises(SystemExit):
        parser.parse_args(["--a", "~nobody-of-that-name"])


def test_a_library_in_the_home_folder(home, capsys):
    FailureLibrary("sqlite:///~/of/failures.db").close()
    assert (home / "of" / "failures.db").exists()
    for source in ("sqlite:///~/of/failures.db", "~/of/failures.db"):
        assert roleagent(["failures", "list", source]) == 0, capsys.readouterr().err


def test_data_in_the_home_folder(home):
    roleagent(["searchqa", "generate", "--out=~/questions"])
    options = {"data_dir": "~/questions", "corpus": "~/questions/corpus.jsonl"}
    roleagent(["index", "build", "--corpus=~/questions/corpus.jsonl", "--out=~/index", "--encoder=bm25"])
    env = gymnasium.make("RoleAgent/SearchQA-v0", index="~/index", retriever="bm25", **options)
    assert len(env.unwrapped.task_split)


def marked(path, *rows):
    """A file of JSON lines, with the mark that some editors put before a text."""
    path.write_bytes(codecs.BOM_UTF8 + "".join(json.dumps(row) + "\n" for row in rows).encode())
    return path


def test_a_byte_order_mark_is_no_content(tmp_path):
    corpus = marked(tmp_path / "corpus.jsonl", {"id": "1", "contents": '"A"\nb'}, {"id": "2", "contents": '"C"\nd'})
    assert [passage.title for passage in Passages.open(corpus)] == ["A", "C"]
    talk = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    assert len(read_conversations(str(marked(tmp_path / "general.jsonl", talk)))) == 1
    assert _read_ids(marked(tmp_path / "ids.json", ["heat/1"])) == ["heat/1"]
    failure = {"task_id": "a", "commands": ["look", "go"], "cut": 1}
    assert [one.task_id for one in read_failures(marked(tmp_path / "failures.jsonl", failure))] == ["a"]
    task = {"id": "a", "prompt": "What?", "answer": "This."}
    assert len(open_tasks(marked(tmp_path / "tasks.jsonl", task), "RoleAgent/ToolEnv-v0").task_split("all")) == 1

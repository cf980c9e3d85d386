"""The failure library."""

import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import sqlalchemy as sa
from failures import TOY, failed

from roleagent.curricula import FailureLibrary, LibraryError
from roleagent.types import Failure


def test_a_task_is_one_entry_per_mode(library):
    library.record([failed("t1"), failed("t1"), failed("t1", "premature_give_up"), failed("t2")], iteration=3)
    library.record([failed("t1", text="newest")], iteration=4)
    entries = {(f.task.task_id, f.reflection.mode): f for f in library.candidates(TOY)}
    assert len(entries) == len(library) == 3
    assert entries["t1", "navigation_loop"].count == 3 and entries["t1", "navigation_loop"].iteration == 4
    assert entries["t1", "navigation_loop"].reflection.lesson == "newest"
    assert library.modes() == {"navigation_loop": 2, "premature_give_up": 1}
    assert library.candidates("RoleAgent/Other-v0") == []


def test_an_entry_comes_back_as_it_was(library):
    trajectory, reflection = failed("t1")
    library.record([(trajectory, reflection)], iteration=2)
    assert library.candidates(TOY) == [Failure(trajectory.task, reflection, 1, 2)]
    first, second = library.trajectory(library.candidates(TOY)[0])
    assert first == {"observation": trajectory.initial_observation}
    assert second == {"action": "look", "observation": "a kitchen", "reward": 0.0}


def test_candidates_of_the_mode_come_first_then_the_newest(library):
    for number, mode in enumerate(["navigation_loop", "premature_give_up", "wrong_receptacle", "premature_give_up"]):
        library.record([failed(f"t{number}", mode)])
    assert [f.task.task_id for f in library.candidates(TOY, mode="premature_give_up")] == ["t3", "t1", "t2", "t0"]
    assert [f.task.task_id for f in library.candidates(TOY, limit=2)] == ["t3", "t2"]


def test_search(library):
    library.record(
        [
            failed("t1", "missing_precondition", text="open the drawer before taking the egg"),
            failed("t2", "wrong_receptacle", text="bring the fish to the tray"),
            failed("t3", "wrong_receptacle", text="bring the fish to the shelf", task_type="cool"),
            failed("t2", "wrong_receptacle", text="bring the fish to the tray, I said"),
        ]
    )
    assert [f.task.task_id for f in library.search("the egg is in a closed drawer: open it", k=1)] == ["t1"]
    found = library.search("wrong receptacle fish", k=9)
    assert sorted(f.task.task_id for f in found)[-2:] == ["t2", "t3"] and len(found) <= 3
    assert next(f for f in found if f.task.task_id == "t2").count == 2
    assert library.search("zebra", k=3) == library.search("", k=3) == library.search("egg", k=0) == []
    assert library.search("fish", env_id="RoleAgent/Other-v0") == []
    assert library.search('"; DROP TABLE failures -- * NEAR( egg', k=1)[0].task.task_id == "t1"


def test_rollback_forgets_exactly_what_came_later(library):
    assert library.cursor == 0 and library.rollback(0) == 0
    library.record([failed("t1", text="old lesson about eggs")], iteration=1)
    cursor, before = library.cursor, library.candidates(TOY)
    library.record([failed("t1", text="new lesson about fish"), failed("t2", text="fish")], iteration=2)
    assert library.rollback(cursor) == 2
    assert (library.cursor, library.candidates(TOY)) == (cursor, before)
    assert library.search("fish") == [] and library.search("eggs") == before
    library.record([failed("t3", text="fish")])
    assert [f.task.task_id for f in library.search("fish")] == ["t3"]


def test_runs_share_failures_but_roll_back_only_their_own(tmp_path):
    url = f"sqlite:///{tmp_path}/shared.db"
    mine, yours = FailureLibrary(url, run="mine"), FailureLibrary(url, run="yours")
    mine.record([failed("t1")])
    yours.record([failed("t2")])
    assert len(mine.candidates(TOY)) == 2
    assert mine.rollback(0) == 1
    assert [f.task.task_id for f in mine.candidates(TOY)] == ["t2"] and yours.cursor > 0


def test_growth(library):
    library.record([failed("t1"), failed("t1"), failed("t2")], iteration=1)
    library.record([failed("t1"), failed("t1", "premature_give_up")], iteration=2)
    assert library.growth() == [
        {"iteration": 1, "mode": "navigation_loop", "failures": 3, "new_entries": 2},
        {"iteration": 2, "mode": "navigation_loop", "failures": 1, "new_entries": 0},
        {"iteration": 2, "mode": "premature_give_up", "failures": 1, "new_entries": 1},
    ]


def test_strange_texts_are_kept(library):
    trajectory, reflection = failed("t1")
    turn = replace(trajectory.turns[0], observation="half a pair \ud800 and a zero \x00 ☀")
    reflection = replace(reflection, lesson="\ud800\x00☀ ' \" %s :x", query="☀" * 10_000)
    library.record([(replace(trajectory, turns=(turn,)), reflection)])
    kept = library.candidates(TOY)[0]
    assert "☀ ' \" %s :x" in kept.reflection.lesson and "☀" in library.trajectory(kept)[1]["observation"]
    assert library.search("☀") == []


def test_all_or_nothing(library):
    library.record([failed("t1")])
    trajectory, reflection = failed("t2")
    broken = replace(trajectory, task=replace(trajectory.task, env_id=None))
    with pytest.raises(LibraryError, match=r"(?i)not.null constraint"):
        library.record([failed("t3"), (broken, reflection)])
    assert len(library) == 1


def test_sqlite_keeps_a_log_and_waits(kept):
    with kept.database.read() as session:
        settings = [session.scalar(sa.text(f"PRAGMA {name}")) for name in ("journal_mode", "synchronous")]
        assert settings == ["wal", 2]  # 2: FULL
        assert session.scalar(sa.text("PRAGMA busy_timeout")) >= 10_000


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "cannot open the failure library nonsense"),
        ("oracle9://x", "cannot open the failure library"),
        ("postgresql+psycopg://me:secret@localhost:1/x", "failure library"),
    ],
)
def test_a_library_that_cannot_be_opened(url, message):
    with pytest.raises(LibraryError, match=message) as caught:
        FailureLibrary(url)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_no_database(tmp_path):
    path = tmp_path / "failures.db"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(LibraryError, match="file is not a database"):
        FailureLibrary(f"sqlite:///{path}")


WRITER = """
import sys, itertools
from roleagent.curricula import FailureLibrary
from roleagent.types import *
library = FailureLibrary(sys.argv[1], run=sys.argv[2])
task = Task("RoleAgent/Toy-v0", "t1")
trajectory = Trajectory(task, (), False, True, "max_steps", "x" * 2000)
for iteration in range(int(sys.argv[3])):
    reflections = [Reflection("mode", "", None, str(n), "query") for n in range(10)]
    library.record([(trajectory, reflection) for reflection in reflections], iteration)
    print(iteration, flush=True)
"""


def test_a_killed_writer_leaves_whole_batches(tmp_path):
    url = f"sqlite:///{tmp_path}/failures.db"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, url, "", "1000000"], stdout=subprocess.PIPE, text=True)
    for _ in range(5):
        writer.stdout.readline()
    time.sleep(0.05)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    with sqlite3.connect(tmp_path / "failures.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    library = FailureLibrary(url)
    rows = library.candidates(TOY)[0].count
    assert rows >= 50 and rows % 10 == 0  # no half batch
    library.record([failed("t2")])
    assert len(library) == 2


def test_several_writers_at_once(tmp_path):
    url = f"sqlite:///{tmp_path}/failures.db"
    command = [sys.executable, "-c", WRITER, url]
    writers = [subprocess.Popen([*command, str(n), "10"], stdout=subprocess.DEVNULL) for n in range(3)]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    assert FailureLibrary(url).candidates(TOY)[0].count == 300

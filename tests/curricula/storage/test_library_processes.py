"""Many processes at one failure library, some of them killed: nothing is lost, nothing is half there, none fails."""

import random
import sqlite3
import tempfile
from collections import Counter
from pathlib import Path

from crowd import ENV, failure, scene

from roleagent.curricula import FailureLibrary
from roleagent.curricula.archive import everything


def test_sixteen_writers_killed_at_any_moment(database_url, tmp_path):
    reported = tmp_path / "told"
    reported.mkdir()
    kills = int(scene("kill_writers", database_url, reported, 3, 7))
    assert kills >= 10
    library = FailureLibrary(database_url)
    rows = list(everything(library, trajectories=True))
    batches = Counter((row["run"], row["iteration"]) for row in rows)
    sizes = {(row["run"], row["iteration"]): int(row["task_id"].rpartition("of")[2]) for row in rows}
    assert batches == sizes  # whole batches only
    acknowledged = [line.split() for file in reported.iterdir() for line in file.read_text().splitlines()]
    assert len(acknowledged) > 20
    assert all(batches[run, int(iteration)] == int(size) for run, iteration, size in acknowledged)
    assert all(row["trajectory"][1]["action"] == "look" for row in rows)
    kept = Counter((retrieval.run, retrieval.iteration) for retrieval in library.retrievals())
    assert all(batches[place] == count for place, count in kept.items())
    for row in random.Random(0).sample(rows, min(100, len(rows))):  # the index knows them
        assert row["task_id"] in {f.task.task_id for f in library.search(row["lesson"].split()[-1])}
    if database_url.startswith("sqlite"):
        with sqlite3.connect(tmp_path / "f.db") as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            connection.execute("INSERT INTO failures_words (failures_words) VALUES ('integrity-check')")
            indexed = {key for (key,) in connection.execute("SELECT rowid FROM failures_words")}
        assert indexed == {row["id"] for row in rows}  # every task failed once
    assert library.record([]) == 0 and len(library) == len(rows)
    library.close()


def test_a_new_library_opened_by_many_at_once(database_url, tmp_path):
    scene("open_together", database_url, 8, tmp_path / "log")
    library = FailureLibrary(database_url)
    assert {f.task.task_id for f in library.candidates(ENV)} == {f"new-{n}" for n in range(8)}
    assert (tmp_path / "log").read_text() == "made\n"
    library.close()


def test_a_folder_that_only_others_may_write():
    """In a place of its own, which everybody can reach: root, who may write everywhere, reads as somebody else."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = FailureLibrary(f"sqlite:///{folder / 'f.db'}")
        library.record([failure("t1")])
        library.close()
        folder.chmod(0o555)
        complaints = scene("read_where_nothing_can_be_written", folder).splitlines()
        folder.chmod(0o755)
    assert len(complaints) == 3 and all(" the failure library sqlite:///" in complaint for complaint in complaints)

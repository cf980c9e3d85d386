"""The failure library: what it keeps, finds and forgets, and how it fails."""

import re
import sqlite3
from dataclasses import replace

import pytest
import sqlalchemy as sa
from failures import TOY, failed
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from roleagent.curricula import FailureLibrary, LibraryError
from roleagent.curricula.storage.tables import NAME_LENGTH, clean
from roleagent.types import Failure, Reflection


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
    assert sorted(f.task.task_id for f in found) == ["t2", "t3"]  # each once, however often it failed
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


def test_retrievals_are_kept_and_rolled_back_with_their_failures(library):
    library.record([failed("t1"), failed("t2")], iteration=1)
    library.record_retrievals(1, [("navigation_loop", "t1", "t2", "both lost \x00 their way \ud800")])
    cursor = library.cursor
    library.record([failed("t3")], iteration=2)
    library.record_retrievals(2, [("navigation_loop", "t3", task, "") for task in ("t1", "t2")])
    library.record_retrievals(3, [])
    assert [r.chosen_task_id for r in library.retrievals()] == ["t2", "t1", "t2"]
    assert [r.task_id for r in library.retrievals(chosen_task_id="t2")] == ["t1", "t3"]
    assert library.retrievals(mode="other") == library.retrievals(task_id="t2") == []
    library.rollback(cursor)
    [kept] = library.retrievals()
    assert (kept.run, kept.iteration, kept.env_id, kept.task_id, kept.chosen_task_id) == ("test", 1, TOY, "t1", "t2")
    assert kept.reason.startswith("both lost  their way")
    assert library.led_to(TOY, ["t2"]) == {"t2": kept} and not library.led_to("hard:RoleAgent/Toy-v0", ["t2"])


def test_chinese_is_found_by_chinese(library):
    library.record([failed("t1", text="先打开抽屉，再拿鸡蛋"), failed("t2", text="不要在商店里来回走 egg")])
    for query, task in (("抽屉", "t1"), ("请打开那个抽屉！", "t1"), ("蛋", "t1"), ("来回", "t2"), ("EGG", "t2")):
        assert [f.task.task_id for f in library.search(query, k=1)] == [task], query
    assert library.search("屉抽") == []  # neighbors, not characters


ODD = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=())),  # lone surrogates and zero bytes, too
        st.text("eggEGG123 _-.'\"*^:+()"),
        st.sampled_from(
            [
                "NEAR(",
                " OR ",
                " AND ",
                "NOT",
                '"',
                "--",
                "; DROP TABLE failures",
                "words:",
                "'",
                "\\",
                "打开",
                "🥚",
                "&|!<->",
            ]
        ),
    ),
    max_size=6,
).map("".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(ODD, ODD)
@example("E\x80", "")
def test_any_text_can_be_kept_and_searched_for(library, text, other):
    trajectory, _ = failed("t1", text=text)
    library.record([(trajectory, Reflection(text, other, 0, text, other))])
    entries = len(library)
    found = library.search(text, k=10_000)
    if re.search(r"(?<!\w)(?!the|a)[egEG]+(?!\w)", text):  # words that no index takes for a stop word
        assert clean(text, NAME_LENGTH) in {failure.reflection.mode for failure in found}
    assert len(found) <= entries and library.candidates(TOY, 1, text)[0].reflection.mode == clean(text, NAME_LENGTH)


def test_all_or_nothing(library):
    library.record([failed("t1")])
    trajectory, reflection = failed("t2")
    broken = replace(trajectory, task=replace(trajectory.task, env_id=None))
    with pytest.raises(LibraryError, match=r"(?i)not.null constraint"):
        library.record([failed("t3"), (broken, reflection)])
    assert len(library) == 1


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_bytes(b"not a database at all" * 100), "file is not a database"),
        (lambda path: path.mkdir(), "it is a folder"),
        (lambda path: path.symlink_to("/proc/failures.db"), "unable to open database file"),
        (lambda path: sqlite3.connect(path).execute("CREATE TABLE failures (why TEXT)"), "of another program"),
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_no_library(tmp_path, make, message, read_only):
    path = tmp_path / "failures.db"
    make(path)
    if read_only and path.is_symlink():
        message = "there is no such file"
    with pytest.raises(LibraryError, match=message) as caught:
        FailureLibrary(f"sqlite:///{path}", read_only=read_only)
    assert "\n" not in str(caught.value)
    (tmp_path / "file").touch()
    with pytest.raises(LibraryError, match=r"cannot open|no such file"):
        FailureLibrary(f"sqlite:///{tmp_path}/file/deeper/failures.db", read_only=read_only)


def test_a_truncated_library_ends_in_one_line(tmp_path):
    path = tmp_path / "failures.db"
    library = FailureLibrary(f"sqlite:///{path}")
    library.record([failed(f"t{n}", text=f"{n} " * 500) for n in range(300)])
    library.close()
    whole = path.read_bytes()
    complaints = []
    for share in range(1, 10):
        path.write_bytes(whole[: len(whole) * share // 10])
        try:
            library = FailureLibrary(f"sqlite:///{path}")
            library.candidates(TOY, 300), library.search("7", 300), library.record([failed("new")])
        except LibraryError as error:
            complaints.append(str(error))
    assert len(complaints) == 9 and not any("\n" in complaint for complaint in complaints)


def test_a_full_disk(kept):
    kept.record([failed("t1")])
    with kept.database.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 4}")
    with pytest.raises(LibraryError, match=r"cannot write the failure library .*disk is full"):
        kept.record([failed(f"t{n}", text=str(n) * 9000) for n in range(2, 99)])
    assert len(kept) == 1 and kept.search("lesson navigation_loop")[0].task.task_id == "t1"
    with kept.database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    assert kept.record([failed("t2")]) == 1 and len(kept) == 2


def test_a_restarted_server_is_not_noticed(postgresql_url):
    url = sa.make_url(postgresql_url).update_query_dict({"application_name": "cut off"})
    library = FailureLibrary(url.render_as_string(hide_password=False))
    library.record([failed("t1")])
    ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cut off'"
    engine = sa.create_engine(postgresql_url)
    with engine.connect() as connection:
        assert connection.execute(sa.text(ends)).all()
    engine.dispose()
    assert library.record([failed("t2")]) == 1 and len(library) == 2
    library.close()

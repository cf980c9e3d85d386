"""The tables of a library: made whole, those of other versions and programs refused, those of today just opened."""

import pytest
import sqlalchemy as sa
from failures import failed

from roleagent.curricula import FailureLibrary, LibraryError
from roleagent.curricula.storage import full_text_search, schema
from roleagent.curricula.storage.tables import Base


@pytest.mark.parametrize("read_only", [False, True])
def test_a_library_of_another_version_is_left_alone(tmp_path, database_url, read_only):
    library = FailureLibrary(database_url)
    library.record([failed("t1")])
    with library.database.write() as session:
        session.execute(sa.text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'"))
    library.close()
    before = [path.read_bytes() for path in tmp_path.glob("*.db")]
    with pytest.raises(LibraryError, match=r"a newer version of roleagent .*9999.*: open it with that version$"):
        FailureLibrary(database_url, read_only=read_only)
    assert [path.read_bytes() for path in tmp_path.glob("*.db")] == before


@pytest.mark.parametrize("after", [0, 1, 2])
def test_making_the_tables_is_all_or_nothing(database_url, after):
    """A process that ends between two tables leaves none; the next one makes them all."""
    steps = iter(range(after))

    def dying(table, connection, **options):
        if next(steps, None) is None:
            raise ZeroDivisionError

    for table in Base.metadata.tables.values():
        sa.event.listen(table, "before_create", dying)
    try:
        with pytest.raises(ZeroDivisionError):
            FailureLibrary(database_url)
    finally:
        for table in Base.metadata.tables.values():
            sa.event.remove(table, "before_create", dying)
    library = FailureLibrary(database_url)
    library.record([failed("t1")])
    assert library.cursor == 1
    library.close()


def test_rows_written_without_the_index_are_found_when_there_is_one_again(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path / 'f.db'}"
    with monkeypatch.context() as patch:
        patch.setattr("roleagent.curricula.library.open_index", lambda database: full_text_search.Comparison())
        FailureLibrary(url).record([failed("t1", text="fish")])
    reading = FailureLibrary(url, read_only=True)
    assert isinstance(reading._index, full_text_search.Comparison) and len(reading.search("fish")) == 1
    reading.close()
    library = FailureLibrary(url)
    assert isinstance(library._index, full_text_search.FTS5) and [f.task.task_id for f in library.search("fish")] == [
        "t1"
    ]


def test_a_read_only_library_takes_nothing(database_url):
    FailureLibrary(database_url).close()
    library = FailureLibrary(database_url, read_only=True)
    with pytest.raises(LibraryError, match="cannot write"):
        library.record([failed("t1")])
    library.close()

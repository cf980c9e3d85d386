"""A PostgreSQL server of the tests' own, and places in it that no two tests share."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest


def absent(reason):
    """Skips, or fails where the check is not to be skipped (``.ci/postgresql``)."""
    if os.environ.get("ROLEAGENT_POSTGRESQL_REQUIRED"):
        pytest.fail(f"PostgreSQL is required here: {reason}")
    pytest.skip(reason)


@contextmanager
def server():
    """The URL of a database: the one that ROLEAGENT_POSTGRESQL names, or one of a server that lives as long as this."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        absent("no driver for PostgreSQL: pip install 'roleagent[postgresql]'")
    if url := os.environ.get("ROLEAGENT_POSTGRESQL"):
        yield url
        return
    found = [*Path("/usr/lib/postgresql").glob("*/bin/initdb")]  # where Debian hides it from the path
    newest = max(found, key=lambda path: float(path.parts[-3]), default=None)
    initdb = shutil.which("initdb") or newest
    if initdb is None:
        absent(
            "no PostgreSQL server: apt-get install postgresql, or set ROLEAGENT_POSTGRESQL to an empty test database"
        )
    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # short: the path of a socket has 107 characters at most
    options = {"cwd": folder, "stdout": (folder / "log").open("a"), "stderr": subprocess.STDOUT}
    if os.getuid() == 0:  # whom the server refuses to run for
        names = {user.pw_name for user in pwd.getpwall()}
        user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
        os.chown(folder, user.pw_uid, user.pw_gid)
        options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    data, bare = str(folder / "data"), ["-c", "fsync=off", "-c", "max_connections=60", "-c", "listen_addresses="]
    made = [str(initdb), "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync"]
    process = None
    try:
        if subprocess.run(made, **options).returncode:
            absent(f"initdb failed: {(folder / 'log').read_text()[-300:]}")
        program = str(Path(initdb).resolve().with_name("postgres"))
        process = subprocess.Popen([program, "-D", data, "-k", str(folder), *bare], **options)
        late = time.monotonic() + 60
        while not (folder / ".s.PGSQL.5432").exists() or not _answers(folder):
            if process.poll() is not None or time.monotonic() > late:
                absent(f"the server does not start: {(folder / 'log').read_text()[-300:]}")
            time.sleep(0.05)
        yield f"postgresql+psycopg://postgres@/postgres?host={folder}"
    finally:
        if process:
            process.send_signal(2)  # ends sessions, then itself
            process.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def _answers(folder):
    import psycopg

    try:
        psycopg.connect(f"host={folder} user=postgres dbname=postgres").close()
    except psycopg.OperationalError:
        return False
    return True


@contextmanager
def place(url):
    """The URL of an empty schema of a database, which is dropped afterwards."""
    import sqlalchemy as sa

    name = f"test_{uuid.uuid4().hex}"
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {name}")
        inside = sa.make_url(url).update_query_dict({"options": f"-csearch_path={name}"})
        try:
            yield inside.render_as_string(hide_password=False)
        finally:
            connection.exec_driver_sql(f"DROP SCHEMA {name} CASCADE")
    engine.dispose()

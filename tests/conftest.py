"""What all tests share."""

import os
import shutil
import sys
import tarfile

import pytest
from hypothesis import settings
from shared_data import shared_data

from roleagent import slow_notice

for folder in ("ALFWORLD_DATA", "WEBSHOP_DATA", "SEARCHQA_DATA", "TEXTCRAFT_DATA"):
    os.environ.pop(folder, None)  # what a newcomer sees, whatever data this machine has
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # a worker has one core; read when torch is imported

# A busy machine is not a failure: examples have no time limit of their own.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
slow_notice.AFTER = slow_notice.EVERY = (
    3600.0  # nor does it add its "waiting (2 s) for …" to the lines that a test counts
)

MOST_WORKERS = 4  # with torch each has more than a gigabyte


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Plain ``pytest``, the whole core, runs in a process per core where pytest-xdist is installed; a file in one."""
    options, cores = config.option, min(MOST_WORKERS, os.cpu_count() or 1)
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and options.markexpr == "not slow and not long"
    asked = getattr(options, "numprocesses", 0) is not None or options.collectonly or options.capture == "no"
    if whole and cores > 1 and not (asked or options.usepdb or hasattr(config, "workerinput")):
        options.numprocesses, options.dist = cores, "loadfile"  # fixtures of a file are made once


SAFELY = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.2 and 3.10.11 have none


@pytest.fixture(scope="session")
def official_games(tmp_path_factory):
    """Folders with the official ALFWorld games of ``valid_seen``, by format: ``current`` and ``older``."""
    archives = {"current": "json_2.1.1_train_seen.tar.xz", "older": "older_format_valid_seen.tar.xz"}
    folders = {}
    for name, archive in archives.items():
        path = shared_data(f"alfworld/{archive}", "official games")
        folders[name] = tmp_path_factory.mktemp(name)
        with tarfile.open(path) as files:
            wanted = [member for member in files if "/valid_seen/" in member.name and member.name.endswith(".tw-pddl")]
            files.extractall(folders[name], wanted, **SAFELY)
    return folders


@pytest.fixture(scope="session")
def webshop_data():
    """The folder with the real 1,000 products of WebShop; its ``reference/`` holds recordings of the original."""
    return shared_data("webshop", "real products")


@pytest.fixture(scope="session")
def textcraft_data(tmp_path_factory):
    """The folder with Minecraft's recipes, and that with what was recorded of the original."""
    folder = shared_data("textcraft", "Minecraft recipes")
    unpacked = tmp_path_factory.mktemp("textcraft")
    with tarfile.open(folder / "recipes_1.16.5.tar.xz") as files:
        files.extractall(unpacked, **SAFELY)
    return unpacked / "recipes", folder


@pytest.fixture(scope="session")
def postgresql_server():
    """The URL of a PostgreSQL database."""
    from postgresql import server

    with server() as url:
        yield url


@pytest.fixture
def postgresql_url(postgresql_server):
    """The URL of an empty place in it."""
    from postgresql import place

    with place(postgresql_server) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request, tmp_path):
    """The URL of an empty database: a file, and a place on a server where there is one."""
    return request.getfixturevalue("postgresql_url") if request.param == "postgresql" else f"sqlite:///{tmp_path}/f.db"


@pytest.fixture(params=["sqlite", "without an index", "postgresql"])
def library(request, tmp_path, monkeypatch):
    """An empty library: on SQLite, on a database that has no full-text index, and on a server where there is one."""
    from roleagent.curricula import FailureLibrary  # here: some tests run where SQLAlchemy is not
    from roleagent.curricula.storage.full_text_search import Comparison

    url = f"sqlite:///{tmp_path}/failures.db"
    if request.param == "without an index":
        monkeypatch.setattr("roleagent.curricula.library.open_index", lambda database: Comparison())
    elif request.param == "postgresql":
        url = request.getfixturevalue("postgresql_url")
    opened = FailureLibrary(url, run="test")
    yield opened
    opened.close()


@pytest.fixture
def kept(tmp_path):
    from roleagent.curricula import FailureLibrary

    return FailureLibrary(f"sqlite:///{tmp_path}/failures.db")


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """A browser that nobody sees, for pages that people see; its log of the console is kept."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip("no chromium and chromedriver here; on Debian: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    profile = tmp_path_factory.mktemp("profile")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--user-data-dir={profile}"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield browser
    browser.quit()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    """A chat server that failed is asked again soon."""
    if "openai" in sys.modules:
        monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)

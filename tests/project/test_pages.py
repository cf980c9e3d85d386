"""Every page of the documents leads from an empty folder to the end that it shows.

``pytest`` runs the programs and the quick commands of a page; ``pytest -m long`` also the slow ones, beside a real run.
Where a page shows in a ``text`` block what a user sees, that must be printed.
"""

from contextlib import ExitStack

import pytest
from commands import PAGES, blocks_of
from walks import Place, Walk

READ = {
    "CONTRIBUTING": "its commands are those of .ci/run and .ci/full",
    "README": ".ci/run and .ci/full run its commands",
    "index": "its command is that of the README",
    "agent_r": "an hour of training",
    "algorithms": "trains the default run with other methods, ten minutes each",
    "citing": "nothing to run",
    "distillation": "minutes of training, twice",
    "forks": "minutes of training for each arm",
    "genenv": "hours of training",
    "not_learning": "a run with problems ends with status 1: tests/reports/doctor has recorded ones",
    "paper_tables": "days of training on GPUs",
    "pretrained": "real models: tests/core/test_real_models.py walks its paths",
    "results": "hours of training",
    "scaling": "several GPUs",
    "several_environments": "minutes of training",
    "train_your_agent": "minutes of training",
    "vllm": "a GPU, or an environment of its own (.ci/vllm)",
    "write_a_method": "its programs and its run end in files, and in figures of the machine",
}
"""Pages that show no end, with the reason."""
SHOWN = [page for page in PAGES if {"python", "bash"} & {block.kind for block in blocks_of(page)}]
SHOWN = [page for page in SHOWN if page.stem not in READ]


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    made = Place(tmp_path_factory.mktemp("commands"))
    with ExitStack() as made.open:
        yield made


def walk(page, place, folder, slow):
    walked = Walk(page, place, folder, slow)
    walked.to_the_end()
    return walked


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_programs_and_quick_commands_of_a_page_run(page, place, tmp_path):
    walk(page, place, tmp_path, slow=False)


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_leads_to_the_end_that_it_shows(page, place, tmp_path):
    walked = walk(page, place, tmp_path, slow=True)
    if page in SHOWN and walked.seen != [*blocks_of(page)][-1].line:
        assert walked.skipped, f"{page.stem}: its last block was not compared with anything that was printed"
        pytest.skip(f"needs {', '.join(walked.skipped)}")

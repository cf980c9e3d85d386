"""Many processes at one failure library: ``python tests/crowd.py SCENE ARGUMENTS``.

The processes are forked from this small one, which has loaded no more than the library and has opened nothing.
"""

import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

from roleagent.curricula.library import FailureLibrary, LibraryError
from roleagent.curricula.storage import schema
from roleagent.types import Completion, Reflection, Task, Trajectory, Turn

if importlib.util.find_spec("psycopg"):
    import psycopg  # noqa: F401 - loaded once for all

ENV = "RoleAgent/Toy-v0"
TURN = Turn((), Completion((), (), "stop"), "look", "a kitchen " * 50)


def scene(name, *arguments):
    """Plays a scene in a process of its own; what it printed, or a failure that shows what went wrong."""
    command = [sys.executable, __file__, name, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, f"{name} ended with {done.returncode}:\n{done.stderr[-3000:]}"
    return done.stdout


def fork(work, *arguments):
    """Runs ``work`` in a child, which ends with 1 where an exception ends it. Returns its process id."""
    if child := os.fork():
        return child
    status = 1
    try:
        work(*arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def gather(children):
    """Waits for all; ends this process with 1 if one of them failed."""
    if any([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]):
        sys.exit(1)


def open_together(url, count, log):
    """``count`` processes open the library in the same moment; those that make its tables log it."""
    make = schema._make_tables

    def tell(*arguments):
        with open(log, "a") as stream:
            stream.write("made\n")
        make(*arguments)

    schema._make_tables = tell
    ready, go = os.pipe(), os.pipe()

    def work(number):
        os.close(go[1])
        os.write(ready[1], b".")
        os.read(go[0], 1)  # ends when nobody can write there any more
        library = FailureLibrary(url, run=str(number))
        library.record([failure(f"new-{number}")])
        assert library.search(f"new-{number}", 1)[0].task.task_id == f"new-{number}"
        library.close()

    children = [fork(work, number) for number in range(int(count))]
    for _ in children:
        os.read(ready[0], 1)
    os.close(go[1])
    gather(children)


def read_where_nothing_can_be_written(folder):
    """Reads ``f.db`` of a folder that only others may write, and tries to write it and a new one."""
    FailureLibrary().close()  # loads what it takes: where this goes on, not even Python's files may be readable
    before = sorted(os.listdir(folder))
    if os.getuid() == 0:
        os.setuid(65534)
    library = FailureLibrary(f"sqlite:///{folder}/f.db", read_only=True)
    assert [entry.task.task_id for entry in library.search("lesson")] == ["t1"]
    library.close()
    for name in ("f.db", "new.db", "deeper/new.db"):
        try:
            FailureLibrary(f"sqlite:///{folder}/{name}").record([failure("t2")])
        except LibraryError as error:
            print(error)
    assert sorted(os.listdir(folder)) == before


def kill_writers(url, folder, seconds, seed):
    """16 processes write, each in turn killed at any moment and replaced, while two read; on a busy machine for longer.

    A writer adds a line ``writer iteration size`` to a file of its own in ``folder`` after a batch was recorded.
    """
    rng, late = random.Random(int(seed)), time.monotonic() + float(seconds)
    FailureLibrary(url).close()
    readers = [fork(read_on, url, late) for _ in range(2)]
    writers = [fork(write_on, url, folder, number) for number in range(16)]
    started = len(writers)

    def written():
        return sum(file.read_bytes().count(b"\n") for file in Path(folder).iterdir())

    while (now := time.monotonic()) < late or started < 26 or (written() <= 20 and now < late + 60):
        time.sleep(rng.expovariate(25 if now < late else 4))  # a busy machine's writers live too short to write
        place = rng.randrange(len(writers))
        os.kill(writers[place], signal.SIGKILL)
        os.waitpid(writers[place], 0)
        writers[place] = fork(write_on, url, folder, started)
        started += 1
    for writer in writers:
        os.kill(writer, signal.SIGKILL)
        if os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]) != -signal.SIGKILL:
            sys.exit(1)  # it had ended by itself
    gather(readers)
    print(started - 16)


def failure(task_id, mode="navigation_loop"):
    reflection = Reflection(mode, "", 0, f"lesson of {task_id.replace('-', 'x')}", task_id)
    return Trajectory(Task(ENV, task_id), (TURN,), False, True, "max_steps", "a door"), reflection


def write_on(url, folder, number):
    rng = random.Random(number)
    reported = os.open(Path(folder) / str(number), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    library = FailureLibrary(url, run=str(number))
    for iteration in range(10**9):
        size = rng.randint(1, 6)
        tasks = [f"w{number}-i{iteration}-{place}of{size}" for place in range(size)]
        library.record([failure(task, rng.choice(["navigation_loop", "unknown"])) for task in tasks], iteration)
        os.write(reported, f"{number} {iteration} {size}\n".encode())
        library.record_retrievals(iteration, [("unknown", task, tasks[0], "") for task in tasks])


def read_on(url, late):
    library, reads = FailureLibrary(url, read_only=True), 0
    while time.monotonic() < late or reads < 3:
        entries = library.candidates(ENV, 20, "unknown")
        assert all(library.trajectory(entry)[1]["action"] == "look" for entry in entries[:2])
        assert len(library.search("lesson", 5)) >= min(5, len(entries))
        assert sum(row["new_entries"] for row in library.growth()) <= sum(library.modes().values())
        reads += 1
    library.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])

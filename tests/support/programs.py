"""Commands of the product as processes: start, stop, kill, pause, read the log; also a development Qdrant."""

import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator

import pytest

from tests.controlplane.build import CONTROL_PLANE, Toolset, find_assets
from tests.support.forked import PRODUCT_MODULE, PYTHON_M, Child, start_process
from tests.support.patience import Patience

# Below the ephemeral ports of Linux and macOS, so that no outgoing connection takes a port between probe and use.
PORTS = range(20_000, 30_000)
_given: deque[int] = deque(maxlen=100)
ROOT = pathlib.Path(__file__).resolve().parents[2]
AGENTMEMORY = (*PYTHON_M, PRODUCT_MODULE)
START_TIMEOUT_S = 30.0
LOG_TAIL_CHARS = 1500
# Variables of a developer's shell that tests must not see.
HIDDEN_VARIABLES = ("QDRANT_URL", "QDRANT_API_KEY", "OPENAI_API_KEY", "KUBECONFIG", "KUBERNETES_SERVICE_HOST")


def find_built(tools: Toolset = CONTROL_PLANE) -> pathlib.Path:
    """Return the folder of a set of programs that are built once.

    A missing control plane fails the test. Another missing set skips it, or fails it in CI.
    """
    assets = find_assets(os.environ, tools)
    if assets is not None:
        return assets
    if tools is CONTROL_PLANE:
        pytest.fail(f"no {tools.names} yet: run `make controlplane` once (about {tools.cost})")
    message = f"no {tools.names} yet: run `make tools` once (about {tools.cost})"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def free_port() -> int:
    """Return a free loopback port that is none of the last 100 returned: those may not be bound yet."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        if port in _given:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given.append(port)
            return port


def copy_quickstart(folder: pathlib.Path) -> pathlib.Path:
    """Copy examples/quickstart, without the status that `make dev` leaves there; return the copy."""
    without_status = shutil.ignore_patterns(".status")
    return shutil.copytree(ROOT / "examples" / "quickstart", folder, ignore=without_status, dirs_exist_ok=True)


def clean_environment() -> dict[str, str]:
    """Return the environment without variables that change the product's commands.

    Stacks of `agentmemory dev` are neither found nor registered in it.
    """
    kept = os.environ.items()
    return {
        name: value
        for name, value in kept
        if not name.startswith(("AGENTMEMORY_", "OTEL_")) and name not in HIDDEN_VARIABLES
    } | {"XDG_DATA_HOME": os.devnull}


class Program:
    """A running process with its output in a file. It dies with the test process."""

    def __init__(self, log: pathlib.Path, *command: str, **environment: str) -> None:
        self._log = log
        self._command = command
        self._environment = clean_environment() | environment
        self._process = self._start()

    def _start(self) -> Child:
        with self._log.open("wb") as output, open(os.devnull, "rb") as nothing:
            files = [nothing.fileno(), output.fileno(), output.fileno()]
            return start_process(self._command, files, env=self._environment)

    @property
    def pid(self) -> int:
        """Process id of the current or last process."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code; None while it runs, -9 after a SIGKILL."""
        return self._process.poll()

    @property
    def log(self) -> str:
        """Output of the current or last process."""
        return self._log.read_text(errors="replace")

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Return the first match in the log.

        Raises:
            AssertionError: If the process ended, or nothing matched in time; with the end of the log.
        """
        patience = Patience(START_TIMEOUT_S)
        while not patience.is_over:
            if match := re.search(pattern, self.log):
                return match
            if self.returncode is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"no {pattern!r} in the log (exit {self.returncode}): {self.log[-LOG_TAIL_CHARS:]}")

    def restart(self, ready: str) -> None:
        """Kill the process and run the same command with an empty log; return when `ready` is in the log."""
        self.kill()
        self._process = self._start()
        self.wait_for(ready)

    def pause(self) -> None:
        """Pause the process until `resume`."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def toggle_clock(self) -> None:
        """Toggle the clock shift of a process of `tests.support.cluster.history.process`."""
        os.kill(self._process.pid, signal.SIGUSR1)

    def terminate(self) -> None:
        """Send SIGTERM, like Kubernetes, without waiting."""
        self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Stop the process like Kubernetes: SIGTERM, and SIGKILL after 15 s. If it has ended already, do nothing."""
        if self.returncode is None:
            self.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Kill the process as in a crash. If it has ended already, do nothing."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def running(program: Program) -> Iterator[Program]:
    """Kill the program when the context ends."""
    try:
        yield program
    finally:
        program.kill()


def start_qdrant(
    folder: pathlib.Path,
    *,
    port: int | None = None,
    version: str = "1.18.3",
    api_key: str | None = None,
    has_jwt_rbac: bool = False,
) -> tuple[Program, str]:
    """Start `agentmemory devserver`; return the process and its URL when it serves.

    Args:
        folder: Folder for its data and log.
        port: None for any free port.
        api_key: If set, the development server's own command is used, which supports a key.
        has_jwt_rbac: True to accept tokens signed with the key.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--data", str(folder / "data"), "--port", str(port or free_port()), "--qdrant-version", version]
    command = [*AGENTMEMORY, "devserver", *options]
    if api_key:
        command = [sys.executable, "-m", "qdrant_devserver", *options, "--api-key", api_key]
        command += ["--jwt-rbac"] if has_jwt_rbac else []
    log = folder / f"qdrant-{time.monotonic_ns()}.log"
    program = Program(log, *command)
    return program, program.wait_for(r"Qdrant (http://\S+)")[1]

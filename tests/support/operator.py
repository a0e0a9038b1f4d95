"""The commands of `agentmemory` as processes against a real control plane: start, stop, kill -9, read the log."""

import contextlib
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import httpx

from tests.support.controlplane import ControlPlane, die_with_parent, free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
AGENTMEMORY = (sys.executable, "-m", "agentmemory_operator")
START_TIMEOUT_S = 30.0
WATCHING = "watching QdrantConnection"
LEADING = "leading: "
LOG_TAIL_CHARS = 1500
# What a developer's shell may hold and a test must not see.
FOREIGN = ("QDRANT_URL", "QDRANT_API_KEY", "OPENAI_API_KEY", "KUBECONFIG", "KUBERNETES_SERVICE_HOST")

T = TypeVar("T")


def wait_until(holds: Callable[[], T | None], *, seconds: float, what: str = "the condition") -> T:
    """Return the first truthy value of `holds`.

    Raises:
        AssertionError: there was none in time; tells `what` and the last value.
    """
    deadline = time.monotonic() + seconds
    value: object = None
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if found := holds():
                return found
            value = found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come within {seconds:.0f} s; last seen: {value!r}")


def clean_environment() -> dict[str, str]:
    """Return the environment without what would change what our programs do."""
    kept = os.environ.items()
    return {
        name: value for name, value in kept if not name.startswith(("AGENTMEMORY_", "OTEL_")) and name not in FOREIGN
    }


class Program:
    """A running process with its output in a file; dies with the test process."""

    def __init__(self, log: pathlib.Path, *command: str, **environment: str) -> None:
        self._log = log
        self._command = command
        self._environment = clean_environment() | environment
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as output:
            return subprocess.Popen(
                self._command,
                stdout=output,
                stderr=output,
                cwd=ROOT,
                env=self._environment,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )

    @property
    def pid(self) -> int:
        """Of the process that runs, or ran last."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; -9 after a SIGKILL."""
        return self._process.poll()

    @property
    def log(self) -> str:
        """Everything it printed."""
        return self._log.read_text(errors="replace")

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Return the first match in the log.

        Raises:
            AssertionError: the process ended, or nothing matched in time; tells the end of the log.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if match := re.search(pattern, self.log):
                return match
            if self.returncode is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"no {pattern!r} in the log (exit {self.returncode}): {self.log[-LOG_TAIL_CHARS:]}")

    def restart(self, ready: str) -> None:
        """Kill it and run the same command anew, with an empty log; return when `ready` is in the log."""
        self.kill()
        self._process = self._start()
        self.wait_for(ready)

    def pause(self) -> None:
        """Stop the process where it is, until `go_on`."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a paused process run again."""
        os.kill(self._process.pid, signal.SIGCONT)

    def terminate(self) -> None:
        """Ask it to end, as Kubernetes does, and do not wait."""
        self._process.terminate()

    def stop(self) -> None:
        """End it as Kubernetes does; one that has ended is no error."""
        if self.returncode is None:
            self.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End it as a crash does; one that has ended is no error."""
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


def start_operator(
    control_plane: ControlPlane,
    folder: pathlib.Path,
    *options: str,
    name: str = "operator",
    ready: str = LEADING,
    **environment: str,
) -> Program:
    """Start `agentmemory operator` and return when it works, which takes until the lease of a killed one has ended.

    Args:
        ready: what to wait for in its log.
    """
    kubeconfig = str(control_plane.kubeconfig)
    command = (*AGENTMEMORY, "operator", *options)
    program = Program(folder / f"{name}.log", *command, KUBECONFIG=kubeconfig, **environment)
    program.wait_for(ready)
    return program


def run_command(
    control_plane: ControlPlane, *arguments: str, kubeconfig: pathlib.Path | None = None
) -> tuple[int, str, str]:
    """Run a command of ours against the cluster; return its exit status, output and errors."""
    environment = clean_environment() | {"KUBECONFIG": str(kubeconfig or control_plane.kubeconfig)}
    done = subprocess.run(
        [*AGENTMEMORY, *arguments], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


class Nursery:
    """Runs operators composed for a test, one at a time: `tests/support/crashing_operator.py`."""

    def __init__(self, control_plane: ControlPlane, folder: pathlib.Path) -> None:
        self._log = folder / "operators.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                (sys.executable, "-m", "tests.support.crashing_operator"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env=clean_environment() | {"KUBECONFIG": str(control_plane.kubeconfig)},
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )

    @property
    def log(self) -> str:
        """Everything its operators wrote."""
        return self._log.read_text(errors="replace")

    def start(
        self,
        *,
        victim: str = "",
        crash_at: int = 0,
        crash_in: str = "",
        lease_namespace: str = "",
        periods: dict[str, float] | None = None,
        rebuilds: bool = False,
    ) -> "ForkedOperator":
        """Start an operator; the one before has to have ended.

        Args:
            victim: slug, and namespace, of the AgentMemory whose steps are counted.
            crash_at: the step at which the process kills itself; 0 is never.
            crash_in: the step of a rebuild from whose beginning on they are counted.
            lease_namespace: where its lease lies; empty works without one.
            periods: fields of `services.passes.Periods`.
            rebuilds: it cleans up and carries rebuilds out too.
        """
        assert self._process.stdin is not None
        order = {"victim": victim, "crash_at": crash_at, "crash_in": crash_in, "periods": periods or {}}
        order |= {"lease_namespace": lease_namespace, "rebuilds": rebuilds}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return ForkedOperator(self, int(self.read_line()))

    def has_line(self) -> bool:
        """Tell whether there is something to read."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def read_line(self) -> str:
        """Return the next line; waits for it."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def close(self) -> None:
        """Kill everything that runs."""
        self._process.kill()
        self._process.communicate()


class ForkedOperator:
    """One operator of a nursery."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self._pid = pid
        self._code: int | None = None

    @property
    def returncode(self) -> int | None:
        """None while it runs; -9 after a SIGKILL."""
        if self._code is None and self._nursery.has_line():
            self._code = int(self._nursery.read_line())
        return self._code

    @property
    def log(self) -> str:
        """Everything the nursery's operators wrote."""
        return self._nursery.log

    def pause(self) -> None:
        """Stop the process where it is, until `go_on`."""
        os.kill(self._pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a paused process run again."""
        os.kill(self._pid, signal.SIGCONT)

    def jump(self, days: int) -> None:
        """Set its wall clock ahead, or back where `days` is negative."""
        for _ in range(abs(days)):
            os.kill(self._pid, signal.SIGUSR1 if days > 0 else signal.SIGUSR2)
            # Signals of one kind that wait together are one.
            time.sleep(0.2)

    def kill(self) -> None:
        """End it as a crash does; one that has ended is no error."""
        if self.returncode is None:
            os.kill(self._pid, signal.SIGKILL)
            self._code = int(self._nursery.read_line())


def start_api(control_plane: ControlPlane, folder: pathlib.Path, *, auth: str = "none") -> tuple[Program, str]:
    """Start `agentmemory api` on the objects of the cluster; return it and its URL when it serves.

    Args:
        auth: who may call.
    """
    program = Program(
        folder / "api.log",
        *(*AGENTMEMORY, "api", "--source", "kubernetes", "--port", "0"),
        KUBECONFIG=str(control_plane.kubeconfig),
        AGENTMEMORY_AUTH=auth,
    )
    return program, program.wait_for(r"API (http://\S+)")[1]


def start_qdrant(
    folder: pathlib.Path,
    *,
    port: int | None = None,
    version: str = "1.18.3",
    api_key: str | None = None,
    has_jwt_rbac: bool = False,
) -> tuple[Program, str]:
    """Start `agentmemory devserver`; return it and its URL when it serves.

    Args:
        folder: keeps its data and log.
        port: None is any free one.
        api_key: only the development server's own command takes one.
        has_jwt_rbac: tokens signed with the key are taken too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--data", str(folder / "data"), "--port", str(port or free_port()), "--qdrant-version", version]
    command = [*AGENTMEMORY, "devserver", *options]
    if api_key:
        command = [sys.executable, "-m", "agentmemory_operator.devserver", *options, "--api-key", api_key]
        command += ["--jwt-rbac"] if has_jwt_rbac else []
    log = folder / f"qdrant-{time.monotonic_ns()}.log"
    program = Program(log, *command)
    return program, program.wait_for(r"Qdrant (http://\S+)")[1]

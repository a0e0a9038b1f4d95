"""Operator and API as processes against a real control plane."""

import json
import os
import pathlib
import select
import signal
import sys
import time

from tests.support.cluster.controlplane import ControlPlane
from tests.support.forked import run_agentmemory, start_process
from tests.support.programs import AGENTMEMORY, Program, clean_environment

WATCHING = "watching QdrantConnection"
LEADING = "became the leader: "
SERVING = r"API (http://\S+)"


def start_operator(
    control_plane: ControlPlane,
    folder: pathlib.Path,
    *options: str,
    name: str = "operator",
    ready: str = LEADING,
    **environment: str,
) -> Program:
    """Start `agentmemory operator`; return when it works. After a kill, that takes until the old lease has expired.

    Args:
        ready: Pattern in its log to wait for.
    """
    control_plane.watcher.end()
    kubeconfig = str(control_plane.kubeconfig)
    command = (*AGENTMEMORY, "operator", *options)
    program = Program(folder / f"{name}.log", *command, KUBECONFIG=kubeconfig, **environment)
    program.wait_for(ready)
    return program


def run_command(
    control_plane: ControlPlane, *arguments: str, kubeconfig: pathlib.Path | None = None
) -> tuple[int, str, str]:
    """Run an `agentmemory` command against the cluster; return its exit status, output and errors."""
    environment = clean_environment() | {"KUBECONFIG": str(kubeconfig or control_plane.kubeconfig)}
    done = run_agentmemory(*arguments, env=environment)
    return done.returncode, done.stdout, done.stderr


class OperatorForks:
    """Runs operators assembled for a test, one at a time: `tests/support/cluster/crashing_operator.py`."""

    def __init__(self, control_plane: ControlPlane, folder: pathlib.Path) -> None:
        self._control_plane = control_plane
        self._log = folder / "operators.log"
        with self._log.open("wb") as log:
            given, orders = os.pipe()
            answers, output = os.pipe()
            command = (sys.executable, "-m", "tests.support.cluster.crashing_operator")
            environment = clean_environment() | {"KUBECONFIG": str(control_plane.kubeconfig)}
            self._process = start_process(command, (given, output, log.fileno()), env=environment)
        os.close(given)
        os.close(output)
        self._orders, self._answers = os.fdopen(orders, "w"), os.fdopen(answers)

    @property
    def log(self) -> str:
        """Combined output of its operators."""
        return self._log.read_text(errors="replace")

    def start(
        self,
        *,
        victim: str = "",
        crash_at: int = 0,
        crash_in: str = "",
        lease_namespace: str = "",
        zone_keys_namespace: str = "",
        periods: dict[str, float] | None = None,
    ) -> "ForkedOperator":
        """Start an operator. The previous one must have ended.

        Args:
            victim: Slug, and also namespace, of the AgentMemory for which steps are counted.
            crash_at: Number of the step at which the process kills itself; 0 for never.
            crash_in: Step of a rebuild from which on steps are counted; empty to count from the start.
            lease_namespace: Namespace of the lease; empty to run without one.
            zone_keys_namespace: Namespace for data keys of privacy zones; empty for none.
            periods: Fields of `controllers.periods.Periods`.
        """
        self._control_plane.watcher.end()
        order = {"victim": victim, "crash_at": crash_at, "crash_in": crash_in, "periods": periods or {}}
        order |= {"lease_namespace": lease_namespace, "zone_keys_namespace": zone_keys_namespace}
        self._orders.write(json.dumps(order) + "\n")
        self._orders.flush()
        return ForkedOperator(self, int(self.read_line()))

    def has_line(self) -> bool:
        """Return whether there is output to read."""
        return bool(select.select([self._answers], [], [], 0)[0])

    def read_line(self) -> str:
        """Wait for the next line of output and return it."""
        return self._answers.readline()

    def close(self) -> None:
        """Kill all processes."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._orders.close()
        self._answers.close()


class ForkedOperator:
    """An operator that an `OperatorForks` started."""

    def __init__(self, nursery: OperatorForks, pid: int) -> None:
        self._nursery = nursery
        self._pid = pid
        self._code: int | None = None

    @property
    def returncode(self) -> int | None:
        """Exit code; None while it runs, -9 after a SIGKILL."""
        if self._code is None and self._nursery.has_line():
            self._code = int(self._nursery.read_line())
        return self._code

    @property
    def log(self) -> str:
        """Combined output of all operators of the same `OperatorForks`."""
        return self._nursery.log

    def pause(self) -> None:
        """Pause the process until `go_on`."""
        os.kill(self._pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def jump(self, days: int) -> None:
        """Set its wall clock ahead, or back if `days` is negative."""
        for _ in range(abs(days)):
            os.kill(self._pid, signal.SIGUSR1 if days > 0 else signal.SIGUSR2)
            # Pending signals of one kind are merged into one.
            time.sleep(0.2)

    def kill(self) -> None:
        """Kill it as in a crash. If it has ended already, do nothing."""
        if self.returncode is None:
            os.kill(self._pid, signal.SIGKILL)
            self._code = int(self._nursery.read_line())


def start_api(
    control_plane: ControlPlane, folder: pathlib.Path, *, auth: str = "none", **environment: str
) -> tuple[Program, str]:
    """Start `agentmemory api` on the cluster's objects; return the process and its URL when it serves.

    Args:
        auth: Value of AGENTMEMORY_AUTH.
    """
    program = Program(
        folder / "api.log",
        *(*AGENTMEMORY, "api", "--source", "kubernetes", "--port", "0"),
        KUBECONFIG=str(control_plane.kubeconfig),
        AGENTMEMORY_AUTH=auth,
        **environment,
    )
    return program, program.wait_for(SERVING)[1]

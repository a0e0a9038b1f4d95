"""Connections of one tenant that never respond do not delay the objects of other tenants."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.workspace import Workspace
from tests.support.patience import wait_until
from tests.support.programs import Program

# Number of passes that the operator runs concurrently.
CONNECTIONS = 64
# Maximum of `timeoutSeconds`: no call times out during the test.
TIMEOUT_S = 300
SERVED_WITHIN_S = 10.0


@dataclass
class Abyss:
    """Server that accepts every connection, reads nothing and never responds."""

    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0), backlog=1024))
    accepted: list[socket.socket] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def accept(self) -> None:
        """Accept connections until the listener is closed."""
        with contextlib.suppress(OSError):
            while True:
                self.accepted.append(self.listener.accept()[0])

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        for opened in (self.listener, *self.accepted):
            opened.close()


@pytest.fixture
def abyss() -> Iterator[Abyss]:
    made = Abyss()
    accepting = threading.Thread(target=made.accept, daemon=True)
    accepting.start()
    yield made
    made.close()
    accepting.join(5)


def test_64_silent_connections_delay_no_other_tenant(
    control_plane: ControlPlane, operator: Program, workspace: Workspace, abyss: Abyss
) -> None:
    greedy = Workspace(control_plane, control_plane.create_namespace("greedy-"), abyss.url)

    def ask(number: int) -> None:
        name = f"dead-{number:02d}"
        greedy.connect(name, timeoutSeconds=TIMEOUT_S)
        greedy.create(name, agent=f"{greedy.namespace}-{number:02d}", connectionRef={"name": name})

    with ThreadPoolExecutor(4) as at_once:
        list(at_once.map(ask, range(CONNECTIONS)))
    try:
        wait_until(lambda: len(abyss.accepted) >= CONNECTIONS // 4, seconds=20, what="calls that nobody answers")

        workspace.connect()
        workspace.create()
        workspace.wait_ready(seconds=SERVED_WITHIN_S)
        workspace.wait_condition("Ready", "True/Serving", name="main", of="QdrantConnection", seconds=SERVED_WITHIN_S)
    finally:
        greedy.clean()

    assert operator.returncode is None

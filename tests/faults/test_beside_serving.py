"""Serving continues while backups cannot be stored and webhooks are not accepted."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest

from agentmemory_operator.adapters.s3.signed_calls import MAX_ATTEMPTS, READ_TIMEOUT_S
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import SERVING
from tests.support.cluster.traffic.witness import SPEC, Witness
from tests.support.cluster.workspace import Workspace, conditions_of
from tests.support.patience import wait_until
from tests.support.programs import Program, free_port
from tests.support.web.http_server import HOST
from tests.support.web.s3_server import BUCKET, KEY

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.faults]

STORED = 30
# Pause between two requests in seconds. The test takes minutes, because the operator waits for the silent storage.
PACE_S = 0.2
EVENTS = ["memory_superseded", "cleanup_done", "erased", "restored"]
SIGNING_KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module", autouse=True)
def ended(control_plane: ControlPlane) -> Iterator[None]:
    """End the operator, which other modules would share."""
    yield
    control_plane.watcher.end()


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Port that accepts connections and never responds."""
    ports: list[int] = []
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    started = threading.Event()

    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                while await reader.read(1 << 16):
                    pass
        finally:
            writer.close()

    async def serve() -> None:
        over = asyncio.Event()
        loops.append((asyncio.get_running_loop(), over))
        async with await asyncio.start_server(ignore, HOST, 0) as server:
            ports.append(server.sockets[0].getsockname()[1])
            started.set()
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(20)
    yield ports[0]
    [(loop, over)] = loops
    loop.call_soon_threadsafe(over.set)
    thread.join(20)


def hook(name: str, port: int) -> dict[str, object]:
    """Build a webhook to a port of this machine."""
    reference = {"name": "hooks", "key": "key"}
    return {"name": name, "url": f"http://{HOST}:{port}/hook", "events": EVENTS, "secretRef": reference}


def test_serving_survives_failed_backups_and_webhooks(
    workspace: Workspace, api_program: Program, qdrant_url: str, silent_port: int
) -> None:
    dead = free_port()
    workspace.create_secret("hooks", key=SIGNING_KEY)
    workspace.create_secret("s3", **{"access-key-id": KEY.id, "secret-access-key": KEY.secret})
    storage = {"s3": {"endpoint": f"http://{HOST}:{silent_port}", "bucket": BUCKET, "secretRef": {"name": "s3"}}}
    hooks = [hook("nobody", dead), hook("silent", silent_port)]
    workspace.create_ready(webhooks=hooks, snapshots={"storage": storage}, **SPEC)
    api_url = api_program.wait_for(SERVING)[1]

    with Witness([api_url], workspace.slug, pace_s=PACE_S) as witness:
        wait_until(lambda: witness.journal.acknowledged, seconds=20, what="the agent in the API")
        ready_reasons: set[str] = set()
        for number in range(3):
            workspace.create_snapshot(f"backup-{number}")
            witness.wait_for(STORED)
            ready_reasons.add(conditions_of(workspace.must_get())["Ready"])
        wait_until(
            lambda: (
                conditions_of(workspace.must_get("backup-0", "MemorySnapshot")).get("Progressing")
                == "True/StorageUnavailable"
            ),
            seconds=MAX_ATTEMPTS * READ_TIMEOUT_S + 30,
            what="a backup that cannot be stored",
        )
        failing = lambda: [one for one in workspace.status().get("webhooks", ()) if one.get("message")]  # noqa: E731
        wait_until(lambda: len(failing()) == len(hooks), seconds=90, what="webhooks that nobody takes")
        witness.wait_for(STORED)
        ready_reasons.add(conditions_of(workspace.must_get())["Ready"])
        witness.check(qdrant_url, workspace.alias)

    failed = {status for status in witness.journal.statuses if not status.startswith(("2", "404"))}
    assert failed == set()
    assert ready_reasons == {"True/Serving"}

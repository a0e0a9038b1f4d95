"""Condition reasons of failed passes, the same for every kind of object."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, NoReturn

import pytest

from agentmemory_operator.errors import (
    AgentMemoryError,
    ChecksumMismatch,
    CollectionNotFound,
    NamespaceTerminating,
    StorageRejected,
    StorageUnavailable,
    StoreRejected,
    StoreUnavailable,
    TlsVerificationFailed,
    TransientError,
)
from tests.contract.snapshots.test_snapshot_passes import FixedVerdicts, passes_of, request_snapshot
from tests.support.job.restore_world import RestoreWorld, open_restore
from tests.support.spec.documents import connection_document, memory_document
from tests.unit.controllers.test_agent_memory_pass import Stage

TRANSIENT: dict[str, AgentMemoryError] = {
    "TLSFailed": TlsVerificationFailed("its certificate is for another host"),
    "QdrantUnavailable": StoreUnavailable("away"),
    "StorageUnavailable": StorageUnavailable("away"),
    "Retrying": TransientError("Kubernetes cannot be reached"),
}
PERMANENT: dict[str, AgentMemoryError] = {
    "QdrantRejected": StoreRejected(400, "no such parameter"),
    "StorageRejected": StorageRejected(403, "AccessDenied", "not yours"),
    "ChecksumDiffers": ChecksumMismatch("other bytes"),
    "CollectionLost": CollectionNotFound("Collection `a` doesn't exist!"),
    "TargetGone": NamespaceTerminating("the namespace is being deleted"),
}


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[RestoreWorld]:
    async with open_restore(qdrant_url, points=3) as opened_world:
        yield opened_world


def _is_of_kubernetes(exc: AgentMemoryError) -> bool:
    """Return whether the error is not about the agent: errors of Kubernetes are not written to a status."""
    return isinstance(exc, TransientError) and not isinstance(exc, StoreUnavailable)


def raise_error(exc: AgentMemoryError) -> Any:
    async def fail(*_: Any, **__: Any) -> NoReturn:
        raise exc

    return fail


@pytest.mark.parametrize(("reason", "exc"), TRANSIENT.items())
async def test_snapshot_reason_while_retried(world: RestoreWorld, reason: str, exc: AgentMemoryError) -> None:
    key = request_snapshot(world)

    with pytest.raises(type(exc)):
        await passes_of(world, FixedVerdicts([exc])).run(key)

    assert world.condition(key, "Succeeded") == f"Unknown/{reason}"


@pytest.mark.parametrize(("reason", "exc"), PERMANENT.items())
async def test_snapshot_reason_once_failed(world: RestoreWorld, reason: str, exc: AgentMemoryError) -> None:
    passes = passes_of(world, FixedVerdicts([exc]))
    key = request_snapshot(world)
    await passes.run(key)
    world.clock.move(ms=601_000)
    await passes.run(key)

    # A snapshot that only waits for its verification is kept if the storage rejects calls.
    expected = "True/SnapshotTaken" if reason == "StorageRejected" else f"False/{reason}"
    assert world.condition(key, "Succeeded") == expected


@pytest.mark.parametrize(("reason", "exc"), PERMANENT.items())
async def test_restore_reason(
    world: RestoreWorld, monkeypatch: pytest.MonkeyPatch, reason: str, exc: AgentMemoryError
) -> None:
    key = world.restore()
    monkeypatch.setattr(world.restores.servers, "use", raise_error(exc))

    await world.restores.run(key)

    assert world.condition(key, "Succeeded") == f"False/{reason}"


@pytest.mark.parametrize(
    ("reason", "exc"), [item for item in (TRANSIENT | PERMANENT).items() if not _is_of_kubernetes(item[1])]
)
async def test_agent_reason(monkeypatch: pytest.MonkeyPatch, reason: str, exc: AgentMemoryError) -> None:
    stage = Stage()
    key = stage.put(connection_document(), memory_document())
    monkeypatch.setattr(stage.passes.connections, "use", raise_error(exc))

    with suppress(TransientError):
        await stage.run(key)

    assert stage.short(key)[0] == ("Ready", "False", reason)


async def test_missing_collection_is_not_unavailable(world: RestoreWorld) -> None:
    with pytest.raises(CollectionNotFound, match="doesn't exist"):
        await world.with_server(lambda server: server.snapshots.create("none"))

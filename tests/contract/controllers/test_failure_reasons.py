"""What stops a pass has one reason, whatever kind of object the pass is over."""

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
from tests.contract.snapshots.test_snapshot_passes import Said, asked, passes_of
from tests.support.job.restore_world import RestoreWorld, open_restore
from tests.support.spec.documents import connection_document, memory_document
from tests.unit.controllers.test_agent_memory_pass import Stage

FOR_NOW: dict[str, AgentMemoryError] = {
    "TLSFailed": TlsVerificationFailed("its certificate is for another host"),
    "QdrantUnavailable": StoreUnavailable("away"),
    "StorageUnavailable": StorageUnavailable("away"),
    "Retrying": TransientError("Kubernetes cannot be reached"),
}
FOR_GOOD: dict[str, AgentMemoryError] = {
    "QdrantRejected": StoreRejected(400, "no such parameter"),
    "StorageRejected": StorageRejected(403, "AccessDenied", "not yours"),
    "ChecksumDiffers": ChecksumMismatch("other bytes"),
    "CollectionLost": CollectionNotFound("Collection `a` doesn't exist!"),
    "TargetGone": NamespaceTerminating("the namespace is being deleted"),
}


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[RestoreWorld]:
    async with open_restore(qdrant_url, points=3) as made:
        yield made


def _is_of_others(exc: AgentMemoryError) -> bool:
    """Tell whether it says nothing of an agent: Kubernetes' own trouble is written nowhere."""
    return isinstance(exc, TransientError) and not isinstance(exc, StoreUnavailable)


def failing(exc: AgentMemoryError) -> Any:
    async def fail(*_: Any, **__: Any) -> NoReturn:
        raise exc

    return fail


@pytest.mark.parametrize(("reason", "exc"), FOR_NOW.items())
async def test_of_a_snapshot_that_is_tried_again(world: RestoreWorld, reason: str, exc: AgentMemoryError) -> None:
    key = asked(world)

    with pytest.raises(type(exc)):
        await passes_of(world, Said([exc])).run(key)

    assert world.condition(key, "Succeeded") == f"Unknown/{reason}"


@pytest.mark.parametrize(("reason", "exc"), FOR_GOOD.items())
async def test_of_a_snapshot_that_fails(world: RestoreWorld, reason: str, exc: AgentMemoryError) -> None:
    passes = passes_of(world, Said([exc]))
    key = asked(world)
    await passes.run(key)
    world.clock.move(ms=601_000)
    await passes.run(key)

    assert world.condition(key, "Succeeded") == f"False/{reason}"


@pytest.mark.parametrize(("reason", "exc"), FOR_GOOD.items())
async def test_of_a_restore(
    world: RestoreWorld, monkeypatch: pytest.MonkeyPatch, reason: str, exc: AgentMemoryError
) -> None:
    key = world.restore()
    monkeypatch.setattr(world.restores.servers, "use", failing(exc))

    await world.restores.run(key)

    assert world.condition(key, "Succeeded") == f"False/{reason}"


@pytest.mark.parametrize(
    ("reason", "exc"), [told for told in (FOR_NOW | FOR_GOOD).items() if not _is_of_others(told[1])]
)
async def test_of_an_agent(monkeypatch: pytest.MonkeyPatch, reason: str, exc: AgentMemoryError) -> None:
    stage = Stage()
    key = stage.put(connection_document(), memory_document())
    monkeypatch.setattr(stage.passes.connections, "use", failing(exc))

    with suppress(TransientError):
        await stage.run(key)

    assert stage.short(key)[0] == ("Ready", "False", reason)


async def test_a_server_that_has_no_such_collection_is_not_told_as_away(world: RestoreWorld) -> None:
    with pytest.raises(CollectionNotFound, match="doesn't exist"):
        await world.with_server(lambda server: server.snapshots.create("none"))

"""Previews of passes over manifests, which need no access to a cluster."""

from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.controllers.inspection import PassPreview, PreviewOutcome, preview_passes, worst_outcome
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.engine.collection_store import FakeCollectionStore
from tests.support.spec.documents import memory_document
from tests.support.spec.plans import ALIAS, desired_of

PHYSICAL = f"{ALIAS}__1"


def memory(name: str = "probe", **spec: Any) -> AgentMemory:
    """Return an object as in a file: without uid and generation."""
    document = memory_document(name, **spec)
    document["metadata"] = {"name": name, "namespace": "agents"}
    return parse_agent_memory(document)


def store_with(**marker: Any) -> FakeCollectionStore:
    """Return a server with the collection of agents/probe of cluster-1 and a changed marker."""
    desired = desired_of()
    assert desired.marker is not None
    live = replace(desired, marker=replace(desired.marker, **marker))
    return FakeCollectionStore(collections={PHYSICAL: live}, aliases={ALIAS: PHYSICAL}, points={PHYSICAL: 7})


async def preview(store: FakeCollectionStore | None, *memories: AgentMemory) -> list[PassPreview]:
    return [result async for result in preview_passes(memories or [memory()], store)]


async def test_empty_server_needs_all_creations() -> None:
    (result,) = await preview(None)

    assert result.outcome is PreviewOutcome.CHANGES
    assert result.draft is not None
    assert [type(change).__name__ for change in result.draft.plan.changes] == [
        "CreateCollection",
        "CreateIndexes",
        "SetAlias",
    ]


async def test_converged_collection_is_unchanged() -> None:
    (result,) = await preview(store_with(uid="uid-9", generation=4))

    assert (result.outcome, result.draft and result.draft.plan.changes) == (PreviewOutcome.UNCHANGED, ())


async def test_rebuild_is_withheld_and_shown_with_changes() -> None:
    index = {"distance": "Euclid", "hnsw": {"m": 24}}

    (result,) = await preview(store_with(), memory(index=index))

    assert result.outcome is PreviewOutcome.HELD
    assert result.draft is not None
    assert [type(change).__name__ for change in result.draft.plan.changes] == ["Rebuild", "UpdateHnsw"]


async def test_foreign_collection_is_refused_by_name() -> None:
    (result,) = await preview(store_with(name="theirs"))

    assert result.outcome is PreviewOutcome.REFUSED
    assert result.refusal is not None
    assert result.refusal[0] == "CollectionNotOwned"
    assert "AgentMemory agents/theirs" in result.refusal[1]
    assert "of cluster" not in result.refusal[1], "manifests name no cluster"


async def test_second_object_with_slug_is_refused() -> None:
    first, second = await preview(None, memory(), memory("other", agent="probe"))

    assert (first.outcome, second.outcome) == (PreviewOutcome.CHANGES, PreviewOutcome.REFUSED)
    assert second.refusal is not None
    assert "that of agents/probe too" in second.refusal[1]


async def test_server_is_only_read() -> None:
    store = store_with()

    await preview(store, memory(index={"hnsw": {"m": 24}}))

    assert {method for method, _ in store.calls} == {"observe"}


async def test_unavailable_server_raises() -> None:
    store = FakeCollectionStore(error=StoreUnavailable("away"))

    with pytest.raises(StoreUnavailable):
        await preview(store)


async def test_worst_outcome_wins() -> None:
    result = await preview(store_with(), memory(), memory("new"), memory("other", agent="probe"))

    assert worst_outcome(result[:1]) is PreviewOutcome.UNCHANGED
    assert worst_outcome(result[:2]) is PreviewOutcome.CHANGES
    assert worst_outcome(result) is PreviewOutcome.REFUSED
    assert worst_outcome([]) is PreviewOutcome.UNCHANGED


async def test_suspended_object_is_skipped() -> None:
    store = store_with()

    (result,) = await preview(store, memory(suspend=True, index={"hnsw": {"m": 24}}))

    assert (result.outcome, store.calls) == (PreviewOutcome.SUSPENDED, [])


async def test_permitted_takeover_is_planned() -> None:
    document = memory_document()
    document["metadata"]["annotations"] = {"agentmemory.dev/takeover": "uid-of-theirs"}
    theirs = store_with(name="theirs", uid="uid-of-theirs")

    (result,) = await preview(theirs, parse_agent_memory(document))

    assert result.outcome is PreviewOutcome.CHANGES
    assert result.draft is not None
    assert [type(change).__name__ for change in result.draft.plan.changes] == ["WriteMarker"]

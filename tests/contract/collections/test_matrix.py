"""The reconcile matrix against a server: create, change and unset of each parameter."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.collections.reconcile import PassOutcome, reconcile
from agentmemory_operator.collections.rules.changes import Change
from agentmemory_operator.collections.rules.collection import Collection
from tests.support.spec.golden import MatrixRow, load_matrix
from tests.support.spec.plans import desired_of, small_form

ROWS = load_matrix()


class RecordingCollections(QdrantCollections):
    """An adapter that records the changes sent."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.sent: list[Change] = []

    async def apply(self, physical: str, change: Change) -> None:
        self.sent.append(change)
        await super().apply(physical, change)


class Bench:
    """One alias on the server."""

    def __init__(self, url: str) -> None:
        self.store = RecordingCollections(url)
        self.http = httpx.Client(base_url=url, timeout=30)
        self.alias = f"agent_memory_m-{uuid.uuid4().hex[:12]}"
        self.last: str | None = None

    async def apply_spec(self, desired: Collection) -> PassOutcome:
        outcome = await reconcile(self.alias, desired, store=self.store, last_physical=self.last, last_points=0)
        self.last = outcome.observed.physical
        return outcome

    async def drop(self) -> None:
        if self.last:
            await self.store.delete(self.last)
        self.last = None


@pytest.fixture
async def bench(qdrant_url: str) -> AsyncIterator[Bench]:
    bench = Bench(qdrant_url)
    yield bench
    await bench.drop()
    await bench.store.close()
    bench.http.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.parameter)
async def test_parameter_is_created_changed_and_unset(bench: Bench, row: MatrixRow) -> None:
    """A second pass over the same spec sends nothing."""
    base, desired = desired_of(row.base), desired_of(row.spec)

    created = await bench.apply_spec(desired)
    assert created.plan.changes == ()
    assert parameter_of(created, row) == {name: value for name, value in row.create.items() if value is not None}
    bench.store.sent.clear()
    await bench.apply_spec(desired)
    assert bench.store.sent == [], "nothing is sent where nothing differs"
    await bench.drop()

    original = await bench.apply_spec(base)
    changed = await bench.apply_spec(desired)
    unset = await bench.apply_spec(base)

    assert bool(changed.plan.changes) == row.held
    assert parameter_of(changed, row) == parameter_of(original if row.held else created, row)
    assert unset.plan.changes == ()


def parameter_of(outcome: PassOutcome, row: MatrixRow) -> dict[str, Any]:
    """Return the part of the observed collection that contains the parameter."""
    form = small_form(outcome.observed.collection)
    return {name: form[name] for name, value in row.create.items() if value is not None}

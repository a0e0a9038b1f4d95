"""The reconcile matrix against a server: applied, read back, and nothing sent where nothing differs."""

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


class Counting(QdrantCollections):
    """The adapter, remembering what it was told to change."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.sent: list[Change] = []

    async def apply(self, physical: str, change: Change) -> None:
        self.sent.append(change)
        await super().apply(physical, change)


class Bench:
    """One name on the server."""

    def __init__(self, url: str) -> None:
        self.store = Counting(url)
        self.http = httpx.Client(base_url=url, timeout=30)
        self.alias = f"agent_memory_m-{uuid.uuid4().hex[:12]}"
        self.last: str | None = None

    async def bring(self, desired: Collection) -> PassOutcome:
        done = await reconcile(self.alias, desired, store=self.store, last_physical=self.last, last_points=0)
        self.last = done.observed.physical
        return done

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
async def test_it_is_created_changed_and_unset_as_the_server_reads_back(bench: Bench, row: MatrixRow) -> None:
    base, wanted = desired_of(row.base), desired_of(row.spec)

    created = await bench.bring(wanted)
    assert created.plan.changes == ()
    assert shown(created, row) == {name: value for name, value in row.create.items() if value is not None}
    bench.store.sent.clear()
    await bench.bring(wanted)
    assert bench.store.sent == [], "nothing is sent where nothing differs"
    await bench.drop()

    started = await bench.bring(base)
    changed = await bench.bring(wanted)
    unset = await bench.bring(base)

    assert bool(changed.plan.changes) == row.held
    assert shown(changed, row) == shown(started if row.held else created, row)
    assert unset.plan.changes == ()


def shown(done: PassOutcome, row: MatrixRow) -> dict[str, Any]:
    """Return the part of the observed collection that shows the parameter."""
    form = small_form(done.observed.collection)
    return {name: form[name] for name, value in row.create.items() if value is not None}

"""The reconcile matrix against a server: applied, read back, and nothing sent where nothing differs."""

import uuid
from collections.abc import AsyncIterator

import httpx
import pytest

from agentmemory_operator.adapters.qdrant_collections import QdrantCollections
from agentmemory_operator.domain.collection import Collection
from agentmemory_operator.domain.planning import Change
from agentmemory_operator.services.reconcile import Reconciled, reconcile
from tests.support.matrix import MatrixRow, load_matrix
from tests.support.plans import desired_of

ROWS = load_matrix()
SMALL = {"embedding": {"provider": "none", "dimensions": 8}}


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

    async def bring(self, desired: Collection) -> Reconciled:
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
    base, wanted = desired_of(SMALL | dict(row.base or {})), desired_of(SMALL | dict(row.spec))

    created = await bench.bring(wanted)
    await bench.drop()
    await bench.bring(base)
    changed = await bench.bring(wanted)
    unset = await bench.bring(base)

    assert created.observed.collection == wanted
    assert changed.observed.collection == (base if row.held else wanted)
    assert unset.observed.collection == base


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.parameter)
async def test_nothing_is_sent_where_nothing_differs(bench: Bench, row: MatrixRow) -> None:
    wanted = desired_of(SMALL | dict(row.spec))
    await bench.bring(wanted)
    bench.store.sent.clear()

    await bench.bring(wanted)

    assert bench.store.sent == []

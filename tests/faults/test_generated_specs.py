"""A thousand or more generated specs, valid and invalid: none fails a pass or leaves a partial collection."""

import asyncio
import os
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.collections.rules.changes import Change
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.controllers.periods import Periods
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import Key, ObjectTable, key_of
from agentmemory_operator.spec.naming import alias_of
from agentmemory_operator.spec.presets.table import NEEDED_INDEXES
from tests.support.engine.fakes import FakeCluster, FakeSecrets
from tests.support.engine.passes import passes_over
from tests.support.spec.documents import connection_document, memory_document
from tests.support.spec.generator import SECRET, SpecGenerator

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

SPECS, SEED, SPOILED = int(os.environ.get("GENERATED_SPECS", "1000")), 4, 0.4
MIN_VALID, MIN_INVALID = SPECS // 5, SPECS // 2
WORKERS = 8
# Hundreds of segments in several shards need more memory maps than a process may have.
REFUSED = {"InvalidSpec", "Suspended", "ConnectionNotFound", "SecretNotFound", "ServerFull"}
# Valid specs per collection.
LIFE = 6
# Other tests share the machine and slow the server down.
TIMEOUT_S = 300


class CountingStore(QdrantCollections):
    """Adapter that records the changes it applies."""

    def __init__(self, url: str) -> None:
        super().__init__(url, timeout_s=TIMEOUT_S)
        self.sent: dict[str, list[Change]] = {}

    async def apply(self, physical: str, change: Change) -> None:
        self.sent.setdefault(physical.partition("__")[0], []).append(change)
        await super().apply(physical, change)


class SpecPasses:
    """The operator's passes over a real server, with a table of objects instead of Kubernetes."""

    def __init__(self, url: str) -> None:
        self.store, self.table = CountingStore(url), ObjectTable()
        self.table.put(connection_document())
        secrets = FakeSecrets({("agents", SECRET["name"], SECRET["key"]): "s3cret"})
        connections = Connections(self.table, secrets, lambda endpoint: self.store)
        self.passes = passes_over(
            self.table, connections, FakeCluster(), SystemClock(), self._ignore, periods=Periods()
        )
        self.outcomes: Counter[str] = Counter()

    def _ignore(self, key: Key, *, after_s: float = 0.0) -> None:
        """Ignore a request for a pass: the test runs them."""

    async def run_specs(self, specs: Sequence[Json]) -> None:
        """Apply the specs to one object after another, a few specs each."""
        slug, accepted = f"gen-{uuid.uuid4().hex[:12]}", 0
        for spec in specs:
            if accepted == LIFE:
                await self.end(slug)
                slug, accepted = f"gen-{uuid.uuid4().hex[:12]}", 0
            try:
                accepted += await self.offer(slug, spec)
            except Exception as exc:
                exc.add_note(f"the spec: {spec!r}")
                raise
        if accepted:
            await self.end(slug)

    async def offer(self, slug: str, spec: Json) -> bool:
        """Run passes over the spec; return whether the object is served. A refused spec sends nothing to the store."""
        key = Key("AgentMemory", "agents", slug)
        before = self.table.get(key) or memory_document(slug, metadata={"generation": 0})
        metadata = before["metadata"] | {"generation": before["metadata"]["generation"] + 1}
        document: Json = before | {"metadata": metadata, "spec": spec}
        assert key_of(document) == key
        self.table.put(document)
        sent = self.store.sent[alias_of(slug)] = []

        await self.passes.run(key)

        document = self.table.get(key) or document
        conditions = {item["type"]: item["reason"] for item in document["status"]["conditions"]}
        outcome = conditions.get("Suspended") or conditions.get("Stalled") or conditions["Ready"]
        self.outcomes[outcome] += 1
        if outcome != "Serving":
            assert outcome in REFUSED, document["status"]
            assert sent == []
            return False
        sent.clear()
        await self.passes.run(key)
        assert sent == [], "a second pass has nothing to do"
        return True

    async def check_whole(self, slug: str) -> None:
        """Check that the collection has its indexes, marker and alias."""
        alias = alias_of(slug)
        found = await self.store.observe(alias, f"{alias}__1")
        assert found is not None
        assert found.is_aliased
        assert found.collection.marker is not None
        assert set(NEEDED_INDEXES) <= set(found.collection.indexes)

    async def end(self, slug: str) -> None:
        """Check the collection of an object, then delete both."""
        await self.check_whole(slug)
        self.table.remove(Key("AgentMemory", "agents", slug))
        await self.store.delete(f"{alias_of(slug)}__1")


@pytest.fixture
async def site(qdrant_url: str) -> AsyncIterator[SpecPasses]:
    passes = SpecPasses(qdrant_url)
    yield passes
    await passes.store.close()


async def test_specs_leave_no_partial_collection(site: SpecPasses) -> None:
    """No spec fails a pass."""
    generator = SpecGenerator(SEED, spoiled=SPOILED)
    specs: list[dict[str, Any]] = [generator.draw() for _ in range(SPECS)]

    async with asyncio.TaskGroup() as group:
        for number in range(WORKERS):
            group.create_task(site.run_specs(specs[number::WORKERS]))

    assert site.outcomes.total() == SPECS
    assert site.outcomes["Serving"] >= MIN_VALID
    assert site.outcomes["InvalidSpec"] >= MIN_INVALID

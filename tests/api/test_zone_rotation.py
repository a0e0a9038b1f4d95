"""Rotation of data keys over HTTP: memories are resealed and otherwise unchanged."""

import contextlib
import pathlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from agentmemory_operator.memories.repair import Sweeper
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.spec.naming import alias_of
from agentmemory_operator.spec.times import render_second
from tests.support.engine.fakes import FakeClock
from tests.support.spec.documents import Document
from tests.support.web.api_stack import Stack, build_stack_services, create_collection, running_api
from tests.support.web.dev_qdrant import dev_qdrant
from tests.support.zone_agents import Keys, zoned_document

AGENT = "turned"
WORDS = {"index": {"keyword": {"enabled": True}}, "lifecycle": {"deduplicate": True}}
OPEN = {"vectors": ["PERSONAL"], "words": ["PERSONAL"]}
ZONES = ("SENSITIVE", "PERSONAL", "PROFESSIONAL")
SECRET = "Xylophonitis was diagnosed on Thursday"
SAME = ("id", "contentHash", "lookupIds", "createdAt", "loggedAt", "zone", "userId", "type")


@dataclass(slots=True)
class CountingEmbedder:
    """Records texts and returns constant vectors.

    Attributes:
        texts: All texts received.
    """

    texts: list[str] = field(default_factory=list)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.texts += texts
        return [[1.0] * 64 for _ in texts]

    async def embed_queries(self, texts: Sequence[str]) -> list[list[float]]:
        return await self.embed(texts)


@dataclass(slots=True)
class Turned:
    """An agent over HTTP, and replicas that reseal its memories."""

    stack: Stack
    client: httpx.Client
    keys: Keys
    embedder: Embedder = field(default_factory=CountingEmbedder)  # type: ignore[arg-type]

    def document(self) -> Document:
        """Return the object with a rotation of every existing key."""
        self.keys.clock.move(ms=2000)
        before = render_second(self.keys.clock.now_ms() / 1000)
        return zoned_document(AGENT, OPEN | {"rotateKeysBefore": before}, **WORDS)

    @contextlib.asynccontextmanager
    async def sweeper(self, document: Document, clock: FakeClock | None = None) -> AsyncIterator[Sweeper]:
        services = build_stack_services(
            *(self.stack.qdrant_url, document),
            embedder_of=lambda _: self.embedder,
            clock=clock or self.keys.clock,
            zone_keys_of=self.keys.of,
        )
        agent = await services.directory.open(AGENT)
        try:
            yield Sweeper(services.directory)
        finally:
            await agent.store.close()

    async def sweep(self, document: Document) -> None:
        """Reseal memories in a separate replica."""
        async with self.sweeper(document) as sweeper:
            await sweeper.sweep(AGENT)

    def store(self, user: str, content: str, zone: str | None, **more: Any) -> str:
        body = {"user_id": user, "content": content, "zone": zone, **more}
        answer = self.client.post(f"/v1/agents/{AGENT}/memories", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def read(self, user: str, memory_id: str) -> Any:
        answer = self.client.get(f"/v1/agents/{AGENT}/memories/{memory_id}", params={"user_id": user})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def point(self, memory_id: str) -> Any:
        body = {"ids": [memory_id], "with_payload": True, "with_vector": True}
        answer = httpx.post(f"{self.stack.qdrant_url}/collections/{alias_of(AGENT)}/points", json=body)
        [found] = answer.json()["result"]
        return found


@pytest.fixture
def turned(tmp_path: pathlib.Path) -> Iterator[Turned]:
    document, keys = zoned_document(AGENT, OPEN, **WORDS), Keys()
    with dev_qdrant(tmp_path / "data") as qdrant_url:
        create_collection(qdrant_url, document)
        with (
            running_api(qdrant_url, document, zone_keys_of=keys.of) as stack,
            httpx.Client(base_url=stack.api_url, timeout=20) as client,
        ):
            yield Turned(stack, client, keys)


def key_of(point: Any) -> str:
    """Return the id of the key that seals a point."""
    return str(point["payload"]["sealed"]).partition(".")[0]


async def test_memories_are_resealed_and_otherwise_unchanged(turned: Turned, user: str) -> None:
    old = turned.store(user, "Xylophonitis maybe", "PERSONAL")
    ids = [turned.store(user, f"{SECRET} {zone}", zone, tags=["t"]) for zone in (*ZONES, None)]
    ids += [old, turned.store(user, "Xylophonitis for sure", "PERSONAL", supersedes=old)]
    before = {memory_id: turned.point(memory_id) for memory_id in ids}
    responses = {memory_id: turned.read(user, memory_id) for memory_id in ids}

    async with turned.sweeper(turned.document()) as sweeper:
        await sweeper.sweep(AGENT)

        after = {memory_id: turned.point(memory_id) for memory_id in ids}
        for memory_id in ids:
            was, now = before[memory_id]["payload"], after[memory_id]["payload"]
            is_sealed = "zone" in was
            assert after[memory_id]["vector"] == before[memory_id]["vector"]
            assert [now.get(name) for name in SAME] == [was.get(name) for name in SAME]
            assert now["rev"] - was["rev"] == is_sealed
            assert is_sealed is False or key_of(after[memory_id]) != key_of(before[memory_id])
            assert now.keys() == was.keys()
            assert {**turned.read(user, memory_id), "updated_at": None} == {**responses[memory_id], "updated_at": None}
        assert turned.embedder.texts == []  # type: ignore[attr-defined]
        await sweeper.sweep(AGENT)
        assert {memory_id: turned.point(memory_id) for memory_id in ids} == after
        # A repeated memory is found by its former hash.
        assert turned.store(user, f"{SECRET} SENSITIVE", "SENSITIVE") == ids[0]


async def test_restored_memory_is_read_and_resealed(turned: Turned, user: str) -> None:
    """A snapshot brings back a memory under a replaced key."""

    memory_id = turned.store(user, SECRET, "SENSITIVE")
    copy = turned.point(memory_id)
    document = turned.document()
    await turned.sweep(document)

    body = {"points": [copy | {"vector": {}}]}
    httpx.put(f"{turned.stack.qdrant_url}/collections/{alias_of(AGENT)}/points?wait=true", json=body)

    assert turned.read(user, memory_id)["content"] == SECRET
    await turned.sweep(document)
    assert key_of(turned.point(memory_id)) != key_of(copy)
    assert turned.read(user, memory_id)["content"] == SECRET


async def test_locked_memories_do_not_block_the_sweep(turned: Turned, user: str) -> None:
    """The next sweep starts ten minutes after one that can open nothing more."""

    locked = [turned.store(f"{user}-gone", f"{SECRET} {number}", "SENSITIVE") for number in range(3)]
    copies = [turned.point(memory_id) for memory_id in locked]
    turned.client.post(
        f"/v1/agents/{AGENT}/forget", json={"user_id": f"{user}-gone", "everything": True, "crypto": True}
    )
    body = {"points": [copy | {"vector": {}} for copy in copies]}
    httpx.put(f"{turned.stack.qdrant_url}/collections/{alias_of(AGENT)}/points?wait=true", json=body)
    memory_id = turned.store(user, SECRET, "SENSITIVE")
    before = turned.point(memory_id)
    document, clock = turned.document(), FakeClock(turned.keys.clock.now_ms())
    async with turned.sweeper(document, clock) as sweeper:
        await sweeper.sweep(AGENT)

        assert key_of(turned.point(memory_id)) != key_of(before)
        assert [turned.point(copy["id"])["payload"] for copy in copies] == [copy["payload"] for copy in copies]
        # This sweep finds only locked memories: the next one starts ten minutes later.
        await sweeper.sweep(AGENT)
        httpx.put(
            f"{turned.stack.qdrant_url}/collections/{alias_of(AGENT)}/points?wait=true",
            json={"points": [before | {"vector": {}}]},
        )
        await sweeper.sweep(AGENT)
        assert key_of(turned.point(memory_id)) == key_of(before)
        clock.move(ms=600_000)
        await sweeper.sweep(AGENT)
        assert key_of(turned.point(memory_id)) != key_of(before)


async def test_forged_points_are_left_unchanged(turned: Turned, user: str) -> None:
    memory_id = turned.store(user, SECRET, "SENSITIVE")
    copy = turned.point(memory_id)
    forged = [
        copy["payload"] | {"userId": "mallory"},
        copy["payload"] | {"userId": 7},
        copy["payload"] | {"rev": "one"},
        copy["payload"] | {"sealed": "nothing"},
    ]
    points = [
        {"id": f"00000000-0000-4000-8000-00000000000{number}", "payload": payload, "vector": {}}
        for number, payload in enumerate(forged)
    ]
    url = f"{turned.stack.qdrant_url}/collections/{alias_of(AGENT)}/points?wait=true"
    httpx.put(url, json={"points": points}).raise_for_status()

    await turned.sweep(turned.document())

    assert [turned.point(point["id"])["payload"] for point in points] == forged
    assert key_of(turned.point(memory_id)) != key_of(copy)

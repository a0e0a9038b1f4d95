"""The life of one memory: stored once through every operation, absent everywhere after a forget."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentmemory_operator.adapters.embedding.embedder_factory import CallerVectors
from agentmemory_operator.adapters.entity_lists import read_entity_lists
from agentmemory_operator.agents.directory import Agent, open_collection
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.consolidation.run import Consolidation, RunParameters, RunReport
from agentmemory_operator.entities.rules.sheet import NO_SHEET, EntitySheet
from agentmemory_operator.entities.sheets import change_sheet, put_aliases, put_relation, read_sheet
from agentmemory_operator.entrypoints.api.transfer.sheet_lines import render_sheet_line
from agentmemory_operator.entrypoints.api.transfer.transfer_requests import read_line, render_line
from agentmemory_operator.errors import Conflict
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories.change_log import ChangesRequest, read_changes
from agentmemory_operator.memories.rules.secret_patterns import OWN_RULES
from agentmemory_operator.memories.transfer.exports import export_memories
from agentmemory_operator.memories.transfer.import_batch import ImportLine, Outcome
from agentmemory_operator.memories.transfer.imports import import_lines
from agentmemory_operator.search.users import name_user, read_profile
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.webhooks.deliver import WebhookDelivery
from tests.support.engine.agents import FakeEmbedder, World, every_right
from tests.support.engine.fakes import FakeSecrets
from tests.support.engine.language_models import FunctionModel, ModelResponse, Row, merge_by_first_word
from tests.support.job.job_world import SIZE
from tests.support.job.rebuild_world import TIMEOUT_S, FullWorld
from tests.support.spec.documents import connection_document

CONTENT, REDACTED, SECRET = "Ada's password: hunter2", "Ada's password: [REDACTED:password]", "hunter2"
VECTOR = (1.0, 0.0, 0.0, 1.0)
HOOK = {
    "name": "ops",
    "url": "https://hooks.example.com/memories",
    "events": ["memory_superseded", "erased", "restored"],
    "secretRef": {"name": "ops-webhook", "key": "secret"},
}


@dataclass(slots=True)
class Listener:
    """Records the bodies sent to a webhook."""

    bodies: list[bytes] = field(default_factory=list)

    async def send(self, field: str, url: str, body: bytes, headers: Mapping[str, str]) -> str | None:
        self.bodies.append(body)
        return None


class Life(FullWorld):
    """An agent with secret scrubbing and a webhook, and the operations on its memories."""

    has_entities = False
    embedder: FakeEmbedder | None = None

    async def begin_empty(self) -> None:
        self.table.put(connection_document(url=self.url, timeoutSeconds=TIMEOUT_S))
        await self.create_agent(0, changePolicy="Apply", webhooks=[HOOK])
        self.listener = Listener()
        secrets = FakeSecrets({("agents", "ops-webhook", "secret"): "x" * 32})
        self.webhooks = WebhookDelivery(
            *(self.table, self.open_agent, secrets, self.listener, self.clock), request=lambda key, after_s=0.0: None
        )
        await self.webhooks._deliver(self.memory)

    async def open_agent(self, settings: Any = None) -> Agent:
        """Open the collection behind the alias."""
        settings = settings or effective_settings(parse_agent_memory(self.must_get(self.memory)))

        async def operation(server: Server) -> Agent:
            embedder, identity = CallerVectors(SIZE), self.cluster.cluster_id
            return await open_collection(server.points, settings, embedder, self.clock, cluster_id=identity)

        lists = read_entity_lists() if self.has_entities else None
        agent = replace(await self.with_server(operation), secret_rules=OWN_RULES, entity_lists=lists)
        if self.embedder is None:
            return agent
        source = EmbeddingSource(provider="fake", model=None, dimensions=SIZE)
        return replace(agent, embedder=self.embedder, source=source)

    async def now(self) -> World:
        """Advance the clock by 60 s; return the use cases on the live collection."""
        self.clock.move(ms=60_000)
        return World(await self.open_agent(), clock=self.clock)

    async def log(self) -> list[tuple[str, str]]:
        """Return the whole change log, as kinds and ids."""
        page = await read_changes((await self.now()).agent, ChangesRequest(limit=100))
        return [(change.kind, change.id) for change in page.changes]

    async def read_events(self) -> list[tuple[str, str]]:
        """Return the events received by the webhook, as types and users."""
        await self.now()
        await self.webhooks._deliver(self.memory)
        events = [json.loads(body) for body in self.listener.bodies]
        return [(event["type"], event["data"].get("user_id")) for event in events]

    async def exported(self) -> list[bytes]:
        pages = export_memories((await self.now()).agent, "u", has_vectors=True)
        return [render_line(each, embedding=f"none/{SIZE}") async for page in pages for each in page]

    async def imported(self, lines: Sequence[bytes]) -> list[Outcome]:
        agent = (await self.now()).agent
        rights = every_right(agent.settings)
        read = [read_line(line, user_id="u", default_type="fact", rights=rights) for line in lines]
        return await import_lines(
            agent, [line for line in read if isinstance(line, ImportLine)], can_restore_erased=False
        )

    def all_points(self) -> list[dict[str, Any]]:
        """Return every point of every collection, replaced ones included."""
        return [row for name in self.collections() for row in self.rows(name).values()]


@pytest.fixture
async def life(qdrant_url: str) -> AsyncIterator[Life]:
    opened_life = Life(qdrant_url)
    await opened_life.begin_empty()
    yield opened_life
    await opened_life.close()


async def test_memory_survives_all_moves_until_forget(life: Life) -> None:
    old = await (await life.now()).add(CONTENT, vector=VECTOR)
    new = await (await life.now()).add("Ada changed it", vector=VECTOR, supersedes=old)
    versions = {old: REDACTED, new: "Ada changed it"}
    changes = [("superseded", old), ("stored", new)]

    def check(collection: str) -> None:
        assert life.aliases() == {life.alias: collection}
        assert {row["id"]: row["content"] for row in life.rows(collection).values()} == versions
        assert len(life.rows(collection)) == len(versions)

    check(f"{life.alias}__1")
    assert sorted(await life.log()) == sorted(changes)
    assert await life.read_events() == [("memory_superseded", "u")]

    lines = await life.exported()
    assert await life.imported(lines) == ["present"] * len(lines)
    check(f"{life.alias}__1")

    await life.snapshot()
    await life.run(restore := life.restore())
    assert life.condition(restore, "Succeeded") == "True/Restored"
    check(f"{life.alias}__2")
    assert await life.read_events() == [("memory_superseded", "u"), ("restored", None)]

    life.change(index={"distance": "Dot"})
    await life.rebuild()
    check(f"{life.alias}__3")
    assert sorted(await life.log()) == sorted(changes)
    sheet_before = await life.read_events()
    assert sheet_before == [("memory_superseded", "u"), ("restored", None)]
    assert SECRET not in repr((life.all_points(), lines, life.listener.bodies))

    # The snapshot from before the rebuild does not fit any more.
    await life.snapshot("after")
    world = await life.now()
    receipt = await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))
    assert await life.read_events() == [*sheet_before, ("erased", None)]
    await life.with_server(life.sweeper().sweep)
    await life.run(again := life.restore("again", source={"snapshotRef": {"name": "after"}}))
    await life.with_server(life.sweeper().sweep)

    assert life.condition(again, "Succeeded") == "True/Restored"
    assert await life.exported() == []
    assert all(isinstance(outcome, Conflict) for outcome in await life.imported(lines))
    assert len(life.collections()) == 4
    assert not [row for row in life.all_points() if row.get("userId") == "u" or "Ada" in repr(row)]
    assert await life.log() == [("forgotten", receipt.id)]
    assert await life.read_events() == [*sheet_before, ("erased", None), ("restored", None)]


async def test_entities_and_relations_survive_until_forget(life: Life) -> None:
    life.has_entities = True
    agent = (await life.now()).agent
    memory = await (await life.now()).add("Ada Byron met Carl Novak.", vector=VECTOR)
    await put_relation(agent, "u", "Ada Byron", "works_on", "Engine Number One")
    await put_aliases(agent, "u", {"the countess": "Ada Byron"})
    await name_user(agent, "u", "Ada B.")
    sheet_before, profile = await read_sheet(agent, "u"), await read_profile(agent, "u")
    assert (len(sheet_before.relations), len(sheet_before.aliases)) == (1, 1)

    async def check(collection: str) -> None:
        """Check the memory, the entity sheet and the profile; no other call returns the last two."""
        world = await life.now()
        [record] = await world.rows()
        assert [entity.name for entity in record.entities] == ["u", "Ada Byron", "Carl Novak"]
        assert await read_sheet(world.agent, "u") == sheet_before
        assert await read_profile(world.agent, "u") == profile
        assert len(life.rows(collection)) == 3
        assert await life.log() == [("stored", memory)]
        assert len(await life.exported()) == 1
        await life.with_server(life.sweeper().sweep)
        assert len(life.rows(collection)) == 3

    await check(f"{life.alias}__1")
    lines = [*await life.exported(), render_sheet_line(sheet_before)]

    await life.snapshot(points={"before": 1, "after": 1})
    await life.run(restore := life.restore())
    assert life.condition(restore, "Succeeded") == "True/Restored"
    await check(f"{life.alias}__2")

    life.change(index={"distance": "Dot"})
    await life.rebuild()
    await check(f"{life.alias}__3")

    await life.snapshot("after", points={"before": 1, "after": 1})
    world = await life.now()
    receipt = await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))
    assert receipt.counts.total == 1
    await life.with_server(life.sweeper().sweep)
    assert await read_sheet((await life.now()).agent, "u") == NO_SHEET
    assert await read_profile((await life.now()).agent, "u") is None
    await life.run(again := life.restore("again", source={"snapshotRef": {"name": "after"}}))
    await life.with_server(life.sweeper().sweep)

    assert life.condition(again, "Succeeded") == "True/Restored"
    assert not [
        row for row in life.all_points() if row.get("userId") == "u" or "Ada" in repr(row) or "countess" in repr(row)
    ]

    # A sheet imported afterwards is stored as it is.
    agent = (await life.now()).agent
    rights = every_right(agent.settings)
    sheet = read_line(lines[1], user_id="u", default_type="fact", rights=rights)
    assert isinstance(sheet, EntitySheet)
    for _ in range(2):
        await change_sheet(agent, "u", lambda there: there.merged_with(sheet))
    assert await read_sheet(agent, "u") == sheet_before


def merging_and_connecting(rows: Sequence[Row]) -> ModelResponse:
    ids = {row["content"]: row["id"] for row in rows}
    connected = {"memory_ids": [ids["alpha two"], ids["beta alone"]], "description": "said together"}
    return {**merge_by_first_word(rows), "connections": [connected]}


async def test_merged_memory_survives_until_forget(life: Life) -> None:
    life.embedder = FakeEmbedder(size=SIZE)
    sources = [await (await life.now()).add(text, vector=None) for text in ("alpha one", "alpha two")]
    await (await life.now()).add("beta alone", vector=None)
    order = RunParameters(id="r-1", before_ms=life.clock.now_ms() + 1)
    await Consolidation(life.open_agent, FunctionModel(merging_and_connecting)).run(order, RunReport())

    async def check() -> None:
        """Check that the merged memory supersedes its sources and that connections are unchanged."""
        rows = {record.content: record for record in await (await life.now()).rows(include_superseded=True)}
        merged = rows["alpha one alpha two"]
        assert sorted(await (await life.now()).heads()) == ["alpha one alpha two", "beta alone"]
        assert sorted(merged.supersedes_ids) == sorted(merged.source_ids) == sorted(sources)
        assert {rows[text].superseded_by_id for text in ("alpha one", "alpha two")} == {merged.id}
        assert [(one["id"], one["description"]) for one in rows["beta alone"].connections] == [
            (sources[1], "said together")
        ]

    await check()
    lines = await life.exported()
    assert await life.imported(lines) == ["present"] * len(lines)

    await life.snapshot(points={"before": 4, "after": 4})
    await life.run(restore := life.restore())
    assert life.condition(restore, "Succeeded") == "True/Restored"
    await check()

    life.change(index={"distance": "Dot"})
    await life.rebuild()
    await check()
    # In any order: changes of one millisecond are ordered by their ids.
    assert sorted(kind for kind, _ in await life.log()) == ["consolidated", "stored", "superseded", "superseded"]

    await life.snapshot("after", points={"before": 4, "after": 4})
    world = await life.now()
    receipt = await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))
    assert receipt.counts.total == 4
    await life.with_server(life.sweeper().sweep)
    await life.run(again := life.restore("again", source={"snapshotRef": {"name": "after"}}))
    await life.with_server(life.sweeper().sweep)

    assert life.condition(again, "Succeeded") == "True/Restored"
    assert not [
        row for row in life.all_points() if row.get("userId") == "u" or "alpha" in repr(row) or "said" in repr(row)
    ]

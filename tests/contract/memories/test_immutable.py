"""Memories of immutable types: permitted calls, and the fields that still change."""

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from agentmemory_operator.entrypoints.api.transfer.transfer_requests import read_line
from agentmemory_operator.errors import Conflict, Forbidden, NotFound, RequestInvalid
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.cleanup_rules import RemovalReason, build_rules, own_reason
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories.item_writes import ItemContent
from agentmemory_operator.memories.rules.item_rules import Address
from agentmemory_operator.memories.stored_memories import change_head, delete_head, read_memory
from agentmemory_operator.memories.transfer.import_batch import ImportLine
from agentmemory_operator.memories.transfer.imports import import_lines
from agentmemory_operator.spec.effective.settings import effective_lifecycle, effective_settings
from agentmemory_operator.spec.expression.variables import DAY_MS
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.spec.presets import BRAIN, CORTEX
from tests.support.engine.agents import EVERYTHING, World, every_right, search_request, vector_of
from tests.support.spec.plans import probe

TYPES = (MemoryType("fact", 34), MemoryType("decision", None, immutable=True))


@pytest.fixture
async def decision(world: World) -> str:
    """Id of a memory of an immutable type."""
    settings = replace(world.agent.settings, ranking=replace(EVERYTHING, types=TYPES), deduplicate=True)
    world.agent = replace(world.agent, settings=settings)
    return await world.add("we use Python", type="decision", author="ada")


@pytest.fixture
def brain(world: World) -> World:
    """World with the rules of the preset `brain`."""
    brain = effective_settings(probe({"preset": "brain"}))
    settings = replace(world.agent.settings, ranking=brain.ranking, deduplicate=brain.deduplicate)
    world.agent = replace(world.agent, settings=settings)
    return world


def test_only_brain_has_immutable_types() -> None:
    assert [type_.name for type_ in BRAIN.types if type_.immutable] == ["event", "decision"]
    assert not any(type_.immutable for type_ in CORTEX.types)


def line_of(world: World, **fields: Any) -> ImportLine:
    text = json.dumps({"vector": vector_of(fields["content"]), **fields}).encode()
    line = read_line(text, user_id="u", default_type="fact", rights=every_right(world.agent.settings))
    assert isinstance(line, ImportLine)
    return line


@pytest.mark.parametrize("fixed", ["event", "decision"])
@pytest.mark.parametrize(
    "newer",
    [
        {"type": "event"},
        {"type": "decision"},
        {"type": "fact"},
        {"type": "fact", "key": "k"},
        {"type": "status", "subject": "s"},
    ],
    ids=str,
)
async def test_no_type_supersedes_an_immutable_memory(brain: World, fixed: str, newer: dict[str, Any]) -> None:
    old = await brain.add("deployed 1.0", type=fixed, key="k", subject="s")

    stored = await brain.try_add("deployed 2.0", supersedes=old, **newer)
    [imported] = await import_lines(
        brain.agent, [line_of(brain, content="deployed 3.0", supersedes=old, **newer)], can_restore_erased=False
    )

    assert [type(outcome) for outcome in (stored, imported)] == [Conflict, Conflict]
    assert await brain.heads() == ["deployed 1.0"]


@pytest.mark.parametrize("fixed", ["event", "decision"])
async def test_keys_and_subjects_do_not_supersede_it(brain: World, fixed: str) -> None:
    await brain.add("said", type=fixed, key="k", subject="s")

    await brain.add("fact", type="fact", key="k")
    await brain.add("status", type="status", subject="s")
    await brain.add("said again", type=fixed, key="k", subject="s")

    assert sorted(await brain.heads()) == ["fact", "said", "said again", "status"]


@pytest.mark.parametrize("successor", [None, str(UUID(int=9))])
async def test_import_needs_link_from_superseded_event(brain: World, successor: str | None) -> None:
    """The line of the event itself has to name its successor."""
    old = str(UUID(int=1))
    lines = [
        line_of(brain, content="happened", type="event", id=old, superseded_by=successor),
        line_of(brain, content="instead", type="fact", id=str(UUID(int=2)), supersedes=old),
    ]

    outcomes = await import_lines(brain.agent, lines, can_restore_erased=False)

    assert outcomes[0] == "imported"
    assert isinstance(outcomes[1], Conflict)
    assert await brain.heads() == ["happened"]


async def test_old_chain_of_events_can_be_imported(brain: World) -> None:
    """Earlier releases allowed the supersession of events."""
    ids = [str(UUID(int=number)) for number in (1, 2)]
    lines = [
        line_of(brain, content="happened", type="event", id=ids[0], superseded_by=ids[1]),
        line_of(brain, content="corrected", type="event", id=ids[1], supersedes=ids[0]),
    ]

    assert await import_lines(brain.agent, lines, can_restore_erased=False) == ["imported"] * 2

    assert await brain.heads() == ["corrected"]


async def test_decision_never_expires(brain: World) -> None:
    later = brain.clock.now_ms() + 1000

    stored = await brain.try_add("we use Python", type="decision", expires_at=later)
    [imported] = await import_lines(
        brain.agent,
        [line_of(brain, content="we use Rust", type="decision", expires_at="2999-01-01T00:00:00Z")],
        can_restore_erased=False,
    )

    for outcome in (stored, imported):
        assert isinstance(outcome, RequestInvalid)
        assert [error.field for error in outcome.errors] == ["expires_at"]
    assert await brain.heads() == []
    await brain.add("logged in", type="event", expires_at=later)
    await brain.add("likes tea", type="fact", expires_at=later)
    assert len(await brain.heads()) == 2


async def test_item_can_be_put_once(world: World) -> None:
    types = (MemoryType("decision", None, immutable=True),)
    world.set_ranking(replace(EVERYTHING, types=types))
    address = Address(user_id="u", namespace=("memories", "u"), key="k")

    with pytest.raises(RequestInvalid, match="expires_at"):
        await world.items.put(world.agent, address, item("a", expires_at=world.clock.now_ms() + 1000))
    await world.items.put(world.agent, address, item("a", idempotency_key="once"))
    for again in (item("b"), item("a", metadata={"more": 1})):
        with pytest.raises(Conflict, match="immutable"):
            await world.items.put(world.agent, address, again)
    repeated = await world.items.put(world.agent, address, item("a", idempotency_key="once"))
    with pytest.raises(Forbidden, match="the verb admin"):
        await world.items.delete(world.agent, address)

    stored = await world.items.get(world.agent, address)
    assert (repeated.outcome, stored.content, stored.metadata) == ("repeated", "a", {})
    await world.items.delete(world.agent, address, is_admin=True)
    assert await world.heads() == []


async def test_imported_item_cannot_be_replaced(brain: World) -> None:
    line = line_of(brain, content="happened", type="event", namespace=["memories", "u"], key="k", item=True)
    assert await import_lines(brain.agent, [line], can_restore_erased=False) == ["imported"]

    with pytest.raises(Conflict, match="immutable"):
        await brain.items.put(
            brain.agent, Address(user_id="u", namespace=("memories", "u"), key="k"), item("something else")
        )

    assert await brain.heads() == ["happened"]


def item(content: str, **more: Any) -> ItemContent:
    return ItemContent(content=content, vector=vector_of(content), **more)


async def test_old_event_is_hidden_but_not_removed(brain: World) -> None:
    lifecycle = effective_lifecycle(probe({"preset": "brain"}))
    created_at = brain.clock.now_ms()
    old = await brain.add("long ago", type="event", created_at=created_at)
    brain.clock.move(ms=10_000 * DAY_MS)

    rules = build_rules(lifecycle, brain.agent.settings.ranking, brain.clock.now_ms())
    [row] = await brain.agent.store.retrieve(brain.agent.alias, [old])

    assert await brain.heads() == []
    assert own_reason(row["payload"], rules) is None
    kept = effective_lifecycle(probe({"preset": "brain", "lifecycle": {"removeHiddenDays": 90}}))
    assert own_reason(row["payload"], replace(rules, lifecycle=kept)) is RemovalReason.HIDDEN


@pytest.mark.parametrize("changes", [{"importance": 0.1}, {"pinned": True}, {"expiresAt": 1}, {"tags": ["x"]}])
async def test_cannot_be_changed_in_place(world: World, decision: str, changes: dict[str, object]) -> None:
    before = await read_memory(world.agent, decision, user_id="u")

    with pytest.raises(Conflict, match="immutable"):
        await change_head(world.agent, decision, changes, user_id="u")

    assert await read_memory(world.agent, decision, user_id="u") == before


async def test_only_administrators_can_delete_it(world: World, decision: str) -> None:
    with pytest.raises(Forbidden, match="the verb admin"):
        await delete_head(world.agent, decision, user_id="u")
    assert await world.heads() == ["we use Python"]

    await delete_head(world.agent, decision, user_id="u", is_admin=True)

    assert await world.heads() == []


async def test_other_users_memory_is_not_found(world: World, decision: str) -> None:
    with pytest.raises(NotFound):
        await delete_head(world.agent, decision, user_id="v")


async def test_import_does_not_supersede_it(world: World, decision: str) -> None:
    fields = {"content": "we use Rust", "type": "decision", "supersedes": decision, "vector": vector_of("r")}
    line = read_line(
        json.dumps(fields).encode(), user_id="u", default_type="fact", rights=every_right(world.agent.settings)
    )
    assert isinstance(line, ImportLine)

    [outcome] = await import_lines(world.agent, [line], can_restore_erased=False)

    assert isinstance(outcome, Conflict)
    assert "immutable" in str(outcome)
    assert await world.heads() == ["we use Python"]


async def test_accesses_and_authors_are_recorded(world: World, decision: str) -> None:
    await world.recall.search(world.agent, search_request(user_id="u", vector=vector_of("we use Python")))
    await world.counts.flush()
    await world.try_add("we use Python", type="decision", author="bob")

    record = await read_memory(world.agent, decision, user_id="u")

    assert (record.access_count, record.observed_by) == (1, ("ada", "bob"))


async def test_is_erased_with_its_user(world: World, decision: str) -> None:
    await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))

    with pytest.raises(NotFound):
        await read_memory(world.agent, decision, user_id="u")


@pytest.mark.parametrize("category", [None, "general"])
async def test_preset_gives_category_and_confidence(world: World, category: str | None) -> None:
    types = (MemoryType("fact", 34, confidence=1.0),)
    settings = replace(world.agent.settings, ranking=replace(EVERYTHING, types=types), knowledge_category=category)
    world.agent = replace(world.agent, settings=settings)

    default = await read_memory(world.agent, await world.add("a"), user_id="u")
    explicit = await read_memory(
        world.agent, await world.add("b", knowledge_category="brand", confidence=0.4), user_id="u"
    )

    assert (default.knowledge_category, default.confidence) == (category, 1.0)
    assert (explicit.knowledge_category, explicit.confidence) == ("brand", 0.4)


async def test_import_does_not_set_the_default_category(world: World) -> None:
    world.agent = replace(world.agent, settings=replace(world.agent.settings, knowledge_category="general"))
    fields = {"content": "from before", "type": "fact", "vector": vector_of("r")}
    line = read_line(
        json.dumps(fields).encode(), user_id="u", default_type="fact", rights=every_right(world.agent.settings)
    )
    assert isinstance(line, ImportLine)

    await import_lines(world.agent, [line], can_restore_erased=False)

    [record] = await world.rows()
    assert record.knowledge_category is None

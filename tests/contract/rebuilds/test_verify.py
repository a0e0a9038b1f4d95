"""A rebuild's target is compared with its source while writers go on, and held where searches find less."""

import re
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.changes import UpdateHnsw, UpdateStrictMode
from agentmemory_operator.collections.rules.collection import METADATA_KEY, KeywordSource
from agentmemory_operator.collections.rules.rebuild_record import RebuildKind
from agentmemory_operator.errors import RebuildAwaitsApproval, SpecInvalid
from agentmemory_operator.memories import point_comparer as comparison
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.rules.findings import Check, CheckFinding
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.rebuilds.catch_up import copy_differences
from agentmemory_operator.rebuilds.converge import ConvergeStep
from agentmemory_operator.rebuilds.verify import RebuildComparison, VerifyStep
from agentmemory_operator.spec.kinds.agent_memory import APPROVE_PLAN
from tests.support.engine.agents import SIZE, concurrent_writers, vector_of
from tests.support.job.rebuild_task import RebuildTask, open_rebuild

MEMORIES = 30
USERS = ("ada", "ben")
WORDS = KeywordSource(language="english", window=2)


@dataclass
class Model:
    """Implements ports.Embedder.

    Attributes:
        is_blind: it tells no two texts apart.
    """

    name: str
    is_blind: bool = False

    @property
    def dimensions(self) -> int:
        return SIZE

    async def embed(self, texts: Any) -> list[Vector]:
        return [vector_of((self.name, "" if self.is_blind else text)) for text in texts]


async def fill(here: RebuildTask) -> None:
    texts = {f"{user} {place}": user for user in USERS for place in range(MEMORIES)}
    memories = [
        IncomingMemory(user_id=user, content=text, vector=vector_of(text), session_id="s")
        for text, user in texts.items()
    ]
    await here.world.remember.store(here.world.agent, memories)
    for record in (await here.world.rows("ada"))[:3]:
        await delete_head(here.world.agent, record.id, user_id="ada")
    await here.begin()
    await copy_differences(here.task)


@pytest.fixture
async def here(qdrant_url: str) -> AsyncIterator[RebuildTask]:
    async with open_rebuild(qdrant_url, keyword=WORDS) as opened:
        marker = (await opened.metadata(opened.source))[METADATA_KEY] | {"keyword": asdict(WORDS)}
        await opened.server.snapshots.write_metadata(opened.source, {METADATA_KEY: marker})
        await fill(opened)
        yield opened


async def verify(here: RebuildTask) -> str:
    converge = ConvergeStep(look_s=0.05)
    return await VerifyStep(converge)(here.task)


def approve(here: RebuildTask, **annotations: str) -> None:
    metadata = here.task.memory.metadata.model_copy(update={"annotations": annotations})
    here.task.memory = here.task.memory.model_copy(update={"metadata": metadata})


async def test_a_copy_is_good_and_finds_the_same(here: RebuildTask) -> None:
    told = await verify(here)

    recall = here.task.record.recall
    assert recall is not None
    assert (recall.probes, recall.neighbours, recall.index_before, recall.index_after) == (57, 1.0, 1.0, 1.0)
    assert recall.found_before is None
    assert "57 memories and 3 tombstones" in told
    assert "60 points equal within the precision of the stored vectors" in told


async def test_of_a_collection_that_nobody_writes_to_the_number_is_exact(here: RebuildTask) -> None:
    """What was stored seconds ago was not written in the meantime."""
    told = await verify(here)
    assert "written in the meantime" not in told

    stray = {"id": "00000000-0000-0000-0000-00000000abcd", "vector": [1.0] * SIZE, "payload": {"rev": 1}}
    comparison = RebuildComparison(here.task, await here.observe(here.target), None)
    points = here.server.points

    async def meddle(_: Any) -> CheckFinding:
        await points.upsert(here.target, [stray])
        return CheckFinding(check=Check.MISSING, is_good=True, message="")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RebuildComparison, "_missing", meddle)
        verdict = await comparison.run_checks()

    assert "58 memories instead of 57" in verdict.message


async def test_what_is_written_while_it_is_compared_is_counted(here: RebuildTask) -> None:
    comparison = RebuildComparison(here.task, await here.observe(here.target), None)
    missing = comparison._missing
    first, *_ = await here.world.rows("ben")

    async def write() -> CheckFinding:
        found = await missing()
        await here.world.add("another", user_id="ada", session_id="t")
        await delete_head(here.world.agent, first.id, user_id="ben")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RebuildComparison, "_missing", lambda _: write())
        verdict = await comparison.run_checks()

    assert verdict.is_good, verdict.message
    written = re.search(r"57 memories and 3 tombstones, (\d+) written in the meantime", verdict.message)
    # The two, and what has words of the one that was deleted.
    assert written is not None
    assert 2 <= int(written[1]) <= 5


async def test_what_is_missing_older_or_too_much_is_set_right_once(here: RebuildTask) -> None:
    first, second, *_ = await here.world.rows("ben")
    points = here.server.points
    await points.delete(here.target, {"must": [{"has_id": [first.id]}]})
    await points.set_payload(here.target, {"rev": 0}, {"must": [{"has_id": [second.id]}]})
    stray = {"id": "00000000-0000-0000-0000-00000000abcd", "vector": [1.0] * SIZE, "payload": {"rev": 1}}
    await points.upsert(here.target, [stray])

    await verify(here)

    assert await here.points(here.target) == await here.points(here.source)


@pytest.mark.parametrize("what", ["payload", "vector", "keyword"])
async def test_a_point_that_differs_at_one_revision_fails_the_rebuild(
    here: RebuildTask, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(comparison, "CONFIRMING_READ_DELAY_S", 0.0)
    memory = (await here.world.rows("ben"))[0].id
    if what == "payload":
        await here.server.points.set_payload(here.target, {"content": "another"}, {"must": [{"has_id": [memory]}]})
    else:
        words = {"agentmemory_keyword": {"indices": [5], "values": [1.0]}}
        vector = vector_of("another") if what == "vector" else words
        update = {"update_vectors": {"points": [{"id": memory, "vector": vector}]}}
        await here.server.points.batch(here.target, [update])

    with pytest.raises(SpecInvalid, match=memory) as refused:
        await verify(here)

    assert refused.value.reason == "CopyDiffers"
    assert here.task.record.recall is None


async def test_a_target_that_was_changed_behind_its_back_is_brought_in_line(here: RebuildTask) -> None:
    await here.server.collections.apply(here.target, UpdateHnsw(m=4))

    await verify(here)

    assert (await here.observe(here.target)).collection.hnsw == here.task.desired.hnsw


async def test_a_target_whose_vectors_mean_something_else_is_never_moved_to(here: RebuildTask) -> None:
    marker = (await here.metadata(here.target))[METADATA_KEY]
    foreign = marker | {"embedding": {"provider": "fake", "model": "other", "dimensions": SIZE}}
    await here.server.snapshots.write_metadata(here.target, {METADATA_KEY: foreign})

    with pytest.raises(Exception, match="no longer matches the object"):
        await verify(here)


async def test_writers_and_deletions_at_any_time_do_not_fail_it(here: RebuildTask) -> None:
    recalls = []
    async with concurrent_writers(here.world, "ada", writers=2):
        for _ in range(3):
            await here.task.update_record(recall=None)
            await verify(here)
            # What comes or goes between the two searches of a probe is in one of them alone.
            recalls.append(here.task.record.recall)
    assert all(recall is not None and recall.neighbours is not None and recall.neighbours > 0.9 for recall in recalls)


async def test_a_strict_mode_without_exact_searches_leaves_the_recall_unmeasured(here: RebuildTask) -> None:
    limits = (("enabled", True), ("max_query_limit", 7), ("search_allow_exact", False))
    for name in (here.source, here.target):
        await here.server.collections.apply(name, UpdateStrictMode(limits))
    await here.begin()

    told = await verify(here)

    assert here.task.record.recall is not None
    assert here.task.record.recall.probes == 0
    assert "no points to search for" in told


async def test_half_as_long_numbers_find_nearly_the_same(qdrant_url: str) -> None:
    async with open_rebuild(qdrant_url, datatype="float16") as here:
        await fill(here)

        told = await verify(here)

    assert here.task.record.recall is not None
    assert here.task.record.recall.neighbours == pytest.approx(1.0, abs=0.05)
    assert "within the precision of the stored vectors" in told


async def test_a_drop_of_the_recall_is_held_until_it_is_approved_and_kept_up_meanwhile(qdrant_url: str) -> None:
    # Whole numbers 0..255 hold nothing of vectors of length 1.
    async with open_rebuild(qdrant_url, datatype="uint8") as here:
        await fill(here)

        with pytest.raises(RebuildAwaitsApproval, match="percentage points") as held:
            await verify(here)
        added = await here.world.add("written while it is held", user_id="ada")
        with pytest.raises(RebuildAwaitsApproval) as again:
            await verify(here)
        kept_up = await here.points(here.target)
        approve(here, **{APPROVE_PLAN: f"{here.task.record.digest}-recall"})
        await verify(here)

    assert f"{APPROVE_PLAN}=d-recall" in str(held.value)
    assert str(again.value) == str(held.value)
    assert added in kept_up


async def test_the_plan_s_own_approval_is_none_of_the_recall(qdrant_url: str) -> None:
    async with open_rebuild(qdrant_url, datatype="uint8") as here:
        await fill(here)
        approve(here, **{APPROVE_PLAN: "d"})

        with pytest.raises(RebuildAwaitsApproval):
            await verify(here)


async def test_an_object_may_allow_any_drop(qdrant_url: str) -> None:
    async with open_rebuild(qdrant_url, datatype="uint8") as here:
        here.spec = {"rebuild": {"maxRecallDropPercent": 100}}
        await fill(here)

        await verify(here)


async def test_a_way_back_is_never_held(qdrant_url: str) -> None:
    async with open_rebuild(qdrant_url, datatype="uint8") as here:
        await fill(here)
        here.task.record = replace(here.task.record, kind=RebuildKind.ROLLBACK)

        await verify(here)


async def test_embedded_anew_each_memory_is_found_by_its_own_words(qdrant_url: str) -> None:
    async with open_rebuild(qdrant_url, embedder=Model("new")) as here:
        await fill(here)

        told = await verify(here)

    recall = here.task.record.recall
    assert recall is not None
    assert (recall.found_before, recall.found_after) == (1.0, 1.0)
    assert recall.neighbours is not None
    assert recall.neighbours < 0.9
    # 57 memories and 8 once more, 64 texts a call.
    assert here.task.record.calls == 2
    assert "8 texts embedded again returned the same vectors" in told


async def test_a_model_that_finds_fewer_memories_by_their_own_words_is_held(qdrant_url: str) -> None:
    async with open_rebuild(qdrant_url, embedder=Model("blind", is_blind=True)) as here:
        await fill(here)

        with pytest.raises(RebuildAwaitsApproval, match="by their own text"):
            await verify(here)

    assert here.task.record.recall is not None
    assert here.task.record.recall.found_before == 1.0


async def test_vectors_that_another_model_made_fail_the_rebuild(qdrant_url: str) -> None:
    async with open_rebuild(qdrant_url, embedder=Model("old")) as here:
        await fill(here)
        here.task.embedder = Model("new")

        with pytest.raises(SpecInvalid, match="differ from what the model returns"):
            await verify(here)

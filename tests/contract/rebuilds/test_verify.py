"""The comparison of a rebuild's target with its source, and its recall check, with concurrent writers."""

import re
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.changes import UpdateHnsw, UpdateStrictMode
from agentmemory_operator.collections.rules.collection import METADATA_KEY, KeywordSource
from agentmemory_operator.collections.rules.rebuild_record import RebuildKind
from agentmemory_operator.errors import RebuildAwaitsApproval, RebuildPaused, SpecInvalid
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
        is_blind: True if all texts get the same vector.
    """

    name: str
    is_blind: bool = False

    @property
    def dimensions(self) -> int:
        return SIZE

    async def embed(self, texts: Any) -> list[Vector]:
        return [vector_of((self.name, "" if self.is_blind else text)) for text in texts]


@dataclass
class RevokedModel(Model):
    """Rejects the API key after `allowed` calls."""

    allowed: int = 0

    async def embed(self, texts: Any) -> list[Vector]:
        if self.allowed == 0:
            raise SpecInvalid("EmbeddingKeyRejected", "the key was revoked")
        self.allowed -= 1
        return await super().embed(texts)


async def fill(rebuild: RebuildTask) -> None:
    texts = {f"{user} {place}": user for user in USERS for place in range(MEMORIES)}
    memories = [
        IncomingMemory(user_id=user, content=text, vector=vector_of(text), session_id="s")
        for text, user in texts.items()
    ]
    await rebuild.world.remember.store(rebuild.world.agent, memories)
    for record in (await rebuild.world.rows("ada"))[:3]:
        await delete_head(rebuild.world.agent, record.id, user_id="ada")
    await rebuild.begin()
    await copy_differences(rebuild.task)


@pytest.fixture
async def rebuild(qdrant_url: str) -> AsyncIterator[RebuildTask]:
    async with open_rebuild(qdrant_url, keyword=WORDS) as opened:
        marker = (await opened.metadata(opened.source))[METADATA_KEY] | {"keyword": asdict(WORDS)}
        await opened.server.snapshots.write_metadata(opened.source, {METADATA_KEY: marker})
        await fill(opened)
        yield opened


async def verify(rebuild: RebuildTask) -> str:
    converge = ConvergeStep(poll_s=0.05)
    return await VerifyStep(converge)(rebuild.task)


def approve(rebuild: RebuildTask, **annotations: str) -> None:
    metadata = rebuild.task.memory.metadata.model_copy(update={"annotations": annotations})
    rebuild.task.memory = rebuild.task.memory.model_copy(update={"metadata": metadata})


async def test_copy_passes(rebuild: RebuildTask) -> None:
    message = await verify(rebuild)

    recall = rebuild.task.record.recall
    assert recall is not None
    assert (recall.probes, recall.neighbours, recall.index_before, recall.index_after) == (57, 1.0, 1.0, 1.0)
    assert recall.found_before is None
    assert "57 memories and 3 tombstones" in message
    assert "60 points equal within the precision of the stored vectors" in message


async def test_count_is_exact_without_writers(rebuild: RebuildTask) -> None:
    """Memories stored seconds ago were not written in the meantime."""
    message = await verify(rebuild)
    assert "written in the meantime" not in message

    stray = {"id": "00000000-0000-0000-0000-00000000abcd", "vector": [1.0] * SIZE, "payload": {"rev": 1}}
    comparison = RebuildComparison(rebuild.task, await rebuild.observe(rebuild.target), None)
    points = rebuild.server.points

    async def meddle(_: Any) -> CheckFinding:
        await points.upsert(rebuild.target, [stray])
        return CheckFinding(check=Check.MISSING, is_good=True, message="")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RebuildComparison, "_missing", meddle)
        verdict = await comparison.run_checks()

    assert "58 memories instead of 57" in verdict.message


async def test_concurrent_writes_are_counted(rebuild: RebuildTask) -> None:
    comparison = RebuildComparison(rebuild.task, await rebuild.observe(rebuild.target), None)
    missing = comparison._missing
    first, *_ = await rebuild.world.rows("ben")

    async def write() -> CheckFinding:
        found = await missing()
        await rebuild.world.add("another", user_id="ada", session_id="t")
        await delete_head(rebuild.world.agent, first.id, user_id="ben")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RebuildComparison, "_missing", lambda _: write())
        verdict = await comparison.run_checks()

    assert verdict.is_good, verdict.message
    written = re.search(r"57 memories and 3 tombstones, (\d+) written in the meantime", verdict.message)
    # The two writes, and the memories whose keyword text contains the deleted one.
    assert written is not None
    assert 2 <= int(written[1]) <= 5


async def test_differences_are_corrected(rebuild: RebuildTask) -> None:
    first, second, *_ = await rebuild.world.rows("ben")
    points = rebuild.server.points
    await points.delete(rebuild.target, {"must": [{"has_id": [first.id]}]})
    await points.set_payload(rebuild.target, {"rev": 0}, {"must": [{"has_id": [second.id]}]})
    stray = {"id": "00000000-0000-0000-0000-00000000abcd", "vector": [1.0] * SIZE, "payload": {"rev": 1}}
    await points.upsert(rebuild.target, [stray])

    await verify(rebuild)

    assert await rebuild.points(rebuild.target) == await rebuild.points(rebuild.source)


@pytest.mark.parametrize("part", ["payload", "vector", "keyword"])
async def test_difference_at_same_rev_fails_rebuild(
    rebuild: RebuildTask, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(comparison, "CONFIRMING_READ_DELAY_S", 0.0)
    memory = (await rebuild.world.rows("ben"))[0].id
    if part == "payload":
        await rebuild.server.points.set_payload(
            rebuild.target, {"content": "another"}, {"must": [{"has_id": [memory]}]}
        )
    else:
        words = {"agentmemory_keyword": {"indices": [5], "values": [1.0]}}
        vector = vector_of("another") if part == "vector" else words
        update = {"update_vectors": {"points": [{"id": memory, "vector": vector}]}}
        await rebuild.server.points.batch(rebuild.target, [update])

    with pytest.raises(SpecInvalid, match=memory) as refused:
        await verify(rebuild)

    assert refused.value.reason == "CopyDiffers"
    assert rebuild.task.record.recall is None


async def test_changed_target_settings_are_corrected(rebuild: RebuildTask) -> None:
    await rebuild.server.collections.apply(rebuild.target, UpdateHnsw(m=4))

    await verify(rebuild)

    assert (await rebuild.observe(rebuild.target)).collection.hnsw == rebuild.task.desired.hnsw


async def test_other_embedding_of_target_fails_rebuild(rebuild: RebuildTask) -> None:
    marker = (await rebuild.metadata(rebuild.target))[METADATA_KEY]
    foreign = marker | {"embedding": {"provider": "fake", "model": "other", "dimensions": SIZE}}
    await rebuild.server.snapshots.write_metadata(rebuild.target, {METADATA_KEY: foreign})

    with pytest.raises(Exception, match="no longer matches the object"):
        await verify(rebuild)


async def test_concurrent_writers_do_not_fail_it(rebuild: RebuildTask) -> None:
    recalls = []
    async with concurrent_writers(rebuild.world, "ada", writers=2):
        for _ in range(3):
            await rebuild.task.update_record(recall=None)
            await verify(rebuild)
            # A point written between the two searches of a probe is found by only one of them.
            recalls.append(rebuild.task.record.recall)
    assert all(recall is not None and recall.neighbours is not None and recall.neighbours > 0.9 for recall in recalls)


async def test_strict_mode_leaves_recall_unmeasured(rebuild: RebuildTask) -> None:
    limits = (("enabled", True), ("max_query_limit", 7), ("search_allow_exact", False))
    for name in (rebuild.source, rebuild.target):
        await rebuild.server.collections.apply(name, UpdateStrictMode(limits))
    await rebuild.begin()

    message = await verify(rebuild)

    assert rebuild.task.record.recall is not None
    assert rebuild.task.record.recall.probes == 0
    assert "no points to search for" in message


async def test_half_precision_keeps_recall(qdrant_url: str) -> None:
    async with open_rebuild(qdrant_url, datatype="float16") as rebuild:
        await fill(rebuild)

        message = await verify(rebuild)

    assert rebuild.task.record.recall is not None
    assert rebuild.task.record.recall.neighbours == pytest.approx(1.0, abs=0.05)
    assert "within the precision of the stored vectors" in message


async def test_recall_drop_is_held_until_approved(qdrant_url: str) -> None:
    """The target is kept up to date in the meantime."""
    # Integers 0..255 cannot represent vectors of length 1.
    async with open_rebuild(qdrant_url, datatype="uint8") as rebuild:
        await fill(rebuild)

        with pytest.raises(RebuildAwaitsApproval, match="percentage points") as first:
            await verify(rebuild)
        added = await rebuild.world.add("written while it is held", user_id="ada")
        with pytest.raises(RebuildAwaitsApproval) as again:
            await verify(rebuild)
        updated_points = await rebuild.points(rebuild.target)
        approve(rebuild, **{APPROVE_PLAN: f"{rebuild.task.record.digest}-recall"})
        await verify(rebuild)

    assert f"{APPROVE_PLAN}=d-recall" in str(first.value)
    assert str(again.value) == str(first.value)
    assert added in updated_points


async def test_plan_approval_does_not_cover_recall(qdrant_url: str) -> None:
    async with open_rebuild(qdrant_url, datatype="uint8") as rebuild:
        await fill(rebuild)
        approve(rebuild, **{APPROVE_PLAN: "d"})

        with pytest.raises(RebuildAwaitsApproval):
            await verify(rebuild)


async def test_spec_can_allow_any_recall_drop(qdrant_url: str) -> None:
    async with open_rebuild(qdrant_url, datatype="uint8") as rebuild:
        rebuild.spec = {"rebuild": {"maxRecallDropPercent": 100}}
        await fill(rebuild)

        await verify(rebuild)


async def test_rollback_is_never_held(qdrant_url: str) -> None:
    async with open_rebuild(qdrant_url, datatype="uint8") as rebuild:
        await fill(rebuild)
        rebuild.task.record = replace(rebuild.task.record, kind=RebuildKind.ROLLBACK)

        await verify(rebuild)


async def test_new_embedding_finds_memories_by_their_text(qdrant_url: str) -> None:
    async with open_rebuild(qdrant_url, embedder=Model("new")) as rebuild:
        await fill(rebuild)

        message = await verify(rebuild)

    recall = rebuild.task.record.recall
    assert recall is not None
    assert (recall.found_before, recall.found_after) == (1.0, 1.0)
    assert recall.neighbours is not None
    assert recall.neighbours < 0.9
    # 57 memories plus 8 repeated ones, 64 texts a call.
    assert rebuild.task.record.calls == 2
    assert "8 texts embedded again returned the same vectors" in message


async def test_embedding_of_missing_points_is_counted(qdrant_url: str) -> None:
    """So the budget for embedding calls limits it too."""
    async with open_rebuild(qdrant_url, embedder=Model("new")) as rebuild:
        await fill(rebuild)
        missing = await rebuild.world.add("missing")

        await verify(rebuild)
        calls = rebuild.task.record.calls
        await verify(rebuild)

        assert missing in await rebuild.points(rebuild.target)
    # The missing memory, the sampled texts, the probes; then the sampled texts alone, because the recall is known.
    assert (calls, rebuild.task.record.calls) == (3, 4)


async def test_worse_model_is_held(qdrant_url: str) -> None:
    async with open_rebuild(qdrant_url, embedder=Model("blind", is_blind=True)) as rebuild:
        await fill(rebuild)

        with pytest.raises(RebuildAwaitsApproval, match="by their own text"):
            await verify(rebuild)

    assert rebuild.task.record.recall is not None
    assert rebuild.task.record.recall.found_before == 1.0


async def test_vectors_of_other_model_fail_rebuild(qdrant_url: str) -> None:
    async with open_rebuild(qdrant_url, embedder=Model("old")) as rebuild:
        await fill(rebuild)
        rebuild.task.embedder = Model("new")

        with pytest.raises(SpecInvalid, match="differ from what the model returns"):
            await verify(rebuild)


@pytest.mark.parametrize("allowed", [pytest.param(0, id="sampled texts"), pytest.param(1, id="probes")])
async def test_revoked_key_pauses_rebuild(qdrant_url: str, allowed: int) -> None:
    """A failure would remove the target, whose vectors were paid for."""
    async with open_rebuild(qdrant_url, embedder=Model("new")) as rebuild:
        await fill(rebuild)
        rebuild.task.embedder = RevokedModel("new", allowed=allowed)

        with pytest.raises(RebuildPaused, match="the key was revoked"):
            await verify(rebuild)

"""Archives of shard snapshots."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentmemory_operator.adapters.qdrant.shard_archives import ArchiveReader, render_manifest
from agentmemory_operator.errors import StoreRejected


@pytest.mark.parametrize("broken", [[], {"shards": [{"shard": 0}]}, {"shards": [{}], "indexes": None}, {"indexes": 1}])
async def test_malformed_manifest_is_rejected(broken: Any) -> None:
    valid = {"configuration": {}, "indexes": {}, "shards": []}

    async def content() -> AsyncIterator[bytes]:
        yield render_manifest(valid | broken if isinstance(broken, dict) else broken)

    with pytest.raises(StoreRejected, match=r"manifest\.json, the list of shards, cannot be read"):
        await ArchiveReader(content()).manifest()

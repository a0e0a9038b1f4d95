"""A background task of the API process that ends with an error is logged, and the API goes on."""

import asyncio
import pathlib
from typing import Any

import httpx
import pytest

from agentmemory_operator.adapters.folder.data_files import FileSigningKey
from agentmemory_operator.adapters.folder.key_shard_files import FileKeyShards
from agentmemory_operator.adapters.folder.manifest_folder import ManifestFolder
from agentmemory_operator.main.api import Api, ApiEnvironment
from agentmemory_operator.memories.repair import Sweeper
from agentmemory_operator.runtime.metrics import NO_TRACES
from agentmemory_operator.runtime.metrics_api import ApiMeter
from agentmemory_operator.settings import Settings


async def test_error_of_the_sweep_is_logged(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended = asyncio.Event()

    async def fail(sweeper: Sweeper) -> None:
        ended.set()
        raise OSError("odd")

    monkeypatch.setattr(Sweeper, "run", fail)
    environment = ApiEnvironment(signing_keys=FileSigningKey(tmp_path), key_shards=FileKeyShards(tmp_path))
    no_stores: Any = None
    api = Api(Settings(), ManifestFolder(tmp_path), no_stores, meter=ApiMeter(NO_TRACES), environment=environment)

    async with api.serving("127.0.0.1", 0) as url, httpx.AsyncClient() as client:
        await ended.wait()
        answer = await client.get(f"{url}/healthz")

    assert answer.status_code == 200
    assert "sweeping the agents stopped" in caplog.text
    assert "OSError: odd" in caplog.text

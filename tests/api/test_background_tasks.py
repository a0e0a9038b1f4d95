"""The API process continues after the error of a background task, which is logged; at its end it closes connections."""

import asyncio
import pathlib
from typing import Any

import httpx
import pytest

from agentmemory_operator.adapters.folder.data_files import FileSigningKey
from agentmemory_operator.adapters.folder.key_shard_files import FileKeyShards
from agentmemory_operator.adapters.folder.manifest_folder import ManifestFolder
from agentmemory_operator.main.api import Api, ApiEnvironment
from agentmemory_operator.main.models import Embedders, LanguageModels, Rerankers
from agentmemory_operator.memories.repair import Sweeper
from agentmemory_operator.runtime.metrics import NO_TRACES
from agentmemory_operator.runtime.metrics_api import ApiMeter
from agentmemory_operator.settings import Settings


def build_api(path: pathlib.Path) -> Api:
    environment = ApiEnvironment(signing_keys=FileSigningKey(path), key_shards=FileKeyShards(path))
    no_stores: Any = None
    return Api(Settings(), ManifestFolder(path), no_stores, meter=ApiMeter(NO_TRACES), environment=environment)


async def test_error_of_the_sweep_is_logged(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended = asyncio.Event()

    async def fail(sweeper: Sweeper) -> None:
        ended.set()
        raise OSError("odd")

    monkeypatch.setattr(Sweeper, "run", fail)
    api = build_api(tmp_path)

    async with api.serving("127.0.0.1", 0) as url, httpx.AsyncClient() as client:
        await ended.wait()
        answer = await client.get(f"{url}/healthz")

    assert answer.status_code == 200
    assert "sweeping the agents stopped" in caplog.text
    assert "OSError: odd" in caplog.text


async def test_end_closes_all_models(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    for opener in (Embedders, LanguageModels, Rerankers):

        async def close(_: Any, opener: type = opener) -> None:
            closed.append(opener)

        monkeypatch.setattr(opener, "close", close)

    async with build_api(tmp_path).serving("127.0.0.1", 0):
        pass

    assert set(closed) == {Embedders, LanguageModels, Rerankers}

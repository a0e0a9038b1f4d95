"""A thousand concurrent writers of one key, over several API processes."""

import asyncio
import contextlib
import pathlib
import time
from collections.abc import Iterator, Sequence

import aiohttp
import httpx
import pytest
import yaml

from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, Program, running
from tests.support.spec.documents import CLUSTER_ID, agent_document
from tests.support.web.api_stack import create_collection
from tests.support.web.dev_qdrant import dev_qdrant

BOT = agent_document("keys", preset="keyed")
CONNECTION = {
    "apiVersion": "agentmemory.dev/v1alpha1",
    "kind": "QdrantConnection",
    "metadata": {"name": "main", "namespace": "agents"},
    "spec": {"url": "http://127.0.0.1:6333"},
}
PROCESSES, WRITES = 3, 1000
ITEM = "/v1/agents/keys/items?namespace=memories&namespace=ada&key=k"


@contextlib.contextmanager
def processes(folder: pathlib.Path, qdrant_url: str) -> Iterator[list[str]]:
    """Run the API as several processes; yield their addresses once they are ready."""
    manifests = folder / "manifests"
    manifests.mkdir()
    (manifests / "all.yaml").write_text(yaml.safe_dump_all([CONNECTION, BOT]))
    options = ("--source", "files", "--manifests", str(manifests), "--port", "0")
    # One caller may use a third of all request slots.
    environment = {"QDRANT_URL": qdrant_url, "AGENTMEMORY_CLUSTER_ID": CLUSTER_ID, "AGENTMEMORY_MAX_REQUESTS": "1024"}
    programs = [
        Program(folder / f"{number}.log", *AGENTMEMORY, "api", *options, **environment) for number in range(PROCESSES)
    ]
    with contextlib.ExitStack() as stack:
        for program in programs:
            stack.enter_context(running(program))
        urls = [program.wait_for(r"API (http\S+)")[1] for program in programs]
        for url in urls:
            wait_until(lambda url=url: httpx.get(f"{url}/readyz").status_code == 200, seconds=30, what="readiness")
        yield urls


async def write_all(urls: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Put all contents concurrently; return start and end time of each request, by content."""
    times: dict[str, tuple[float, float]] = {}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def write(number: int) -> None:
            url, started_s = f"{urls[number % len(urls)]}{ITEM}", time.monotonic()
            body = {"content": str(number), "vector": [1.0, float(number), 0, 0, 0, 0, 0, 0]}
            async with session.put(url, json=body) as answer:
                assert answer.status == 200, await answer.text()
            times[str(number)] = started_s, time.monotonic()

        await asyncio.gather(*map(write, range(WRITES)))
    return times


@pytest.mark.faults
def test_concurrent_puts_leave_the_last_item(tmp_path: pathlib.Path) -> None:
    with dev_qdrant(tmp_path / "qdrant") as qdrant_url:
        create_collection(qdrant_url, BOT)
        with processes(tmp_path, qdrant_url) as urls:
            times = asyncio.run(write_all(urls))
            items = [httpx.get(f"{url}{ITEM}") for url in urls]
        body = {"limit": 10, "with_payload": True}
        found = httpx.post(f"{qdrant_url}/collections/agent_memory_keys/points/scroll", json=body).json()["result"]

    [point] = found["points"]
    contents = {item.json()["content"] for item in items}
    assert contents == {point["payload"]["content"]}
    # Each write took effect once. The one that remains ended after the last one had started.
    assert point["payload"]["rev"] == WRITES
    assert times[contents.pop()][1] >= max(started_s for started_s, _ in times.values())

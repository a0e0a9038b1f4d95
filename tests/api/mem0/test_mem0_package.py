"""mem0's published client against the dialects; skipped without the package `mem0ai`."""

from typing import Any

import pytest

from tests.support.web.api_stack import Stack
from tests.support.web.mem0_site import Mem0Site


@pytest.fixture
def mem0(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    monkeypatch.setenv("MEM0_TELEMETRY", "False")
    monkeypatch.setenv("MEM0_DIR", str(tmp_path))
    return pytest.importorskip("mem0")


def test_quickstart(mem0: Any, mem0_stack: Stack, site: Mem0Site, user: str, request: pytest.FixtureRequest) -> None:
    client = mem0.MemoryClient(host=f"{mem0_stack.api_url}/mem0/{site.agent}", api_key="any")
    request.addfinalizer(client.client.close)
    messages = [
        {"role": "user", "content": "I'm a vegetarian and allergic to nuts."},
        {"role": "assistant", "content": "Got it! I'll remember your dietary preferences."},
    ]
    client.add(messages, user_id=user)
    found = client.search("What are my dietary restrictions?", filters={"user_id": user})["results"]
    assert {memory["memory"] for memory in found} == {message["content"] for message in messages}

    memory_id = found[0]["id"]
    assert client.update(memory_id, text="Eats everything")["id"] == memory_id
    assert [entry["event"] for entry in client.history(memory_id)] == ["ADD", "UPDATE"]
    client.delete(memory_id)
    with pytest.raises(Exception, match="not found"):
        client.get(memory_id)


async def test_asynchronous_client(mem0: Any, mem0_stack: Stack, site: Mem0Site, user: str) -> None:
    async with mem0.AsyncMemoryClient(host=f"{mem0_stack.api_url}/mem0/{site.agent}", api_key="any") as client:
        await client.add("Ada drinks tea", user_id=user)

        assert (await client.get_all(filters={"user_id": user}))["count"] == 1
        await client.delete_all(user_id=user)
        assert (await client.get_all(filters={"user_id": user}))["count"] == 0

"""Numbers over HTTP: 64-bit integers are exact in all requests and responses, larger ones are refused."""

import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from agentmemory_client import Client
from agentmemory_client.langgraph_store import AgentMemoryStore
from tests.api.test_mcp import connected, text_of
from tests.support.web.api_stack import Stack

AGENT = "/v1/agents/probe"
VECTOR = [1.0] * 8
BIG, CHANGED = 1357924680135792468, -12.070162795213857
SENT = {"big": BIG, "least": -(2**63), "most": 2**63 - 1, "long": [CHANGED, {"deep": CHANGED}], "whole": 5.0}
TOO_LARGE = ("100000000000000000001", "9223372036854775808", "-9223372036854775809", "1" * 5_000)
# Placeholder for a number. It is longer than any random part of a user's name, so it occurs only once.
PLACE = -9182736450
NDJSON = {"Content-Type": "application/x-ndjson"}


def memory(user: str, content: str, **metadata: Any) -> dict[str, Any]:
    return {"user_id": user, "content": content, "vector": VECTOR, "metadata": metadata}


def found(client: httpx.Client, user: str, filters: dict[str, Any]) -> set[str]:
    answer = client.post(
        f"{AGENT}/search", json={"user_id": user, "vector": VECTOR, "threshold": -10, "filters": filters}
    )
    assert answer.status_code == 200, answer.text
    return {result["content"] for result in answer.json()["results"]}


def in_place_of_number(document: Any, digits: str) -> bytes:
    """Return JSON with `digits` instead of `PLACE`."""
    return json.dumps(document).replace(str(PLACE), digits, 1).encode()


def test_integers_roundtrip_through_export_and_import(client: httpx.Client, user: str) -> None:
    stored = client.post(f"{AGENT}/memories", json=memory(user, "a", **SENT)).json()
    batch = client.post(f"{AGENT}/memories/batch", json={"memories": [memory(user, "b", **SENT)]})
    put = {"content": "c", "vector": VECTOR, "metadata": SENT}
    item = {"namespace": ["memories", user, "n"], "key": "k"}
    assert client.put(f"{AGENT}/items", params=item, json=put).status_code == 200

    of_user = {"user_id": user}
    exported = client.get(f"{AGENT}/export", params={**of_user, "vectors": "true"}).content
    client.post(f"{AGENT}/forget", json={**of_user, "filters": {"metadata.big": BIG}})
    assert client.get(f"{AGENT}/memories", params=of_user).json()["results"] == []
    imported = {**of_user, "include_erased": "true"}
    client.post(f"{AGENT}/import", params=imported, content=exported, headers=NDJSON)

    assert "error" not in batch.json()["results"][0]
    text = client.get(f"{AGENT}/memories/{stored['id']}", params=of_user).text
    assert json.dumps(SENT, separators=(",", ":")) in text
    memories = client.get(f"{AGENT}/memories", params=of_user).json()["results"]
    assert [repr(found["metadata"]) for found in memories] == [repr(SENT)] * 3


@pytest.mark.parametrize("digits", TOO_LARGE)
def test_integer_beyond_64_bits_is_refused_by_name(client: httpx.Client, user: str, digits: str) -> None:
    nested = memory(user, "a", deep=[{"n": PLACE}])
    query = {"user_id": user, "vector": VECTOR, "filters": {"OR": [{"metadata.n": {"in": [PLACE]}}]}}
    item = {"content": "c", "vector": VECTOR, "metadata": {"n": PLACE}}
    place = {"namespace": ["memories", user, "n"], "key": "k"}
    forget = {"user_id": user, "filters": {"metadata.n": PLACE}}

    def send(method: str, path: str, document: Any, **more: Any) -> httpx.Response:
        headers = {"Content-Type": "application/json", **more.pop("headers", {})}
        content = in_place_of_number(document, digits)
        return client.request(method, f"{AGENT}/{path}", content=content, headers=headers, **more)

    line = send(
        "POST",
        "import",
        {"content": "a", "vector": VECTOR, "metadata": {"n": PLACE}},
        headers=NDJSON,
        params={"user_id": user},
    )
    batch = send("POST", "memories/batch", {"memories": [memory(user, "good"), nested]})
    refused = [
        (send("POST", "memories", nested).json(), "metadata.deep[0].n"),
        (send("POST", "search", query).json(), "filters.OR[0].metadata.n.in[0]"),
        (send("POST", "forget", forget).json(), "filters.metadata.n"),
        (send("PUT", "items", item, params=place).json(), "metadata.n"),
        (batch.json()["results"][1]["error"], "metadata.deep[0].n"),
        (line.json()["errors"][0]["error"], "metadata.n"),
    ]

    assert [(problem["status"], problem["errors"][0]["field"]) for problem, _ in refused] == [
        (422, field) for _, field in refused
    ]
    assert found(client, user, {"NOT": [{"metadata.n": 7}]}) == {"good"}


def test_long_digit_string_stays_text(client: httpx.Client, user: str) -> None:
    sent = {"digits": "1" * 30, "fraction": 0.00012345678901234567, "float": 1e20}
    stored = client.post(f"{AGENT}/memories", json=memory(user, "a", **sent)).json()

    answer = client.get(f"{AGENT}/memories/{stored['id']}", params={"user_id": user}).json()

    assert repr(answer["metadata"]) == repr(sent)


async def test_mcp_tool_stores_exact_integers(stack: Stack, client: httpx.Client, user: str) -> None:
    async with connected(stack, Agent="words", User=user) as model:
        order = {"content": "An order", "key": "order"}
        stored = await model.call_tool("upsert_memory", {**order, "metadata": SENT})
        refused = await model.call_tool("upsert_memory", {**order, "metadata": {"n": 2**63}})

    id_ = stored.structured_content["memory_id"]
    answer = client.get(f"/v1/agents/words/memories/{id_}", params={"user_id": user}).json()
    assert repr(answer["metadata"]) == repr(SENT)
    assert "metadata.n" in text_of(refused)


def test_langgraph_store_keeps_exact_integers(stack: Stack, user: str) -> None:
    with AgentMemoryStore("words", user_id=user, url=stack.api_url) as store:
        store.put(("orders",), "one", SENT)
        store.put(("orders",), "two", {**SENT, "big": BIG + 1})

        item = store.get(("orders",), "one")
        of_one = store.search(("orders",), filter={"big": BIG})

    assert item is not None
    assert repr(item.value) == repr(SENT)
    assert [found.key for found in of_one] == ["one"]


def test_client_accepts_times_in_filters(stack: Stack, user: str) -> None:
    day = datetime(2026, 3, 1, tzinfo=UTC)
    with Client(stack.api_url) as client:
        ada = client.agent("words").user(user)
        ada.add("Pays by invoice", metadata={"at": day, "big": BIG})
        filters = {
            "AND": [{"created_at": {"gte": day}}, {"OR": [{"metadata.at": {"lte": day}}]}, {"metadata.big": BIG}]
        }

        answer = ada.search("how does she pay?", filters=filters, threshold=-10)

    assert [(found.content, found.metadata["big"]) for found in answer.results] == [("Pays by invoice", BIG)]

"""Spans of memory operations: OpenTelemetry's GenAI conventions, without contents."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentmemory_operator.adapters.otlp_tracer import OtlpTracer
from agentmemory_operator.entrypoints.api.identity.rights import VERBS
from agentmemory_operator.entrypoints.api.memory_spans import OPERATIONS
from agentmemory_operator.runtime.metrics_api import ApiMeter
from tests.api.conftest import PROBE
from tests.support.web.api_stack import running_api

VECTOR = [1.0] * 8
CONTENT, QUERY = "she-likes-tea", "what-does-she-like"
# Span names of the OpenTelemetry conventions (semantic-conventions-genai v0.1.0).
NAMES = {"search_memory", "create_memory", "update_memory", "upsert_memory", "delete_memory"}

Traced = Callable[[Callable[[httpx.Client], None]], list[ReadableSpan]]


@pytest.fixture
def traced(qdrant_url: str) -> Traced:
    """Run an operation against a tracing API, and return its memory spans."""

    def run(work: Callable[[httpx.Client], None]) -> list[ReadableSpan]:
        exporter = InMemorySpanExporter()
        tracer = OtlpTracer("test", exporter)
        with (
            running_api(qdrant_url, PROBE, meter=ApiMeter(tracer)) as stack,
            httpx.Client(base_url=stack.api_url, timeout=20) as client,
        ):
            work(client)
        asyncio.run(tracer.close())
        return [span for span in exporter.get_finished_spans() if span.name in NAMES]

    return run


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return {name: value for name, value in (span.attributes or {}).items() if name.startswith("gen_ai.")}


def store(client: httpx.Client, user: str) -> str:
    body = {"user_id": user, "content": CONTENT, "vector": VECTOR}
    return str(client.post("/v1/agents/probe/memories", json=body).raise_for_status().json()["id"])


def test_operations_have_standard_names_and_attributes(traced: Traced, user: str) -> None:
    ids = []

    def work(client: httpx.Client) -> None:
        agent, of_user = "/v1/agents/probe", {"user_id": user}
        ids.append(store(client, user))
        client.post(f"{agent}/search", json=of_user | {"vector": VECTOR, "top_k": 3}).raise_for_status()
        client.patch(f"{agent}/memories/{ids[0]}", params=of_user, json={"tags": ["t"]}).raise_for_status()
        item = {"namespace": ["memories", user], "key": "k"}
        put = client.put(f"{agent}/items", params=item, json={"content": CONTENT, "vector": VECTOR}).raise_for_status()
        ids.append(put.json()["memory_id"])
        client.post(f"{agent}/forget", json=of_user | {"everything": True}).raise_for_status()

    common = {"gen_ai.provider.name": "agentmemory", "gen_ai.memory.store.id": "probe"}
    count, id_ = "gen_ai.memory.record.count", "gen_ai.memory.record.id"
    spans = traced(work)

    assert [(span.name, attributes(span)) for span in spans] == [
        (name, {"gen_ai.operation.name": name, **common, **more})
        for name, more in (
            ("create_memory", {count: 1, id_: ids[0]}),
            ("search_memory", {count: 1, "gen_ai.retrieval.top_k": 3}),
            ("update_memory", {count: 1, id_: ids[0]}),
            ("upsert_memory", {count: 1, id_: ids[1]}),
            ("delete_memory", {count: 2}),
        )
    ]


def test_failed_operation_names_the_error_type(traced: Traced, user: str) -> None:
    path = "/v1/agents/probe/memories/00000000-0000-7000-8000-000000000000"

    [span] = traced(lambda client: client.delete(path, params={"user_id": user}) and None)

    assert not span.status.is_ok
    assert (span.attributes or {})["error.type"] == "NotFound"


def test_spans_contain_no_text_or_user(traced: Traced, user: str) -> None:
    def work(client: httpx.Client) -> None:
        store(client, user)
        client.post("/v1/agents/probe/search", json={"user_id": user, "query": QUERY})
        client.get("/v1/agents/probe/memories", params={"user_id": user, "tag": QUERY})

    exported = " ".join(span.to_json() for span in traced(work))

    assert "create_memory" in exported
    assert "search_memory" in exported
    assert not any(secret in exported for secret in (CONTENT, QUERY, user, "vector"))


def test_operations_cover_endpoints_and_conventions() -> None:
    assert set(OPERATIONS) <= set(VERBS)
    assert set(OPERATIONS.values()) == NAMES

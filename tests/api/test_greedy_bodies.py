"""Large bodies of one caller against a real process: health checks are served, and memory stays bounded."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from agentmemory_operator.entrypoints.api.load.json_limits import MAX_ITEM_PARTS, PART_BYTES
from tests.api.test_processes import JSON, PLAIN, VECTOR, WORDS, peak_mib, probe_while, serving
from tests.support.programs import Program
from tests.support.web.api_stack import create_collection
from tests.support.web.dev_qdrant import dev_qdrant

MIB = 1 << 20
BATCH = "/v1/agents/plain/memories/batch"
# Maximum delay of a health check. It is at most 0.1 s on an idle machine; without slices it was 14 s.
PATIENCE_S = 3.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, httpx.Client]]:
    with dev_qdrant(tmp_path_factory.mktemp("qdrant")) as qdrant_url:
        for document in (PLAIN, WORDS):
            create_collection(qdrant_url, document)
        with serving(tmp_path_factory.mktemp("api"), qdrant_url) as (program, client):
            yield program, client


def memory(**more: Any) -> dict[str, Any]:
    return {"user_id": "greedy", "content": "c", "vector": VECTOR} | more


def batch(items: list[Any]) -> bytes:
    return json.dumps({"memories": items}).encode()


def filled(piece: bytes, size: int = 16 * MIB) -> bytes:
    """Return a batch of one memory, its metadata filled with copies of `piece`."""
    head, tail = b'{"memories":[{"user_id":"u","content":"c","metadata":{"k":[', b"]}}]}"
    return head + b",".join([piece] * ((size - len(head) - len(tail)) // (len(piece) + 1))) + tail


def ask(client: httpx.Client, method: str, path: str, body: bytes) -> httpx.Response:
    return httpx.request(method, f"{client.base_url}{path}", content=body, headers=JSON, timeout=300)


WORST = "password: hunter2 and her api key is a1b2c3d4e5f6a7b8, "
KEYED = {"password": ["a1"] * (MAX_ITEM_PARTS - 1000)}
# Built on demand: together they are 100 MiB.
ATTACKS: dict[str, tuple[str, str, Callable[[], bytes], int]] = {
    "15 items with 35,000 strings each": (
        "POST",
        BATCH,
        lambda: batch([memory(metadata={"k": ["s"] * 35_000})] * 15),
        200,
    ),
    "as many strings as may be": ("POST", BATCH, lambda: batch([memory(metadata={"k": ["ab"] * 30_000})] * 15), 200),
    "objects without end": ("POST", BATCH, lambda: filled(b"{}"), 422),
    "lists without end": ("POST", BATCH, lambda: filled(b"[1]"), 422),
    "texts of secrets": ("POST", BATCH, lambda: batch([memory(metadata={"t": WORST * 18_000})] * 15), 200),
    "a text with escapes alone": ("POST", BATCH, lambda: filled(b'"' + b"\\\\" * (15 * MIB // 2) + b'"'), 200),
    "a password of a MiB, put": (
        "PUT",
        "/v1/agents/plain/items?user_id=greedy&namespace=a&namespace=b&key=k",
        lambda: json.dumps({"content": "c", "vector": VECTOR, "metadata": {"password": "hunter2 " * 120_000}}).encode(),
        200,
    ),
    "passwords, changed": ("PATCH", "", lambda: json.dumps({"metadata": KEYED}).encode(), 200),
    "more passwords than may be": (
        "PATCH",
        "",
        lambda: json.dumps({"metadata": {"password": ["a"] * 200_000}}).encode(),
        422,
    ),
    "a key of half a MiB": (
        "PATCH",
        "",
        lambda: json.dumps({"metadata": {"p" * (MIB // 2): ["a"] * 30_000}}).encode(),
        200,
    ),
}


# One attack of each path runs always, the rest with the fault tests.
ALWAYS = ("15 items with 35,000 strings each", "objects without end", "passwords, changed")


@pytest.mark.parametrize(
    "attack", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.faults) for name in ATTACKS]
)
def test_health_is_served_during_large_requests(served: tuple[Program, httpx.Client], attack: str) -> None:
    method, path, make, status = ATTACKS[attack]
    body = make()
    _, client = served
    if not path:
        stored = ask(client, "POST", "/v1/agents/plain/memories", json.dumps(memory(content=attack)).encode())
        path = f"/v1/agents/plain/memories/{stored.json()['id']}?user_id=greedy"

    answer, took_s, _ = probe_while(client, lambda: ask(client, method, path, body))

    assert answer.status_code == status, answer.text[:500]
    assert max(took_s) < PATIENCE_S
    assert len(answer.content) < 64 << 10 or method == "PATCH"


@pytest.mark.faults
def test_health_is_served_during_many_large_requests(served: tuple[Program, httpx.Client]) -> None:
    """Only one slice runs at a time: before each of its steps, a small request waits for at most one slice."""
    _, client = served
    body = json.dumps(memory(metadata={"t": WORST * 18_000})).encode()

    def all_of_them() -> httpx.Response:
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda _: ask(client, "POST", "/v1/agents/plain/memories", body), range(16)))
        return answers[0]

    answer, took_s, _ = probe_while(client, all_of_them)

    assert answer.status_code == 201, answer.text[:500]
    assert max(took_s) < PATIENCE_S


@pytest.mark.faults
def test_worst_batches_fit_the_memory_formula(served: tuple[Program, httpx.Client]) -> None:
    """docs/operations.md: at most 16 times the counted bytes of bodies."""
    program, client = served
    # An object with one key takes the most memory for two parts.
    objects = [{"a": place} for place in range(1000, 1000 + MAX_ITEM_PARTS // 2 - 600)]
    body = batch([memory(content=str(number), metadata={"k": objects}) for number in range(15)])
    counted_mib = (len(body) + 15 * MAX_ITEM_PARTS * PART_BYTES) / MIB
    for attack in (filled(b"{}"), filled(b"[1]"), body):
        ask(client, "POST", BATCH, attack)

    assert 16 < counted_mib < 32
    assert peak_mib(program) < 150 + 16 * counted_mib

"""Isolation of callers from the sockets and bodies of an attacker, with a process of the API.

Callers are distinguished by address, as with `AGENTMEMORY_AUTH=none`: the attacker has 127.0.0.2.
"""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from http.client import HTTPResponse
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from agentmemory_operator.entrypoints.api.load.request_slots import Limits
from agentmemory_operator.runtime.rules.fair_shares import MinimumRate
from tests.api.conftest import PROBE
from tests.api.test_processes import JSON, VECTOR, qdrant, serving
from tests.api.test_serving import samples
from tests.support.web.api_stack import running_api

__all__ = ["qdrant"]

PLACE = "/v1/agents/plain"
MEMORY = {"user_id": "good", "content": "c", "vector": VECTOR}
MIB = 1 << 20
ATTACKER = "127.0.0.2"


def connect(url: str, *, receive_bytes: int = 0) -> socket.socket:
    """Connect as the attacker."""
    connection = socket.socket()
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.bind((ATTACKER, 0))
    connection.settimeout(20)
    place = urlsplit(url)
    connection.connect((place.hostname, place.port))
    return connection


def begin(connection: socket.socket, line: str, *headers: str, sends: bytes = b"") -> None:
    """Send the head of a request, and `sends` as the start of its body."""
    lines = [f"{line} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers, "", ""]
    connection.sendall("\r\n".join(lines).encode() + sends)


def bodies(number: int, length: int, sends: bytes) -> Callable[[str], list[socket.socket]]:
    """Return an attack that announces bodies of batches and does not send them."""

    def attack(url: str) -> list[socket.socket]:
        connections = [connect(url) for _ in range(number)]
        for connection in connections:
            begin(connection, f"POST {PLACE}/memories/batch", f"Content-Length: {length}", sends=sends)
        return connections

    return attack


def searches_midway(url: str) -> list[socket.socket]:
    """Start 600 searches without the end of their bodies."""
    connections = [connect(url) for _ in range(600)]
    for connection in connections:
        begin(connection, f"POST {PLACE}/search", "Content-Length: 100", sends=b"{")
    return connections


def idle_imports(url: str) -> list[socket.socket]:
    """Start 60 chunked imports that send one line each and then nothing."""
    connections = [connect(url) for _ in range(60)]
    for connection in connections:
        line = f"POST {PLACE}/import?user_id=bad"
        begin(connection, line, "Transfer-Encoding: chunked", sends=b"1\r\n\n\r\n")
    return connections


def heads_midway(url: str) -> list[socket.socket]:
    """Send 600 heads that never end."""
    connections = [connect(url) for _ in range(600)]
    for connection in connections:
        connection.sendall(f"GET {PLACE} HTTP/1.1\r\nHost: localhost\r\nX-More: ".encode())
    return connections


def continues_awaited(url: str) -> list[socket.socket]:
    """Announce 300 bodies with `Expect: 100-continue`, and do not send them."""
    connections = [connect(url) for _ in range(300)]
    for connection in connections:
        begin(connection, f"POST {PLACE}/search", "Content-Length: 1000", "Expect: 100-continue")
    return connections


def large_bodies_that_stall(url: str) -> list[socket.socket]:
    """Fill the whole capacity for bodies, except for the last byte of each."""
    connections = [connect(url) for _ in range(4)]
    body = b"{" + b" " * (16 * MIB - 2)
    for connection in connections:
        begin(connection, f"POST {PLACE}/memories/batch", f"Content-Length: {16 * MIB}")
        with contextlib.suppress(OSError):
            connection.sendall(body)
    return connections


def exports_unread(url: str) -> list[socket.socket]:
    """Start 600 exports and read none."""
    connections = [connect(url, receive_bytes=4096) for _ in range(600)]
    for connection in connections:
        begin(connection, f"GET {PLACE}/export?user_id=wide&vectors=true")
    return connections


def searches_without_end(url: str) -> list[socket.socket]:
    """Send ten searches on each of 600 connections."""
    connections = [connect(url) for _ in range(600)]
    body = json.dumps({"user_id": "bad", "vector": VECTOR}).encode()
    lines = [f"POST {PLACE}/search HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    request = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
    for connection in connections:
        connection.sendall(request * 10)
    return connections


ATTACKS = {
    "two that declare 16 MiB": bodies(2, 16 * MIB, b"{"),
    "three hundred of 16 MiB": bodies(300, 16 * MIB, b"{"),
    "searches midway": searches_midway,
    "idle imports": idle_imports,
    "heads midway": heads_midway,
    "continues awaited": continues_awaited,
    "large bodies that stall": large_bodies_that_stall,
    "exports unread": exports_unread,
    "searches without end": searches_without_end,
}


@pytest.fixture(scope="module")
def api(qdrant: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A process of the API, with memories to export."""
    with serving(tmp_path_factory.mktemp("api"), qdrant) as (_, client):
        memories = [
            {"user_id": "wide", "content": f"{number}" + "x" * 20_000, "vector": VECTOR} for number in range(300)
        ]
        for start in range(0, 300, 100):
            body = {"memories": memories[start : start + 100]}
            client.post(f"{PLACE}/memories/batch", json=body).raise_for_status()
        yield client


@contextlib.contextmanager
def under(attack: Callable[[str], list[socket.socket]], url: str) -> Iterator[list[socket.socket]]:
    """Attack while the context is open."""
    connections = attack(url)
    time.sleep(0.5)
    try:
        yield connections
    finally:
        for connection in connections:
            connection.close()


# Six thousand searches are costly: they run with the fault tests.
DEAR = "searches without end"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.faults) if name == DEAR else name for name in ATTACKS]
)
def test_others_are_served_during_attack(api: httpx.Client, name: str) -> None:
    batch = json.dumps({"memories": [{**MEMORY, "content": f"{number}"} for number in range(30)]}).encode()
    requests: list[tuple[str, str, dict[str, Any]]] = [
        *[("POST", f"{PLACE}/search", {"json": {"user_id": "good", "vector": VECTOR}})] * 5,
        *[("POST", f"{PLACE}/memories", {"json": MEMORY})] * 3,
        ("POST", f"{PLACE}/memories/batch", {"content": batch, "headers": JSON}),
        ("GET", f"{PLACE}/memories", {"params": {"user_id": "good"}}),
        *[("GET", path, {}) for path in ("/healthz", "/readyz", "/metrics")],
    ]
    with under(ATTACKS[name], str(api.base_url)):
        statuses = [(path, send(api, method, path, **options)) for method, path, options in requests]

    # A slow machine's engine may be overloaded until the flood is limited.
    allowed = {200, 201, 503} if name == DEAR else {200, 201}
    assert {status for _, status in statuses} <= allowed, statuses


def send(api: httpx.Client, method: str, path: str, **options: Any) -> int:
    """Return the status of a request. Repeat it as clients do, twice at most, if the machine is too busy (503)."""
    for attempt in range(3):
        status = api.request(method, path, **options).status_code
        if status != 503:
            break
        time.sleep(attempt)
    return status


def chunk(*lines: bytes) -> bytes:
    """Encode lines as one chunk of a chunked body."""
    body = b"".join(lines)
    return b"%x\r\n%b\r\n" % (len(body), body)


def lines_of(count: int) -> list[bytes]:
    """Return lines to import, each a different memory."""
    return [json.dumps({"content": f"line {number}", "vector": [1.0] * 8}).encode() + b"\n" for number in range(count)]


def answer_of(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON of a response."""
    answer = HTTPResponse(connection)
    answer.begin()
    return answer.status, json.loads(answer.read())


@pytest.mark.parametrize(
    ("sent", "status", "message"),
    [
        (0, 408, "0 bytes of the body arrived"),
        (50, 408, "bytes of the body arrived"),
        (130, 504, "the first 100 lines are"),
    ],
)
def test_stalled_import_reports_imported_lines(qdrant_url: str, sent: int, status: int, message: str) -> None:
    limits = Limits(min_rate=MinimumRate(bytes_s=10_000, window_s=2))
    with running_api(qdrant_url, PROBE, limits=limits) as stack, connect(stack.api_url) as connection:
        begin(connection, "POST /v1/agents/probe/import?user_id=stalls", "Transfer-Encoding: chunked")
        if sent:
            connection.sendall(chunk(*lines_of(sent)))

        received, problem = answer_of(connection)

        assert (received, message in problem["detail"]) == (status, True), problem
        assert samples(stack.api_url)["agentmemory_api_body_bytes_in_flight"] == 0


def test_long_import_buffers_no_finished_lines(qdrant_url: str) -> None:
    limits = Limits(body_bytes=MIB, min_rate=MinimumRate(bytes_s=1000, window_s=1))
    with running_api(qdrant_url, PROBE, limits=limits) as stack, connect(stack.api_url) as connection:
        begin(connection, "POST /v1/agents/probe/import?user_id=long", "Transfer-Encoding: chunked")
        for _ in range(8):
            # One line that is too long, and 100 valid ones.
            connection.sendall(chunk(b"x" * (MIB + 10), b"\n", *lines_of(100)))
            time.sleep(0.2)
            kept = samples(stack.api_url)["agentmemory_api_body_bytes_in_flight"]
            assert kept < 2 * MIB
        connection.sendall(b"0\r\n\r\n")

        status, result = answer_of(connection)

    assert (status, result["counts"]["failed"], result["counts"]["present"]) == (200, 8, 700)


def test_too_many_pending_requests_are_429(qdrant_url: str) -> None:
    """Only the caller that has too many requests in progress is refused."""

    limits = Limits(receiving=8)
    with running_api(qdrant_url, PROBE, limits=limits) as stack, contextlib.ExitStack() as many:
        connections = [many.enter_context(connect(stack.api_url)) for _ in range(30)]
        for connection in connections:
            begin(connection, "POST /v1/agents/probe/search", "Content-Length: 100", sends=b"{")
            time.sleep(0.02)
        search = {"user_id": "u", "vector": [1.0] * 8}
        others = [httpx.post(f"{stack.api_url}/v1/agents/probe/search", json=search).status_code for _ in range(5)]
        refused = [answer_of(connection)[0] for connection in connections[:20]]

    assert others == [200] * 5
    assert refused == [429] * 20

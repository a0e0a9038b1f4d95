"""JSON with repeated keys, which is refused, and byte order marks before an import, which are skipped."""

import codecs
import json
from typing import Any

import httpx
import pytest

from tests.support.web.endpoints import VECTOR

PROBE = "/v1/agents/probe"
ONCE = json.dumps({"content": "c", "vector": VECTOR})[1:]


def twice(user: str) -> bytes:
    return f'{{"user_id": "{user}", "user\\u005fid": "{user}-other", {ONCE}'.encode()


def requests_of(user: str) -> list[tuple[str, str, bytes]]:
    memory, nested = twice(user), f'{{"user_id": "{user}", "metadata": {{"a": [{{"k": 1, "k": 1}}]}}, {ONCE}'.encode()
    search = f'{{"user_id": "{user}", "vector": {VECTOR}, "filters": {{"type": "fact", "type": "x"}}}}'.encode()
    large = f'{{"user_id": "{user}", "metadata": {{"x": "{"y" * 1_100_000}"}}, {ONCE}'.encode()
    call = f'{{"jsonrpc": "2.0", "id": 1, "method": "ping", "method": "tools/list", "params": {{"u": "{user}"}}}}'
    not_finite = call.replace("}}", ', "x": NaN}}')
    return [
        ("POST", f"{PROBE}/memories", memory),
        ("POST", f"{PROBE}/memories", nested),
        ("POST", f"{PROBE}/memories", memory.replace(b'"content"', b'"importance": NaN, "content"')),
        ("POST", f"{PROBE}/memories/batch", b'{"memories": [' + memory + b"]}"),
        ("POST", f"{PROBE}/memories/batch", b'{"memories": [' + memory + b", " + large + b"]}"),
        (
            "POST",
            f"{PROBE}/memories/batch",
            b'{"memories": [], "memories": [' + nested.replace(b', "k": 1', b"") + b"]}",
        ),
        ("POST", f"{PROBE}/search", search),
        ("POST", f"{PROBE}/forget", f'{{"user_id": "{user}", "user_id": "{user}", "dry_run": true}}'.encode()),
        ("PUT", "/v1/agents/words/items?namespace=a&namespace=b&key=k&user_id=u", b'{"content": "c", "content": "d"}'),
        ("POST", f"{PROBE}/messages", f'{{"user_id": "{user}", "messages": [], "messages": []}}'.encode()),
        ("POST", "/mcp", call.encode()),
        ("POST", "/mcp", not_finite.encode()),
    ]


@pytest.mark.parametrize("place", range(12))
def test_repeated_key_in_body_is_400(client: httpx.Client, user: str, place: int) -> None:
    method, path, body = requests_of(user)[place]

    answer = client.request(method, path, content=body, headers={"Accept": "application/json, text/event-stream"})

    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/invalid-json"), answer.text
    assert "is repeated in one object" in answer.json()["detail"]
    for owner in (user, f"{user}-other"):
        assert client.get(f"{PROBE}/memories", params={"user_id": owner}).json()["results"] == []


def import_lines(client: httpx.Client, user: str, body: bytes) -> Any:
    headers = {"Content-Type": "application/x-ndjson"}
    answer = client.post(f"{PROBE}/import", params={"user_id": user}, content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_repeated_key_fails_only_its_line(client: httpx.Client, user: str) -> None:
    result = import_lines(client, user, b'{"content": "a", "content": "b"}\n' + b"{" + ONCE.encode())

    assert result["counts"] == {"lines": 2, "imported": 1, "present": 0, "failed": 1}
    [error] = result["errors"]
    assert (error["line"], error["error"]["errors"][0]["field"]) == (1, "line")
    assert "the key 'content' is repeated" in error["error"]["detail"]


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_byte_order_mark_before_first_line_is_skipped(client: httpx.Client, user: str, mark: bytes, end: bytes) -> None:
    line = b"{" + ONCE.encode()

    assert import_lines(client, user, mark + line + end + line.replace(b'"c"', b'"d"') + end)["counts"]["imported"] == 2


@pytest.mark.parametrize("body", [codecs.BOM_UTF8, codecs.BOM_UTF8 + b"\n"])
def test_lone_byte_order_mark_is_no_line(client: httpx.Client, user: str, body: bytes) -> None:
    assert import_lines(client, user, body)["counts"]["lines"] == 0


def test_byte_order_mark_elsewhere_is_invalid(client: httpx.Client, user: str) -> None:
    line = b"{" + ONCE.encode()

    assert import_lines(client, user, line + b"\n" + codecs.BOM_UTF8 + line)["counts"]["failed"] == 1

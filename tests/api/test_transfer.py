"""Export and import of NDJSON over HTTP, by the client and on the command line, in constant memory."""

import json
import os
import pathlib
import resource
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from agentmemory_client import ApiError, AsyncClient, Client
from agentmemory_operator.adapters.kubernetes.transport import KubernetesRejected
from agentmemory_operator.entrypoints.api.transfer import transfer_routes
from agentmemory_operator.entrypoints.cli.composition import ApiAccess, QdrantAccess
from agentmemory_operator.entrypoints.cli.memories.transfer_commands import add_transferring
from agentmemory_operator.main import open_client
from tests.api.test_asking import open_cluster
from tests.support.patience import wait_until
from tests.support.web.api_stack import Stack

MEMORIES, EXPORT, IMPORT = (f"/v1/agents/probe/{name}" for name in ("memories", "export", "import"))
VECTOR = [1.0] * 8
NDJSON = {"Content-Type": "application/x-ndjson"}


def store(client: httpx.Client, user: str, content: str, **more: Any) -> str:
    answer = client.post(MEMORIES, json={"user_id": user, "content": content, "vector": VECTOR, **more})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def line(text: str, **more: Any) -> bytes:
    return json.dumps({"content": text, "vector": VECTOR} | more).encode() + b"\n"


def import_lines(client: httpx.Client, user: str, body: Any, **more: Any) -> dict[str, Any]:
    answer = client.post(IMPORT, params={"user_id": user, **more}, content=body, headers=NDJSON)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def test_export_ends_with_counts_and_reimports(client: httpx.Client, user: str) -> None:
    first = store(client, user, "first", type="fact")
    store(client, user, "second", type="fact", supersedes=first)

    answer = client.get(EXPORT, params={"user_id": user, "vectors": "true"})
    *lines, end = answer.text.splitlines()
    client.post("/v1/agents/probe/forget", json={"user_id": user, "everything": True})
    result = import_lines(client, user, answer.content, include_erased="true")

    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert [json.loads(text)["content"] for text in lines] == ["first", "second"]
    assert json.loads(end) == {"counts": {"total": 2, "types": {"fact": 2}}}
    assert result == {"counts": {"lines": 2, "imported": 2, "present": 0, "failed": 0}, "errors": [], "more_errors": 0}
    again = client.get(EXPORT, params={"user_id": user, "vectors": "true"})
    assert again.text == answer.text


def test_bad_line_is_named_and_fails_alone(client: httpx.Client, user: str) -> None:
    foreign_id = store(client, f"other-{user}", "theirs")
    bad = [
        b"{",
        line("x", user_id="somebody"),
        line("mine", id=foreign_id),
        b'"' + b"x" * (1 << 20) + b'"',
        b'{"a": 1}',
    ]
    body = line("a") + b"\n" + b"\n".join(bad) + b"\n" + line("b").rstrip()

    result = import_lines(client, user, body)

    assert result["counts"] == {"lines": 7, "imported": 2, "present": 0, "failed": 5}
    statuses = {error["line"]: error["error"]["status"] for error in result["errors"]}
    assert statuses == {3: 422, 4: 422, 6: 409, 8: 422, 9: 422}
    assert client.get(f"{MEMORIES}/{foreign_id}", params={"user_id": f"other-{user}"}).json()["content"] == "theirs"


def test_line_of_too_many_parts_fails_alone(client: httpx.Client, user: str) -> None:
    full, over = ({"k": [[]] * count} for count in (32_700, 32_800))
    body = (
        line("a", metadata=full) + line("b", metadata=over) + line("c", metadata={"k": json.loads("[" * 40 + "]" * 40)})
    )

    result = import_lines(client, user, body + line("d"))

    assert result["counts"] == {"lines": 4, "imported": 2, "present": 0, "failed": 2}
    assert [error["error"]["errors"][0]["message"] for error in result["errors"]] == [
        "has more than 32,768 strings, lists and objects: send less, or split it",
        "is nested deeper than 32 levels",
    ]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"type": "unheard"}, "type"),
        ({"user_id": "somebody"}, "user_id"),
        ({"content": " "}, "content"),
        ({"unknown": 1}, "unknown"),
        ({"item": True}, "item"),
        ({"vector": [1.0]}, "vector"),
        ({"access_count": -1}, "access_count"),
    ],
)
def test_wrong_field_of_a_line_is_named(client: httpx.Client, user: str, changed: dict[str, Any], field: str) -> None:
    [error] = import_lines(client, user, line("a", **changed))["errors"]

    assert [wrong["field"] for wrong in error["error"]["errors"]] == [field]


def test_errors_are_limited_to_a_hundred(client: httpx.Client, user: str) -> None:
    result = import_lines(client, user, b"nothing\n" * 250)

    assert (result["counts"]["failed"], len(result["errors"]), result["more_errors"]) == (250, 100, 150)


@pytest.mark.parametrize("media_type", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_other_media_type_is_415(stack: Stack, user: str, media_type: str | None) -> None:
    sent = {"Content-Type": media_type} if media_type else {}
    answer = httpx.post(stack.api_url + IMPORT, params={"user_id": user}, content=line("c"), headers=sent)

    assert answer.status_code == 415
    assert answer.json()["detail"].endswith("send application/x-ndjson")


@pytest.mark.parametrize("media_type", ["application/ndjson", "application/jsonl", "application/json"])
def test_ndjson_media_types_are_accepted(client: httpx.Client, user: str, media_type: str) -> None:
    sent = {"Content-Type": media_type}
    answer = client.post(IMPORT, params={"user_id": user}, content=line("c"), headers=sent)

    assert answer.json()["counts"]["imported"] == 1


def test_empty_import_needs_no_media_type(stack: Stack, user: str) -> None:
    answer = httpx.post(stack.api_url + IMPORT, params={"user_id": user})

    assert answer.json()["counts"]["lines"] == 0


@pytest.mark.parametrize("parameters", [{}, {"user_id": "u", "vectors": "perhaps"}, {"user_id": "u", "all": "1"}])
def test_wrong_parameters_are_422(client: httpx.Client, parameters: dict[str, str]) -> None:
    assert client.get(EXPORT, params=parameters).status_code == 422


def test_interrupted_import_keeps_whole_batches(stack: Stack, client: httpx.Client, user: str) -> None:
    """Sending the same lines again imports the rest."""
    where = urlsplit(stack.api_url)
    body = [line(f"m{number}") for number in range(250)]

    def count() -> int:
        return len(client.get(MEMORIES, params={"user_id": user, "limit": 1000}).json()["results"])

    with socket.create_connection((where.hostname, where.port), timeout=10) as connection:
        head = f"POST {IMPORT}?user_id={user} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        part = b"".join(body[:240])
        connection.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        wait_until(lambda: count() == 200, seconds=10)
    result = import_lines(client, user, b"".join(body))

    assert result["counts"] == {"lines": 250, "imported": 50, "present": 200, "failed": 0}


def test_rejected_kubernetes_call_is_503(client: httpx.Client, user: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise KubernetesRejected("403 secrets is forbidden", status=403, causes=False)

    monkeypatch.setattr(transfer_routes, "import_lines", refuse)
    answer = client.post(IMPORT, params={"user_id": user}, content=line("c"), headers=NDJSON)

    assert (answer.status_code, answer.json()["type"]) == (503, "/problems/unavailable")
    assert answer.json()["detail"].endswith("send all lines again: 403 secrets is forbidden")


@pytest.mark.faults
def test_transfer_uses_constant_memory(stack: Stack, user: str) -> None:
    """20 MB of lines pass through a process with client, API and engine: only the engine keeps them."""
    filler = "x" * 20_000

    def lines() -> Iterator[bytes]:
        for number in range(1_000):
            yield line(f"{number} {filler}")

    with Client(stack.api_url) as api:
        api.agent("probe").user(user).import_memories([line("warm")])
        result = api.agent("probe").user(user).import_memories(lines())
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        count = sum(1 for _ in api.agent("probe").user(user).export())
        after_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    assert result.imported == 1_000
    assert count == 1_001
    assert after_kb - before_kb < 15_000


def test_client_exports_its_import(stack: Stack, user: str) -> None:
    with Client(stack.api_url) as api:
        result = api.agent("probe").user(user).import_memories([line("a"), b"{}\n"])
        [exported] = api.agent("probe").user(user).export()
        with pytest.raises(ApiError, match="no agent"):
            list(api.agent("nobody").user(user).export())

    assert (result.imported, result.failed, result.errors[0].line) == (1, 1, 2)
    assert (exported["content"], "vector" in exported) == ("a", False)


async def test_async_client_exports_its_import(stack: Stack, user: str) -> None:
    async with AsyncClient(stack.api_url) as api:
        await api.agent("probe").user(user).import_memories([line("a")])
        exported = [memory async for memory in api.agent("probe").user(user).export(vectors=True)]
        with pytest.raises(ApiError, match="no agent"):
            await api.agent("nobody").user(user).import_memories([line("a")])

    assert [len(memory["vector"]) for memory in exported] == [8]


def run(stack: Stack, *arguments: str) -> Any:
    import typer
    from typer.testing import CliRunner

    cli = typer.Typer()
    add_transferring(
        cli, ApiAccess(open_client, stack.api_url, None), QdrantAccess(None, None, open_cluster, None, None)
    )  # type: ignore[arg-type]
    return CliRunner().invoke(cli, list(arguments))


def test_command_line_exports_to_file_and_imports(stack: Stack, user: str, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "ada.ndjson"
    with Client(stack.api_url) as api:
        api.agent("words").user(user).add("pays by invoice")

    exported = run(stack, "export", "words", "--user", user, "-o", str(file))
    back = run(stack, "import", "words", "-f", str(file), "--user", user)
    wrong = run(stack, "import", "words", "-f", str(file), "--user", "somebody-else")
    empty = [
        run(stack, *verb, "--user", user, "--url", "") for verb in (["export", "a"], ["import", "a", "-f", str(file)])
    ]

    assert "exported 1 memories" in exported.output
    assert back.output.startswith("1 lines: 0 imported, 1 there already, 0 failed")
    assert wrong.exit_code == 1
    assert "line 1: user_id:" in wrong.output
    assert all(result.exit_code == 2 and "--url is empty" in result.output for result in empty)
    assert os.listdir(tmp_path) == ["ada.ndjson"]


def test_failed_export_leaves_the_file_unchanged(stack: Stack, user: str, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "ada.ndjson"
    file.write_text("before")

    failed = run(stack, "export", "nobody", "--user", user, "-o", str(file))

    assert failed.exit_code == 1
    assert file.read_text() == "before"
    assert os.listdir(tmp_path) == ["ada.ndjson"]

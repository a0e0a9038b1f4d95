"""`agentmemory mcp`: the Model Context Protocol on standard input and output."""

import json
import subprocess
import tempfile
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from agentmemory_operator.entrypoints.cli.mcp_bridge import MAX_LINE_BYTES
from tests.api.test_mcp import MODES, text_of
from tests.support.forked import run_agentmemory
from tests.support.programs import AGENTMEMORY, clean_environment, free_port
from tests.support.web.api_stack import Stack

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
LIST = {"jsonrpc": "2.0", "id": "list", "method": "tools/list"}
STARTED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def stdio_to(*arguments: str, **environment: str) -> AbstractAsyncContextManager[Any]:
    """Start `agentmemory` as a host does; return the transport to it."""
    program, *first = AGENTMEMORY
    parameters = StdioServerParameters(
        command=program, args=[*first, *arguments], env=clean_environment() | environment
    )
    return stdio_client(parameters)


def hosted(stack: Stack, *options: str, mode: Any = "auto", **environment: str) -> Client:
    """Connect to the agent `words` as a host does."""
    environment = {"AGENTMEMORY_URL": stack.api_url} | environment
    return Client(stdio_to("mcp", "words", *options, **environment), mode=mode)


def talk(url: str, *lines: bytes | dict[str, Any], user: str = "ada") -> subprocess.CompletedProcess[str]:
    """Run the command with these lines as its whole input."""
    with tempfile.TemporaryFile() as typed:
        typed.write(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
        typed.seek(0)
        options = ("words", "--user", user, "--url", url)
        return run_agentmemory("mcp", *options, env=clean_environment(), stdin=typed.fileno())


def messages(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Return the messages on standard output, in which every line must be one."""
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("mode", MODES)
async def test_host_remembers_and_finds(stack: Stack, user: str, mode: str) -> None:
    async with hosted(stack, "--user", user, mode=mode) as host:
        tools = (await host.list_tools()).tools
        await host.call_tool("remember", {"content": "Ada pays by invoice — 30 días, 請求書"})
        found = await host.call_tool("search_memories", {"query": "how does she pay?"})
        profile = await host.read_resource("agentmemory://profile")

    assert all("user_id" not in tool.input_schema["properties"] for tool in tools)
    assert [memory["content"] for memory in found.structured_content["memories"]] == [
        "Ada pays by invoice — 30 días, 請求書"
    ]
    assert "請求書" in profile.contents[0].text


async def test_model_cannot_name_another_user(stack: Stack, user: str) -> None:
    async with hosted(stack, "--user", user) as host:
        refused = await host.call_tool("search_memories", {"query": "q", "user_id": "victim"})

    assert refused.is_error
    assert "user_id" in text_of(refused)


async def test_time_zone_is_sent(stack: Stack, user: str) -> None:
    async with hosted(stack, "--user", user, "--time-zone", "Mars/Base") as host:
        refused = await host.call_tool("search_memories", {"query": "today"})

    assert "'Mars/Base' is not an IANA time zone" in text_of(refused)


def test_user_token_names_its_user(stack: Stack, client: httpx.Client, user: str) -> None:
    done = run_agentmemory("mcp", "words", "--url", stack.api_url, env=clean_environment())
    other = run_agentmemory("mcp", "words", env=clean_environment() | {"AGENTMEMORY_TOKEN": "of-a-service-account"})
    token = run_agentmemory(
        "mcp", "words", "--url", stack.api_url, env=clean_environment() | {"AGENTMEMORY_TOKEN": "amu_x"}
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert "--user is missing" in done.stderr
    assert other.returncode == 2
    # The input is empty, so a started command ends at once.
    assert (token.returncode, token.stdout) == (0, "")


def test_end_of_input_waits_for_responses(stack: Stack) -> None:
    done = talk(stack.api_url, PING, STARTED, b"", b"  \r", LIST)

    assert done.returncode == 0
    assert done.stderr == ""
    assert {message["id"] for message in messages(done)} == {1, "list"}
    assert all("result" in message for message in messages(done))


@pytest.mark.parametrize(
    ("line", "code", "id_", "reason"),
    [
        pytest.param(b"no json", -32700, None, "not JSON", id="no json"),
        pytest.param(b"[" * 100_000, -32700, None, "not JSON", id="nested deeply"),
        pytest.param(b"[]", -32600, None, "one JSON-RPC message", id="list"),
        pytest.param(b'{"id": {"a": 1}, "method": "ping"}', -32600, None, "one JSON-RPC message", id="id"),
        pytest.param(b'"' + b"x" * (2 * MAX_LINE_BYTES) + b'"', -32600, None, "bytes at most", id="too long"),
        pytest.param(
            json.dumps(LIST | {"params": {"a": "x" * (1 << 20)}}).encode(), -32603, "list", "413", id="refused body"
        ),
    ],
)
def test_bad_line_is_one_error(stack: Stack, line: bytes, code: int, id_: str | None, reason: str) -> None:
    done = talk(stack.api_url, line, PING)

    by_id = {message["id"]: message for message in messages(done)}
    assert by_id[id_]["error"]["code"] == code
    assert reason in by_id[id_]["error"]["message"]
    assert by_id[1]["result"] == {}
    assert done.returncode == 0


def test_api_that_is_away_is_an_error_of_each_request() -> None:
    url = f"http://127.0.0.1:{free_port()}"

    done = talk(url, PING, STARTED, LIST)

    assert done.returncode == 0
    assert [message["error"]["code"] for message in messages(done)] == [-32603, -32603]
    assert all(f"no answer from {url}" in message["error"]["message"] for message in messages(done))
    assert "no answer" in done.stderr  # of the notification, which gets no response


def test_exact_numbers_are_passed_on(stack: Stack, user: str) -> None:
    """A host's message and the API's response are not parsed and written again."""
    big = b"12345678901234567890123456789"
    line = b'{"jsonrpc":"2.0","id":' + big + b',"method":"ping"}'

    done = talk(stack.api_url, line, user=user)

    assert json.loads(done.stdout)["id"] == int(big)


def test_closed_output_ends_quietly(stack: Stack) -> None:
    command = [*AGENTMEMORY, "mcp", "words", "--user", "ada", "--url", stack.api_url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment()
    ) as host:
        assert host.stdin is not None
        assert host.stdout is not None
        assert host.stderr is not None
        host.stdout.close()
        host.stdin.write(json.dumps(PING).encode() + b"\n")
        host.stdin.close()
        errors = host.stderr.read()

    assert (host.returncode, errors) == (0, b"")

"""Configuration files of MCP hosts in examples/mcp: read as the host reads them, and used against a server."""

import json
import tomllib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import yaml
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.api.test_mcp_stdio import stdio_to
from tests.support.programs import ROOT
from tests.support.web.api_stack import Stack

HOSTS = ROOT / "examples" / "mcp"
TOOLS = {"remember", "search_memories", "upsert_memory", "get_context"}

Server = dict[str, Any]


def read_json(text: str, key: str) -> Server:
    [server] = json.loads(text)[key].values()
    return dict(server)


def read_codex(text: str) -> Server:
    [server] = tomllib.loads(text)["mcp_servers"].values()
    return {"url": server["url"], "headers": server["http_headers"]}


def read_kagent(text: str) -> Server:
    spec = yaml.safe_load(text)["spec"]
    return {"url": spec["url"], "headers": {header["name"]: header.get("value", "x") for header in spec["headersFrom"]}}


READERS: dict[str, Callable[[str], Server]] = {
    "claude-code.mcp.json": lambda text: read_json(text, "mcpServers"),
    "claude_desktop_config.json": lambda text: read_json(text, "mcpServers"),
    "cursor.mcp.json": lambda text: read_json(text, "mcpServers"),
    "vscode.mcp.json": lambda text: read_json(text, "servers"),
    "codex.config.toml": read_codex,
    "kagent.yaml": read_kagent,
}


@asynccontextmanager
async def connected_host(server: Server, stack: Stack) -> AsyncIterator[Client]:
    """Connect as a host does, to the agent `words` of the running API."""
    if "command" in server:
        assert server["command"] == "agentmemory"
        arguments = ["words" if part == "assistant" else part for part in server["args"]]
        arguments[arguments.index("--url") + 1] = stack.api_url
        async with Client(stdio_to(*arguments)) as host:
            yield host
        return
    url = httpx2.URL(server["url"])
    assert url.path == "/mcp"
    assert "agent" in url.params
    async with httpx2.AsyncClient(headers=server["headers"]) as http:
        transport = streamable_http_client(f"{stack.api_url}/mcp?agent=words", http_client=http)
        async with Client(transport) as host:
            yield host


@pytest.mark.parametrize("file", READERS)
async def test_manifest_reaches_its_server(stack: Stack, file: str) -> None:
    server = READERS[file]((HOSTS / file).read_text())

    async with connected_host(server, stack) as host:
        tools = (await host.list_tools()).tools
        stored = await host.call_tool("remember", {"content": f"Ada came by {file}"})
        found = await host.call_tool("search_memories", {"query": f"Ada came by {file}", "top_k": 1})

    assert {tool.name for tool in tools} >= TOOLS
    # The host's file names the user, so the model is not asked for one.
    assert all("user_id" not in tool.input_schema["properties"] for tool in tools)
    assert not stored.is_error
    assert found.structured_content["memories"][0]["content"] == f"Ada came by {file}"


def test_every_manifest_is_read_and_listed() -> None:
    files = {path.name for path in HOSTS.iterdir()} - {"README.md"}

    assert {file for file in files if not file.endswith(".mjs")} == READERS.keys()
    assert all(f"[{file}]({file})" in (HOSTS / "README.md").read_text() for file in files)


def test_kagent_manifest_has_the_known_fields() -> None:
    manifest = yaml.safe_load((HOSTS / "kagent.yaml").read_text())
    known = {"description", "protocol", "url", "timeout", "headersFrom", "sseReadTimeout", "terminateOnClose"}

    assert (manifest["apiVersion"], manifest["kind"]) == ("kagent.dev/v1alpha2", "RemoteMCPServer")
    assert manifest["spec"].keys() <= known | {"allowedNamespaces"}
    assert manifest["spec"]["url"].endswith("/mcp?agent=support-bot")
    assert all(("value" in header) is not ("valueFrom" in header) for header in manifest["spec"]["headersFrom"])

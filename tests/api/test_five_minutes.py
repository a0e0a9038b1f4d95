"""Pages of docs/five-minutes: each command of a page runs on a development stack and prints the shown output."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from agentmemory_operator.main.dev_folders import FIRST_AGENT
from tests.support.pages import DOCS
from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, ROOT, Program, clean_environment, running

PAGES = sorted(path.name for path in (DOCS / "five-minutes").glob("*.md"))
SHOWN_URL = "http://127.0.0.1:8080"
# Installed or started by the tests and fixtures.
DONE_BEFORE = ("pip install ", "npm install ", "agentmemory dev")
CLIENT = ROOT / "client-ts"


@dataclass(frozen=True, slots=True)
class Command:
    """A line after `$ `, and the output lines that the page shows."""

    line: str
    shown: tuple[str, ...]


@pytest.fixture(scope="module")
def api_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API of `agentmemory dev`, with its first agent."""
    folder = tmp_path_factory.mktemp("stack")
    options = ("--data", str(folder / "data"), "--port", "0")
    with running(Program(folder / "dev.log", *AGENTMEMORY, "dev", *options, HOME=str(folder))) as program:
        url = program.wait_for(r"API (http://\S+)")[1]
        wait_until(lambda: httpx.get(f"{url}/v1/agents/{FIRST_AGENT}").is_success, seconds=30, what="the agent")
        yield url


def blocks_of(page: str) -> list[tuple[str, str]]:
    """Return the language and text of each block, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```", (DOCS / "five-minutes" / page).read_text(), re.M | re.S)


def commands_in(block: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
        line, *shown = part.splitlines()
        yield Command(line, tuple(shown))


def lay_out(folder: pathlib.Path, page: str, api_url: str, user: str) -> Iterator[Command]:
    """Write each file in its turn; yield the commands in between."""
    for language, text in blocks_of(page):
        # The pages share a stack: each has its own users.
        text = text.replace(SHOWN_URL, api_url).replace('"ada"', f'"{user}"').replace("user_id=ada", f"user_id={user}")
        if language == "console":
            yield from commands_in(text)
        elif language == "json":
            (folder / ".mcp.json").write_text(text)
        else:
            name = re.match(r"(?:#|//) (\S+)\n", text)
            assert name, f"{page}: the first line of a program names its file"
            (folder / name[1]).write_text(text)


def environment_of(folder: pathlib.Path) -> dict[str, str]:
    """Return the environment of a terminal after all installations of the page."""
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    return clean_environment() | {
        "PATH": path,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "NO_PROXY": "*",
        "HOME": str(folder),
    }


def install_client(folder: pathlib.Path) -> None:
    if not (CLIENT / "dist" / "index.js").exists():
        pytest.skip("the TypeScript client is not built: make client-ts")
    modules = folder / "node_modules"
    (modules / ".bin").mkdir(parents=True)
    (modules / "agentmemory-client").symlink_to(CLIENT)
    (modules / ".bin" / "tsc").symlink_to(CLIENT / "node_modules" / "typescript" / "bin" / "tsc")


def matches(shown: tuple[str, ...], printed: str) -> bool:
    """Return whether the output matches the page, where an ellipsis stands for any text."""
    pattern = ".*".join(map(re.escape, "\n".join(shown).split("…")))
    return re.fullmatch(pattern, printed.strip(), re.S) is not None


@pytest.mark.parametrize("page", PAGES)
def test_commands_print_the_shown_output(page: str, api_url: str, tmp_path: pathlib.Path) -> None:
    if page == "typescript.md":
        install_client(tmp_path)
    user = f"user-of-{page.removesuffix('.md')}"
    ran = 0
    for command in lay_out(tmp_path, page, api_url, user):
        if command.line.startswith(DONE_BEFORE):
            continue
        if shutil.which(program := command.line.split()[0]) is None:
            pytest.skip(f"{program} is not on this machine")
        done = subprocess.run(
            ["sh", "-c", command.line],
            cwd=tmp_path,
            env=environment_of(tmp_path),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{command.line}\n{done.stdout}{done.stderr}"
        assert matches(command.shown, done.stdout), f"{command.line}\n{done.stdout}"
        ran += len(command.shown) > 0
    assert ran, f"{page} shows no answer"


def test_pages_exist_for_each_way_in() -> None:
    assert PAGES == ["curl.md", "langgraph.md", "mcp.md", "python.md", "typescript.md"]


def test_mcp_file_of_page_connects(api_url: str, tmp_path: pathlib.Path) -> None:
    list(lay_out(tmp_path, "mcp.md", api_url, "ada"))
    server = json.loads((tmp_path / ".mcp.json").read_text())["mcpServers"]["memory"]
    call = {"name": "search", "arguments": {"query": "q"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}

    answer = httpx.post(
        server["url"], headers=server["headers"] | {"Accept": "application/json, text/event-stream"}, json=body
    )

    assert "memories" in answer.json()["result"]["structuredContent"]

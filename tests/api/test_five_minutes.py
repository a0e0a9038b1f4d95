"""Pages of docs/five-minutes: from a blank folder, each command of a page runs and prints the shown output.

The home folder is that of a user who has run `make install`. The sources of this checkout cannot be imported.
"""

import json
import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from agentmemory_operator.main.dev_folders import FIRST_AGENT
from docs.site.installing import installed
from tests.support.pages import DOCS
from tests.support.patience import wait_until
from tests.support.programs import Program, running
from tests.support.user_home import UserHome

# They build and install wheels.
pytestmark = pytest.mark.tools
PAGES = sorted(path.name for path in (DOCS / "five-minutes").glob("*.md"))
SHOWN_URL = "http://127.0.0.1:8080"
# Commands that the fixtures run once for all pages.
STARTED = (["make install", "agentmemory dev"], ["make client-ts install", "agentmemory dev"])
NEW_VENV = "python3 -m venv .venv && . .venv/bin/activate"
NPM_INSTALL = "npm install ~/.local/share/agentmemory/wheels/"


@dataclass(frozen=True, slots=True)
class Command:
    """A line after `$ `, and the output lines that the page shows."""

    line: str
    shown: tuple[str, ...]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> UserHome:
    """The home folder of a user who has installed the packages of this checkout."""
    home = UserHome(tmp_path_factory.mktemp("home"))
    home.install()
    return home


@pytest.fixture(scope="module")
def api_url(home: UserHome) -> Iterator[str]:
    """The API of `agentmemory dev`, with its first agent."""
    command = (str(home.path / ".local" / "bin" / "agentmemory"), "dev", "--port", "0")
    with running(Program(home.path / "dev.log", *command, **home.environment())) as program:
        url = program.wait_for(r"API (http://\S+)")[1]
        wait_until(lambda: httpx.get(f"{url}/v1/agents/{FIRST_AGENT}").is_success, seconds=30, what="the agent")
        yield url


def read_page(page: str) -> str:
    """Return the text of a page as shown while no release is published."""
    return installed((DOCS / "five-minutes" / page).read_text(), published=False)


def blocks_of(page: str) -> list[tuple[str, str]]:
    """Return the language and text of each block, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```", read_page(page), re.M | re.S)


def commands_in(block: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
        line, *shown = part.splitlines()
        yield Command(line, tuple(shown))


def lay_out(folder: pathlib.Path, page: str, api_url: str, user: str) -> Iterator[Command]:
    """Write each file when its block is reached; yield the commands in between."""
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


def run(command: str, home: UserHome, folder: pathlib.Path) -> str:
    """Run a command of a page in a terminal in the folder; return its output."""
    programs = folder / ".venv" / "bin"
    if command == NEW_VENV:
        home.create_venv(programs.parent)
        return ""
    if command.startswith(NPM_INSTALL):
        home.unpack_npm(command.removeprefix(NPM_INSTALL).split()[0], folder)
        return ""
    environment = home.environment(programs)
    if shutil.which(program := command.split()[0], path=environment["PATH"]) is None:
        pytest.skip(f"{program} is not on this machine")
    shell = ["sh", "-c", command]
    done = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def matches(shown: tuple[str, ...], printed: str) -> bool:
    """Return whether the output matches the page, where an ellipsis stands for any text."""
    pattern = ".*".join(map(re.escape, "\n".join(shown).split("…")))
    return re.fullmatch(pattern, printed.strip(), re.S) is not None


@pytest.mark.parametrize("page", PAGES)
def test_commands_print_the_shown_output(page: str, home: UserHome, api_url: str, tmp_path: pathlib.Path) -> None:
    if page == "typescript.md" and not list((home.data / "wheels").glob("*.tgz")):
        pytest.skip("the TypeScript client is not built: make client-ts")
    user = f"user-of-{page.removesuffix('.md')}"
    commands = lay_out(tmp_path, page, api_url, user)
    ran = 0

    assert [next(commands).line, next(commands).line] in STARTED
    for command in commands:
        printed = run(command.line, home, tmp_path)
        if command.shown:
            assert matches(command.shown, printed), f"{command.line}\n{printed}"
            ran += 1

    assert ran, f"{page} shows no answer"


def test_packages_come_from_the_wheels(home: UserHome, tmp_path: pathlib.Path) -> None:
    (tmp_path / "where.py").write_text("import agentmemory_client\nprint(agentmemory_client.__file__)\n")
    run(NEW_VENV, home, tmp_path)
    run("pip install ~/.local/share/agentmemory/wheels/agentmemory_client-*.whl", home, tmp_path)

    assert run("python where.py", home, tmp_path).startswith(str(tmp_path / ".venv"))
    program = home.data / "program" / "bin" / "python"
    assert run(f"{program} where.py", home, tmp_path).startswith(str(home.data / "program"))


def test_pages_exist_for_each_way_in() -> None:
    assert PAGES == ["curl.md", "langgraph.md", "mcp.md", "python.md", "typescript.md"]


def test_mcp_file_of_page_connects(api_url: str, tmp_path: pathlib.Path) -> None:
    list(lay_out(tmp_path, "mcp.md", api_url, "ada"))
    server = json.loads((tmp_path / ".mcp.json").read_text())["mcpServers"]["memory"]
    call = {"name": "search_memories", "arguments": {"query": "q"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}

    answer = httpx.post(
        server["url"], headers=server["headers"] | {"Accept": "application/json, text/event-stream"}, json=body
    )

    assert "memories" in answer.json()["result"]["structuredContent"]

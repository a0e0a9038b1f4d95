"""Commands of pages for which a development stack with the quickstart is sufficient: tests/golden/commands.yaml."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
import yaml

from tests.support.pages import DOCS, commands_to_run, run_command
from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, Program, clean_environment, copy_quickstart, running

# The pages on entities use this agent.
DESK = {
    "apiVersion": "agentmemory.dev/v1alpha1",
    "kind": "AgentMemory",
    "metadata": {"name": "desk", "namespace": "agents"},
    "spec": {"connectionRef": {"name": "main"}, "preset": "brain"},
}
# Commands that ask for confirmation.
CONFIRMS = re.compile(r"^agentmemory (?:forget|cleanup)\b(?!.*--(?:yes|dry-run))")
RUN = commands_to_run("dev")


@pytest.fixture(scope="module")
def api_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("pages")
    manifests = copy_quickstart(folder / "manifests")
    (manifests / "desk.yaml").write_text(yaml.safe_dump(DESK))
    arguments = ("dev", "--manifests", str(manifests), "--data", str(folder / "data"), "--port", "0")
    program = Program(folder / "log", *AGENTMEMORY, *arguments, PYTHONUNBUFFERED="1")
    with running(program):
        url = program.wait_for(r"API (http://\S+)")[1]
        wait_until(lambda: _ready(url) >= {"support-bot", "desk"}, seconds=60, what="the agents")
        yield url


def _ready(url: str) -> set[str]:
    answer = httpx.get(f"{url}/v1/agents", timeout=30)
    return {agent["agent"] for agent in answer.json()["results"] if agent["ready"]} if answer.is_success else set()


def run(command: str, api_url: str, folder: pathlib.Path) -> str:
    """Run a command of a page against this stack instead of port 8080; return its output."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not on this machine")
    adapted = re.sub(r"(?:localhost|127\.0\.0\.1):8080", api_url.removeprefix("http://"), command)
    adapted = re.sub(r"^\.venv/bin/", "", adapted).replace("curl -s", "curl -s --fail-with-body")
    adapted += " --yes" if CONFIRMS.search(adapted) else ""
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    environment = clean_environment() | {"AGENTMEMORY_URL": api_url, "PATH": path, "NO_PROXY": "*"}
    done = run_command(adapted, env=environment, cwd=folder, timeout=60)
    assert done.returncode == 0, f"{adapted}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", RUN)
def test_commands_of_page_succeed(page: str, api_url: str, tmp_path: pathlib.Path) -> None:
    assert RUN[page]
    for command in RUN[page]:
        run(command, api_url, tmp_path)


def test_mem0_script_of_page_produces_an_import(api_url: str, tmp_path: pathlib.Path) -> None:
    page = (DOCS / "coming-from.md").read_text()
    (script,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    (command,) = re.findall(r"^\$ (agentmemory import .*)$", page, re.M)
    mem0_memory = {"id": "1", "memory": "Pays by invoice", "user_id": "ada", "metadata": None}
    mem0_memory |= {"created_at": "2025-07-20T01:30:36.275141-07:00", "updated_at": None, "score": None}
    (tmp_path / "ada.json").write_text(json.dumps({"results": [mem0_memory]}))

    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=60)
    run(command, api_url, tmp_path)

    found = httpx.get(f"{api_url}/v1/agents/support-bot/memories", params={"user_id": "ada"}, timeout=30).json()
    kept = [memory for memory in found["results"] if memory["created_at"] == "2025-07-20T08:30:36.275Z"]
    assert [memory["content"] for memory in kept] == ["Pays by invoice"]

"""TypeScript client: its own tests, by node's runner, against a development stack."""

import json
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterator

import httpx
import pytest

import agentmemory_client
from agentmemory_operator.main.dev_folders import FIRST_AGENT
from tests.api.test_http_api_page import TSC, install_client
from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, ROOT, Program, running

CLIENT = ROOT / "client-ts"
BUILT = CLIENT / ".tests" / "tests"


@pytest.fixture(scope="module")
def api_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API of `agentmemory dev`, with its first agent."""
    folder = tmp_path_factory.mktemp("stack")
    options = ("--data", str(folder / "data"), "--port", "0")
    with running(Program(folder / "dev.log", *AGENTMEMORY, "dev", *options, HOME=str(folder))) as program:
        url = program.wait_for(r"API (http://\S+)")[1]
        wait_until(lambda: httpx.get(f"{url}/v1/agents/{FIRST_AGENT}").is_success, seconds=30, what="the agent")
        yield url


def test_version_equals_the_python_client() -> None:
    assert json.loads((CLIENT / "package.json").read_text())["version"] == agentmemory_client.__version__


def test_lock_has_hashes_and_no_registry() -> None:
    packages = json.loads((CLIENT / "package-lock.json").read_text())["packages"]

    assert [name for name, package in packages.items() if name and "integrity" not in package] == []
    assert [name for name, package in packages.items() if "resolved" in package] == []


HANDLES = [
    (agentmemory_client.Client, "index.ts", "Client"),
    (agentmemory_client.Agent, "agents.ts", "Agent"),
    (agentmemory_client.User, "users.ts", "User"),
]
# `fetch` closes connections by itself. `http` and `api_version` are attributes in Python.
ONLY_PYTHON = {"close", "run", "repeat", "entries"}
ONLY_TYPESCRIPT = {"http", "apiVersion", "followChanges"}


def typescript_methods(module: str, name: str) -> set[str]:
    """Return the public methods and accessors of a class of the TypeScript client."""
    source = (CLIENT / "src" / module).read_text()
    body = source.partition(f"export class {name} {{")[2].partition("\n}\n")[0]
    found = re.findall(r"^  (?:override |async |get |\*)*([a-z]\w*)(?:<[^>]*>)?\(", body, re.M)
    return set(found) - {"constructor"}


@pytest.mark.parametrize(("python", "module", "name"), HANDLES, ids=["client", "agent", "user"])
def test_handles_equal_the_python_client(python: type, module: str, name: str) -> None:
    methods = {method for method in dir(python) if not method.startswith("_") and callable(getattr(python, method))}
    expected = {re.sub(r"_(\w)", lambda letter: letter[1].upper(), method) for method in methods - ONLY_PYTHON}

    assert typescript_methods(module, name) - ONLY_TYPESCRIPT == expected


@pytest.mark.tools
def test_examples_of_its_page_compile(tmp_path: pathlib.Path) -> None:
    """Each block is a module of its own, in a project that has the client and the frameworks."""
    install_client(tmp_path)
    for package in ("@types", "@langchain", "ai"):
        (tmp_path / "node_modules" / package).symlink_to(CLIENT / "node_modules" / package)
    blocks = re.findall(r"^```ts\n(.*?)^```$", (CLIENT / "README.md").read_text(), re.M | re.S)
    for number, block in enumerate(blocks):
        imports = "" if "import { Client }" in block else 'import { Client } from "agentmemory-client";\n'
        (tmp_path / f"{number}.mts").write_text(imports + block)

    files = sorted(path.name for path in tmp_path.glob("*.mts"))
    command = ["node_modules/.bin/tsc", *TSC, "--noEmit", "--skipLibCheck", *files]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.stdout, len(files)) == ("", 5)


@pytest.mark.tools
def test_own_tests_pass(api_url: str) -> None:
    tests = sorted(map(str, BUILT.glob("*.test.js")))
    if shutil.which("node") is None or not tests:
        pytest.skip("the TypeScript client is not built: make client-ts")

    environment = os.environ | {"AGENTMEMORY_URL": api_url, "EXAMPLE_AGENT": FIRST_AGENT, "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(["node", "--test", *tests], capture_output=True, text=True, timeout=120, env=environment)

    assert done.returncode == 0, done.stdout + done.stderr

"""TypeScript client: its own tests, by node's runner, against a development stack."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator

import httpx
import pytest

import agentmemory_client
from agentmemory_operator.main.dev_folders import FIRST_AGENT
from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, ROOT, Program, running

CLIENT = ROOT / "client-ts"
BUILT = CLIENT / ".tests" / "tests" / "client.test.js"


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


def test_own_tests_pass(api_url: str) -> None:
    if shutil.which("node") is None or not BUILT.exists():
        pytest.skip("the TypeScript client is not built: make client-ts")

    environment = os.environ | {"AGENTMEMORY_URL": api_url, "EXAMPLE_AGENT": FIRST_AGENT, "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(["node", "--test", str(BUILT)], capture_output=True, text=True, timeout=120, env=environment)

    assert done.returncode == 0, done.stdout + done.stderr

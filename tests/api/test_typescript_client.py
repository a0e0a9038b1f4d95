"""TypeScript client: its own tests, by node's runner, against a development stack."""

import json
import os
import shutil
import subprocess

import pytest

import agentmemory_client
from agentmemory_operator.main.dev_folders import FIRST_AGENT
from tests.api.test_five_minutes import api_url
from tests.support.programs import ROOT

__all__ = ["api_url"]

CLIENT = ROOT / "client-ts"
BUILT = CLIENT / ".tests" / "tests" / "client.test.js"


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

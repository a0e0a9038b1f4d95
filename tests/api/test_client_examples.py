"""Scripts of examples/client, which docs/client.md runs, against the API over the development Qdrant."""

import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.spec.documents import agent_document
from tests.support.web.api_stack import create_collection, running_api

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "client"
BOT = agent_document("support-bot", embedding={"provider": "wordllama", "dimensions": 64})


@pytest.fixture(scope="module")
def api_url(qdrant_url: str) -> Iterator[str]:
    create_collection(qdrant_url, BOT)
    with running_api(qdrant_url, BOT) as stack:
        yield stack.api_url


def run(api_url: str, user: str, *command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not on this machine")
    environment = os.environ | {"AGENTMEMORY_URL": api_url, "EXAMPLE_USER": user, "NO_PROXY": "127.0.0.1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_python(api_url: str, user: str) -> None:
    first, again = (run(api_url, user, sys.executable, str(EXAMPLES / "ask.py")).splitlines() for _ in range(2))

    assert [line.split(maxsplit=1)[1] for line in again] == [line.split(maxsplit=1)[1] for line in first]
    assert [line.split(maxsplit=1)[1] for line in first] == ["Ada pays by invoice, 30 days", "Not found"]


def test_curl(api_url: str, user: str) -> None:
    script = str(EXAMPLES / "ask.sh")
    if shutil.which("curl") is None:
        pytest.skip("curl is not on this machine")

    first, again = (run(api_url, user, "sh", script).splitlines() for _ in range(2))

    assert first[0] == again[0]
    assert again[1].count('"content":"Ada pays by invoice, 30 days"') == 1


def test_javascript(api_url: str, user: str) -> None:
    first, again = (run(api_url, user, "node", str(EXAMPLES / "ask.mjs")).splitlines() for _ in range(2))

    assert [line.split(maxsplit=1)[1] for line in again] == [line.split(maxsplit=1)[1] for line in first]
    assert [line.split(maxsplit=1)[1] for line in first] == ["Ada pays by invoice, 30 days"]

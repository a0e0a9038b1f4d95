"""docs/sessions.md: its commands run in order, and print the shown output."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from tests.support.pages import DOCS
from tests.support.web.api_stack import create_collection, running_api

PAGE = (DOCS / "sessions.md").read_text()
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE, re.M | re.S)


@pytest.fixture(scope="module")
def port(qdrant_url: str) -> Iterator[str]:
    bot = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE, re.S)[0])
    bot["metadata"] |= {"uid": "uid-page", "creationTimestamp": "2026-01-01T00:00:00Z"}
    bot["spec"]["agent"] = "page-bot"
    create_collection(qdrant_url, bot)
    with running_api(qdrant_url, bot) as stack:
        yield stack.api_url.rpartition(":")[2]


def shown(answer: str) -> str:
    """Return the pattern of a shown response, where an ellipsis stands for any text."""
    return ".*".join(map(re.escape, answer.split("…")))


def test_commands_print_the_shown_output(port: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not on this machine")
    lines = [line for block in BLOCKS for line in block.splitlines()]
    script = "\n".join(line[2:] for line in lines if line.startswith("$ "))
    # Responses end without a line break.
    script = re.sub(r"^(curl .*)$", r"\1; echo", script, flags=re.M)
    script = script.replace("localhost:8080", f"127.0.0.1:{port}").replace("support-bot", "page-bot")

    done = subprocess.run(
        ["sh", "-ec", script], env=os.environ | {"NO_PROXY": "*"}, capture_output=True, text=True, timeout=60
    )

    expected = [line for line in lines if not line.startswith("$ ")]
    assert done.returncode == 0, done.stderr
    for answer, line in zip(done.stdout.splitlines(), expected, strict=True):
        assert re.fullmatch(shown(line), answer), answer

"""Text of a request cannot forge a line in the log of a running API, in any format."""

import itertools
import json
import pathlib
import re
from collections.abc import Iterator

import httpx
import pytest

from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, Program, running

FORGED = "2026-01-01 00:00:00,000 INFO    agentmemory_operator.entrypoints.api.edge DELETE /v1/agents/a 204"
# Escaped for a path: line feed, carriage return, U+0085, U+2028, U+2029, ESC, U+202E, DEL.
HOSTILE = ["%0A", "%0D", "%0d%0A", "%C2%85", "%E2%80%A8", "%E2%80%A9", "%1B%5B2K", "%E2%80%AE", "%7F", "%00"]
PATHS = ["/v1/agents/a{}", "/v1/{}", "/v1/agents/a/memories/{}"]


@pytest.fixture(scope="module", params=["text", "json"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, str]]:
    folder: pathlib.Path = tmp_path_factory.mktemp("log")
    (folder / "manifests").mkdir()
    options = ("--source", "files", "--manifests", str(folder / "manifests"), "--port", "0")
    program = Program(folder / "api.log", *AGENTMEMORY, "api", *options, AGENTMEMORY_LOG_FORMAT=request.param)
    with running(program):
        yield program, program.wait_for(r"API (http://\S+)")[1]


@pytest.mark.parametrize(("between", "path"), [*zip(HOSTILE, itertools.cycle(PATHS), strict=False)])
def test_path_cannot_forge_a_line(served: tuple[Program, str], between: str, path: str) -> None:
    program, url = served
    before = len(program.log)

    httpx.get(url + path.format(between + FORGED.replace(" ", "%20")), params={"user_id": "u"})
    httpx.get(f"{url}/v1/agents/the-end")

    wait_until(lambda: "/v1/agents/the-end" in program.log[before:], seconds=5, what="the line of the request")
    output = program.log[before:]
    lines = output.splitlines()
    assert [line for line in lines if FORGED in line], "it is told of, in its own line"
    assert not [line for line in lines if line.startswith(FORGED[:20])]
    assert all(line.isprintable() for line in lines)
    assert len([line for line in lines if re.match(r"\{|2\d{3}-", line)]) == len(lines) == 2
    if lines[0].startswith("{"):
        assert FORGED in json.loads(lines[0])["request"]["path"]

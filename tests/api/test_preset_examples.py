"""examples/PRESET and examples/zones: each script, run on a development stack, prints the results in its README."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from agentmemory_operator.spec.presets import PRESETS
from tests.support.command_line import command_line

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
READY_S, SCRIPT_S = 60, 60
NAMES = [*PRESETS, "zones"]

Json = dict[str, Any]


@pytest.fixture(scope="module")
def api_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """API of one development stack with the objects of all examples, which share a connection."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "manifests").mkdir()
    for name in NAMES:
        connection, *others = yaml.safe_load_all((EXAMPLES / name / "memory.yaml").read_text())
        (folder / "manifests" / "connection.yaml").write_text(yaml.safe_dump(connection))
        (folder / "manifests" / f"{name}.yaml").write_text(yaml.safe_dump_all(others))
    arguments = ["dev", "--manifests", str(folder / "manifests"), "--data", str(folder / "data"), "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("QDRANT", "AGENTMEMORY"))}
    stack = subprocess.Popen(
        [sys.executable, "-m", "agentmemory_operator", *arguments],
        env=environment | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        url = _url_of(stack)
        _wait_until_ready(url)
        yield url
    finally:
        stack.send_signal(signal.SIGINT)
        stack.communicate(timeout=READY_S)


def _url_of(stack: subprocess.Popen[str]) -> str:
    assert stack.stdout is not None
    matches = (re.match(r"API (http://\S+)", line) for line in stack.stdout)
    return next(found[1] for found in matches if found)


def _wait_until_ready(url: str) -> None:
    until_s = time.monotonic() + READY_S
    while time.monotonic() < until_s:
        agents = httpx.get(f"{url}/v1/agents", timeout=READY_S, trust_env=False).json()["results"]
        if len(agents) == len(NAMES) and all(agent["ready"] for agent in agents):
            return
        time.sleep(0.1)
    pytest.fail("not every example became ready")


def run(api_url: str, name: str) -> list[Json]:
    """Run an example against the stack; return the JSON it prints."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not on this machine")
    environment = os.environ | {"AGENTMEMORY_URL": api_url, "NO_PROXY": "127.0.0.1", "EXAMPLE_USER": "ada"}
    script = str(EXAMPLES / name / "try.sh")
    done = subprocess.run(["sh", script], env=environment, capture_output=True, text=True, timeout=SCRIPT_S)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def contents(answer: Json) -> list[str]:
    return [memory["content"] for memory in answer["results"]]


@pytest.mark.parametrize("name", NAMES)
def test_example_passes_validate(name: str) -> None:
    checked = CliRunner().invoke(command_line(), ["validate", "-f", str(EXAMPLES / name)])

    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize("name", NAMES)
def test_readme_shows_how_to_run_the_example(name: str) -> None:
    page = (EXAMPLES / name / "README.md").read_text()

    assert f"agentmemory dev --manifests examples/{name}" in page
    assert f"sh examples/{name}/try.sh" in page


def test_standard_finds_turns_with_neighbours(api_url: str) -> None:
    question, statement, found = run(api_url, "standard")

    first, second = found["results"]
    assert (first["id"], second["id"]) == (statement["id"], question["id"])
    assert [memory["id"] for memory in first["neighbours"]] == [question["id"]]


def test_cortex_finds_correction_and_keeps_history(api_url: str) -> None:
    corrected, _, found, history = run(api_url, "cortex")

    assert corrected["event"] == "SUPERSEDE"
    assert contents(found) == ["The billing service listens on port 4000"]
    assert contents(history) == ["The billing service listens on port 8080", "The billing service listens on port 4000"]


def test_brain_keeps_one_fact_per_key(api_url: str) -> None:
    first, second, _, repeated, found = run(api_url, "brain")

    assert (second["event"], second["supersedes"]) == ("SUPERSEDE", first["id"])
    assert (repeated["event"], repeated["id"]) == ("CORROBORATE", second["id"])
    assert "The shop runs on Shopify" in contents(found)
    assert "The shop runs on WooCommerce" not in contents(found)


def test_keyed_keeps_last_write_only(api_url: str) -> None:
    *_, keys, found = run(api_url, "keyed")

    assert keys["results"] == ["city", "drink"]
    assert contents(found) == ["Favourite drink: green tea"]
    assert found["removed_by_threshold"] == 1


def test_cognitive_finds_facts_and_ends_session(api_url: str) -> None:
    *_, last_thought, found, ended = run(api_url, "cognitive")

    assert last_thought["evicted"]["content"] == "Thought one"
    assert [memory["type"] for memory in found["results"]] == ["semantic", "episodic"]
    assert found["results"][0]["confidence"] == 0.5
    assert ended["dropped"] == 4


def test_importance_finds_pool_and_one_author(api_url: str) -> None:
    *_, pool, by_author = run(api_url, "importance")

    assert contents(pool) == ["Wants to run ten kilometres in an hour", "Ran ten kilometres in an hour on Sunday"]
    assert (pool["threshold"], pool["min_similarity"]) == (0.0, 0.7)
    assert [memory["author"] for memory in by_author["results"]] == ["trainer"]
    assert by_author["warnings"] == []


def test_no_preset_finds_the_oldest_by_content(api_url: str) -> None:
    *_, found = run(api_url, "none")

    assert [memory["type"] for memory in found["results"]] == ["minutes", "invoice"]


def test_zones_limit_reading_and_seal_exports(api_url: str) -> None:
    """Deletion of the zone's key erases its memories."""

    _, _, listed, *exported, receipt, remaining = run(api_url, "zones")

    assert sorted(contents(listed)) == ["Allergic to penicillin", "Likes tea"]
    lines = [line for line in exported if "user_id" in line]
    sealed, plain = sorted(lines, key=lambda line: "sealed" not in line)
    assert (plain["content"], "content" in sealed, sealed["zone"]) == ("Likes tea", False, "SENSITIVE")
    assert (receipt["counts"]["total"], receipt["keys_deleted"]) == (1, ["SENSITIVE"])
    assert contents(remaining) == ["Likes tea"]


@pytest.mark.parametrize("name", NAMES)
def test_repeated_example_stores_nothing_twice(api_url: str, name: str) -> None:
    (agent,) = re.findall(r"^agent=(.*)$", (EXAMPLES / name / "try.sh").read_text(), re.M)

    def stored() -> list[str]:
        url = f"{api_url}/v1/agents/{agent}/memories?user_id=ada&include_superseded=true"
        listed = httpx.get(url, timeout=READY_S, trust_env=False).raise_for_status().json()["results"]
        return sorted(memory["content"] for memory in listed)

    run(api_url, name)
    once = stored()
    run(api_url, name)

    assert stored() == once
    assert once

"""`cleanup`, `orphans` and `takeover` on `agentmemory dev`, with its watched folder as the cluster."""

import json
import pathlib
from collections.abc import Iterator

import httpx
import pytest

from tests.api.test_dev_snapshots import Development, developing
from tests.support.forked import run_agentmemory
from tests.support.patience import wait_until
from tests.support.programs import clean_environment


@pytest.fixture(scope="module")
def development(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Development]:
    with developing(tmp_path_factory.mktemp("dev")) as started:
        yield started


def run(development: Development, *arguments: str, folder: pathlib.Path | None = None) -> tuple[int, str, str]:
    """Run a command on the folder, or another one; return exit status, output and errors."""
    command = (*arguments, "--manifests", str(folder or development.manifests))
    done = run_agentmemory(*command, env=clean_environment())
    return done.returncode, done.stdout, done.stderr


def test_cleanup_lists_memories_of_stacks_qdrant(development: Development) -> None:
    development.store("one")

    status, output, error = run(
        development, "cleanup", "bot", "--dry-run", "--qdrant", development.qdrant, "-o", "json"
    )

    assert status == 0, error
    assert json.loads(output)["memories"] == 1


def test_requested_cleanup_leaves_manifest_unchanged(development: Development) -> None:
    manifest = development.manifests / "agents.yaml"
    written = manifest.read_text()

    status, _, error = run(development, "cleanup", "bot", "--yes")

    assert status == 0, error
    wait_until(lambda: handled_request(development), seconds=30, what="the cleanup")
    assert manifest.read_text() == written


def handled_request(development: Development) -> object:
    """Return the `requestedAt` of the last cleanup; None if there was none, False if `status` fails."""
    status, shown, _ = run(development, "status", "bot", "-o", "json")
    return status == 0 and json.loads(shown)["status"].get("lastCleanup", {}).get("requestedAt")


@pytest.mark.parametrize("verb", [("orphans",), ("cleanup", "bot", "--dry-run")])
def test_qdrant_of_stack_must_be_given(development: Development, verb: tuple[str, ...]) -> None:
    status, _, error = run(development, *verb)

    assert (status, error) == (1, "agentmemory: give --qdrant URL: the one that `agentmemory dev` prints\n")


def test_orphan_is_a_collection_without_manifest(development: Development) -> None:
    body = {"vectors": {"size": 8, "distance": "Cosine"}}
    httpx.put(f"{development.qdrant}/collections/agent_memory_lost__1", json=body).raise_for_status()

    status, output, error = run(development, "orphans", "--qdrant", development.qdrant, "-o", "json")

    assert status == 0, error
    (server,) = json.loads(output)["servers"]
    assert [entry["collection"] for entry in server["orphans"]] == ["agent_memory_lost__1"]
    assert server["otherClusters"] == 0


def test_takeover_lists_blocked_objects(development: Development) -> None:
    status, output, _ = run(development, "takeover", "--all", "--cluster-id", "another")
    single_status, _, error = run(development, "takeover", "bot")

    assert (status, output) == (0, "No AgentMemory is blocked by a collection of that cluster.\n")
    assert (single_status, error) == (
        1,
        "agentmemory: AgentMemory agents/bot is not blocked by such a collection: see its conditions\n",
    )


def test_unwatched_folder_cannot_list_orphans(development: Development, tmp_path: pathlib.Path) -> None:
    """A folder gets its cluster id, which marks its collections, when `agentmemory dev` watches it."""

    (tmp_path / "agents.yaml").write_text((development.manifests / "agents.yaml").read_text())

    status, _, error = run(development, "orphans", "--qdrant", development.qdrant, folder=tmp_path)

    assert status == 1
    assert "start `agentmemory dev` on it" in error


def test_context_and_folder_exclude_each_other(development: Development) -> None:
    status, _, error = run(development, "orphans", "--context", "prod")

    assert status == 2
    assert "--manifests replaces the cluster" in " ".join(error.split())

"""cleanup, orphans and takeover on `agentmemory dev`: the folder that it watches stands in for a cluster."""

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
    """Run a command on the folder, or on another one; return exit status, output and errors."""
    command = (*arguments, "--manifests", str(folder or development.manifests))
    done = run_agentmemory(*command, env=clean_environment())
    return done.returncode, done.stdout, done.stderr


def test_a_cleanup_is_listed_from_the_stack_s_own_qdrant(development: Development) -> None:
    development.store("one")

    status, told, error = run(development, "cleanup", "bot", "--dry-run", "--qdrant", development.qdrant, "-o", "json")

    assert status == 0, error
    assert json.loads(told)["memories"] == 1


def test_a_requested_cleanup_is_made_and_the_manifest_stays_as_it_is(development: Development) -> None:
    manifest = development.manifests / "agents.yaml"
    written = manifest.read_text()

    status, _, error = run(development, "cleanup", "bot", "--yes")

    assert status == 0, error
    wait_until(lambda: handled_request(development), seconds=30, what="the cleanup")
    assert manifest.read_text() == written


def handled_request(development: Development) -> object:
    """Return the value of the annotation that the stack has handled."""
    status, shown, _ = run(development, "status", "bot", "-o", "json")
    return status == 0 and json.loads(shown)["status"].get("lastCleanup", {}).get("requestedAt")


@pytest.mark.parametrize("verb", [("orphans",), ("cleanup", "bot", "--dry-run")])
def test_the_stack_s_qdrant_has_to_be_named(development: Development, verb: tuple[str, ...]) -> None:
    status, _, error = run(development, *verb)

    assert (status, error) == (1, "agentmemory: give --qdrant URL: the one that `agentmemory dev` prints\n")


def test_what_no_manifest_owns_is_an_orphan_and_what_one_owns_is_none(development: Development) -> None:
    body = {"vectors": {"size": 8, "distance": "Cosine"}}
    httpx.put(f"{development.qdrant}/collections/agent_memory_lost__1", json=body).raise_for_status()

    status, told, error = run(development, "orphans", "--qdrant", development.qdrant, "-o", "json")

    assert status == 0, error
    (server,) = json.loads(told)["servers"]
    assert [entry["collection"] for entry in server["orphans"]] == ["agent_memory_lost__1"]
    assert server["otherClusters"] == 0


def test_a_takeover_lists_what_is_refused(development: Development) -> None:
    status, told, _ = run(development, "takeover", "--all", "--cluster-id", "another")
    one, _, error = run(development, "takeover", "bot")

    assert (status, told) == (0, "No AgentMemory is blocked by a collection of that cluster.\n")
    assert (one, error) == (
        1,
        "agentmemory: AgentMemory agents/bot is not blocked by such a collection: see its conditions\n",
    )


def test_a_folder_that_was_never_watched_does_not_say_whose_the_collections_are(
    development: Development, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "agents.yaml").write_text((development.manifests / "agents.yaml").read_text())

    status, _, error = run(development, "orphans", "--qdrant", development.qdrant, folder=tmp_path)

    assert status == 1
    assert "start `agentmemory dev` on it" in error


def test_a_context_and_a_folder_exclude_each_other(development: Development) -> None:
    status, _, error = run(development, "orphans", "--context", "prod")

    assert status == 2
    assert "--manifests replaces the cluster" in " ".join(error.split())

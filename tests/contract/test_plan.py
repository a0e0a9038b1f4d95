"""`agentmemory plan` as people run it, against a server whose calls are counted."""

import asyncio
import json
import pathlib
import uuid
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from agentmemory_operator.adapters.qdrant_collections import QdrantCollections
from agentmemory_operator.domain.desired import desired_collection
from agentmemory_operator.domain.manifests import parse_agent_memory
from agentmemory_operator.domain.naming import alias_of
from agentmemory_operator.entrypoints.inspection import Inspection
from agentmemory_operator.main.stores import open_collections
from agentmemory_operator.services.reconcile import reconcile
from tests.support.command_line import command_line
from tests.support.proxy import Proxy, proxying

Document = dict[str, Any]


@pytest.fixture
def proxy(qdrant_url: str) -> Any:
    with proxying(qdrant_url) as made:
        yield made


def manifest(slug: str, **spec: Any) -> Document:
    base = {"connectionRef": {"name": "main"}, "embedding": {"provider": "none", "dimensions": 8}}
    return {
        "apiVersion": "agentmemory.dev/v1alpha1",
        "kind": "AgentMemory",
        "metadata": {"name": slug, "namespace": "agents"},
        "spec": base | spec,
    }


def run(tmp_path: pathlib.Path, *documents: Document, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """Run the command on the documents; return its exit status, output and errors."""
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    # The real parts, in this process: to start another costs more than the tests do.
    cli = command_line(Inspection(open_collections, no_cluster, None, None))
    done = CliRunner().invoke(cli, ["plan", "-f", str(file), *options])
    return done.exit_code, done.stdout, done.stderr


def no_cluster(_: str | None) -> Any:
    raise AssertionError("plan needs no cluster")


def made_on(url: str, **spec: Any) -> str:
    """Bring a collection about as the operator does; return its slug."""
    slug = f"plan-{uuid.uuid4().hex[:8]}"

    async def make() -> None:
        memory = parse_agent_memory(manifest(slug, **spec))
        store = QdrantCollections(url)
        desired = desired_collection(memory, cluster_id="some-cluster")
        await reconcile(alias_of(slug), desired, store=store, last_physical=None, last_points=0)
        await store.close()

    asyncio.run(make())
    return slug


def test_what_is_as_asked_has_nothing_to_do(tmp_path: pathlib.Path, qdrant_url: str) -> None:
    slug = made_on(qdrant_url)

    status, told, _ = run(tmp_path, manifest(slug), options=("--qdrant", qdrant_url))

    assert status == 0
    assert f"AgentMemory agents/{slug}" in told
    assert "1 as asked" in told


def test_changes_are_shown_with_class_and_cost_and_nothing_is_done(tmp_path: pathlib.Path, proxy: Proxy) -> None:
    slug = made_on(proxy.target)
    wanted = manifest(slug, index={"hnsw": {"m": 24}, "distance": "Dot"})

    status, told, _ = run(tmp_path, wanted, manifest("new-one"), options=("--qdrant", proxy.url))

    assert status == 3
    rows = [line.split("   ") for line in told.splitlines()]
    assert ["  Rebuild", "rebuild for index.distance Cosine -> Dot"] in [row[:2] for row in rows]
    assert "in the background, serving meanwhile" in told
    assert "create collection agent_memory_new-one__1" in told
    assert proxy.calls, "it looked"
    assert proxy.mutations() == []


def test_programs_get_json(tmp_path: pathlib.Path, qdrant_url: str) -> None:
    slug = made_on(qdrant_url)
    wanted = manifest(slug, index={"hnsw": {"m": 24}})

    status, told, _ = run(tmp_path, wanted, options=("--qdrant", qdrant_url, "-o", "json"))

    (plan,) = json.loads(told)["plans"]
    assert status == 2
    assert (plan["namespace"], plan["name"], plan["outcome"]) == ("agents", slug, "changes")
    assert len(plan["digest"]) == 12
    (hnsw,) = [change for change in plan["changes"] if change["class"] == "Reindex"]
    assert hnsw == {
        "change": "set m 24",
        "class": "Reindex",
        "cost": "in the background, serving meanwhile",
        "held": False,
    }


def test_what_a_rebuild_takes_is_told_with_the_digest_that_approves_it(tmp_path: pathlib.Path, qdrant_url: str) -> None:
    slug = made_on(qdrant_url)
    memories = [{"id": number, "vector": [1.0] * 8, "payload": {"content": "x" * 400}} for number in range(1, 101)]
    path = f"{qdrant_url}/collections/{alias_of(slug)}__1/points"
    httpx.put(path, params={"wait": "true"}, json={"points": memories}).raise_for_status()
    embedding = {"provider": "openai", "model": "one", "dimensions": 8, "batchSize": 16}
    wanted = manifest(slug, embedding=embedding, rebuild={"embeddingPricePerMillionTokens": 2})

    status, told, _ = run(tmp_path, wanted, options=("--qdrant", qdrant_url, "-o", "json"))

    (plan,) = json.loads(told)["plans"]
    assert (status, plan["outcome"], plan["reason"]) == (3, "held", "AwaitingApproval")
    expected = {"points": 100, "embeddingCalls": 7, "tokens": 10_000, "price": 0.02, "minutes": 1, "nodes": 1}
    assert {name: plan["costs"][name] for name in expected} == expected
    assert plan["costs"]["diskMiB"] == plan["costs"]["diskPerNodeMiB"] >= 1
    assert f"agentmemory.dev/approve-plan={plan['digest']}" in plan["refusal"]
    assert {change["cost"] for change in plan["changes"] if change["class"] == "Rebuild"} == {
        "a new collection, every memory embedded again"
    }


def test_a_rebuild_that_was_approved_is_a_change_like_any_other(tmp_path: pathlib.Path, qdrant_url: str) -> None:
    slug = made_on(qdrant_url)
    wanted = manifest(slug, index={"distance": "Dot"})
    _, told, _ = run(tmp_path, wanted, options=("--qdrant", qdrant_url, "-o", "json"))
    (held,) = json.loads(told)["plans"]
    wanted["metadata"]["annotations"] = {"agentmemory.dev/approve-plan": held["digest"]}

    status, told, _ = run(tmp_path, wanted, options=("--qdrant", qdrant_url, "-o", "json"))

    (plan,) = json.loads(told)["plans"]
    assert (status, plan["outcome"], plan["digest"]) == (2, "changes", held["digest"])
    assert {change["held"] for change in plan["changes"]} == {False}
    assert "a new collection is made" in plan["refusal"]


def test_no_server_named_is_an_empty_one(tmp_path: pathlib.Path) -> None:
    status, told, _ = run(tmp_path, manifest("new-one"))

    assert status == 2
    assert "Against an empty Qdrant: 1 to change. Nothing was changed." in told


def test_an_invalid_manifest_is_told_as_validate_tells_it(tmp_path: pathlib.Path) -> None:
    status, told, errors = run(tmp_path, manifest("new-one", index={"hnsw": {"m": 1}}))

    assert (status, told) == (1, "")
    assert "manifests.yaml:" in errors
    assert "spec.index.hnsw.m" in errors


def test_a_server_that_does_not_answer_is_an_error(tmp_path: pathlib.Path, proxy: Proxy) -> None:
    proxy.is_down = True

    status, _, errors = run(tmp_path, manifest("new-one"), options=("--qdrant", proxy.url))

    assert status == 1
    assert errors.startswith("agentmemory: Qdrant answered 503")

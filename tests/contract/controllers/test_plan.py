"""The command `agentmemory plan` against a server that records calls."""

import asyncio
import json
import pathlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.collections.reconcile import reconcile
from agentmemory_operator.collections.rules.desired import desired_collection
from agentmemory_operator.entrypoints.cli.composition import QdrantAccess
from agentmemory_operator.main.stores import open_collections
from agentmemory_operator.settings import Settings
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.naming import alias_of
from agentmemory_operator.spec.presets.profiles import PROFILES
from tests.support.command_line import command_line
from tests.support.web.qdrant_proxy import Proxy, serve_proxy

Document = dict[str, Any]


@pytest.fixture
def proxy(qdrant_url: str) -> Any:
    with serve_proxy(qdrant_url) as running:
        yield running


def manifest(slug: str, **spec: Any) -> Document:
    base = {"connectionRef": {"name": "main"}, "embedding": {"provider": "none", "dimensions": 8}}
    return {
        "apiVersion": "agentmemory.dev/v1alpha1",
        "kind": "AgentMemory",
        "metadata": {"name": slug, "namespace": "agents"},
        "spec": base | spec,
    }


def build_cli(**parts: Any) -> Any:
    """Return the command line with real parts; a separate process would cost more than the tests."""
    inspection = QdrantAccess(partial(open_collections, Settings()), no_cluster, no_cluster, None, None)
    return command_line(replace(inspection, **parts))


def run(
    tmp_path: pathlib.Path, *documents: Document, options: tuple[str, ...] = (), **parts: Any
) -> tuple[int, str, str]:
    """Run the command on the documents; return its exit status, output and errors."""
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    cli = build_cli(**parts)
    result = CliRunner().invoke(cli, ["plan", "-f", str(file), *options])
    return result.exit_code, result.stdout, result.stderr


def no_cluster(*_: Any) -> Any:
    raise AssertionError("plan needs no cluster")


def create_collection(url: str, *, dimensions: int = 8, **spec: Any) -> str:
    """Create a collection with one memory as the operator does; return its slug.

    Args:
        dimensions: Length of its vectors.
    """
    slug = f"plan-{uuid.uuid4().hex[:8]}"

    async def create() -> None:
        memory = parse_agent_memory(manifest(slug, **spec))
        store = QdrantCollections(url)
        desired = desired_collection(memory, cluster_id="some-cluster")
        await reconcile(alias_of(slug), desired, store=store, last_physical=None, last_points=0)
        await store.close()

    asyncio.run(create())
    # An empty collection is rebuilt without approval.
    body = {"points": [{"id": 1, "vector": [1.0] * dimensions, "payload": {"content": "x" * 400}}]}
    path = f"{url}/collections/{alias_of(slug)}__1/points"
    httpx.put(path, params={"wait": "true"}, json=body).raise_for_status()
    return slug


def test_unchanged_manifest_has_no_changes(tmp_path: pathlib.Path, qdrant_url: str) -> None:
    slug = create_collection(qdrant_url)

    status, output, _ = run(tmp_path, manifest(slug), options=("--qdrant", qdrant_url))

    assert status == 0
    assert f"AgentMemory agents/{slug}" in output
    assert "1 as asked" in output


def test_changes_have_class_and_cost(tmp_path: pathlib.Path, proxy: Proxy) -> None:
    """The command sends no write to the server."""
    slug = create_collection(proxy.target)
    document = manifest(slug, index={"hnsw": {"m": 24}, "distance": "Dot"})

    status, output, _ = run(tmp_path, document, manifest("new-one"), options=("--qdrant", proxy.url))

    assert status == 3
    rows = [line.split("   ") for line in output.splitlines()]
    assert ["  Rebuild", "rebuild for index.distance Cosine -> Dot"] in [row[:2] for row in rows]
    assert "in the background, while serving" in output
    assert "create collection agent_memory_new-one__1" in output
    assert proxy.calls, "it looked"
    assert proxy.mutations() == []


def test_estimates_are_grouped_by_size(tmp_path: pathlib.Path) -> None:
    large = {"index": {"expectedMemories": 5_000_000}}
    _, output, _ = run(
        tmp_path, *map(manifest, "abcde"), manifest("suspended", suspend=True), manifest("large", **large)
    )

    sizes = [section for section in output.split("\n\n") if section.startswith("Size of one copy, estimated: ")]

    few, many = (section.splitlines() for section in sizes)
    assert few[0].endswith("agents/a, agents/b, agents/c and 2 more")
    assert many[0].endswith(" agents/large")
    assert [line.split()[0] for line in few[2:]] == ["AsAsked", *PROFILES]
    assert few[2].count("RAM ") == few[2].count(" MiB, disk ") == 3
    assert "5,000,000 MEMORIES" in many[1]


def test_json_contains_the_estimate(tmp_path: pathlib.Path) -> None:
    document = manifest("probe", index={"expectedMemories": 5000})

    _, output, _ = run(tmp_path, document, manifest("taken", agent="probe"), options=("-o", "json"))

    plan, refused = json.loads(output)["plans"]
    assert [row["profile"] for row in plan["estimate"]] == ["AsAsked", *PROFILES]
    assert [size["memories"] for size in plan["estimate"][0]["sizes"]] == [5000, 10_000, 100_000, 1_000_000]
    assert all(size["diskMiB"] > size["ramMiB"] > 0 for row in plan["estimate"] for size in row["sizes"])
    assert "estimate" not in refused


def test_json_contains_changes_and_digest(tmp_path: pathlib.Path, qdrant_url: str) -> None:
    slug = create_collection(qdrant_url)
    document = manifest(slug, index={"hnsw": {"m": 24}})

    status, output, _ = run(tmp_path, document, options=("--qdrant", qdrant_url, "-o", "json"))

    (plan,) = json.loads(output)["plans"]
    assert status == 2
    assert (plan["namespace"], plan["name"], plan["outcome"]) == ("agents", slug, "changes")
    assert len(plan["digest"]) == 12
    (hnsw,) = [change for change in plan["changes"] if change["class"] == "Reindex"]
    assert hnsw == {
        "change": "set m 24",
        "class": "Reindex",
        "cost": "in the background, while serving",
        "held": False,
    }


def test_rebuild_has_costs_and_approval_digest(tmp_path: pathlib.Path, qdrant_url: str) -> None:
    slug = create_collection(qdrant_url)
    memories = [{"id": number, "vector": [1.0] * 8, "payload": {"content": "x" * 400}} for number in range(1, 101)]
    path = f"{qdrant_url}/collections/{alias_of(slug)}__1/points"
    httpx.put(path, params={"wait": "true"}, json={"points": memories}).raise_for_status()
    embedding = {"provider": "openai", "model": "one", "dimensions": 8, "batchSize": 16}
    document = manifest(slug, embedding=embedding, rebuild={"embeddingPricePerMillionTokens": 2})

    status, output, _ = run(tmp_path, document, options=("--qdrant", qdrant_url, "-o", "json"))

    (plan,) = json.loads(output)["plans"]
    assert (status, plan["outcome"], plan["reason"]) == (3, "held", "AwaitingApproval")
    expected = {"points": 100, "embeddingCalls": 7, "tokens": 10_000, "price": 0.02, "minutes": 1, "nodes": 1}
    assert {name: plan["costs"][name] for name in expected} == expected
    assert plan["costs"]["diskMiB"] == plan["costs"]["diskPerNodeMiB"] >= 1
    assert f"agentmemory.dev/approve-plan={plan['digest']}" in plan["refusal"]
    assert {change["cost"] for change in plan["changes"] if change["class"] == "Rebuild"} == {
        "a new collection; every memory is embedded again"
    }


def test_approved_rebuild_is_a_change(tmp_path: pathlib.Path, qdrant_url: str) -> None:
    slug = create_collection(qdrant_url)
    document = manifest(slug, index={"distance": "Dot"})
    _, output, _ = run(tmp_path, document, options=("--qdrant", qdrant_url, "-o", "json"))
    (held,) = json.loads(output)["plans"]
    document["metadata"]["annotations"] = {"agentmemory.dev/approve-plan": held["digest"]}

    status, output, _ = run(tmp_path, document, options=("--qdrant", qdrant_url, "-o", "json"))

    (plan,) = json.loads(output)["plans"]
    assert (status, plan["outcome"], plan["digest"]) == (2, "changes", held["digest"])
    assert {change["held"] for change in plan["changes"]} == {False}
    assert "a new collection is being built" in plan["refusal"]


def test_empty_collection_needs_no_approval(tmp_path: pathlib.Path, qdrant_url: str) -> None:
    slug = create_collection(qdrant_url)
    path = f"{qdrant_url}/collections/{alias_of(slug)}__1/points/delete"
    httpx.post(path, params={"wait": "true"}, json={"points": [1]}).raise_for_status()

    status, output, _ = run(tmp_path, manifest(slug, index={"distance": "Dot"}), options=("--qdrant", qdrant_url))

    assert status == 2, output
    assert "a new collection is being built for 0 points" in output


def test_default_server_is_empty(tmp_path: pathlib.Path) -> None:
    status, output, _ = run(tmp_path, manifest("new-one"))

    assert status == 2
    assert "Against an empty Qdrant: 1 to change. Nothing was changed." in output


def test_invalid_manifest_names_the_field(tmp_path: pathlib.Path) -> None:
    status, output, errors = run(tmp_path, manifest("new-one", index={"hnsw": {"m": 1}}))

    assert (status, output) == (1, "")
    assert "manifests.yaml:" in errors
    assert "spec.index.hnsw.m" in errors


def test_subfolders_need_recursive_option(tmp_path: pathlib.Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "one.yaml").write_text(yaml.safe_dump(manifest("below")))
    (tmp_path / "two.yaml").write_text(
        yaml.safe_dump({"kind": "List", "apiVersion": "v1", "items": [manifest("above")]})
    )

    flat = CliRunner().invoke(build_cli(), ["plan", "-f", str(tmp_path)])
    deep = CliRunner().invoke(build_cli(), ["plan", "-R", "-f", str(tmp_path)])

    assert ("agent_memory_below" in flat.stdout, "agent_memory_above" in flat.stdout) == (False, True)
    assert "1 subfolder skipped: -R includes them" in flat.stderr
    assert ("agent_memory_below" in deep.stdout, "agent_memory_above" in deep.stdout) == (True, True)


def test_standard_input_is_planned() -> None:
    """A wrong kind gets a suggestion."""
    text = yaml.safe_dump(manifest("new-one"))

    good = CliRunner().invoke(build_cli(), ["plan", "-f", "-"], input=text)
    bad = CliRunner().invoke(
        build_cli(), ["plan", "-f", "-"], input=text.replace("kind: AgentMemory", "kind: Agentmemory")
    )

    assert (good.exit_code, bad.exit_code) == (2, 1)
    assert "did you mean AgentMemory?" in bad.stderr


def test_unavailable_server_is_an_error(tmp_path: pathlib.Path, proxy: Proxy) -> None:
    proxy.is_down = True

    status, _, errors = run(tmp_path, manifest("new-one"), options=("--qdrant", proxy.url))

    assert status == 1
    assert errors.startswith("agentmemory: Qdrant answered 503")


def default_note(output: str) -> str:
    """Return the note about the embedding of the first plan."""
    (note,) = (note for note in json.loads(output)["plans"][0]["notes"] if note.startswith("spec.embedding"))
    return str(note)


@pytest.mark.parametrize(
    ("default", "dimensions", "name"),
    [("wordllama", 256, "wordllama l2_supercat"), ("bge-small-en-v1.5", 384, "fastembed BAAI/bge-small-en-v1.5")],
)
def test_new_object_gets_the_default_embedding(
    tmp_path: pathlib.Path, default: str, dimensions: int, name: str
) -> None:
    document = manifest("new-one", embedding=None)

    _, output, _ = run(tmp_path, document, options=("-o", "json"), default_embedding=default)

    assert f"dimensions {dimensions}," in json.loads(output)["plans"][0]["notes"][0]
    assert f"planned with {name}." in default_note(output)


def test_named_embedding_has_no_note(tmp_path: pathlib.Path) -> None:
    _, output, _ = run(tmp_path, manifest("new-one"), default_embedding="bge-small-en-v1.5")

    assert "AGENTMEMORY_DEFAULT_EMBEDDING" not in output


def test_collection_keeps_its_default_embedding(tmp_path: pathlib.Path, qdrant_url: str) -> None:
    slug = create_collection(qdrant_url, dimensions=256, embedding=None)
    options = ("--qdrant", qdrant_url)

    status, output, _ = run(
        tmp_path, manifest(slug, embedding=None), options=options, default_embedding="bge-small-en-v1.5"
    )

    assert (status, "1 as asked" in output) == (0, True)


def test_lost_collection_gets_the_embedding_of_the_status(tmp_path: pathlib.Path, qdrant_url: str) -> None:
    embedding = {"provider": "fastembed", "model": "BAAI/bge-small-en-v1.5", "dimensions": 384}
    live = manifest("lost", embedding=None) | {"status": {"effective": {"embedding": embedding}}}
    connection = {
        "apiVersion": "agentmemory.dev/v1alpha1",
        "kind": "QdrantConnection",
        "metadata": {"name": "main", "namespace": "agents"},
        "spec": {"url": qdrant_url},
    }

    class Live:
        async def read_object(self, *_: str) -> Document:
            return live

    @asynccontextmanager
    async def open_live(*_: Any) -> AsyncIterator[tuple[Any, str]]:
        yield Live(), "agents"

    options = ("-o", "json", "--context", "there")
    _, output, error = run(
        tmp_path, manifest("lost", embedding=None), connection, options=options, open_objects=open_live
    )

    assert error == ""
    assert "planned with fastembed BAAI/bge-small-en-v1.5." in default_note(output)

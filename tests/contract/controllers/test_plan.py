"""`agentmemory plan` as people run it, against a server whose calls are counted."""

import asyncio
import json
import pathlib
import uuid
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
    with serve_proxy(qdrant_url) as made:
        yield made


def manifest(slug: str, **spec: Any) -> Document:
    base = {"connectionRef": {"name": "main"}, "embedding": {"provider": "none", "dimensions": 8}}
    return {
        "apiVersion": "agentmemory.dev/v1alpha1",
        "kind": "AgentMemory",
        "metadata": {"name": slug, "namespace": "agents"},
        "spec": base | spec,
    }


def planning() -> Any:
    """Return the command line with the real parts, in this process: to start another costs more than the tests do."""
    return command_line(QdrantAccess(partial(open_collections, Settings()), no_cluster, no_cluster, None, None))


def run(tmp_path: pathlib.Path, *documents: Document, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """Run the command on the documents; return its exit status, output and errors."""
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    cli = planning()
    done = CliRunner().invoke(cli, ["plan", "-f", str(file), *options])
    return done.exit_code, done.stdout, done.stderr


def no_cluster(*_: Any) -> Any:
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
    # What is empty is rebuilt without approval.
    body = {"points": [{"id": 1, "vector": [1.0] * 8, "payload": {"content": "x" * 400}}]}
    path = f"{url}/collections/{alias_of(slug)}__1/points"
    httpx.put(path, params={"wait": "true"}, json=body).raise_for_status()
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
    assert "in the background, while serving" in told
    assert "create collection agent_memory_new-one__1" in told
    assert proxy.calls, "it looked"
    assert proxy.mutations() == []


def test_what_it_will_need_is_told_once_for_agents_of_one_size_and_under_every_profile(tmp_path: pathlib.Path) -> None:
    large = {"index": {"expectedMemories": 5_000_000}}
    _, told, _ = run(tmp_path, *map(manifest, "abcde"), manifest("suspended", suspend=True), manifest("large", **large))

    sizes = [section for section in told.split("\n\n") if section.startswith("Size of one copy, estimated: ")]

    few, many = (section.splitlines() for section in sizes)
    assert few[0].endswith("agents/a, agents/b, agents/c and 2 more")
    assert many[0].endswith(" agents/large")
    assert [line.split()[0] for line in few[2:]] == ["AsAsked", *PROFILES]
    assert few[2].count("RAM ") == few[2].count(" MiB, disk ") == 3
    assert "5,000,000 MEMORIES" in many[1]


def test_programs_get_what_it_will_need_in_numbers(tmp_path: pathlib.Path) -> None:
    wanted = manifest("probe", index={"expectedMemories": 5000})

    _, told, _ = run(tmp_path, wanted, manifest("taken", agent="probe"), options=("-o", "json"))

    plan, refused = json.loads(told)["plans"]
    assert [row["profile"] for row in plan["estimate"]] == ["AsAsked", *PROFILES]
    assert [size["memories"] for size in plan["estimate"][0]["sizes"]] == [5000, 10_000, 100_000, 1_000_000]
    assert all(size["diskMiB"] > size["ramMiB"] > 0 for row in plan["estimate"] for size in row["sizes"])
    assert "estimate" not in refused


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
        "cost": "in the background, while serving",
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
        "a new collection; every memory is embedded again"
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
    assert "a new collection is being built" in plan["refusal"]


def test_what_is_empty_needs_no_approval(tmp_path: pathlib.Path, qdrant_url: str) -> None:
    slug = made_on(qdrant_url)
    path = f"{qdrant_url}/collections/{alias_of(slug)}__1/points/delete"
    httpx.post(path, params={"wait": "true"}, json={"points": [1]}).raise_for_status()

    status, told, _ = run(tmp_path, manifest(slug, index={"distance": "Dot"}), options=("--qdrant", qdrant_url))

    assert status == 2, told
    assert "a new collection is being built for 0 points" in told


def test_no_server_named_is_an_empty_one(tmp_path: pathlib.Path) -> None:
    status, told, _ = run(tmp_path, manifest("new-one"))

    assert status == 2
    assert "Against an empty Qdrant: 1 to change. Nothing was changed." in told


def test_an_invalid_manifest_is_told_as_validate_tells_it(tmp_path: pathlib.Path) -> None:
    status, told, errors = run(tmp_path, manifest("new-one", index={"hnsw": {"m": 1}}))

    assert (status, told) == (1, "")
    assert "manifests.yaml:" in errors
    assert "spec.index.hnsw.m" in errors


def test_manifests_of_folders_in_a_folder_are_planned_when_they_are_asked_for(tmp_path: pathlib.Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "one.yaml").write_text(yaml.safe_dump(manifest("below")))
    (tmp_path / "two.yaml").write_text(
        yaml.safe_dump({"kind": "List", "apiVersion": "v1", "items": [manifest("above")]})
    )

    flat = CliRunner().invoke(planning(), ["plan", "-f", str(tmp_path)])
    deep = CliRunner().invoke(planning(), ["plan", "-R", "-f", str(tmp_path)])

    assert ("agent_memory_below" in flat.stdout, "agent_memory_above" in flat.stdout) == (False, True)
    assert "1 subfolder skipped: -R includes them" in flat.stderr
    assert ("agent_memory_below" in deep.stdout, "agent_memory_above" in deep.stdout) == (True, True)


def test_standard_input_is_planned_and_a_slip_in_its_kind_refused() -> None:
    text = yaml.safe_dump(manifest("new-one"))

    good = CliRunner().invoke(planning(), ["plan", "-f", "-"], input=text)
    bad = CliRunner().invoke(
        planning(), ["plan", "-f", "-"], input=text.replace("kind: AgentMemory", "kind: Agentmemory")
    )

    assert (good.exit_code, bad.exit_code) == (2, 1)
    assert "did you mean AgentMemory?" in bad.stderr


def test_a_server_that_does_not_answer_is_an_error(tmp_path: pathlib.Path, proxy: Proxy) -> None:
    proxy.is_down = True

    status, _, errors = run(tmp_path, manifest("new-one"), options=("--qdrant", proxy.url))

    assert status == 1
    assert errors.startswith("agentmemory: Qdrant answered 503")

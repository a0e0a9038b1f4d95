"""Output about orphaned collections: owner, time, and commands to adopt or delete them."""

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.desired import desired_collection
from agentmemory_operator.controllers.inspection import OrphanReport
from agentmemory_operator.controllers.rules.orphans import CollectionSummary, Orphan, OrphanKind
from agentmemory_operator.entrypoints.cli.look.orphans import (
    ServerReport,
    adopting_manifest,
    orphans_document,
    orphans_sections,
)
from agentmemory_operator.entrypoints.cli.tables import plain
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.spec.documents import memory_document
from tests.support.spec.plans import ALIAS

PHYSICAL = f"{ALIAS}__1"
EMBEDDINGS: list[dict[str, Any]] = [
    {"provider": "wordllama", "dimensions": 128},
    {"provider": "none", "dimensions": 8},
    {
        "provider": "openai",
        "model": "it's ours",
        "dimensions": 768,
        "baseURL": "http://embedder.ml.svc/v1",
        "secretRef": {"name": "keys", "key": "openai"},
    },
]


def orphan_of(kind: OrphanKind = OrphanKind.OBJECT_GONE, **spec: Any) -> Orphan:
    """Return the orphan of agents/probe with this spec."""
    collection = desired_collection(parse_agent_memory(memory_document(**spec)), cluster_id="cluster-1")
    marker = None if kind is OrphanKind.UNMARKED else collection.marker
    aliases = () if kind is OrphanKind.UNREFERENCED else (ALIAS,)
    return Orphan(
        kind,
        CollectionSummary(
            physical=PHYSICAL,
            aliases=aliases,
            points=3,
            size=collection.size,
            distance=collection.distance,
            marker=marker,
        ),
    )


def server(*orphans: Orphan, connection: tuple[str, str] | None = ("agents", "main"), foreign: int = 0) -> ServerReport:
    since = {("agents", "probe"): "2026-11-21T03:00:00Z"}
    return ServerReport("http://qdrant:6333", connection, True, OrphanReport(orphans, foreign, since))


def entry(orphan: Orphan, connection: tuple[str, str] | None = ("agents", "main")) -> dict[str, Any]:
    (found,) = orphans_document([server(orphan, connection=connection)])["servers"]
    orphan_document: dict[str, Any] = found["orphans"][0]
    return orphan_document


@pytest.mark.parametrize("embedding", EMBEDDINGS, ids=lambda embedding: embedding["provider"])
@pytest.mark.parametrize("distance", ["Cosine", "Dot"])
def test_adopting_manifest_matches_the_collection(embedding: dict[str, Any], distance: str) -> None:
    spec: dict[str, Any] = {"embedding": embedding, "index": {"distance": distance}}
    orphan = orphan_of(**spec)

    adopting = parse_agent_memory(adopting_manifest(orphan.collection, ("agents", "main")))

    desired = desired_collection(adopting, cluster_id="cluster-1")
    assert (desired.size, desired.distance) == (orphan.collection.size, distance)
    assert desired.marker is not None
    assert orphan.collection.marker is not None
    assert desired.marker.is_same_object(orphan.collection.marker)
    assert desired.marker.embedding == orphan.collection.marker.embedding


def test_adopt_command_is_quoted_for_the_shell() -> None:
    command = entry(orphan_of(embedding=EMBEDDINGS[2]))["adopt"]

    words = shlex.split(command)
    assert words[0] == "echo"
    assert words[2:] == ["|", "kubectl", "apply", "-f", "-"]
    assert json.loads(words[1])["spec"]["embedding"]["model"] == "it's ours"


def test_owner_time_and_delete_command_are_shown() -> None:
    document = entry(orphan_of())

    assert (document["owner"], document["since"], document["reason"]) == (
        "agents/probe",
        "2026-11-21T03:00:00Z",
        "ObjectGone",
    )
    assert (
        document["delete"] == f'curl -X DELETE -H "api-key: $QDRANT_API_KEY" http://qdrant:6333/collections/{PHYSICAL}'
    )


def test_unreferenced_collection_has_no_adopt_command() -> None:
    document = entry(orphan_of(OrphanKind.UNREFERENCED))

    assert (document["adopt"], document["since"]) == (None, None)


def test_unknown_values_are_placeholders() -> None:
    manifest = adopting_manifest(orphan_of(OrphanKind.UNMARKED).collection, None)

    assert manifest["metadata"] == {"name": "probe", "namespace": "NAMESPACE"}
    assert manifest["spec"]["connectionRef"] == {"name": "CONNECTION"}
    assert manifest["spec"]["embedding"] == {"provider": "none", "dimensions": 256}


def test_foreign_connection_has_its_namespace() -> None:
    manifest = adopting_manifest(orphan_of().collection, ("other", "main"))

    assert manifest["spec"]["connectionRef"] == {"name": "main", "namespace": "other"}
    parse_agent_memory(manifest)


def test_text_output_has_a_table_and_commands() -> None:
    lines = plain(orphans_sections([server(orphan_of(), foreign=2)])).splitlines()

    assert lines[0] == "Qdrant http://qdrant:6333 (QdrantConnection agents/main): 1 orphan"
    assert [word.strip() for word in lines[2].split("   ") if word] == [
        PHYSICAL,
        ALIAS,
        "3",
        "agents/probe",
        "2026-11-21T03:00:00Z",
        "its AgentMemory was deleted",
    ]
    assert lines[3].startswith("  2 more belong to another cluster")
    assert lines[6].startswith("  adopt:  echo ")
    assert lines[7].startswith("  delete: curl -X DELETE ")


def test_unreachable_server_is_reported() -> None:
    unreachable = replace(server(), findings=None, error="away")

    assert orphans_document([unreachable]) == {
        "servers": [{"qdrant": "http://qdrant:6333", "connection": "agents/main", "error": "away"}]
    }
    assert "could not be queried\n  away" in plain(orphans_sections([unreachable]))

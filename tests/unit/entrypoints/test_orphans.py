"""What is printed of orphans: whose they were, since when, and commands that do what they say."""

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


def left_by(kind: OrphanKind = OrphanKind.OBJECT_GONE, **spec: Any) -> Orphan:
    """Return the orphan that agents/probe left, had it this spec."""
    made = desired_collection(parse_agent_memory(memory_document(**spec)), cluster_id="cluster-1")
    marker = None if kind is OrphanKind.UNMARKED else made.marker
    aliases = () if kind is OrphanKind.UNREFERENCED else (ALIAS,)
    return Orphan(
        kind,
        CollectionSummary(
            physical=PHYSICAL, aliases=aliases, points=3, size=made.size, distance=made.distance, marker=marker
        ),
    )


def server(*orphans: Orphan, connection: tuple[str, str] | None = ("agents", "main"), foreign: int = 0) -> ServerReport:
    since = {("agents", "probe"): "2026-11-21T03:00:00Z"}
    return ServerReport("http://qdrant:6333", connection, True, OrphanReport(orphans, foreign, since))


def entry(orphan: Orphan, connection: tuple[str, str] | None = ("agents", "main")) -> dict[str, Any]:
    (found,) = orphans_document([server(orphan, connection=connection)])["servers"]
    made: dict[str, Any] = found["orphans"][0]
    return made


@pytest.mark.parametrize("embedding", EMBEDDINGS, ids=lambda embedding: embedding["provider"])
@pytest.mark.parametrize("distance", ["Cosine", "Dot"])
def test_the_manifest_that_adopts_is_valid_and_asks_for_the_very_collection(
    embedding: dict[str, Any], distance: str
) -> None:
    spec: dict[str, Any] = {"embedding": embedding, "index": {"distance": distance}}
    orphan = left_by(**spec)

    adopting = parse_agent_memory(adopting_manifest(orphan.holding, ("agents", "main")))

    desired = desired_collection(adopting, cluster_id="cluster-1")
    assert (desired.size, desired.distance) == (orphan.holding.size, distance)
    assert desired.marker is not None
    assert orphan.holding.marker is not None
    assert desired.marker.is_same_object(orphan.holding.marker)
    assert desired.marker.embedding == orphan.holding.marker.embedding


def test_the_command_that_adopts_is_one_that_a_shell_reads_back() -> None:
    said = entry(left_by(embedding=EMBEDDINGS[2]))["adopt"]

    words = shlex.split(said)
    assert words[0] == "echo"
    assert words[2:] == ["|", "kubectl", "apply", "-f", "-"]
    assert json.loads(words[1])["spec"]["embedding"]["model"] == "it's ours"


def test_the_owner_the_time_and_the_deletion_are_told() -> None:
    told = entry(left_by())

    assert (told["owner"], told["since"], told["reason"]) == ("agents/probe", "2026-11-21T03:00:00Z", "ObjectGone")
    assert told["delete"] == f'curl -X DELETE -H "api-key: $QDRANT_API_KEY" http://qdrant:6333/collections/{PHYSICAL}'


def test_what_was_left_behind_by_a_living_object_is_only_to_be_deleted() -> None:
    told = entry(left_by(OrphanKind.UNREFERENCED))

    assert (told["adopt"], told["since"]) == (None, None)


def test_what_nobody_wrote_down_is_left_to_fill_in() -> None:
    manifest = adopting_manifest(left_by(OrphanKind.UNMARKED).holding, None)

    assert manifest["metadata"] == {"name": "probe", "namespace": "NAMESPACE"}
    assert manifest["spec"]["connectionRef"] == {"name": "CONNECTION"}
    assert manifest["spec"]["embedding"] == {"provider": "none", "dimensions": 256}


def test_a_connection_of_another_namespace_is_named_with_it() -> None:
    manifest = adopting_manifest(left_by().holding, ("other", "main"))

    assert manifest["spec"]["connectionRef"] == {"name": "main", "namespace": "other"}
    parse_agent_memory(manifest)


def test_people_get_a_table_and_the_commands() -> None:
    lines = plain(orphans_sections([server(left_by(), foreign=2)])).splitlines()

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


def test_a_server_that_cannot_be_asked_is_told() -> None:
    away = replace(server(), findings=None, error="away")

    assert orphans_document([away]) == {
        "servers": [{"qdrant": "http://qdrant:6333", "connection": "agents/main", "error": "away"}]
    }
    assert "could not be queried\n  away" in plain(orphans_sections([away]))

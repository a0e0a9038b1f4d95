"""ManifestFolder: a folder of manifests in place of Kubernetes."""

import asyncio
import base64
import contextlib
import json
import logging
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from agentmemory_operator.adapters.folder.manifest_folder import WATCH_EVENT, ManifestFolder
from agentmemory_operator.connections.rules.host_lists import HOSTS_ANNOTATION, AnnotatedSecret
from agentmemory_operator.errors import NotFound, SpecInvalid, TransientError
from agentmemory_operator.ports.kubernetes import Event
from agentmemory_operator.runtime.object_table import ObjectTable
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.parse import parse_agent_memory

API = "agentmemory.dev/v1alpha1"
A = {"apiVersion": API, "kind": "AgentMemory", "metadata": {"name": "a"}, "spec": {"connectionRef": {"name": "main"}}}
RETAIN = ["agentmemory.dev/collection"]


def manifest(name: str = "a", kind: str = "AgentMemory", **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"connectionRef": {"name": "main"}},
    } | more


def metadata_of(event: WATCH_EVENT) -> Metadata:
    return Metadata.model_validate(event[1]["metadata"])


class Folder:
    """A real folder and its adapter."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.adapter = ManifestFolder(path)

    async def start(self) -> list[WATCH_EVENT]:
        """Read the folder as a process does at its start."""
        self.adapter = ManifestFolder(self.path)
        follow = self.adapter.follow()
        first = await anext(follow)
        await follow.aclose()  # type: ignore[attr-defined]
        return first

    def write(self, file: str, *documents: Any) -> None:
        (self.path / file).write_text(yaml.safe_dump_all(documents))

    def status_files(self) -> dict[str, Any]:
        return {path.name: json.loads(path.read_text()) for path in sorted((self.path / ".status").glob("*.json"))}


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> Folder:
    return Folder(tmp_path)


def in_short(events: list[WATCH_EVENT]) -> list[tuple[str, str, str]]:
    return [(event, document["kind"], document["metadata"]["name"]) for event, document in events]


async def test_existing_objects_are_listed_first(folder: Folder) -> None:
    folder.write("all.yaml", manifest("a"), manifest("main", "QdrantConnection", spec={"url": "http://q:6333"}))
    (folder.path / "b.json").write_text(json.dumps(manifest("b")))

    events = await folder.start()

    assert in_short(events) == [
        ("ADDED", "AgentMemory", "a"),
        ("ADDED", "QdrantConnection", "main"),
        ("ADDED", "AgentMemory", "b"),
    ]
    first = metadata_of(events[0])
    assert (first.namespace, first.generation, first.finalizers, first.deletion_timestamp) == ("default", 1, [], None)
    assert first.uid
    assert first.creation_timestamp.endswith("Z")
    assert parse_agent_memory(events[0][1]).slug == "a"


async def test_only_top_level_manifests_are_read(folder: Folder) -> None:
    for file in ("notes.txt", ".hidden.yaml", "a.yaml.bak"):
        folder.write(file, manifest())
    (folder.path / "below").mkdir()
    folder.write("below/a.yaml", manifest())

    assert await folder.start() == []


async def test_other_kinds_are_ignored(folder: Folder) -> None:
    folder.write("a.yaml", manifest("c", "ConfigMap"), None)

    assert await folder.start() == []


async def test_changed_spec_increments_the_generation(folder: Folder) -> None:
    folder.write("a.yaml", manifest())
    (before,) = await folder.start()
    folder.write("a.yaml", manifest(spec={"connectionRef": {"name": "main"}, "scoring": {"limit": 3}}))

    (after,) = folder.adapter.scan()

    assert (after[0], metadata_of(after).generation) == ("MODIFIED", 2)
    assert metadata_of(after).uid == metadata_of(before).uid


@pytest.mark.parametrize("kind", ["MemorySnapshot", "MemoryRestore"])
async def test_changed_spec_of_a_job_is_ignored(folder: Folder, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    folder.write("a.yaml", manifest(kind=kind, spec={"target": {"name": "bot"}}))
    (before,) = await folder.start()
    folder.write("a.yaml", manifest(kind=kind, spec={"target": {"name": "other"}}))

    assert folder.adapter.scan() == []
    metadata = metadata_of(before)
    assert (await folder.adapter.read_object(kind, metadata.namespace, metadata.name))["spec"] == before[1]["spec"]
    assert f"{kind} default/a: its spec is immutable" in caplog.text


async def test_changed_annotation_keeps_the_generation(folder: Folder) -> None:
    folder.write("a.yaml", manifest())
    await folder.start()
    folder.write("a.yaml", manifest(metadata={"name": "a", "annotations": {"agentmemory.dev/x": "1"}}))

    (event,) = folder.adapter.scan()

    assert (event[0], metadata_of(event).generation) == ("MODIFIED", 1)
    assert metadata_of(event).annotations == {"agentmemory.dev/x": "1"}


async def test_rewritten_equal_file_is_no_change(folder: Folder) -> None:
    folder.write("a.yaml", manifest())
    await folder.start()
    folder.write("a.yaml", manifest())

    assert folder.adapter.scan() == []


async def test_own_status_is_no_change(folder: Folder) -> None:
    folder.write("a.yaml", manifest())
    (event,) = await folder.start()

    await folder.adapter.write_status("AgentMemory", metadata_of(event), {"agent": "a"})

    assert folder.adapter.scan() == []
    assert folder.status_files()["default.a.agentmemory.json"]["status"] == {"agent": "a"}


async def test_status_of_deleted_object_is_dropped(folder: Folder) -> None:
    folder.write("a.yaml", manifest())
    (event,) = await folder.start()
    (folder.path / "a.yaml").unlink()
    folder.adapter.scan()

    await folder.adapter.write_status("AgentMemory", metadata_of(event), {"agent": "a"})
    await folder.adapter.write_finalizers("AgentMemory", metadata_of(event), ["x/y"])

    assert folder.status_files() == {}


async def test_removed_manifest_deletes_the_object(folder: Folder) -> None:
    folder.write("a.yaml", manifest("a"), manifest("b"))
    await folder.start()
    folder.write("a.yaml", manifest("b"))

    assert in_short(folder.adapter.scan()) == [("DELETED", "AgentMemory", "a")]
    assert list(folder.status_files()) == ["default.b.agentmemory.json"]


async def test_recreated_object_has_a_new_uid(folder: Folder) -> None:
    folder.write("a.yaml", manifest())
    (before,) = await folder.start()
    (folder.path / "a.yaml").unlink()
    folder.adapter.scan()
    folder.write("a.yaml", manifest())

    (after,) = folder.adapter.scan()

    assert after[0] == "ADDED"
    assert metadata_of(after).uid != metadata_of(before).uid


async def test_recreated_object_gets_nothing_of_the_deleted(folder: Folder) -> None:
    folder.write("a.yaml", manifest())
    (deleted,) = await folder.start()
    (folder.path / "a.yaml").unlink()
    folder.adapter.scan()
    folder.write("a.yaml", manifest())
    folder.adapter.scan()

    await folder.adapter.write_status("AgentMemory", metadata_of(deleted), {"agent": "a"})
    await folder.adapter.write_finalizers("AgentMemory", metadata_of(deleted), RETAIN)

    document = await folder.adapter.read_object("AgentMemory", "default", "a")
    assert (document["status"], document["metadata"]["finalizers"]) == ({}, [])


async def test_written_status_is_an_event(folder: Folder) -> None:
    """Another part of the process has the status too, such as the API."""
    folder.write("a.yaml", manifest())
    (event,) = await folder.start()

    await folder.adapter.write_status("AgentMemory", metadata_of(event), {"agent": "a"})

    kind, document = await asyncio.wait_for(folder.adapter.next_caused_event(), 1)
    assert (kind, document["status"]) == ("MODIFIED", {"agent": "a"})


async def test_finalizer_delays_the_deletion(folder: Folder) -> None:
    folder.write("a.yaml", manifest())
    (event,) = await folder.start()
    await folder.adapter.write_finalizers("AgentMemory", metadata_of(event), RETAIN)
    (folder.path / "a.yaml").unlink()

    (deleting,) = folder.adapter.scan()
    assert deleting[0] == "MODIFIED"
    assert metadata_of(deleting).deletion_timestamp
    assert metadata_of(deleting).finalizers == RETAIN
    assert folder.adapter.scan() == []

    await folder.adapter.write_finalizers("AgentMemory", metadata_of(deleting), [])
    deleted = await asyncio.wait_for(folder.adapter.next_caused_event(), 1)
    assert in_short([deleted]) == [("DELETED", "AgentMemory", "a")]
    assert folder.status_files() == {}


async def test_restart_keeps_uid_status_and_finalizers(folder: Folder) -> None:
    folder.write("a.yaml", manifest("a"), manifest("b"))
    before = await folder.start()
    await folder.adapter.write_status("AgentMemory", metadata_of(before[0]), {"agent": "a"})
    await folder.adapter.write_finalizers("AgentMemory", metadata_of(before[0]), RETAIN)
    folder.write("a.yaml", manifest("a"))

    after = await folder.start()

    assert in_short(after) == [("ADDED", "AgentMemory", "a"), ("DELETED", "AgentMemory", "b")]
    assert after[0][1]["status"] == {"agent": "a"}
    assert metadata_of(after[0]).uid == metadata_of(before[0]).uid
    assert metadata_of(after[0]).finalizers == RETAIN


async def test_restart_finishes_a_deletion(folder: Folder) -> None:
    folder.write("a.yaml", manifest())
    (event,) = await folder.start()
    await folder.adapter.write_finalizers("AgentMemory", metadata_of(event), RETAIN)
    (folder.path / "a.yaml").unlink()
    (deleting,) = folder.adapter.scan()

    (after,) = await folder.start()

    assert after[0] == "MODIFIED"
    assert metadata_of(after).deletion_timestamp == metadata_of(deleting).deletion_timestamp


async def test_change_while_stopped_increments_generation(folder: Folder) -> None:
    folder.write("a.yaml", manifest())
    await folder.start()
    folder.write("a.yaml", manifest(spec={"connectionRef": {"name": "other"}}))

    (event,) = await folder.start()

    assert (event[0], metadata_of(event).generation) == ("ADDED", 2)


async def test_disabled_status_writes_no_files(folder: Folder) -> None:
    folder.write("a.yaml", manifest())
    adapter = ManifestFolder(folder.path, keeps_status=False)
    (event,) = adapter.scan()

    await adapter.write_status("AgentMemory", metadata_of(event), {"agent": "a"})

    assert [path.name for path in folder.path.iterdir()] == ["a.yaml"]


HALF = "apiVersion: agentmemory.dev/v1alpha1\nkind: AgentMemory\nmetadata: {name: a"
GOOD_B = yaml.safe_dump(manifest("b"))


@pytest.mark.parametrize(
    "text",
    [
        HALF,
        f"{GOOD_B}---\n{HALF}",
        "\x00",
        "a: !!python/object:os.system {}",
        "? {a: b}\n: c",
        "\t- x: [",
        "[" * 5_000 + "]" * 5_000,
        yaml.safe_dump(manifest()).replace("kind: AgentMemory", "kind: Agentmemory"),
        yaml.safe_dump(manifest()).replace(API, "v1"),
        "a: &a [*a]",
    ],
)
async def test_half_written_file_keeps_its_last_content(
    folder: Folder, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write("a.yaml", manifest())
    await folder.start()
    (folder.path / "a.yaml").write_text(text)

    with caplog.at_level(logging.ERROR):
        assert folder.adapter.scan() == []

    assert "cannot read a.yaml, keeping its last content" in caplog.text


async def test_binary_file_keeps_its_last_content(folder: Folder) -> None:
    folder.write("a.yaml", manifest())
    await folder.start()
    (folder.path / "a.yaml").write_bytes(b"\xff\xfe\x00")

    assert folder.adapter.scan() == []


async def test_never_readable_file_has_no_objects(folder: Folder) -> None:
    (folder.path / "a.yaml").write_text(HALF)
    assert await folder.start() == []
    folder.write("a.yaml", manifest())

    assert in_short(folder.adapter.scan()) == [("ADDED", "AgentMemory", "a")]


@pytest.mark.parametrize(
    "document",
    [
        5,
        "text",
        [manifest()],
        {},
        {"apiVersion": API, "kind": "AgentMemory"},
        manifest(metadata=None),
        manifest(metadata=["a"]),
        manifest(metadata={}),
        manifest(metadata={"name": 5}),
        manifest(metadata={"name": ""}),
        manifest(metadata={"name": "../a"}),
        manifest(metadata={"name": "a" * 300}),
        manifest(metadata={"name": "a", "namespace": "../../elsewhere"}),
        manifest(metadata={"name": "a", "namespace": 5}),
        manifest(metadata={"name": "a", "annotations": ["x"]}),
        manifest(metadata={"name": "a", "annotations": {"x": 1}}),
        manifest() | {"kind": None},
        manifest() | {"apiVersion": 1},
    ],
    ids=repr,
)
async def test_invalid_document_is_logged_and_skipped(
    folder: Folder, document: Any, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write("a.yaml", document, manifest("b"))

    with caplog.at_level(logging.ERROR):
        events = await folder.start()

    assert in_short(events) == [("ADDED", "AgentMemory", "b")]
    assert "a.yaml: a document is not a Kubernetes object" in caplog.text


async def test_list_items_are_objects(folder: Folder) -> None:
    """Items of other API groups are ignored, whatever their kind."""

    others = {"apiVersion": "example.com/v1", "kind": "MemorySnapshot", "metadata": {"name": "c"}}
    folder.write("a.yaml", {"apiVersion": "v1", "kind": "List", "items": [manifest(), manifest("b"), others]})

    assert in_short(await folder.start()) == [("ADDED", "AgentMemory", "a"), ("ADDED", "AgentMemory", "b")]


async def test_subfolders_are_logged_as_ignored(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    (folder.path / "more").mkdir()

    with caplog.at_level(logging.WARNING):
        await folder.start()

    assert f"{folder.path / 'more'} is ignored" in caplog.text
    assert ".status" not in caplog.text


@pytest.mark.parametrize("spec", [None, 5, "text", [], {"unknown": 1}, {"connectionRef": 5}, {"agent": ["x"]}])
async def test_malformed_spec_is_rejected_by_the_parser(folder: Folder, spec: Any) -> None:
    folder.write("a.yaml", manifest(spec=spec))

    (event,) = await folder.start()

    assert ObjectTable().put(event[1]) is True
    with pytest.raises(SpecInvalid):
        parse_agent_memory(event[1])


@pytest.mark.parametrize(
    "reference", [{"name": "infra/main"}, {"name": "a" * 300}, {"name": "main", "namespace": "../x"}]
)
def test_invalid_reference_implies_no_connection(
    tmp_path: pathlib.Path, reference: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "m" / ".status").mkdir(parents=True)
    (tmp_path / "m" / "a.yaml").write_text(yaml.safe_dump(manifest(spec={"connectionRef": reference})))

    events = ManifestFolder(tmp_path / "m", implies_connections=True, identify=lambda: "c").scan()

    assert [event[1]["kind"] for event in events] == ["AgentMemory"]
    assert "metadata.name" in caplog.text or "metadata.namespace" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


async def test_record_outside_the_folder_is_ignored(folder: Folder) -> None:
    (folder.path / ".status").mkdir()
    planted = manifest(metadata={"name": "a", "namespace": "../../planted"})
    (folder.path / ".status" / "x.json").write_text(json.dumps(planted))

    assert await folder.start() == []


def secret(**more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": "agents"}} | more


@pytest.mark.parametrize(
    "content",
    [
        {"stringData": {"k": "s3cret"}},
        {"data": {"k": base64.b64encode(b"s3cret\n").decode()}},
        {"stringData": {"k": "s3cret"}, "data": {"k": "b2xk"}},
    ],
)
async def test_secret_manifest_is_read_without_event(folder: Folder, content: dict[str, Any]) -> None:
    folder.write("s.yaml", secret(**content))

    assert await folder.start() == []
    found = await folder.adapter.read_secret("agents", "keys")
    assert found == AnnotatedSecret({"k": "s3cret"})
    assert "s3cret" not in repr(found)


async def test_secret_manifest_restricts_hosts(folder: Folder) -> None:
    document = secret(stringData={"k": "v"})
    document["metadata"]["annotations"] = {HOSTS_ANNOTATION: "api.openai.com"}
    folder.write("s.yaml", document)
    await folder.start()

    assert await folder.adapter.read_secret("agents", "keys") == AnnotatedSecret({"k": "v"}, "api.openai.com")


@pytest.mark.parametrize(
    ("content", "name", "found"),
    [
        ({}, "keys", AnnotatedSecret({})),
        ({"stringData": {"k": "v"}}, "others", None),
        ({"data": {"k": "not base64!", "l": "dg=="}}, "keys", AnnotatedSecret({"l": "v"})),
        ({"data": {"k": "/w=="}}, "keys", AnnotatedSecret({})),
        ({"data": {"k": 7}}, "keys", AnnotatedSecret({})),
        ({"data": ["k"], "stringData": "k"}, "keys", AnnotatedSecret({})),
    ],
)
async def test_invalid_secret_values_are_left_out(
    folder: Folder, content: dict[str, Any], name: str, found: AnnotatedSecret | None
) -> None:
    folder.write("s.yaml", secret(**content))
    await folder.start()

    assert await folder.adapter.read_secret("agents", name) == found


async def test_removed_manifest_removes_the_secret(folder: Folder) -> None:
    folder.write("s.yaml", secret(stringData={"k": "v"}))
    await folder.start()
    (folder.path / "s.yaml").unlink()
    folder.adapter.scan()

    assert await folder.adapter.read_secret("agents", "keys") is None


async def test_events_are_logged_by_type(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    metadata = Metadata(name="a", namespace="agents")

    with caplog.at_level(logging.INFO):
        await folder.adapter.post_event("AgentMemory", metadata, Event("Normal", "Applied", "done"))
        await folder.adapter.post_event("AgentMemory", metadata, Event("Warning", "CollectionKept", "kept"))

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "AgentMemory agents/a: Applied: done"),
        ("WARNING", "AgentMemory agents/a: CollectionKept: kept"),
    ]


async def test_cluster_id_comes_from_identify(folder: Folder) -> None:
    assert await ManifestFolder(folder.path, identify=lambda: "other").cluster_id() == "other"
    with pytest.raises(TransientError, match="without a cluster ID"):
        await folder.adapter.cluster_id()


@contextlib.asynccontextmanager
async def following(folder: Folder) -> AsyncIterator[AsyncIterator[list[WATCH_EVENT]]]:
    events = folder.adapter.follow()
    try:
        yield events
    finally:
        await events.aclose()  # type: ignore[attr-defined]


async def test_change_is_reported_within_a_second(folder: Folder) -> None:
    folder.write("a.yaml", manifest())
    async with following(folder) as events:
        await anext(events)
        coming = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.05)
        folder.write("a.yaml", manifest(spec={"connectionRef": {"name": "other"}}))

        (event,) = await asyncio.wait_for(coming, 1)

    assert (event[0], metadata_of(event).generation) == ("MODIFIED", 2)


async def test_namespace_labels_include_the_name_label(folder: Folder) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "agents", "labels": {"tier": "gold"}}}
    folder.write("a.yaml", namespace, manifest())

    await folder.start()

    assert await folder.adapter.labels("agents") == {"tier": "gold", "kubernetes.io/metadata.name": "agents"}
    assert await folder.adapter.labels("other") == {"kubernetes.io/metadata.name": "other"}


def snapshot(name: str = "s") -> dict[str, Any]:
    """Return a MemorySnapshot as a schedule makes it."""
    metadata = {"name": name, "namespace": "default", "labels": {"agentmemory.dev/agent-memory": "a"}}
    spec = {"agentMemoryRef": {"name": "a"}}
    return {"apiVersion": API, "kind": "MemorySnapshot", "metadata": metadata, "spec": spec}


async def test_created_object_is_reported_as_added(folder: Folder) -> None:
    await folder.start()

    assert await folder.adapter.create_object(snapshot())

    event, document = await asyncio.wait_for(folder.adapter.next_caused_event(), 1)
    assert (event, document["metadata"]["name"]) == ("ADDED", "s")
    assert document["metadata"]["labels"] == {"agentmemory.dev/agent-memory": "a"}
    assert document["metadata"]["uid"]


async def test_name_is_created_once(folder: Folder) -> None:
    await folder.start()
    await folder.adapter.create_object(snapshot())

    assert not await folder.adapter.create_object(snapshot())


async def test_created_object_survives_a_restart(folder: Folder) -> None:
    await folder.start()
    await folder.adapter.create_object(snapshot())
    event = await folder.adapter.next_caused_event()
    await folder.adapter.write_status("MemorySnapshot", metadata_of(event), {"agent": "a"})

    (again,) = await folder.start()

    assert in_short([again]) == [("ADDED", "MemorySnapshot", "s")]
    assert again[1]["status"] == {"agent": "a"}


async def test_created_object_can_be_deleted(folder: Folder) -> None:
    await folder.start()
    await folder.adapter.create_object(snapshot())
    event = await folder.adapter.next_caused_event()

    await folder.adapter.delete_object("MemorySnapshot", metadata_of(event))

    assert in_short([await folder.adapter.next_caused_event()]) == [("DELETED", "MemorySnapshot", "s")]


async def test_created_object_of_another_uid_is_kept(folder: Folder) -> None:
    await folder.start()
    await folder.adapter.create_object(snapshot())
    event = await folder.adapter.next_caused_event()

    await folder.adapter.delete_object("MemorySnapshot", metadata_of(event).model_copy(update={"uid": "before"}))

    assert folder.adapter.scan() == []
    assert await folder.adapter.read_object("MemorySnapshot", "default", "s")


async def test_read_uses_the_current_manifest(folder: Folder) -> None:
    """A change found by a read is still reported as an event."""

    folder.write("a.yaml", manifest())
    await folder.start()
    assert (await folder.adapter.read_object("AgentMemory", "default", "a"))["spec"] == manifest()["spec"]

    (folder.path / "a.yaml").unlink()
    with pytest.raises(NotFound):
        await folder.adapter.read_object("AgentMemory", "default", "a")

    assert in_short([await asyncio.wait_for(folder.adapter.next_caused_event(), 1)]) == [
        ("DELETED", "AgentMemory", "a")
    ]
    assert await folder.start() == []


async def test_object_of_a_manifest_is_not_deleted(folder: Folder) -> None:
    folder.write("a.yaml", manifest())
    (event,) = await folder.start()

    await folder.adapter.delete_object("AgentMemory", metadata_of(event))

    assert folder.adapter.scan() == []

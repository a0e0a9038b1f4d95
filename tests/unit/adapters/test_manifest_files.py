"""ManifestFiles: objects of commands in the folder of a development stack."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agentmemory_operator.adapters.folder.manifest_files import ManifestFiles
from agentmemory_operator.adapters.folder.manifest_folder import ManifestFolder
from agentmemory_operator.controllers.rules.starter_manifests import render_connection, render_memory
from agentmemory_operator.errors import AgentMemoryError, NotFound
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION, CLEANUP_REQUESTED_AT, Metadata

SNAPSHOT = "MemorySnapshot"


def document(name: str = "now", kind: str = SNAPSHOT, namespace: str = "agents") -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": {"agentMemoryRef": {"name": "bot"}}}


def named(name: str = "now") -> Metadata:
    return Metadata(name=name, namespace="agents")


def test_created_object_reaches_the_stack(tmp_path: Path) -> None:
    files, stack = ManifestFiles(tmp_path), ManifestFolder(tmp_path)
    (tmp_path / ".status").mkdir()

    created = asyncio.run(files.create_object(document()))
    ((event, taken),) = stack.scan()
    metadata = Metadata.model_validate(taken["metadata"])
    asyncio.run(stack.write_status(SNAPSHOT, metadata, {"name": "a.snapshot"}))
    found = asyncio.run(files.read_object(SNAPSHOT, "agents", "now"))

    assert created
    assert event == "ADDED"
    assert found["metadata"]["uid"] == taken["metadata"]["uid"]
    assert found["status"] == {"name": "a.snapshot"}


def test_existing_name_creates_nothing(tmp_path: Path) -> None:
    files = ManifestFiles(tmp_path)
    assert asyncio.run(files.create_object(document()))

    assert not asyncio.run(files.create_object(document()))


def test_list_includes_objects_of_the_stack(tmp_path: Path) -> None:
    (tmp_path / ".status").mkdir()
    files, stack = ManifestFiles(tmp_path), ManifestFolder(tmp_path)
    asyncio.run(files.create_object(document("mine")))
    asyncio.run(files.create_object(document("elsewhere", namespace="shop")))
    asyncio.run(stack.create_object(document("scheduled")))

    listed = asyncio.run(files.list_in(SNAPSHOT, "agents"))

    assert sorted(found["metadata"]["name"] for found in listed) == ["mine", "scheduled"]


def test_deleted_object_leaves_the_stack(tmp_path: Path) -> None:
    (tmp_path / ".status").mkdir()
    files, stack = ManifestFiles(tmp_path), ManifestFolder(tmp_path)
    asyncio.run(files.create_object(document()))
    stack.scan()

    asyncio.run(files.delete_object(SNAPSHOT, named()))

    assert [event for event, _ in stack.scan()] == ["DELETED"]
    with pytest.raises(NotFound, match="there is no MemorySnapshot agents/now"):
        asyncio.run(files.read_object(SNAPSHOT, "agents", "now"))


def test_recreated_object_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / ".status").mkdir()
    files, stack = ManifestFiles(tmp_path), ManifestFolder(tmp_path)
    asyncio.run(files.create_object(document()))
    ((_, first),) = stack.scan()
    asyncio.run(files.delete_object(SNAPSHOT, Metadata.model_validate(first["metadata"])))
    stack.scan()
    asyncio.run(files.create_object(document()))
    stack.scan()

    with pytest.raises(AgentMemoryError, match="agents/now was created again"):
        asyncio.run(files.delete_object(SNAPSHOT, Metadata.model_validate(first["metadata"])))

    assert asyncio.run(files.read_object(SNAPSHOT, "agents", "now"))


def test_annotation_reaches_the_stack(tmp_path: Path) -> None:
    (tmp_path / ".status").mkdir()
    files, stack = ManifestFiles(tmp_path), ManifestFolder(tmp_path)
    asyncio.run(files.create_object(document()))
    stack.scan()

    asyncio.run(files.annotate(SNAPSHOT, named(), {"agentmemory.dev/pin": "yes"}))

    ((_, changed),) = stack.scan()
    assert changed["metadata"]["annotations"] == {"agentmemory.dev/pin": "yes"}


def test_foreign_manifest_is_not_changed(tmp_path: Path) -> None:
    theirs = tmp_path / "mine.yaml"
    pinned = document()
    pinned["metadata"]["annotations"] = {"agentmemory.dev/pin": "no"}
    before = f"# why\n{json.dumps(pinned)}\n"
    theirs.write_text(before)

    for call in (
        ManifestFiles(tmp_path).delete_object(SNAPSHOT, named()),
        ManifestFiles(tmp_path).annotate(SNAPSHOT, named(), {"agentmemory.dev/pin": "yes"}),
    ):
        with pytest.raises(AgentMemoryError, match="agentmemory did not write"):
            asyncio.run(call)
    assert theirs.read_text() == before


ASKED = {CLEANUP_REQUESTED_AT: "2026-11-27T00:00:00Z"}
AGENT = Metadata(name="bot", namespace="default")


@pytest.fixture
def initialised(tmp_path: Path) -> Path:
    """Folder with the files that `agentmemory init` writes."""
    (tmp_path / "connection.yaml").write_text(render_connection())
    (tmp_path / "bot.yaml").write_text(render_memory("bot", "brain"))
    return tmp_path


def annotations_of(events: list[tuple[str, dict[str, Any]]]) -> list[dict[str, str]]:
    return [taken["metadata"]["annotations"] for _, taken in events if taken["kind"] == "AgentMemory"]


def test_annotation_leaves_the_manifest_unchanged(initialised: Path) -> None:
    files, stack = ManifestFiles(initialised), ManifestFolder(initialised)
    before = (initialised / "bot.yaml").read_text()
    (initialised / ".status").mkdir()
    stack.scan()

    asyncio.run(files.annotate("AgentMemory", AGENT, ASKED))
    asyncio.run(files.annotate("AgentMemory", AGENT, {"agentmemory.dev/approve-plan": "abc"}))
    events = stack.scan()

    assert [event for event, _ in events] == ["MODIFIED"]
    assert annotations_of(events) == [ASKED | {"agentmemory.dev/approve-plan": "abc"}]
    assert events[0][1]["metadata"]["generation"] == 1
    assert (initialised / "bot.yaml").read_text() == before
    assert asyncio.run(files.read_object("AgentMemory", "default", "bot"))["metadata"]["annotations"][
        CLEANUP_REQUESTED_AT
    ]
    asyncio.run(files.annotate("AgentMemory", AGENT, {"agentmemory.dev/approve-plan": None}))
    assert annotations_of(stack.scan()) == [ASKED]
    assert stack.scan() == []


def test_watch_reports_an_annotation(initialised: Path) -> None:
    async def annotations() -> list[dict[str, str]]:
        changes = ManifestFolder(initialised).follow()
        await anext(changes)
        waiting = asyncio.ensure_future(anext(changes))
        # The file system watch starts with a short delay.
        while not waiting.done():
            await ManifestFiles(initialised).annotate("AgentMemory", AGENT, ASKED)
            await asyncio.wait([waiting], timeout=0.5)
        return annotations_of(waiting.result())

    assert asyncio.run(asyncio.wait_for(annotations(), 60)) == [ASKED]


def test_annotations_live_as_long_as_their_object(initialised: Path) -> None:
    """Annotations survive a restart of the stack."""

    (initialised / ".status").mkdir()
    asyncio.run(ManifestFiles(initialised).annotate("AgentMemory", AGENT, ASKED))
    stack, manifest = ManifestFolder(initialised), (initialised / "bot.yaml").read_text()
    assert annotations_of(stack.scan()) == [ASKED]

    (initialised / "bot.yaml").unlink()
    assert [event for event, _ in stack.scan()] == ["DELETED"]
    (initialised / "bot.yaml").write_text(manifest)

    assert annotations_of(stack.scan()) == [{}]


def test_link_as_annotation_folder_is_rejected(initialised: Path, tmp_path: Path) -> None:
    (initialised / ".status").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (initialised / ".status" / "annotations").symlink_to(elsewhere)

    with pytest.raises(AgentMemoryError, match="is a link"):
        asyncio.run(ManifestFiles(initialised).annotate("AgentMemory", AGENT, ASKED))

    assert list(elsewhere.iterdir()) == []


def test_scheduled_snapshot_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / ".status").mkdir()
    asyncio.run(ManifestFolder(tmp_path).create_object(document()))

    with pytest.raises(AgentMemoryError, match="created by the snapshot schedule of the development stack"):
        asyncio.run(ManifestFiles(tmp_path).delete_object(SNAPSHOT, named()))


@pytest.mark.parametrize(
    ("namespaces", "default"), [(("agents",), "agents"), (("agents", "shop"), "default"), ((), "default")]
)
def test_default_namespace_is_that_of_all_agents(tmp_path: Path, namespaces: tuple[str, ...], default: str) -> None:
    for number, namespace in enumerate(namespaces):
        asyncio.run(ManifestFiles(tmp_path).create_object(document(f"bot-{number}", "AgentMemory", namespace)))

    assert ManifestFiles(tmp_path).default_namespace == default

"""`agentmemory plan`: preview the effect of applying manifests."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from agentmemory_operator.collections.rules.changes import CreateCollection
from agentmemory_operator.collections.rules.desired import connection_name, newest_collection
from agentmemory_operator.collections.rules.estimate import MIB, Estimate, estimates, layout_of
from agentmemory_operator.connections.resolve import Sharing, connection_missing
from agentmemory_operator.controllers.inspection import (
    CollectionTarget,
    PassPreview,
    PreviewOutcome,
    preview_passes,
    worst_outcome,
)
from agentmemory_operator.controllers.rules.applied_annotations import with_kept_annotations
from agentmemory_operator.controllers.rules.plan_text import (
    describe_compression,
    describe_layout,
    describe_payload_memory,
    plan_status,
)
from agentmemory_operator.entrypoints.cli.composition import QdrantAccess
from agentmemory_operator.entrypoints.cli.endpoints import connection_endpoint, endpoint_at
from agentmemory_operator.entrypoints.cli.look.status_view import PLAN_COLUMNS, change_rows
from agentmemory_operator.entrypoints.cli.look.validate import check_manifests
from agentmemory_operator.entrypoints.cli.options import Files, Output, Recursive, TableOrJson, print_json
from agentmemory_operator.entrypoints.cli.run import exit_on_error, run_command
from agentmemory_operator.entrypoints.cli.tables import Section, show
from agentmemory_operator.errors import NotFound
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, QDRANT_CONNECTION
from agentmemory_operator.spec.effective.embedding import effective_embedding, with_default_embedding
from agentmemory_operator.spec.effective.settings import effective_tuning
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.connection import QdrantConnection
from agentmemory_operator.spec.kinds.parse import parse_agent_memory, parse_connection
from agentmemory_operator.spec.naming import alias_of

DEFAULT_NAMESPACE = "default"
CONTEXT_HELP = "kubeconfig context to read connections and their keys from. Default: none."
NAMESPACE_HELP = "Namespace of manifests without one. Default: the context's, else default."


def add_plan(cli: typer.Typer, inspection: QdrantAccess) -> None:
    """Add `plan` to a command line."""

    @cli.command()
    def plan(  # each is an option
        paths: Files,
        is_recursive: Recursive = False,
        context: Annotated[str | None, typer.Option("--context", help=CONTEXT_HELP)] = None,
        namespace: Annotated[str | None, typer.Option("-n", "--namespace", help=NAMESPACE_HELP)] = None,
        qdrant: Annotated[
            str | None, typer.Option("--qdrant", help="URL of Qdrant. Default: the connections', else QDRANT_URL.")
        ] = None,
        output: Output = TableOrJson.TABLE,
    ) -> None:
        """Preview the changes that manifests would make to their collections.

        With --context, connections come from the files or else from the cluster, with their keys, and approvals in the
        cluster apply. Without --context and --qdrant, the plan is for an empty server. Exit status: 0 no changes,
        2 changes, 3 changes that are refused or wait for approval, 1 an error.
        """
        documents = _documents_in(paths, is_recursive=is_recursive)
        if context is None:
            url = (qdrant or inspection.qdrant_url or "").rstrip("/") or None
            target = f"the Qdrant at {url}" if url else "an empty Qdrant"
            previews = run_command(_on_one(inspection, documents, namespace or DEFAULT_NAMESPACE, url))
        else:
            url = qdrant
            target = f"the connections of context {context}" + (f", at {url}" if url else "")
            previews = run_command(_through(inspection, documents, namespace, context=context, at=qdrant))
        if output is TableOrJson.JSON:
            print_json(plan_document(previews, url))
        else:
            show(plan_sections(previews, target), Console())
        raise typer.Exit(exit_status(previews))


async def _on_one(
    inspection: QdrantAccess, documents: list[Json], namespace: str, url: str | None
) -> list[PassPreview]:
    """Preview the passes against the server at `url`, or against an empty server if it is None."""
    memories, connections = _objects_of([_placed(document, namespace) for document in documents], inspection)
    async with inspection.open_store(endpoint_at(inspection, url)) if url else nullcontext() as store:
        return [preview async for preview in preview_passes(memories, store, connections)]


async def _through(
    inspection: QdrantAccess, documents: list[Json], namespace: str | None, *, context: str, at: str | None
) -> list[PassPreview]:
    """Preview the passes against the servers of the objects' connections.

    Args:
        namespace: Namespace of manifests without one; None uses the context's.
        context: kubeconfig context from which the connections and live objects are read.
        at: URL that replaces those of the connections; None keeps theirs.
    """
    async with inspection.open_objects(context, None) as (objects, default), AsyncExitStack() as stack:
        manifests = [_placed(document, namespace or default) for document in documents]
        memories, connections = _objects_of([await _applied(objects, document) for document in manifests], inspection)
        targets = _Connections(inspection, objects, stack, at, connections)
        return [preview async for preview in preview_passes(memories, None, find_target=targets.of)]


async def _applied(objects: JobObjects, manifest: Json) -> Json:
    """Return the manifest as it will be when applied: with annotations and default embedding of the live object."""
    if manifest["kind"] != AGENT_MEMORY:
        return manifest
    metadata = manifest["metadata"]
    try:
        live = await objects.read_object(AGENT_MEMORY, metadata["namespace"], metadata["name"])
    except NotFound:
        return manifest
    effective = (live.get("status") or {}).get("effective") or {}
    kept_status = {"effective": {"embedding": effective["embedding"]}} if "embedding" in effective else {}
    return with_kept_annotations(manifest, live) | {"status": kept_status}


@dataclass(slots=True)
class _Connections:
    """Connections by name, from the files or else from the cluster. The store of each is opened once.

    Attributes:
        at: URL that replaces those of the connections; None keeps theirs.
        given: Connections of the files. They take precedence over those of the cluster.
    """

    inspection: QdrantAccess
    objects: JobObjects
    stack: AsyncExitStack
    at: str | None
    given: Sequence[QdrantConnection]
    _known: dict[str, QdrantConnection] = field(default_factory=dict)
    _stores: dict[str, CollectionStore] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._known |= {
            f"{connection.metadata.namespace}/{connection.metadata.name}": connection for connection in self.given
        }

    async def of(self, memory: AgentMemory) -> CollectionTarget:
        """Return the store of an object's connection, and the connection.

        Raises:
            SpecInvalid: If the connection does not exist, is invalid, or may not be used from the object's namespace,
                or its Secret is missing or unusable.
            TransientError: If the connection, a Secret or the labels of the namespace cannot be read now.
        """
        full_name = connection_name(memory)
        connection = self._known.get(full_name) or await self._read(full_name)
        await Sharing(self.objects).check(connection, memory.metadata.namespace)
        if full_name not in self._stores:
            endpoint = await connection_endpoint(self.inspection, self.objects, connection, at=self.at)
            self._stores[full_name] = await self.stack.enter_async_context(self.inspection.open_store(endpoint))
        return self._stores[full_name], connection

    async def _read(self, full_name: str) -> QdrantConnection:
        namespace, _, name = full_name.partition("/")
        try:
            document = await self.objects.read_object(QDRANT_CONNECTION, namespace, name)
        except NotFound as exc:
            raise connection_missing(full_name) from exc
        return self._known.setdefault(full_name, parse_connection(document))


def _documents_in(paths: list[Path], *, is_recursive: bool) -> list[dict[str, Any]]:
    """Return the valid documents of this operator's kinds.

    Print errors and skipped folders to standard error.

    Raises:
        typer.Exit: With status 1 if there are errors or no objects, or a path does not exist or cannot be read.
    """
    with exit_on_error():
        found = check_manifests(paths, is_recursive=is_recursive)
    for finding in found.findings:
        typer.echo(str(finding), err=True)
    if found.findings or found.paths.skipped:
        typer.echo(str(found), err=True)
    if found.findings:
        raise typer.Exit(1)
    return [manifest.document for _, manifest in found.valid]


def _objects_of(documents: list[Json], inspection: QdrantAccess) -> tuple[list[AgentMemory], list[QdrantConnection]]:
    """Parse the AgentMemories, with the default embedding, and the QdrantConnections; ignore other kinds."""
    parsed = [parse_agent_memory(document) for document in documents if document["kind"] == AGENT_MEMORY]
    memories = [with_default_embedding(memory, inspection.default_embedding) for memory in parsed]
    return memories, [parse_connection(document) for document in documents if document["kind"] == QDRANT_CONNECTION]


def _placed(document: dict[str, Any], namespace: str) -> dict[str, Any]:
    """Set the namespace of a document that has none."""
    metadata = document["metadata"]
    return document | {"metadata": metadata | {"namespace": metadata.get("namespace") or namespace}}


EXIT_STATUS = {
    PreviewOutcome.UNCHANGED: 0,
    PreviewOutcome.SUSPENDED: 0,
    PreviewOutcome.CHANGES: 2,
    PreviewOutcome.HELD: 3,
    PreviewOutcome.REFUSED: 3,
}
MOODS = {
    PreviewOutcome.UNCHANGED: "good",
    PreviewOutcome.SUSPENDED: "quiet",
    PreviewOutcome.CHANGES: "busy",
    PreviewOutcome.HELD: "bad",
    PreviewOutcome.REFUSED: "bad",
}
COUNTED = {
    PreviewOutcome.UNCHANGED: "as asked",
    PreviewOutcome.SUSPENDED: "suspended",
    PreviewOutcome.CHANGES: "to change",
    PreviewOutcome.HELD: "held",
    PreviewOutcome.REFUSED: "refused",
}

# Maximum number of agents in the heading of a size table.
MAX_LISTED_NAMES = 3


def exit_status(previews: Sequence[PassPreview]) -> int:
    """Return 0 if nothing changes, 2 for changes, 3 if changes are held or an object is refused."""
    return EXIT_STATUS[worst_outcome(previews)]


def plan_document(previews: Sequence[PassPreview], qdrant: str | None) -> dict[str, Any]:
    """Render the plans as JSON.

    Args:
        qdrant: URL of the Qdrant server that was read. None if the plans are for an empty server, or if the servers of
            the connections were read.
    """
    return {
        "qdrant": qdrant,
        "outcome": str(worst_outcome(previews)),
        "plans": [_document(preview) for preview in previews],
    }


def _document(preview: PassPreview) -> dict[str, Any]:
    memory = preview.memory
    document: dict[str, Any] = {
        "namespace": memory.metadata.namespace,
        "name": memory.metadata.name,
        "connection": connection_name(memory),
        "alias": alias_of(memory.slug),
        "outcome": str(preview.outcome),
        "changes": [],
    }
    if preview.refusal:
        reason, message = preview.refusal
        return document | {"reason": reason, "refusal": message}
    if preview.draft is None:
        return document
    document["estimate"] = _sizes(preview)
    if not preview.draft.plan.changes:
        return document
    status = plan_status(preview.draft.plan, preview.draft.refusal)
    rendered = status.model_dump(mode="json", by_alias=True, exclude_none=True) if status else {}
    reason_field = {"reason": preview.draft.refusal.reason} if preview.draft.refusal else {}
    is_new = any(isinstance(change, CreateCollection) for change in preview.draft.plan.changes)
    rendered = {"physical": preview.draft.plan.physical} | rendered | reason_field
    return document | rendered | {"notes": notes_of(memory, is_new=is_new)}


def notes_of(memory: AgentMemory, *, is_new: bool) -> list[str]:
    """Describe the requested layout: the RAM of compressed vectors at the expected number of memories, and of payloads.

    Args:
        is_new: True if the plan creates the collection. Then the first text has the figures of its configuration, and
            the second one its embedding if that is a default.
    """
    desired, embedding = newest_collection(memory, cluster_id=""), effective_embedding(memory)
    layout = layout_of(desired)
    layout_note = describe_layout(desired) if is_new else None
    default_note = (
        f"spec.embedding is not set: planned with {embedding.provider} {embedding.model}. "
        "Unless the status has one, the operator uses its own default: set AGENTMEMORY_DEFAULT_EMBEDDING to it here"
    )
    texts = (
        layout_note,
        default_note if is_new and memory.spec.embedding is None else None,
        describe_compression(layout, effective_tuning(memory).expected_memories),
        describe_payload_memory(layout),
    )
    return [text for text in texts if text]


def plan_sections(previews: Sequence[PassPreview], against: str) -> list[Section]:
    """Render the plans, and a summary as the last section.

    Args:
        against: Description of the servers that were read.
    """
    counts = Counter(preview.outcome for preview in previews)
    totals = ", ".join(f"{counts[outcome]} {text}" for outcome, text in COUNTED.items() if counts[outcome])
    summary = f"Against {against}: {totals or 'no AgentMemory'}. Nothing was changed."
    return [*map(_section, previews), *_size_sections(previews), Section(summary, MOODS[worst_outcome(previews)])]


def _section(preview: PassPreview) -> Section:
    document = _document(preview)
    physical = document.get("physical", document["alias"])
    title = f"AgentMemory {document['namespace']}/{document['name']}, collection {physical}"
    digest = f", digest {document['digest']}" if "digest" in document else ""
    rows = change_rows(document["changes"])
    return Section(
        f"{title}: {preview.outcome}{digest}",
        MOODS[preview.outcome],
        PLAN_COLUMNS if rows else (),
        rows,
        notes=(*((document["refusal"],) if "refusal" in document else ()), *document.get("notes", ())),
    )


def _sizes(preview: PassPreview) -> list[dict[str, Any]]:
    """Estimate the size of one copy of the collection, as configured and for each profile; empty without a draft."""
    goal = preview.draft.goal if preview.draft else None
    if goal is None:
        return []
    rows = estimates(goal, effective_tuning(preview.memory).expected_memories)
    return [{"profile": profile, "sizes": [_size(*item) for item in sizes.items()]} for profile, sizes in rows.items()]


def _size(memories: int, size: Estimate) -> dict[str, int]:
    return {"memories": memories, "ramMiB": math.ceil(size.ram / MIB), "diskMiB": math.ceil(size.disk / MIB)}


def _size_sections(previews: Sequence[PassPreview]) -> Iterator[Section]:
    """Yield a table for each distinct estimate, with the names of up to `MAX_LISTED_NAMES` agents that have it."""
    names_by_estimate: dict[str, list[str]] = {}
    for preview in previews:
        memory = preview.memory.metadata
        names_by_estimate.setdefault(json.dumps(_sizes(preview)), []).append(f"{memory.namespace}/{memory.name}")
    for text, names in names_by_estimate.items():
        rows = json.loads(text)
        if not rows:
            continue
        listed = ", ".join(names[:MAX_LISTED_NAMES]) + (
            f" and {len(names) - MAX_LISTED_NAMES} more" if names[MAX_LISTED_NAMES:] else ""
        )
        columns = ("PROFILE", *(f"{size['memories']:,} MEMORIES" for size in rows[0]["sizes"]))
        yield Section(f"Size of one copy, estimated: {listed}", "", columns, tuple(map(_size_row, rows)))


def _size_row(row: dict[str, Any]) -> tuple[str, ...]:
    return (row["profile"], *(f"RAM {size['ramMiB']} MiB, disk {size['diskMiB']} MiB" for size in row["sizes"]))

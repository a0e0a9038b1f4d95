"""`agentmemory orphans`: list the collections without an owner, with the commands to adopt or delete them."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console

from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.controllers.inspection import OrphanReport, find_orphans
from agentmemory_operator.controllers.rules.orphans import CollectionSummary, Orphan, OrphanKind, slug_of_collection
from agentmemory_operator.entrypoints.cli.composition import QdrantAccess
from agentmemory_operator.entrypoints.cli.endpoints import connection_endpoint, dev_endpoint, endpoint_at
from agentmemory_operator.entrypoints.cli.job_commands import JobsLocation, add_verb, run_on_jobs
from agentmemory_operator.entrypoints.cli.options import Output, QdrantUrl, TableOrJson, print_json
from agentmemory_operator.entrypoints.cli.tables import Section, show
from agentmemory_operator.errors import SpecInvalid, StoreRejected, StoreUnavailable
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.runtime.object_table import QDRANT_CONNECTION
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from agentmemory_operator.spec.kinds.parse import parse_connection
from agentmemory_operator.spec.presets import DEFAULT_PRESET, PRESETS


@dataclass(frozen=True, slots=True)
class ServerReport:
    """Result of the search for orphans on one server.

    Attributes:
        connection: Namespace and name of the QdrantConnection; None if only a URL was given.
        has_key: True if an API key was used.
        findings: Result, or None if the server could not be queried.
        error: Error message if the server could not be queried, else empty.
    """

    url: str
    connection: tuple[str, str] | None
    has_key: bool
    findings: OrphanReport | None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """List collections that no AgentMemory owns, with the commands to adopt or delete each."""

    connection: Annotated[
        str | None, typer.Option(help="QdrantConnection as [NAMESPACE/]NAME. Default: all of the cluster.")
    ] = None
    qdrant: QdrantUrl = None
    output: Output = TableOrJson.TABLE


def add_orphans(cli: typer.Typer, inspection: QdrantAccess) -> None:
    """Add `orphans` to a command line."""
    add_verb(cli, "orphans", Orphans, partial(_run, inspection))


def _run(inspection: QdrantAccess, options: Orphans, location: JobsLocation) -> None:
    if options.connection and location.manifests:
        raise typer.BadParameter("--connection names one of a cluster: in a folder, give --qdrant URL")
    query = _in_folder if location.manifests else _in_cluster
    servers = run_on_jobs(inspection.open_objects, location, partial(query, inspection, options))
    if options.output is TableOrJson.JSON:
        print_json(orphans_document(servers))
    else:
        show(orphans_sections(servers), Console())
    raise typer.Exit(any(server.findings is None for server in servers))


async def _in_folder(inspection: QdrantAccess, options: Orphans, objects: JobObjects, _: str) -> list[ServerReport]:
    return [await _query(inspection, objects, dev_endpoint(inspection, options.qdrant), None)]


async def _in_cluster(
    inspection: QdrantAccess, options: Orphans, objects: JobObjects, default: str
) -> list[ServerReport]:
    if options.qdrant and options.connection is None:
        return [await _query(inspection, objects, endpoint_at(inspection, options.qdrant), None)]
    servers: dict[str, ServerReport] = {}
    for document in await _connections(objects, options.connection, default):
        url = options.qdrant or document["spec"]["url"]
        if url not in servers:
            servers[url] = await _through(inspection, objects, document, options.qdrant)
    return list(servers.values())


async def _connections(objects: JobObjects, full_name: str | None, default: str) -> list[Json]:
    if full_name is None:
        return (await objects.list_objects(QDRANT_CONNECTION))[0]
    namespace, _, name = full_name.rpartition("/")
    return [await objects.read_object(QDRANT_CONNECTION, namespace or default, name)]


async def _through(inspection: QdrantAccess, objects: JobObjects, document: Json, qdrant: str | None) -> ServerReport:
    """Query the server of a connection.

    The result contains an invalid connection or an error of the server as a message.

    Args:
        qdrant: URL that replaces the connection's; None keeps that.

    Raises:
        TransientError: If a Secret of the connection or an object cannot be read now.
    """
    name = (document["metadata"]["namespace"], document["metadata"]["name"])
    url = qdrant or document["spec"]["url"]
    try:
        endpoint = await connection_endpoint(inspection, objects, parse_connection(document), at=qdrant)
        return await _query(inspection, objects, endpoint, name)
    except (SpecInvalid, StoreRejected, StoreUnavailable) as exc:
        return ServerReport(url, name, False, None, f"{exc}; if it has another address from here, set --qdrant URL")


async def _query(
    inspection: QdrantAccess, objects: JobObjects, endpoint: Endpoint, connection: tuple[str, str] | None
) -> ServerReport:
    async with inspection.open_store(endpoint) as store:
        findings = await find_orphans(objects, store)
    return ServerReport(endpoint.url, connection, endpoint.api_key is not None, findings)


COLUMNS = ("COLLECTION", "ALIAS", "POINTS", "WHOSE IT WAS", "SINCE", "WHY")
WHY = {
    OrphanKind.OBJECT_GONE: "its AgentMemory was deleted",
    OrphanKind.UNMARKED: "it has no ownership marker",
    OrphanKind.UNREFERENCED: "no alias points to it",
}
UNKNOWN = "-"
ANY_CONNECTION, ANY_NAMESPACE = "CONNECTION", "NAMESPACE"


def orphans_document(servers: Sequence[ServerReport]) -> dict[str, Any]:
    """Render the findings as JSON: for each server an error, or its orphans with commands to adopt and delete them."""
    return {"servers": [_document(server) for server in servers]}


def _document(server: ServerReport) -> dict[str, Any]:
    connection = {"connection": "/".join(server.connection)} if server.connection else {}
    document = {"qdrant": server.url} | connection
    if server.findings is None:
        return document | {"error": server.error}
    entries = [_entry(orphan, server) for orphan in server.findings.orphans]
    return document | {"orphans": entries, "otherClusters": server.findings.foreign}


def _entry(orphan: Orphan, server: ServerReport) -> dict[str, Any]:
    summary = orphan.collection
    return {
        "collection": summary.physical,
        "aliases": list(summary.aliases),
        "points": summary.points,
        "owner": (f"{summary.marker.namespace}/{summary.marker.name}" if summary.marker else None),
        "since": _since(orphan, server),
        "reason": str(orphan.kind),
        "adopt": adopt_command(orphan, server.connection),
        "delete": delete_command(summary, server),
    }


def orphans_sections(servers: Sequence[ServerReport]) -> list[Section]:
    """Render the findings: a table per server, then the commands for each collection."""
    return [section for server in servers for section in _sections(server)]


def _sections(server: ServerReport) -> list[Section]:
    connection = f" (QdrantConnection {'/'.join(server.connection)})" if server.connection else ""
    if server.findings is None:
        return [Section(f"Qdrant {server.url}{connection} could not be queried", "bad", notes=(server.error,))]
    entries = [_entry(orphan, server) for orphan in server.findings.orphans]
    rows = tuple(map(_row, server.findings.orphans, entries))
    foreign = server.findings.foreign
    notes = (f"{foreign} more belong to another cluster: check there",) if foreign else ()
    heading = f"Qdrant {server.url}{connection}: {len(rows) or 'no'} orphan{'' if len(rows) == 1 else 's'}"
    table = Section(heading, "busy" if rows else "good", COLUMNS if rows else (), rows, notes=notes)
    return [table, *map(_commands, entries)]


def _row(orphan: Orphan, entry: dict[str, Any]) -> tuple[str, ...]:
    aliases = ", ".join(entry["aliases"]) or UNKNOWN
    owner, since = entry["owner"] or UNKNOWN, entry["since"] or UNKNOWN
    return entry["collection"], aliases, str(entry["points"]), owner, since, WHY[orphan.kind]


def _commands(entry: dict[str, Any]) -> Section:
    adopt = (f"adopt:  {entry['adopt']}",) if entry["adopt"] else ()
    return Section(entry["collection"], "quiet", commands=(*adopt, f"delete: {entry['delete']}"))


def _since(orphan: Orphan, server: ServerReport) -> str | None:
    marker = orphan.collection.marker
    if marker is None or server.findings is None or orphan.kind is not OrphanKind.OBJECT_GONE:
        return None
    return server.findings.event_times.get((marker.namespace, marker.name))


def delete_command(collection: CollectionSummary, server: ServerReport) -> str:
    """Return the curl command that deletes a collection permanently, with the key in QDRANT_API_KEY if one was used."""
    key = ' -H "api-key: $QDRANT_API_KEY"' if server.has_key else ""
    return f"curl -X DELETE{key} {shlex.quote(f'{server.url}/collections/{collection.physical}')}"


def adopt_command(orphan: Orphan, connection: tuple[str, str] | None) -> str | None:
    """Return the command that gives a collection an owner; None if its object exists and uses another collection."""
    if orphan.kind is OrphanKind.UNREFERENCED:
        return None
    manifest = adopting_manifest(orphan.collection, connection)
    return f"echo {shlex.quote(json.dumps(manifest))} | kubectl apply -f -"


def adopting_manifest(collection: CollectionSummary, connection: tuple[str, str] | None) -> dict[str, Any]:
    """Build an AgentMemory manifest that adopts a collection: name of the last owner, and the collection's shape.

    Unknown values are placeholders in capitals to be filled in, such as the connection. Without a recorded embedding,
    `provider: none` lets callers send the vectors.

    Args:
        connection: Namespace and name of the QdrantConnection to refer to; None if unknown.
    """
    marker, slug = collection.marker, slug_of_collection(collection)
    namespace, name = (marker.namespace, marker.name) if marker else (ANY_NAMESPACE, slug)
    if marker is None and connection:
        namespace = connection[0]
    embedding = _embedding(marker.embedding) if marker else {"provider": "none", "dimensions": collection.size}
    connection_namespace, connected = connection or (namespace, ANY_CONNECTION)
    ref_namespace = {"namespace": connection_namespace} if connection_namespace != namespace else {}
    spec: dict[str, Any] = {"connectionRef": {"name": connected} | ref_namespace}
    spec |= {"agent": slug} if slug != name else {}
    spec |= {"embedding": embedding}
    default_distance = PRESETS[DEFAULT_PRESET][-1].distance
    spec |= {"index": {"distance": collection.distance}} if collection.distance != default_distance else {}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": "AgentMemory", "metadata": metadata, "spec": spec}


def _embedding(source: EmbeddingSource) -> dict[str, Any]:
    """Build the `embedding` block of a spec from the recorded embedding."""
    secret = {"name": source.secret_name, "key": source.secret_key} if source.secret_name else None
    prefixes = source.prefixes and asdict(source.prefixes)
    fields = {
        "model": source.model,
        "prefixes": prefixes,
        "dimensions": source.dimensions,
        "baseURL": source.base_url,
        "secretRef": secret,
    }
    return {"provider": source.provider} | {name: value for name, value in fields.items() if value is not None}

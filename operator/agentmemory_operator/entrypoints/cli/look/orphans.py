"""`agentmemory orphans`: the collections that nothing owns."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.controllers.inspection import find_orphans
from agentmemory_operator.entrypoints.cli.composition import Inspection
from agentmemory_operator.entrypoints.cli.endpoints import dev_endpoint, endpoint_at, endpoint_through
from agentmemory_operator.entrypoints.cli.jobs import JobsPlace, add_verb, in_place
from agentmemory_operator.entrypoints.cli.look.orphans_view import AskedServer, orphans_document, orphans_sections
from agentmemory_operator.entrypoints.cli.options import Output, ReachedAt, TableOrJson, print_json
from agentmemory_operator.entrypoints.cli.tables import show
from agentmemory_operator.errors import SpecInvalid, StoreRejected, StoreUnavailable
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.runtime.cache import QDRANT_CONNECTION
from agentmemory_operator.spec.kinds.parse import parse_connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """List collections that no AgentMemory owns, with the commands to adopt or delete each."""

    connection: Annotated[
        str | None, typer.Option(help="QdrantConnection as [NAMESPACE/]NAME. Default: all of the cluster.")
    ] = None
    qdrant: ReachedAt = None
    output: Output = TableOrJson.TABLE


def add_orphans(cli: typer.Typer, inspection: Inspection) -> None:
    """Add the verb to the command line."""
    add_verb(cli, "orphans", Orphans, partial(_run, inspection))


def _run(inspection: Inspection, asked: Orphans, place: JobsPlace) -> None:
    look = _in_folder if place.manifests else _in_cluster
    servers = in_place(inspection.open_objects, place, partial(look, inspection, asked))
    if asked.output is TableOrJson.JSON:
        print_json(orphans_document(servers))
    else:
        show(orphans_sections(servers), Console())
    raise typer.Exit(any(server.findings is None for server in servers))


async def _in_folder(inspection: Inspection, asked: Orphans, objects: JobObjects, _: str) -> list[AskedServer]:
    """One server stands in for every connection's."""
    return [await _asked(inspection, objects, dev_endpoint(inspection, asked.qdrant), None)]


async def _in_cluster(inspection: Inspection, asked: Orphans, objects: JobObjects, default: str) -> list[AskedServer]:
    if asked.qdrant and asked.connection is None:
        return [await _asked(inspection, objects, endpoint_at(inspection, asked.qdrant), None)]
    servers: dict[str, AskedServer] = {}
    for document in await _connections(objects, asked.connection, default):
        url = asked.qdrant or document["spec"]["url"]
        if url not in servers:
            servers[url] = await _through(inspection, objects, document, asked.qdrant)
    return list(servers.values())


async def _connections(objects: JobObjects, named: str | None, default: str) -> list[Json]:
    if named is None:
        return (await objects.list_objects(QDRANT_CONNECTION))[0]
    namespace, _, name = named.rpartition("/")
    return [await objects.read_object(QDRANT_CONNECTION, namespace or default, name)]


async def _through(inspection: Inspection, objects: JobObjects, document: Json, qdrant: str | None) -> AskedServer:
    """Ask the server of a connection, at another URL where one is given; what is wrong with it is told."""
    name = (document["metadata"]["namespace"], document["metadata"]["name"])
    url = qdrant or document["spec"]["url"]
    try:
        endpoint = await endpoint_through(inspection, objects, parse_connection(document), at=qdrant)
        return await _asked(inspection, objects, endpoint, name)
    except (SpecInvalid, StoreRejected, StoreUnavailable) as exc:
        return AskedServer(url, name, False, None, f"{exc}; if it has another address from here, set --qdrant URL")


async def _asked(
    inspection: Inspection, objects: JobObjects, endpoint: Endpoint, connection: tuple[str, str] | None
) -> AskedServer:
    async with inspection.open_store(endpoint) as store:
        findings = await find_orphans(objects, store)
    return AskedServer(endpoint.url, connection, endpoint.api_key is not None, findings)

"""The verbs that look at a Qdrant and change nothing: plan, orphans."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer
from rich.console import Console

from agentmemory_operator.connections.link import DEFAULT_TIMEOUT_S, Endpoint, endpoint_of
from agentmemory_operator.connections.secret_hosts import GuardedSecrets
from agentmemory_operator.controllers.orphans import find_orphans
from agentmemory_operator.controllers.preview import PassPreview, previews_of
from agentmemory_operator.entrypoints.cli.orphans_view import AskedServer, orphans_document, orphans_sections
from agentmemory_operator.entrypoints.cli.plan_view import exit_status, plan_document, plan_sections
from agentmemory_operator.entrypoints.cli.run import ending_in_one_line, run_verb
from agentmemory_operator.entrypoints.cli.tables import show
from agentmemory_operator.entrypoints.cli.validate import checked
from agentmemory_operator.errors import SpecInvalid, StoreRejected, StoreUnavailable
from agentmemory_operator.ports.collections import CollectionCatalogue, CollectionStore
from agentmemory_operator.ports.kubernetes import ObjectReader
from agentmemory_operator.runtime.cache import AGENT_MEMORY, QDRANT_CONNECTION
from agentmemory_operator.settings import SecretHosts
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.connection import QdrantConnection
from agentmemory_operator.spec.kinds.parse import parse_agent_memory, parse_connection


class Store(CollectionStore, CollectionCatalogue, Protocol):
    """The collections of a server, one by one and as a whole."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What main composes for the verbs that only look.

    Attributes:
        open_store: opens the collections of a server.
        open_cluster: opens a context of the kubeconfig, None is the current one; gives its namespace too.
        qdrant_url, qdrant_api_key: the server that the environment names.
        secret_hosts: what becomes of a Secret that does not list where its value goes; None lets it go there.
    """

    open_store: Callable[[Endpoint], AbstractAsyncContextManager[Store]]
    open_cluster: Callable[[str | None], AbstractAsyncContextManager[tuple[ObjectReader, str]]]
    qdrant_url: str | None
    qdrant_api_key: str | None
    secret_hosts: SecretHosts | None = None

    def endpoint_at(self, url: str) -> Endpoint:
        """The endpoint of a server given by its URL, with the key of the environment."""
        return Endpoint(url.rstrip("/"), self.qdrant_api_key, DEFAULT_TIMEOUT_S)


class TableOrJson(StrEnum):
    """How the answer is printed."""

    TABLE = "table"
    JSON = "json"


class TableJsonOrYaml(StrEnum):
    """How the answer is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Files = Annotated[
    list[Path],
    typer.Option("-f", "--filename", help="A manifest, a folder of them, or - for standard input; repeatable."),
]
Recursive = Annotated[bool, typer.Option("-R", "--recursive", help="Look into the folders of a folder too.")]
QdrantUrl = Annotated[str | None, typer.Option("--qdrant", help="URL of the server. Default: QDRANT_URL.")]
Output = Annotated[TableOrJson, typer.Option("-o", "--output", help="For people, or for programs.")]


Context = Annotated[str | None, typer.Option("--context", help="Of the kubeconfig. Default: the current one.")]


def add_inspection(cli: typer.Typer, inspection: Inspection) -> None:
    """Add the verbs to the command line."""
    _add_plan(cli, inspection)
    _add_orphans(cli, inspection)


def _add_plan(cli: typer.Typer, inspection: Inspection) -> None:
    @cli.command()
    def plan(
        paths: Files,
        is_recursive: Recursive = False,
        qdrant: QdrantUrl = None,
        namespace: Annotated[str, typer.Option("-n", "--namespace", help="Of manifests that name none.")] = "default",
        output: Output = TableOrJson.TABLE,
    ) -> None:
        """Show what applying manifests would do to a Qdrant, an empty one if none is named; change nothing.

        Exit status: 0 nothing to do, 2 changes, 3 something held or refused, 1 an error.
        """
        url = (qdrant or inspection.qdrant_url or "").rstrip("/") or None
        memories, connections = _objects_in(paths, namespace, is_recursive=is_recursive)
        opening = inspection.open_store(inspection.endpoint_at(url)) if url else nullcontext()
        previews = run_verb(_previews(memories, connections, opening))
        if output is TableOrJson.JSON:
            print_json(plan_document(previews, url))
        else:
            show(plan_sections(previews, url), Console())
        raise typer.Exit(exit_status(previews))


async def _previews(
    memories: list[AgentMemory],
    connections: list[QdrantConnection],
    opening: AbstractAsyncContextManager[CollectionStore | None],
) -> list[PassPreview]:
    async with opening as store:
        return [preview async for preview in previews_of(memories, store, connections)]


def _add_orphans(cli: typer.Typer, inspection: Inspection) -> None:
    @cli.command()
    def orphans(
        connection: Annotated[
            str | None, typer.Option(help="NAMESPACE/NAME of a QdrantConnection. Default: each of the cluster.")
        ] = None,
        qdrant: Annotated[
            str | None, typer.Option(help="URL of the server, where a connection's is out of reach.")
        ] = None,
        context: Context = None,
        output: Output = TableOrJson.TABLE,
    ) -> None:
        """List the collections that no AgentMemory owns, with the commands to adopt or delete each; change nothing."""
        servers = run_verb(_servers(inspection, connection, qdrant, context))
        if output is TableOrJson.JSON:
            print_json(orphans_document(servers))
        else:
            show(orphans_sections(servers), Console())
        raise typer.Exit(any(server.findings is None for server in servers))


async def _servers(
    inspection: Inspection, connection: str | None, qdrant: str | None, context: str | None
) -> list[AskedServer]:
    async with inspection.open_cluster(context) as (reader, default):
        if qdrant and connection is None:
            return [await _asked(inspection, reader, inspection.endpoint_at(qdrant), None)]
        wanted = [await _connection(reader, connection, default)] if connection else await _connections(reader)
        servers: dict[str, AskedServer] = {}
        for document in wanted:
            url = qdrant or document["spec"]["url"]
            if url not in servers:
                servers[url] = await _through(inspection, reader, document, qdrant)
        return list(servers.values())


async def _connections(reader: ObjectReader) -> list[dict[str, Any]]:
    return (await reader.list_objects(QDRANT_CONNECTION))[0]


async def _connection(reader: ObjectReader, named: str, default: str) -> dict[str, Any]:
    namespace, _, name = named.rpartition("/")
    return await reader.read_object(QDRANT_CONNECTION, namespace or default, name)


async def _through(
    inspection: Inspection, reader: ObjectReader, document: dict[str, Any], qdrant: str | None
) -> AskedServer:
    """Ask the server of a connection, at another URL where one is given; what is wrong with it is told."""
    name = (document["metadata"]["namespace"], document["metadata"]["name"])
    url = qdrant or document["spec"]["url"]
    try:
        secrets = GuardedSecrets(reader, inspection.secret_hosts)
        endpoint = await endpoint_of(parse_connection(document), secrets, at=qdrant, has_nodes=False)
        return await _asked(inspection, reader, endpoint, name)
    except (SpecInvalid, StoreRejected, StoreUnavailable) as exc:
        return AskedServer(url, name, False, None, f"{exc}; is it reached elsewhere from here? Give --qdrant URL")


async def _asked(
    inspection: Inspection, reader: ObjectReader, endpoint: Endpoint, connection: tuple[str, str] | None
) -> AskedServer:
    async with inspection.open_store(endpoint) as store:
        findings = await find_orphans(reader, store)
    return AskedServer(endpoint.url, connection, endpoint.api_key is not None, findings)


def _objects_in(
    paths: list[Path], namespace: str, *, is_recursive: bool
) -> tuple[list[AgentMemory], list[QdrantConnection]]:
    """The AgentMemories and QdrantConnections of the files; errors end it as they end `validate`."""
    with ending_in_one_line():
        found = checked(paths, is_recursive=is_recursive)
    for finding in found.findings:
        typer.echo(str(finding), err=True)
    if found.findings or found.paths.skipped:
        typer.echo(str(found), err=True)
    if found.findings:
        raise typer.Exit(1)
    documents = [placed(manifest.document, namespace) for _, manifest in found.ours]
    memories = [parse_agent_memory(one) for one in documents if one["kind"] == AGENT_MEMORY]
    return memories, [parse_connection(one) for one in documents if one["kind"] == QDRANT_CONNECTION]


def placed(document: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The document in its namespace, or in the given one where it names none."""
    metadata = document["metadata"]
    return document | {"metadata": metadata | {"namespace": metadata.get("namespace") or namespace}}


def print_json(document: Any) -> None:
    """Print a document for programs."""
    typer.echo(json.dumps(document, indent=2))

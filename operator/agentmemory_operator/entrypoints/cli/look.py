"""What the verbs share that look at objects and their Qdrant: where the server is, with which key; and `validate`."""

from pathlib import Path
from typing import Any

import typer

from agentmemory_operator.connections.link import DEFAULT_TIMEOUT_S, Endpoint, endpoint_of
from agentmemory_operator.connections.secret_hosts import GuardedSecrets
from agentmemory_operator.entrypoints.cli.composition import Inspection
from agentmemory_operator.entrypoints.cli.options import Files, Recursive
from agentmemory_operator.entrypoints.cli.run import ending_in_one_line
from agentmemory_operator.entrypoints.cli.validate import checked, warnings_in
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.ports.kubernetes import SecretSource
from agentmemory_operator.runtime.cache import AGENT_MEMORY, QDRANT_CONNECTION
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.connection import QdrantConnection
from agentmemory_operator.spec.kinds.parse import parse_agent_memory, parse_connection


def endpoint_at(inspection: Inspection, url: str) -> Endpoint:
    """The endpoint of a server given by its URL, with the key of the environment."""
    return Endpoint(url.rstrip("/"), inspection.qdrant_api_key, DEFAULT_TIMEOUT_S)


def dev_endpoint(inspection: Inspection, qdrant: str | None) -> Endpoint:
    """The server of the development stack, which stands in for every connection's.

    Raises:
        AgentMemoryError: nobody said where it is.
    """
    url = qdrant or inspection.qdrant_url
    if url is None:
        raise AgentMemoryError("give --qdrant URL: the one that `agentmemory dev` prints")
    return endpoint_at(inspection, url)


async def endpoint_through(
    inspection: Inspection, objects: SecretSource, connection: QdrantConnection, *, at: str | None
) -> Endpoint:
    """The endpoint of a connection with its key, at another URL where one is given.

    Raises:
        SpecInvalid: its Secret is missing, or may not be sent there.
    """
    return await endpoint_of(connection, GuardedSecrets(objects, inspection.secret_hosts), at=at, has_nodes=False)


def add_checks(cli: typer.Typer) -> None:
    """Add the verb to the command line."""

    @cli.command()
    def validate(paths: Files, is_recursive: Recursive = False) -> None:
        """Check manifests as strictly as the API server would; exit 1 where something is wrong."""
        with ending_in_one_line():
            found = checked(paths, is_recursive=is_recursive)
        for finding in found.findings:
            typer.echo(str(finding))
        if not found.findings:
            for warning in warnings_in(found):
                typer.echo(f"warning: {warning}", err=True)
        typer.echo(str(found))
        raise typer.Exit(bool(found.findings))


def documents_in(paths: list[Path], *, is_recursive: bool) -> list[dict[str, Any]]:
    """Our objects in the files; errors end it as they end `validate`."""
    with ending_in_one_line():
        found = checked(paths, is_recursive=is_recursive)
    for finding in found.findings:
        typer.echo(str(finding), err=True)
    if found.findings or found.paths.skipped:
        typer.echo(str(found), err=True)
    if found.findings:
        raise typer.Exit(1)
    return [manifest.document for _, manifest in found.ours]


def objects_of(documents: list[dict[str, Any]], namespace: str) -> tuple[list[AgentMemory], list[QdrantConnection]]:
    """The AgentMemories and QdrantConnections among them, in a namespace where they name none."""
    put = [placed(document, namespace) for document in documents]
    memories = [parse_agent_memory(one) for one in put if one["kind"] == AGENT_MEMORY]
    return memories, [parse_connection(one) for one in put if one["kind"] == QDRANT_CONNECTION]


def placed(document: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The document in its namespace, or in the given one where it names none."""
    metadata = document["metadata"]
    return document | {"metadata": metadata | {"namespace": metadata.get("namespace") or namespace}}

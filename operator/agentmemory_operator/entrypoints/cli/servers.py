"""Commands that run a server: convert their options to calls."""

from collections.abc import Awaitable
from pathlib import Path
from typing import Annotated

import typer

from agentmemory_operator.entrypoints.cli.composition import (
    AgentSource,
    ApiOptions,
    DevOptions,
    OperatorOptions,
    ServerCommands,
)
from agentmemory_operator.entrypoints.cli.options import DATA
from agentmemory_operator.entrypoints.cli.run import run_command

Namespaces = Annotated[
    list[str] | None, typer.Option("--namespace", help="Namespace to watch; repeatable. Default: all.")
]
LeaseNamespace = Annotated[
    str | None,
    typer.Option(help="Namespace of the operator's lease and claims. Default: the pod's, outside a cluster default."),
]
ApiNamespace = Annotated[
    str | None, typer.Option(help="Namespace of the API and its keys. Default: the pod's, outside a cluster default.")
]
Port = Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 picks a free one.")]


def add_servers(cli: typer.Typer, servers: ServerCommands) -> None:
    """Add `operator`, `api`, `dev` and `devserver` to a command line."""
    _add_operator(cli, servers)
    _add_api(cli, servers)
    _add_development(cli, servers)


def _add_operator(cli: typer.Typer, servers: ServerCommands) -> None:
    @cli.command()
    def operator(
        namespace: Namespaces = None,
        lease_namespace: LeaseNamespace = None,
        api_namespace: ApiNamespace = None,
        health_port: Annotated[
            int | None,
            typer.Option(
                min=0, max=65_535, help="Port of /healthz, /readyz and /metrics. Default: 8081 in a cluster, else none."
            ),
        ] = None,
    ) -> None:
        """Run the operator, in a cluster or with a kubeconfig. Only the replica that holds the lease is active."""
        namespaces = tuple(namespace or ())
        options = OperatorOptions(
            namespaces=namespaces, lease_namespace=lease_namespace, api_namespace=api_namespace, health_port=health_port
        )
        run_command(servers.operator(options))


def _add_api(cli: typer.Typer, servers: ServerCommands) -> None:
    @cli.command()
    def api(  # noqa: PLR0913 # each is an option
        host: Annotated[
            str | None, typer.Option(help="Address to listen on. Default: all in a cluster, else loopback.")
        ] = None,
        port: Port = 8080,
        source: Annotated[
            AgentSource, typer.Option(help="Source of the AgentMemory objects.")
        ] = servers.default_source,
        manifests: Annotated[
            Path | None,
            typer.Option(exists=True, file_okay=False, help="Folder of manifests; required with --source files."),
        ] = None,
        data: Annotated[
            Path | None,
            typer.Option(
                file_okay=False, help=f"Data folder of `agentmemory dev`; only with --source files. Default: {DATA}."
            ),
        ] = None,
        namespace: Namespaces = None,
        lease_namespace: LeaseNamespace = None,
        api_namespace: ApiNamespace = None,
        tls_cert: Annotated[
            Path | None, typer.Option(help="Certificate for https, a PEM file; read again when it changes.")
        ] = None,
        tls_key: Annotated[Path | None, typer.Option(help="Key of the certificate, a PEM file.")] = None,
    ) -> None:
        """Run the retrieval API."""
        if (tls_cert is None) != (tls_key is None):
            raise typer.BadParameter("--tls-cert and --tls-key need each other")
        options = ApiOptions(
            host=host,
            port=port,
            namespaces=tuple(namespace or ()),
            lease_namespace=lease_namespace,
            api_namespace=api_namespace,
            tls=(tls_cert, tls_key) if tls_cert and tls_key else None,
        )
        run_command(_serve_api(servers, options, source, manifests, data))


def _serve_api(
    servers: ServerCommands, options: ApiOptions, source: AgentSource, manifests: Path | None, data: Path | None
) -> Awaitable[None]:
    if source is AgentSource.KUBERNETES:
        if data is not None or manifests is not None:
            raise typer.BadParameter("--manifests and --data are only valid with --source files")
        return servers.api_kubernetes(options)
    if options.namespaces or options.lease_namespace or options.api_namespace:
        raise typer.BadParameter("--namespace, --lease-namespace and --api-namespace need --source kubernetes")
    if manifests is None:
        raise typer.BadParameter("--source files needs --manifests DIR")
    return servers.api_files(options, manifests, data or DATA)


def _add_development(cli: typer.Typer, servers: ServerCommands) -> None:
    @cli.command()
    def dev(
        manifests: Annotated[
            Path | None,
            typer.Option(
                exists=True,
                file_okay=False,
                help="Folder of manifests to watch. Default: one in your user data folder, with an agent.",
            ),
        ] = None,
        data: Annotated[
            Path | None,
            typer.Option(
                file_okay=False,
                help=f"Folder for the memories and their owners. Default: {DATA}; without --manifests, your user data"
                " folder.",
            ),
        ] = None,
        port: Port = 8080,
        qdrant: Annotated[
            str | None, typer.Option(help="URL of a Qdrant server to use in place of the development one.")
        ] = None,
        *,
        verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Log the steps of the stack.")] = False,
    ) -> None:
        """Run a development stack in one process: Qdrant, operator and API for a folder of manifests."""
        options = DevOptions(manifests=manifests, data=data, port=port, qdrant=qdrant, is_verbose=verbose)
        run_command(servers.dev(options))

    @cli.command()
    def devserver(
        data: Annotated[Path, typer.Option(file_okay=False, help="Folder for the collections.")],
        port: Port = 6333,
        version: Annotated[str, typer.Option("--qdrant-version", help="Qdrant version to report.")] = "1.18.3",
    ) -> None:
        """Run the development Qdrant server alone."""
        run_command(servers.devserver(data, port, version))

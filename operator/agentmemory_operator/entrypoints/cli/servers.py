"""The verbs that serve: options to calls."""

from pathlib import Path
from typing import Annotated

import typer

from agentmemory_operator.entrypoints.cli.composition import AgentSource, ApiOptions, OperatorOptions, Serving
from agentmemory_operator.entrypoints.cli.options import DATA
from agentmemory_operator.entrypoints.cli.run import run_verb

Manifests = Annotated[Path, typer.Option(exists=True, file_okay=False, help="Folder of manifests; watched.")]
Namespaces = Annotated[
    list[str] | None, typer.Option("--namespace", help="Watch only this one; repeatable. Default: all.")
]
LeaseNamespace = Annotated[
    str | None,
    typer.Option(help="Where the operator's lease and claims lie. Default: the pod's namespace; outside: default."),
]
ApiNamespace = Annotated[
    str | None,
    typer.Option(help="Where the API runs and finds its keys. Default: the pod's namespace; outside: default."),
]
Port = Annotated[int, typer.Option(min=0, max=65_535, help="0 is any free one.")]


def add_servers(cli: typer.Typer, servers: Serving) -> None:
    """Add the verbs to the command line."""
    _add_operator(cli, servers)
    _add_api(cli, servers)
    _add_development(cli, servers)


def _add_operator(cli: typer.Typer, servers: Serving) -> None:
    @cli.command()
    def operator(
        namespace: Namespaces = None,
        lease_namespace: LeaseNamespace = None,
        api_namespace: ApiNamespace = None,
        health_port: Annotated[
            int | None,
            typer.Option(min=0, max=65_535, help="Of /healthz, /readyz, /metrics. Default: 8081 in a cluster."),
        ] = None,
    ) -> None:
        """Run the operator, in a cluster or with a kubeconfig; of several, the one that holds the lease works."""
        named = tuple(namespace or ())
        options = OperatorOptions(
            namespaces=named, lease_namespace=lease_namespace, api_namespace=api_namespace, health_port=health_port
        )
        run_verb(servers.operator(options))


def _add_api(cli: typer.Typer, servers: Serving) -> None:
    @cli.command()
    def api(  # noqa: PLR0913 # each is an option
        host: Annotated[str | None, typer.Option(help="Default: loopback, in a cluster every address.")] = None,
        port: Port = 8080,
        source: Annotated[AgentSource, typer.Option(help="Where agents are declared.")] = servers.default_source,
        manifests: Annotated[Path | None, typer.Option(exists=True, file_okay=False)] = None,
        data: Annotated[
            Path | None,
            typer.Option(
                file_okay=False, help=f"With --source files: that of the `dev` that made them. Default: {DATA}."
            ),
        ] = None,
        namespace: Namespaces = None,
        lease_namespace: LeaseNamespace = None,
        api_namespace: ApiNamespace = None,
    ) -> None:
        """Run the retrieval API."""
        options = ApiOptions(
            host=host,
            port=port,
            namespaces=tuple(namespace or ()),
            lease_namespace=lease_namespace,
            api_namespace=api_namespace,
        )
        if source is AgentSource.KUBERNETES and data is not None:
            raise typer.BadParameter(
                "--data is only valid with --source files: a Kubernetes cluster has an ID of its own"
            )
        if source is AgentSource.KUBERNETES:
            run_verb(servers.api_kubernetes(options))
        elif options.namespaces:
            raise typer.BadParameter("--namespace is only valid with --source kubernetes")
        elif manifests is None:
            raise typer.BadParameter("--source files needs --manifests DIR")
        else:
            run_verb(servers.api_files(options, manifests, data or DATA))


def _add_development(cli: typer.Typer, servers: Serving) -> None:
    @cli.command()
    def dev(
        manifests: Manifests,
        data: Annotated[Path, typer.Option(file_okay=False, help="Where the memories lie, and whose they are.")] = DATA,
        port: Port = 8080,
        qdrant: Annotated[str | None, typer.Option(help="A real server in the dev Qdrant's place.")] = None,
    ) -> None:
        """Run everything in one process: dev Qdrant, reconcile of a folder of manifests, API."""
        run_verb(servers.dev(manifests, data, port, qdrant))

    @cli.command()
    def devserver(
        data: Annotated[Path, typer.Option(file_okay=False, help="Where the collections lie.")],
        port: Port = 6333,
        version: Annotated[str, typer.Option("--qdrant-version", help="The version to answer as.")] = "1.18.3",
    ) -> None:
        """Run only the dev Qdrant server."""
        run_verb(servers.devserver(data, port, version))

"""The command line: options to calls. What each verb does lies behind `Verbs`, which main composes."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer._completion_shared import get_completion_script

from agentmemory_operator import __version__
from agentmemory_operator.entrypoints.cli import crds
from agentmemory_operator.entrypoints.cli.approve import add_approve
from agentmemory_operator.entrypoints.cli.ask import Asking, add_asking
from agentmemory_operator.entrypoints.cli.cleanup import Cleanups, add_cleanup
from agentmemory_operator.entrypoints.cli.jobs import OpenJobs
from agentmemory_operator.entrypoints.cli.look import Files, Inspection, Recursive, add_inspection
from agentmemory_operator.entrypoints.cli.preset import add_presets
from agentmemory_operator.entrypoints.cli.rebuild import add_rebuild
from agentmemory_operator.entrypoints.cli.restore import add_restore
from agentmemory_operator.entrypoints.cli.run import ending_in_one_line, run_verb
from agentmemory_operator.entrypoints.cli.snapshot import add_snapshots
from agentmemory_operator.entrypoints.cli.snapshot_download import Downloads
from agentmemory_operator.entrypoints.cli.status import add_status
from agentmemory_operator.entrypoints.cli.takeover import OpenObjects, add_takeover
from agentmemory_operator.entrypoints.cli.transfer import add_transferring
from agentmemory_operator.entrypoints.cli.uninstall import OpenInstalled, add_uninstall
from agentmemory_operator.entrypoints.cli.validate import checked, warnings_in
from agentmemory_operator.spec.kinds.crds import editor_schema

PROGRAM = "agentmemory"
DATA = Path(".agentmemory")
# How `--help` groups the verbs.
PANELS = {
    "Look": {"status", "plan", "validate", "orphans", "preset"},
    "Decide": {"approve", "rebuild", "cleanup", "takeover"},
    "Memories": {"search", "remember", "forget", "receipts", "export", "import"},
    "Snapshots": {"snapshot", "restore"},
    "Run": {"operator", "api", "dev", "devserver"},
    "Install": {"crds", "uninstall", "schema", "completion", "version"},
}


class Shell(StrEnum):
    """Shells that can complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


class AgentSource(StrEnum):
    """Where the API learns of agents."""

    KUBERNETES = "kubernetes"
    FILES = "files"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """Options of the operator.

    Attributes:
        namespaces: those to watch; none is all.
        lease_namespace: None is the pod's own.
        api_namespace: where the retrieval API runs; None is the pod's own.
        health_port: of probes and metrics; None is 8081 in a cluster, and none outside.
    """

    namespaces: tuple[str, ...] = ()
    lease_namespace: str | None = None
    api_namespace: str | None = None
    health_port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """Options of the retrieval API.

    Attributes:
        host: None is loopback, in a cluster every address.
        namespaces: those to watch; none is all.
        api_namespace: where the operator puts what is needed of Secrets; None is the pod's own.
        lease_namespace: where the operator keeps its lease and the claims; None is the pod's own.
    """

    host: str | None
    port: int
    namespaces: tuple[str, ...] = ()
    lease_namespace: str | None = None
    api_namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Verbs:
    """What main composes: each runs until it is stopped."""

    operator: Callable[[OperatorOptions], Awaitable[None]]
    api_kubernetes: Callable[[ApiOptions], Awaitable[None]]
    api_files: Callable[[ApiOptions, Path, Path], Awaitable[None]]
    dev: Callable[[Path, Path, int, str | None], Awaitable[None]]
    devserver: Callable[[Path, int, str], Awaitable[None]]
    default_source: AgentSource
    inspection: Inspection
    cleanups: Cleanups
    open_objects: OpenObjects
    open_jobs: OpenJobs
    downloads: Downloads
    asking: Asking
    open_installed: OpenInstalled


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


def build_cli(verbs: Verbs) -> typer.Typer:
    """The command `agentmemory`."""
    cli = typer.Typer(
        name=PROGRAM,
        help="Long-term memory of AI agents as Kubernetes objects.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    _add_version(cli)
    _add_operator(cli, verbs)
    _add_api(cli, verbs)
    _add_development(cli, verbs)
    _add_checks(cli)
    add_inspection(cli, verbs.inspection)
    add_status(cli, verbs.open_jobs)
    add_asking(cli, verbs.asking, verbs.inspection)
    add_transferring(cli, verbs.asking, verbs.inspection)
    add_approve(cli, verbs.open_jobs)
    add_cleanup(cli, verbs.cleanups)
    add_snapshots(cli, verbs.open_jobs, verbs.downloads)
    add_restore(cli, verbs.open_jobs)
    add_rebuild(cli, verbs.open_jobs)
    add_takeover(cli, verbs.open_objects)
    add_uninstall(cli, verbs.open_installed)
    add_presets(cli)
    _add_printers(cli)
    for verb in cli.registered_commands:
        verb.rich_help_panel = _panel_of(str(verb.name or getattr(verb.callback, "__name__", "")))
    for group in cli.registered_groups:
        group.rich_help_panel = _panel_of(str(group.name))
    return cli


def _panel_of(verb: str) -> str:
    return next(panel for panel, verbs in PANELS.items() if verb in verbs)


def _add_version(cli: typer.Typer) -> None:
    def tell(is_asked: bool) -> None:  # an option's callback
        if is_asked:
            typer.echo(__version__)
            raise typer.Exit

    @cli.callback()
    def main(
        _: Annotated[bool, typer.Option("--version", callback=tell, is_eager=True, help="Print the version.")] = False,
    ) -> None:
        """Do nothing before a verb."""


def _add_operator(cli: typer.Typer, verbs: Verbs) -> None:
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
        run_verb(verbs.operator(options))


def _add_api(cli: typer.Typer, verbs: Verbs) -> None:
    @cli.command()
    def api(  # noqa: PLR0913 # each is an option
        host: Annotated[str | None, typer.Option(help="Default: loopback, in a cluster every address.")] = None,
        port: Port = 8080,
        source: Annotated[AgentSource, typer.Option(help="Where agents are declared.")] = verbs.default_source,
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
            raise typer.BadParameter("--data is for --source files: Kubernetes itself tells which cluster it is")
        if source is AgentSource.KUBERNETES:
            run_verb(verbs.api_kubernetes(options))
        elif options.namespaces:
            raise typer.BadParameter("--namespace is for --source kubernetes: a folder is served whole")
        elif manifests is None:
            raise typer.BadParameter("--source files needs --manifests DIR")
        else:
            run_verb(verbs.api_files(options, manifests, data or DATA))


def _add_development(cli: typer.Typer, verbs: Verbs) -> None:
    @cli.command()
    def dev(
        manifests: Manifests,
        data: Annotated[Path, typer.Option(file_okay=False, help="Where the memories lie, and whose they are.")] = DATA,
        port: Port = 8080,
        qdrant: Annotated[str | None, typer.Option(help="A real server in the dev Qdrant's place.")] = None,
    ) -> None:
        """Run everything in one process: dev Qdrant, reconcile of a folder of manifests, API."""
        run_verb(verbs.dev(manifests, data, port, qdrant))

    @cli.command()
    def devserver(
        data: Annotated[Path, typer.Option(file_okay=False, help="Where the collections lie.")],
        port: Port = 6333,
        version: Annotated[str, typer.Option("--qdrant-version", help="The version to answer as.")] = "1.18.3",
    ) -> None:
        """Run only the dev Qdrant server."""
        run_verb(verbs.devserver(data, port, version))


def _add_checks(cli: typer.Typer) -> None:
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


def _add_printers(cli: typer.Typer) -> None:
    @cli.command("crds")
    def print_crds(
        write: Annotated[bool, typer.Option("--write", help="Write them into the repository instead.")] = False,
    ) -> None:
        """Print the CustomResourceDefinitions."""
        raise typer.Exit(crds.main(["--write"] if write else []))

    @cli.command()
    def schema() -> None:
        """Print the JSON Schema of the kinds, for editors."""
        typer.echo(json.dumps(editor_schema(), indent=2))

    @cli.command()
    def completion(
        shell: Annotated[Shell, typer.Argument(help="The shell that is to complete.")],
        program: Annotated[str, typer.Option(help="The name that the command is called by.")] = PROGRAM,
    ) -> None:
        """Print what a shell has to read to complete this command: source <(agentmemory completion bash)."""
        variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
        typer.echo(get_completion_script(prog_name=program, complete_var=variable, shell=shell))

    @cli.command()
    def version() -> None:
        """Print the version."""
        typer.echo(__version__)

"""Composition root, which connects each command to the function that runs it.

The modules of a command are imported when it runs, because vendor packages take about a second and tens of MB.
"""

import gc
import io
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from agentmemory_operator.entrypoints.cli.commands import build_cli
from agentmemory_operator.entrypoints.cli.composition import (
    AgentSource,
    ApiAccess,
    CommandDependencies,
    DevOptions,
    QdrantAccess,
    ServerCommands,
    SnapshotAccess,
)
from agentmemory_operator.entrypoints.cli.program import COMPLETE, PROGRAM, called_as, complete_plugin
from agentmemory_operator.entrypoints.cli.stacks import Stacks
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.settings import SettingInvalid, Settings

if TYPE_CHECKING:
    from agentmemory_client import AsyncClient

WRONG_USAGE = 2
RUNNING = "agentmemory_operator.adapters.folder.running_stacks"


def run() -> None:
    """Run the command line; the entry point of `agentmemory` and `kubectl-agentmemory`."""
    _check_arguments()
    with _ending_at_a_setting():
        settings = Settings.from_env(os.environ)
    cli = build_cli(_verbs(settings))
    try:
        cli(prog_name=called_as(), complete_var=COMPLETE)
    except Exception as exc:
        if settings.log_level == "debug":
            raise
        printable_lines = import_module("agentmemory_operator.spec.printable").printable_lines
        if isinstance(exc, OSError):
            sys.exit(f"{PROGRAM}: {printable_lines(str(exc))}")
        message = printable_lines(f"{type(exc).__name__}: {exc}")
        sys.exit(f"{PROGRAM}: unexpected error: {message} (AGENTMEMORY_LOG_LEVEL=debug shows where)")


def _check_arguments() -> None:
    """End the process if an argument is not text; let output replace characters that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    for number, argument in enumerate(sys.argv[1:], 1):
        # Python represents bytes that it cannot decode as lone surrogates.
        if not argument.isprintable() and any("\ud800" <= char <= "\udfff" for char in argument):
            sys.stderr.write(f"{PROGRAM}: argument {number} is not valid {sys.getfilesystemencoding()}: {argument!a}\n")
            sys.exit(WRONG_USAGE)


def complete_for_kubectl() -> None:
    """Print completions in the form that kubectl expects; the entry point of `kubectl_complete-agentmemory`."""
    sys.argv[0] = PROGRAM
    complete_plugin(sys.argv[1:], run)


@contextmanager
def _ending_at_a_setting() -> Iterator[None]:
    """Convert SettingInvalid to a one-line message and exit."""
    try:
        yield
    except SettingInvalid as exc:
        sys.exit(f"{PROGRAM}: {exc}")


def _prepare(settings: Settings) -> None:
    """Check the egress settings and configure logging; all commands but `completion` and `version` do this first."""
    with _ending_at_a_setting():
        _load("egress").build_policy(settings)
    logs = import_module("agentmemory_operator.entrypoints.logs")
    logs.configure_logging(settings.log_level, settings.log_format)


def _serving(settings: Settings) -> ServerCommands:
    return ServerCommands(
        operator=lambda options: _load("operator").run_operator(settings, options),
        api_kubernetes=lambda options: _load("api").run_api_kubernetes(settings, options),
        api_files=lambda options, manifests, data: _load("api_files").run_api_files(settings, options, manifests, data),
        dev=lambda options: _run_dev(settings, options),
        devserver=lambda data, port, version: _load("development").run_devserver(data, port, version),
        default_source=AgentSource.KUBERNETES if has_kubernetes(settings) else AgentSource.FILES,
    )


def _run_dev(settings: Settings, options: DevOptions) -> Awaitable[None]:
    """Run the development stack. Without -v and AGENTMEMORY_LOG_LEVEL, it logs only warnings and errors."""
    level = settings.log_level if os.environ.get("AGENTMEMORY_LOG_LEVEL") else "warning"
    if options.is_verbose and level != "debug":
        level = "info"
    import_module("agentmemory_operator.entrypoints.logs").configure_logging(level, settings.log_format)
    run: Awaitable[None] = _load("development").run_dev(settings, options)
    return run


def _verbs(settings: Settings) -> CommandDependencies:
    url, key = settings.qdrant_url, settings.qdrant_api_key

    def open_jobs(context: str | None, manifests: Path | None) -> Any:
        return _load("stores").open_jobs(context, manifests, settings.cluster_id)

    return CommandDependencies(
        prepare=lambda: _prepare(settings),
        servers=_serving(settings),
        inspection=QdrantAccess(
            lambda endpoint: _load("stores").open_collections(settings, endpoint),
            lambda endpoint: _load("stores").open_points(settings, endpoint),
            open_jobs,
            url,
            key,
            settings.secret_hosts,
            settings.default_embedding,
        ),
        open_jobs=open_jobs,
        downloads=SnapshotAccess(
            lambda endpoint: _load("stores").open_snapshots(settings, endpoint),
            lambda bucket: _load("stores").open_bucket(settings, bucket),
            url,
            key,
            settings.secret_hosts,
        ),
        api_access=ApiAccess(open_client, settings.api_url, settings.token),
        open_installed=lambda context: _load("stores").open_installed(context),
        stacks=Stacks(
            find=lambda: import_module(RUNNING).RunningStacks(settings.user_data).find(),
            has_cluster=has_kubernetes(settings),
            means_cluster=settings.is_in_cluster or called_as() != PROGRAM,
        ),
    )


@asynccontextmanager
async def open_client(url: str, token: str | None) -> "AsyncIterator[AsyncClient]":
    """Open a client of the retrieval API, which retries a call once; close it at the end.

    Raises:
        AgentMemoryError: If URL or token is invalid, or a call inside the context raises ApiError or ApiUnreachable.
    """
    client = import_module("agentmemory_client")
    try:
        created = client.AsyncClient(url, token=token, retries=1)
    except ValueError as exc:
        raise AgentMemoryError(str(exc)) from exc
    try:
        async with created as opened:
            yield opened
    except client.ApiUnreachable as exc:
        raise AgentMemoryError(f"{exc} `{called_as()} dev` starts one on this machine") from exc
    except client.ApiError as exc:
        raise AgentMemoryError(str(exc)) from exc


def _load(name: str) -> ModuleType:
    """Import a module of `main` that a command needs.

    Garbage collection is off during the import, which saves a fifth of the startup time. Later collections skip the
    imported objects, because these stay for the life of the process.
    """
    gc.disable()
    try:
        return import_module(f"agentmemory_operator.main.{name}")
    finally:
        gc.freeze()
        gc.enable()


def has_kubernetes(settings: Settings) -> bool:
    """Return whether the process runs in a cluster, or a kubeconfig file exists."""
    kubeconfig = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    return settings.is_in_cluster or any(Path(part).is_file() for part in kubeconfig.split(os.pathsep))

"""The command line without backends."""

from typing import Any

import typer

from agentmemory_operator.entrypoints.cli.commands import build_cli
from agentmemory_operator.entrypoints.cli.composition import (
    AgentSource,
    ApiAccess,
    CommandDependencies,
    OpenJobs,
    QdrantAccess,
    ServerCommands,
    SnapshotAccess,
)
from agentmemory_operator.entrypoints.cli.stacks import Stacks


def command_line(
    inspection: QdrantAccess | None = None, open_jobs: OpenJobs | None = None, downloads: SnapshotAccess | None = None
) -> typer.Typer:
    """Build the command `agentmemory`. Verbs that need a server or a cluster fail.

    Args:
        inspection: Backends of the read-only verbs.
        open_jobs: Opens the store of MemorySnapshot and MemoryRestore objects.
        downloads: Source of snapshot contents.
    """
    return build_cli(verbs_of(inspection, open_jobs, downloads))


def verbs_of(
    inspection: QdrantAccess | None = None, open_jobs: OpenJobs | None = None, downloads: SnapshotAccess | None = None
) -> CommandDependencies:
    """Build the dependencies of a command line. Those that are not given fail when used."""

    def absent(*_: Any) -> Any:
        raise AssertionError("no server stands behind this command line")

    return CommandDependencies(
        prepare=lambda: None,
        servers=ServerCommands(
            operator=absent,
            api_kubernetes=absent,
            api_files=absent,
            dev=absent,
            devserver=absent,
            default_source=AgentSource.FILES,
        ),
        inspection=inspection or QdrantAccess(absent, absent, absent, None, None),
        open_jobs=open_jobs or absent,
        downloads=downloads or SnapshotAccess(absent, absent),
        api_access=ApiAccess(absent, "http://127.0.0.1:9", None),
        open_installed=absent,
        stacks=Stacks(),
    )

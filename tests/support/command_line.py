"""The command line without what lies behind it."""

from typing import Any

import typer

from agentmemory_operator.entrypoints.asking import Asking
from agentmemory_operator.entrypoints.cleanups import Cleanups
from agentmemory_operator.entrypoints.cli import Source, Verbs, build_cli
from agentmemory_operator.entrypoints.downloads import Downloads
from agentmemory_operator.entrypoints.inspection import Inspection
from agentmemory_operator.entrypoints.jobs import OpenJobs


def command_line(
    inspection: Inspection | None = None, open_jobs: OpenJobs | None = None, downloads: Downloads | None = None
) -> typer.Typer:
    """Return the command `agentmemory`; a verb that needs a server or a cluster fails.

    Args:
        inspection: what the verbs that only look reach all the same.
        open_jobs: where the objects of snapshots and restores are.
        downloads: where the bytes of snapshots are.
    """

    def absent(*_: Any) -> Any:
        raise AssertionError("no server stands behind this command line")

    return build_cli(
        Verbs(
            operator=absent,
            api_kubernetes=absent,
            api_files=absent,
            dev=absent,
            devserver=absent,
            default_source=Source.FILES,
            inspection=inspection or Inspection(absent, absent, None, None),
            cleanups=Cleanups(absent, absent),
            open_objects=absent,
            open_jobs=open_jobs or absent,
            downloads=downloads or Downloads(absent, absent),
            asking=Asking(absent, "http://127.0.0.1:9", None),
        )
    )
